"""Training and evaluation of models that predict blocks of N words."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.maths.losses import perplexity
from hf_targets.semi_autoregressive.model import SemiAutoregressiveForCausalLM
from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer, num_targets


class SemiAutoregressiveTrainer(TargetTrainer):
    """Trainer of `SemiAutoregressiveForCausalLM`, plain or under peft.

    Data sets have `input_ids`, `labels` and `attention_mask`, as `hf_targets.pack_blocks` makes them. Evaluations
    report `perplexity_1` to `perplexity_N`, those of the n-th next token given the text before the block, and
    `perplexity`, their mean, which the paper calls average perplexity. `perplexity_1` is that of a language model.

    Raises:
        ValueError: If the model is of another class, or labels are to be smoothed.
    Source: Heo and Choi, "Sentence Curve Language Models", section 5.4.
    """

    def __init__(
        self, model: PreTrainedModel | nn.Module, args: TargetTrainingArguments | None = None, **kwargs: Any
    ) -> None:
        if not isinstance(core := unwrapped(model), SemiAutoregressiveForCausalLM):
            raise ValueError(f"the model must be a SemiAutoregressiveForCausalLM, got a {type(core).__name__}")
        if args is not None and args.label_smoothing_factor:
            raise ValueError(
                f"label_smoothing_factor must be 0, got {args.label_smoothing_factor}: Transformers would smooth the "
                "labels of the next word alone"
            )
        super().__init__(model, args, **kwargs)

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the rows' negative log-likelihoods of words 1 to N and their counts (rows, 2N)."""
        outputs = model(**inputs, skip_logits=True)
        sums = torch.cat([outputs.word_nlls.double(), outputs.word_counts.double()], dim=1)
        return outputs.loss, sums, num_targets(self._row_targets(inputs["labels"]))

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the perplexities of words 1 to N, and their mean.

        Raises:
            ValueError: If no text is long enough for a word N.
        """
        nlls, counts = losses.sum(dim=0).chunk(2)
        if not counts.all():
            raise ValueError(f"the perplexity of word {len(counts)} needs texts of {len(counts) + 1} tokens or more")
        each = [perplexity(nll) for nll in (nlls / counts).tolist()]
        found = {f"perplexity_{n}": value for n, value in enumerate(each, start=1)}
        found["perplexity"] = sum(each) / len(each)
        if num_words:
            found["word_perplexity"] = perplexity(nlls[0].item() / num_words)
        return found
