"""What a Trainer adds to a loss and logs beside it: parts by name, the cosine regularisation, and the time left."""

from collections import defaultdict
from collections.abc import Mapping
from time import monotonic
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PrinterCallback, Trainer, TrainerState

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.weight_access import call_inside, num_rows
from hf_targets.maths.cosine_regularization import check_cosine_weight, pairwise_cosine_penalty


class LossParts:
    """Sums of the parts of a loss since the last log; each is logged as `loss_NAME`, averaged as the loss is."""

    def __init__(self) -> None:
        self._sums: defaultdict[str, Tensor | float] = defaultdict(float)
        self._since = 0

    def clear(self) -> None:
        """Forget what was not logged."""
        self._sums.clear()

    def keep(self, parts: Mapping[str, Tensor], step: int, scale: float = 1.0) -> None:
        """Keep the parts of a batch's loss, scalars, times `scale`; `step` is the number of steps done."""
        if not self._sums:
            self._since = step
        for name, part in parts.items():
            self._sums[name] += part.detach() * scale

    def move_to(self, logs: dict[str, float], trainer: Trainer) -> None:
        """Put the means over steps and processes into a log that has the loss."""
        if "loss" not in logs or not self._sums:
            return
        steps = max(1, trainer.state.global_step - self._since)
        for name, total in self._sums.items():
            gathered = trainer.accelerator.gather(torch.as_tensor(total, device=trainer.args.device).reshape(1))
            logs[f"loss_{name}"] = torch.as_tensor(gathered).mean().item() / steps
        self._sums.clear()


class CosinePenalty:
    """Gamma times the mean cosine of all pairs of a model's output embeddings, added to a Trainer's loss.

    It counts once a step, however many batches or processes make the step, and in training alone.

    Args:
        weight: Gamma; 0 switches it off.
        ignore_index: An embedding row that does not count, such as that of padding.
    Raises:
        ValueError: If gamma is negative, or the model has no output embeddings, or they are frozen.
    Source: Gao et al. 2019, equation (6).
    """

    def __init__(self, trainer: Trainer, weight: float, ignore_index: int | None = None) -> None:
        check_cosine_weight(weight)
        self.weight, self.ignore_index = weight, ignore_index
        if not weight:
            return
        layer: Any = _output_layer(trainer.model)
        if not layer.weight.requires_grad:  # under LoRA that is the matrix below the adapter
            raise ValueError(
                f"the output embeddings are frozen, so cosine_weight={weight} would change nothing; train them (with "
                "peft: modules_to_save), or leave it out"
            )
        if ignore_index is not None and not 0 <= ignore_index < num_rows(layer):
            raise ValueError(f"ignore_index must be in [0, {num_rows(layer)}), got {ignore_index}")
        plugin = getattr(trainer.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and plugin.fsdp_version == 1:
            raise ValueError("cosine_weight needs the second version of FSDP; set fsdp_version to 2 in fsdp_config")

    def added(self, loss: Tensor, trainer: Trainer, num_items_in_batch: Any, parts: LossParts) -> Tensor:
        """Return a training batch's loss with its share of the step's penalty; the log gets it without gamma."""
        if not self.weight:
            return loss
        layer, ignored = _output_layer(trainer.model), self.ignore_index
        value = call_inside(layer, lambda weight, _: pairwise_cosine_penalty(weight, ignored))
        value = value.full_tensor() if isinstance(value, DTensor) else value
        batches = getattr(trainer, "current_gradient_accumulation_steps", 1)
        parts.keep({"cosine": value}, trainer.state.global_step, 1 / batches)
        # a step's loss is the sum of its batches' losses, or their mean
        is_sum = trainer.loss_is_scaled_for_ga
        if is_sum is None:
            counted = trainer.model_accepts_loss_kwargs and num_items_in_batch is not None
            is_sum = counted or trainer.compute_loss_func is not None
        return loss + self.weight * value / (batches if is_sum else 1)


def _output_layer(model: Any) -> nn.Module:
    """Return the layer whose weights are the output embeddings; peft's wrapper has those of its trained copy."""
    core = unwrapped(model)
    layer = core.get_output_embeddings() if hasattr(core, "get_output_embeddings") else None
    if layer is None:
        raise ValueError(
            f"cosine regularisation is of output embeddings, and {type(core).__name__} has none; load the model with "
            "its language-modelling head, or leave out cosine_weight"
        )
    return cast(nn.Module, layer)


class TimedLogs(PrinterCallback):
    """Prints logs where there is no bar; those of training with the seconds of this run so far and those left."""

    _begin, _first_step = 0.0, 0

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Remember when and at which step this run began."""
        self._begin, self._first_step = monotonic(), state.global_step

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Print a log."""
        done = state.global_step - self._first_step
        if logs is not None and "loss" in logs and done > 0:
            seconds = monotonic() - self._begin
            left = seconds / done * (state.max_steps - state.global_step)
            logs = {**logs, "seconds": round(seconds), "seconds_left": round(left)}
        super().on_log(args, state, control, logs=logs, **kwargs)
