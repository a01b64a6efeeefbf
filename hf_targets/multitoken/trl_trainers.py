"""TRL's trainers with the heads' loss beside their own, from the same pass of the backbone."""

import copy
import functools
import logging
import re
from collections.abc import Sized
from types import MethodType
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hf_targets.backbones.configuration import check_ranges
from hf_targets.backbones.new_parts import split_new_parts, unwrapped
from hf_targets.backbones.wrapping import new_parts_rate
from hf_targets.data.prompts import takes_turns
from hf_targets.extras import require
from hf_targets.multitoken.model import MultiTokenModel
from hf_targets.multitoken.trainer import heads_of
from hf_targets.training.loss_parts import LossParts
from hf_targets.training.streams import StreamLoading

trl: Any = require("trl", extra="sft")
logger = logging.getLogger(__name__)


class _HeadsBesideTrl(StreamLoading):
    """What each of the trainers below adds: heads that are trained, at a rate of their own, and logs of their losses.

    TRL gives a model a `forward` that scores labels from the last hidden states, without logits. This one keeps these
    states and computes the heads' loss from them within the same call, so that wrappers for several processes see it.
    """

    def __init__(
        self,
        model: Any,
        *args: Any,
        head_learning_rate: float | None = None,
        shuffle_buffer_size: int | None = None,
        **kwargs: Any,
    ) -> None:
        self.head_learning_rate, self.shuffle_buffer_size = head_learning_rate, shuffle_buffer_size
        check_ranges(self, {"shuffle_buffer_size": 1})
        self._loss_parts, self._heads_loss, self._num_items = LossParts(), None, None
        core = None if isinstance(model, str) else heads_of(model)
        if core is not None and kwargs.get("peft_config") is not None:
            kwargs["peft_config"] = _with_whole_heads(kwargs["peft_config"], core.new_part)
        dtype = None if core is None else next(core.heads.parameters()).dtype
        cast(Any, super()).__init__(model, *args, **kwargs)
        trainer: Any = self
        core = heads_of(trainer.model)
        if core is None:
            kind = type(unwrapped(trainer.model)).__name__
            raise ValueError(f"{kind} has no heads; put some on it with MultiTokenForCausalLM.from_base(model)")
        if kwargs.get("compute_loss_func") is not None or trainer.args.label_smoothing_factor:
            raise ValueError("compute_loss_func and label_smoothing_factor score logits, not heads; leave them out")
        if not any(parameter.requires_grad for parameter in core.heads.parameters()) and core.config.loss_weight:
            raise ValueError(
                f"loss_weight is {core.config.loss_weight}, and the heads are frozen; under peft name them in "
                f'modules_to_save=["{core.new_part}"]'
            )
        core.heads.to(dtype)  # on a base in 4 or 8 bits TRL has made all that is trained bfloat16
        self._read_by_heads(core)

    def _read_by_heads(self, core: MultiTokenModel) -> None:
        """Let the heads read the last hidden states of each call that TRL makes to train the model."""
        of_trl = core.forward

        @functools.wraps(type(core).forward)
        def forward(model: Any, *args: Any, fused_lm_head: bool = False, **inputs: Any) -> Any:
            if not (fused_lm_head and model.training and torch.is_grad_enabled()):
                return of_trl(*args, fused_lm_head=fused_lm_head, **inputs)
            states: list[Tensor] = []
            reading = model.base_model.register_forward_hook(lambda *call: states.append(call[-1][0]))
            try:
                outputs = of_trl(*args, fused_lm_head=True, **inputs)
            finally:
                reading.remove()
            self._heads_loss = self._loss_of_heads(model, {**inputs, "last_hidden_state": states[0]})
            return outputs

        cast(Any, core).forward = MethodType(forward, core)

    def _loss_of_heads(self, model: MultiTokenModel, inputs: dict[str, Any]) -> Any:
        """Return the output of a call with the heads' loss and its parts."""
        return type(model).forward(model, **inputs, num_items_in_batch=self._num_items)

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Compute TRL's loss, and in training add that of the heads; an evaluation's loss is TRL's."""
        trainer: Any = self
        self._num_items, self._heads_loss = num_items_in_batch, None
        found = cast(Any, super()).compute_loss(model, inputs, return_outputs, num_items_in_batch)
        of_heads, self._heads_loss = self._heads_loss, None
        if of_heads is None:
            return found
        loss, *rest = found if return_outputs else (found,)
        counted, batches = num_items_in_batch is not None, getattr(trainer, "current_gradient_accumulation_steps", 1)
        processes = trainer.accelerator.num_processes if trainer.args.average_tokens_across_devices else 1
        share = processes if counted else 1 / batches  # of the step's loss
        self._loss_parts.keep(of_heads.loss_parts, trainer.state.global_step, share)
        if not counted and not trainer.loss_is_scaled_for_ga:
            share = 1  # Trainer divides by the number of batches
        loss = loss + 2 * share * of_heads.loss  # equation (6) halves the next token's loss, which TRL does not
        return (loss, *rest) if return_outputs else loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log, with the parts of the heads' loss."""
        self._loss_parts.move_to(logs, cast(Any, self))
        cast(Any, super()).log(logs, start_time)

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        """Create the optimizer, with the heads in groups of their own, which may have a rate of their own."""
        trainer: Any = self
        if trainer.optimizer is not None:
            return trainer.optimizer
        rate = self.head_learning_rate
        rate = new_parts_rate(trainer.model, trainer.args.learning_rate) if rate is None else rate
        return split_new_parts(cast(Any, super()).create_optimizer(model), trainer.model, rate)


class MultiTokenSFTTrainer(_HeadsBesideTrl, trl.SFTTrainer):
    """TRL's `SFTTrainer` that also trains the heads of a `MultiTokenForCausalLM`, on the same targets.

    All that `SFTTrainer` does stays: conversations and chat templates, `assistant_only_loss`, packing, streams, LoRA
    (the heads are trained whole beside it), NEFTune, evaluations, whose loss is that of the next token. Each part of
    the heads' loss is logged as `loss_head_1` and so on. With `loss_weight=0` and frozen heads its steps are those
    of `SFTTrainer`, bit for bit.

    Args:
        model: With heads, plain or under peft, or the name or path of one.
        head_learning_rate: Of the heads; None: 1e-3 on a trained model, unless `learning_rate` is higher.
        shuffle_buffer_size: Rows of a stream that are put in random order at a time; None: the stream's own order.
        args, kwargs: Those of `SFTTrainer`.
    Raises:
        ValueError: If the model has no heads, or they are frozen; if the loss is computed from logits
            (`compute_loss_func`, `label_smoothing_factor`); if messages come without a chat template; or if no row
            has a target within `max_length` (TRL leaves out single rows without one, and a warning tells how many).
        ImportError: If TRL is missing.
    Source: Equation (6) of the paper, divided by the weight of the next token, so that TRL's loss counts once.
    """

    _tag_names = ("trl", "hf-targets", "sft-with-heads")

    def __init__(self, model: Any, args: Any = None, *others: Any, **kwargs: Any) -> None:
        given: Any = kwargs.get("train_dataset")
        tokenizer = getattr(kwargs.get("processing_class"), "tokenizer", kwargs.get("processing_class"))
        has_messages = "messages" in (getattr(given, "column_names", None) or ())
        if has_messages and tokenizer is not None and getattr(args, "chat_template_path", None) is None:
            takes_turns(tokenizer, True)
        super().__init__(model, args, *others, **kwargs)
        trainer: Any = self
        rows = trainer.train_dataset
        if isinstance(rows, Sized) and not len(rows):
            raise ValueError(
                "no row has a token that the model is to write within max_length; raise max_length, or give other rows"
            )
        if isinstance(given, Sized) and len(rows) < len(given) and not trainer.args.packing:
            logger.warning(
                "%d of %d rows have no token that the model is to write within max_length=%s: TRL leaves them out. "
                "Raise max_length to train on them.",
                *(len(given) - len(rows), len(given), trainer.args.max_length),
            )


class MultiTokenDPOTrainer(_HeadsBesideTrl, trl.DPOTrainer):
    """TRL's `DPOTrainer` that also trains the heads, on the chosen answers; the loss of preferences stays as it is.

    Args and errors are those of `MultiTokenSFTTrainer`, with the arguments of `DPOTrainer`.
    """

    _tag_names = ("trl", "hf-targets", "dpo-with-heads")

    def _loss_of_heads(self, model: MultiTokenModel, inputs: dict[str, Any]) -> Any:
        chosen = len(inputs["input_ids"]) // 2  # the rejected answers follow
        halves = {name: value[:chosen] if isinstance(value, Tensor) else value for name, value in inputs.items()}
        return super()._loss_of_heads(model, halves)


class MultiTokenGRPOTrainer(_HeadsBesideTrl, trl.GRPOTrainer):
    """TRL's `GRPOTrainer` that also trains the heads, on the sampled answers; the policy's loss stays as it is.

    Args and errors are those of `MultiTokenSFTTrainer`, with the arguments of `GRPOTrainer`.
    """

    _tag_names = ("trl", "hf-targets", "grpo-with-heads")


def _with_whole_heads(config: Any, heads: str) -> Any:
    """Return a configuration of peft under which the heads are trained whole, without adapters."""
    config = copy.copy(config)
    config.modules_to_save = [*{*(config.modules_to_save or ()), heads}]
    config.exclude_modules = config.exclude_modules or rf".*\b{re.escape(heads)}\..*"
    return config
