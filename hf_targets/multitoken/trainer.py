"""Training and evaluation of a causal model with future-token heads, or of a plain model as its baseline."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import DataCollatorWithFlattening, PreTrainedModel, default_data_collator, set_seed
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, TrainOutput
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.configuration import check_ranges
from hf_targets.backbones.new_parts import new_parameters, unwrapped
from hf_targets.backbones.packing import check_packing
from hf_targets.evaluation.diversity_callback import GradientDiversityCallback
from hf_targets.maths.ensemble import check_ensemble_weight
from hf_targets.maths.losses import perplexity
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.training.arguments import TargetTrainingArguments
from hf_targets.training.trainer import TargetTrainer, num_targets

HEAD_WARMUP_STEPS = 100
"""By default, for new heads on a trained model."""


def perplexities(nlls: Mapping[str, float], num_tokens: int, num_words: int) -> dict[str, float]:
    """Return token-level and word-level perplexities, exp(NLL / tokens) and exp(NLL / words).

    Args:
        nlls: Negative log-likelihoods of all targets, natural logarithms, by the ends of the names that their
            perplexities get: `perplexity`, `perplexity_0.2` and so on.
        num_tokens: Number of targets.
        num_words: Number of words that the targets form; 0 leaves out those of words, whose names begin with `word_`.
    """
    counts = {"": num_tokens, "word_": num_words}
    return {
        f"{level}perplexity{name}": perplexity(nll / count)
        for level, count in counts.items()
        if count
        for name, nll in nlls.items()
    }


def lowest(nlls: Mapping[float, float]) -> float:
    """Return the setting with the lowest number; NaN is the highest."""
    return min(nlls, key=lambda setting: (math.isnan(nlls[setting]), nlls[setting]))


@dataclass
class MultiTokenTrainingArguments(TargetTrainingArguments):
    """Arguments of `MultiTokenTrainer`."""

    ensemble_weights: list[float] = field(
        default_factory=lambda: [0.0, 0.02, 0.04, 0.08, 0.2, 0.4],
        metadata={
            "help": "Lambdas for which each evaluation reports a perplexity, beside 0, from one pass over the data."
        },
    )
    temperatures: list[float] = field(
        default_factory=lambda: [0.9, 0.95, 1.05, 1.1, 1.2],
        metadata={
            "help": "Temperatures for which each evaluation of a model without heads reports a perplexity, from one "
            "pass over the data: what an ensemble must beat."
        },
    )
    head_warmup_steps: int | None = field(
        default=None,
        metadata={
            "help": "Optimizer steps of a phase before training, in which only the heads are trained; the training "
            "that follows is not shortened. None: 100, and no more than the training has, for new heads on a trained "
            "model; else, under DeepSpeed and with model_init 0."
        },
    )
    head_learning_rate: float | None = field(
        default=None,
        metadata={
            "help": "Learning rate of the heads, in their own phase and in training, each with its schedule; None: "
            "1e-3 on a trained model, unless learning_rate is higher; else learning_rate."
        },
    )

    gradient_diversity_steps: int | None = field(
        default=None,
        metadata={
            "help": "Log the gradient diversity of a step's rows (equation 14) each so many steps; it costs as much as "
            "a step or two. None: never."
        },
    )

    def __post_init__(self) -> None:
        check_ranges(self, {"gradient_diversity_steps": 1, "head_warmup_steps": 0, "head_learning_rate": 0})
        if not self.ensemble_weights:
            raise ValueError("ensemble_weights must name at least one weight, got none; 0 means no ensemble")
        for weight in self.ensemble_weights:
            check_ensemble_weight(weight)
        if not all(temperature > 0 for temperature in self.temperatures):
            raise ValueError(f"temperatures must be above 0, got {self.temperatures}")
        super().__post_init__()

    def for_baseline(self) -> Self:
        """Return a copy for a model without heads, in which the arguments about heads are None."""
        args = super().for_baseline()
        args.head_warmup_steps, args.head_learning_rate = None, None
        return args


def heads_of(model: nn.Module) -> MultiTokenModel | None:
    """Return the model with future-token heads, unwrapped from peft; None if the model is of another class."""
    core = unwrapped(model)
    return core if isinstance(core, MultiTokenModel) else None


def _arguments_of_heads(
    args: MultiTokenTrainingArguments, num_steps: int, learning_rate: float | None
) -> MultiTokenTrainingArguments:
    """Return the arguments of the phase that trains only the heads: it evaluates, saves and reports nothing."""
    args = copy.copy(args)
    args.max_steps, args.head_warmup_steps, args.warmup_steps = num_steps, 0, 0
    if learning_rate is not None:
        args.learning_rate = args.head_learning_rate = learning_rate
    args.eval_strategy, args.save_strategy = IntervalStrategy.NO, SaveStrategy.NO
    args.load_best_model_at_end, args.push_to_hub, args.report_to = False, False, []
    args.eval_on_start, args.cosine_weight, args.gradient_diversity_steps = False, 0.0, None
    return args


class MultiTokenTrainer(TargetTrainer):
    """Trainer of `MultiTokenForCausalLM`, plain or under peft, and of a plain causal model as its baseline.

    It adds to Transformers' Trainer:
    - Each part of the loss is logged by name.
    - An evaluation reports perplexities for all `ensemble_weights`, from one pass over the data; that of a plain model
      for all `temperatures`, and as `perplexity_temperature` the lowest, at `temperature`.
    - The heads may have their own learning rate (`head_learning_rate`); on a trained model they have one by default.
    - A phase before training may train only the heads (`head_warmup_steps`), by default if they are new and the model
      is trained. It has its own optimizer and schedule, and does not change the backbone: the backbone then takes as
      many updates as in plain training, on the same batches.

    Data sets have `input_ids`, `labels` and `attention_mask`, and `num_words` for word-level perplexities, as
    `hf_targets.pack_blocks` makes them. They may also have `messages`, or `prompt` and `completion`, of which the
    assistant's tokens are the targets; `processing_class` is then the tokenizer, and `max_row_length` limits a row.
    `DataCollatorWithFlattening` of Transformers packs rows of training without padding, for a backbone that keeps texts
    apart by `position_ids`, as Llama does.

    Raises:
        ValueError: Before training starts, if the arguments are of another class, a data set has token ids outside the
            model's vocabulary, there are arguments about heads and the model has no heads, rows are packed and the
            backbone does not keep them apart, or `head_warmup_steps` is set under DeepSpeed or with `model_init`.
    """

    args: MultiTokenTrainingArguments
    reads_conversations = True
    takes_pairs = False
    """Whether models have an encoder."""
    warms_up = True
    """Whether new heads on a trained model are trained alone first."""

    def __init__(
        self,
        model: PreTrainedModel | nn.Module | None = None,
        args: MultiTokenTrainingArguments | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, MultiTokenTrainingArguments):
            raise ValueError(f"args must be MultiTokenTrainingArguments, got {type(args).__name__}")
        if not self.takes_pairs and kwargs.get("data_collator") not in (None, default_data_collator):
            self.needed_columns = ("input_ids",)  # the collator may make labels; each batch is looked at
        super().__init__(model=model, args=args, **kwargs)
        core, kind = unwrapped(cast(nn.Module, self.model)), type(self.model).__name__
        self.has_heads = isinstance(core, MultiTokenModel)
        if getattr(getattr(core, "config", None), "is_encoder_decoder", False) and not self.takes_pairs:
            raise ValueError(f"{kind} has an encoder; train it with MultiTokenSeq2SeqTrainer")
        if not self.has_heads and (args.head_warmup_steps or args.head_learning_rate is not None):
            raise ValueError(f"{kind} has no heads; leave out head_warmup_steps and head_learning_rate")
        if not self.takes_pairs:
            check_packing(cast(nn.Module, self.model), self.data_collator)
        if args.head_warmup_steps and self.is_deepspeed_enabled:
            raise ValueError("head_warmup_steps trains one model twice, which DeepSpeed does not allow; leave it out")
        self.weights = list(dict.fromkeys([0.0, *args.ensemble_weights])) if self.has_heads else [0.0]
        if args.gradient_diversity_steps is not None:
            self.add_callback(GradientDiversityCallback(self, args.gradient_diversity_steps))

    @property
    def evaluation_collator(self) -> Any:
        """The collator of evaluations; it pads the rows that training packs, so that each has its own losses."""
        packs = isinstance(self.data_collator, DataCollatorWithFlattening)
        return self._rows.collate if packs and self._rows is not None else super().evaluation_collator

    @property
    def new_parts_learning_rate(self) -> float | None:
        """The heads' own learning rate; None if they use that of the backbone."""
        rate = self.args.head_learning_rate
        return super().new_parts_learning_rate if rate is None else rate

    @property
    def _head_warmup_steps(self) -> int:
        core, steps = heads_of(cast(nn.Module, self.model)), self.args.head_warmup_steps
        if core is None or steps == 0:
            return 0
        parts = new_parameters(core), core.backbone.parameters()
        trained = [any(parameter.requires_grad for parameter in part) for part in parts]
        if steps is not None and not trained[0]:
            raise ValueError(f"head_warmup_steps={steps} trains the heads alone, and they are frozen; leave it out")
        if steps is not None and self.model_init is not None:
            raise ValueError("head_warmup_steps trains a model that model_init makes anew after it; leave it out")
        if steps is not None:
            return steps
        if (
            not self.warms_up
            or self.is_deepspeed_enabled
            or self.model_init is not None
            or not core.heads.are_new
            or not all(trained)
        ):
            return 0
        most = self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]
        return min(HEAD_WARMUP_STEPS, most)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """Run the phase that trains only the heads, if it is set, then train as Trainer does.

        When resuming from a checkpoint that phase is skipped, as it was over before the checkpoint was written.
        """
        if not resume_from_checkpoint and (steps := self._head_warmup_steps):
            self._train_heads_alone(steps)
            set_seed(self.args.seed)  # so that training starts with the same random state as without this phase
        return super().train(resume_from_checkpoint, **kwargs)

    def _train_heads_alone(self, num_steps: int) -> None:
        """Train only the heads for `num_steps` steps, with a separate optimizer and schedule.

        The schedule has the type and the `lr_scheduler_kwargs` of the training's schedule, has no warm-up, and ends
        with the phase. Optimizers and callbacks that were given to this trainer are not used.
        """
        assert self.model is not None
        kind: Any = type("_HeadsAlone", (_HeadsAlone, type(self)), {})  # with this class's loss and batches
        trainer = kind(
            model=self.model,
            args=_arguments_of_heads(self.args, num_steps, self.new_parts_learning_rate),
            train_dataset=self.train_dataset,
            data_collator=self.data_collator,
            processing_class=self.processing_class,
            compute_metrics=self.compute_metrics,
        )
        own = vars(self.model).get("forward")
        trainer.train()
        trainer.accelerator.unwrap_model(trainer.model_wrapped, keep_fp32_wrapper=False)
        # with its own wrapper, accelerate has taken off what is around the method of the class
        vars(self.model).pop("forward", None)
        if own is not None:
            self.model.forward = own

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss as Trainer does; that of a plain model whose labels are not shifted, from its logits.

        BERT, Marian, BART and T5 divide their loss by the targets of a part of a step, whatever the count of the whole.
        """
        if self.shifts_labels or self._model_smooths_labels:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        inputs = {name: value for name, value in inputs.items() if name not in self.count_columns}
        outputs, of_logits = model(**inputs), self.label_smoother or self._loss_of_logits
        loss = of_logits(outputs, inputs["labels"], num_items_in_batch=num_items_in_batch)
        loss = loss * self._loss_scale(num_items_in_batch)
        loss = self._regularized(loss, model, num_items_in_batch)
        return (loss, outputs) if return_outputs else loss

    def row_losses(self, model: nn.Module, inputs: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss, the rows' negative log-likelihoods (rows, weights), and their numbers of targets (rows,)."""
        if not self.has_heads:
            outputs, targets = model(**inputs), self._row_targets(inputs["labels"])
            loss, nlls, counts = self._losses_of(outputs, targets)
            scaled = (outputs.logits.float() / temperature for temperature in self.args.temperatures)
            others = [self._losses_of(ModelOutput(loss=loss, logits=one), targets)[1] for one in scaled]
            return loss, torch.cat([nlls, *others], dim=1), counts
        outputs = model(**inputs, nll_weights=self.weights, skip_logits=True)
        return outputs.loss, outputs.nlls, num_targets(self._row_targets(inputs["labels"]))

    def metrics(self, losses: Tensor, num_tokens: int, num_words: int) -> dict[str, float]:
        """Return the `perplexities` for all ensemble weights, and of a plain model for all temperatures.

        Those of the best weight above 0 and the best temperature are `perplexity_ensemble` and
        `perplexity_temperature`, beside `ensemble_weight` and `temperature`.
        """
        sums, best = losses.sum(dim=0).tolist(), {}
        by_weight = dict(zip(self.weights, sums, strict=False))
        named = {"": by_weight[0.0], **{f"_{weight:g}": nll for weight, nll in by_weight.items()}}
        if ensembles := {weight: nll for weight, nll in by_weight.items() if weight > 0}:
            best["ensemble_weight"] = weight = lowest(ensembles)
            named["_ensemble"] = ensembles[weight]
        if not self.has_heads and self.args.temperatures:
            by_temperature = dict(zip([1.0, *self.args.temperatures], sums, strict=True))
            named |= {f"_at_{temperature:g}": nll for temperature, nll in by_temperature.items()}
            best["temperature"] = temperature = lowest(by_temperature)
            named["_temperature"] = by_temperature[temperature]
        return best | perplexities(named, num_tokens, num_words)


class _HeadsAlone(MultiTokenTrainer):
    """Trainer of the phase that trains only the heads."""

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train with all other parameters frozen; under FSDP none is frozen, as FSDP has fixed that when sharding."""
        assert self.model is not None
        heads = set(map(id, new_parameters(self.model)))
        others = [p for p in self.model.parameters() if p.requires_grad and id(p) not in heads]
        frozen = [] if self.is_fsdp_enabled else others
        for parameter in frozen:
            parameter.requires_grad_(False)
        try:
            return super().train(*args, **kwargs)
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)

    def training_step(self, model: nn.Module, *args: Any, **kwargs: Any) -> Tensor:
        """Compute gradients; under FSDP, where nothing is frozen, drop those of all parameters except the heads'."""
        loss = super().training_step(model, *args, **kwargs)
        if self.is_fsdp_enabled:
            heads = set(map(id, new_parameters(model)))
            for parameter in model.parameters():
                if id(parameter) not in heads:
                    parameter.grad = None
        return loss
