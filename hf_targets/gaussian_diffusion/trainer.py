"""Training and evaluation of Gaussian diffusion models, and the arguments of their Trainer."""

import random
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.gaussian_diffusion.model import PARTS, DifformerForConditionalGeneration
from hf_targets.maths.losses import perplexity
from hf_targets.training.arguments import AveragedTrainingArguments, TokenBatchArguments
from hf_targets.training.averaging import AveragedTrainer
from hf_targets.training.token_batches import TokenBatchLoading
from hf_targets.training.trainer import noise_of_this_process, num_targets


@dataclass
class GaussianDiffusionTrainingArguments(TokenBatchArguments, AveragedTrainingArguments):
    """Arguments of `GaussianDiffusionTrainer`."""

    evaluation_seed: int = field(
        default=0, metadata={"help": "Seed of times and noise in evaluations, 0 or more; all evaluations use the same."}
    )

    def __post_init__(self) -> None:
        if self.evaluation_seed < 0:
            raise ValueError(f"evaluation_seed must be 0 or more, got {self.evaluation_seed}")
        if self.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0, got {self.label_smoothing_factor}; set label_smoothing in the "
                "model's configuration"
            )
        super().__post_init__()


class GaussianDiffusionTrainer(TokenBatchLoading, AveragedTrainer):
    """Trainer of `DifformerForConditionalGeneration`, plain or under peft.

    Data sets have `input_ids`, `attention_mask` and `labels`, as `hf_targets.encode_pairs` makes them. Evaluations
    report `diffusion`, `words` and `length` of a decoder that has read a prediction of its own, at times and with noise
    from `evaluation_seed`, and their weighted sum as `loss`. `perplexity` is exp(words): it compares checkpoints, and
    is no bound on the likelihood of a text.

    Departs: weight decay spares biases and norms, as in all of Transformers; in fairseq it reaches them.

    Args:
        data_collator: None: `DataCollatorForSeq2Seq` of the tokenizer (`processing_class`).
    Raises:
        ValueError: If the model is of another class, or there is neither a collator nor a tokenizer.
    """

    args: GaussianDiffusionTrainingArguments
    made_by = "hf_targets.encode_pairs makes them"
    shifts_labels = False

    def __init__(
        self,
        model: PreTrainedModel | nn.Module,
        args: GaussianDiffusionTrainingArguments,
        *,
        data_collator: Any = None,
        processing_class: PreTrainedTokenizerBase | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(unwrapped(model), DifformerForConditionalGeneration):
            kind = type(unwrapped(model)).__name__
            raise ValueError(f"a GaussianDiffusionTrainer trains DifformerForConditionalGeneration, got {kind}")
        if not isinstance(args, GaussianDiffusionTrainingArguments):
            raise ValueError(f"args must be GaussianDiffusionTrainingArguments, got {type(args).__name__}")
        if data_collator is None:
            if processing_class is None:
                raise ValueError("pairs are padded by the tokenizer; give processing_class=tokenizer")
            data_collator = DataCollatorForSeq2Seq(processing_class)
        super().__init__(model, args, data_collator=data_collator, processing_class=processing_class, **kwargs)
        self._noise: torch.Generator | None = None

    @property
    def _vocab_sizes(self) -> dict[str, int]:
        own = cast(Any, unwrapped(cast(nn.Module, self.model))).config.source_vocab_size
        return super()._vocab_sizes | ({} if own is None else {"input_ids": own})

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients with noise that differs between processes, as Trainer gives all processes the same seed."""
        # Departs: one choice for all processes, as each pass gathers weights where these are sharded; the published
        # program draws in each process
        choice = random.Random(f"{self.args.seed} {self.state.global_step}").random() < 0.5
        with noise_of_this_process(self.args):
            return super().training_step(model, {**inputs, "self_condition": choice}, *args, **kwargs)

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate as Trainer does, with times and noise from `evaluation_seed`."""
        self._noise = torch.Generator().manual_seed(self.args.evaluation_seed + self.args.process_index)
        return super().evaluation_loop(*args, **kwargs)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the parts of each row (rows, 3), summed over its targets, and its number of targets."""
        output = model(**inputs, generator=self._noise, self_condition=True, skip_logits=True)
        return output.loss, cast(Tensor, output.row_losses), num_targets(inputs["labels"])

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the loss and its parts, means over targets, from those of all rows (rows, 3)."""
        parts = dict(zip(PARTS, (losses.sum(dim=0) / num_tokens).tolist(), strict=True))
        weight = unwrapped(cast(nn.Module, self.model)).config.length_loss_weight  # pyright: ignore
        loss = parts["diffusion"] + parts["words"] + weight * parts["length"]
        return {"loss": loss, **parts, "perplexity": perplexity(parts["words"])}
