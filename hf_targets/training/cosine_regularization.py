"""A Trainer's loss with the mean cosine of all pairs of output embeddings added to it."""

from typing import Any

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.weight_access import call_inside, num_rows
from hf_targets.maths.cosine_regularization import check_cosine_weight, pairwise_cosine_penalty
from hf_targets.training.loss_parts import LogsLossParts


class CosineRegularization(LogsLossParts):
    """Trainer whose loss has gamma times `cosine_regularization` of the model's output embeddings added to it.

    It counts once for each step, however many batches or processes make the step, and in training alone: an evaluation
    gives the loss without it. `loss_cosine` in the log is the mean cosine, without gamma.

    Source: Gao et al. 2019, equation (6).
    """

    cosine_weight: float = 0.0
    """Gamma."""
    cosine_ignore_index: int | None = None
    """An embedding row that does not count, such as that of padding."""

    def _check_regularization(self) -> None:
        """Raise a ValueError if there is something to regularise, and it cannot be done."""
        check_cosine_weight(self.cosine_weight)
        if not self.cosine_weight:
            return
        model: Any = self.model
        layer: Any = _output_layer(model)
        if not layer.weight.requires_grad:  # under LoRA that is the matrix below the adapter
            raise ValueError(
                f"the output embeddings of {type(unwrapped(model)).__name__} are frozen, so cosine_weight="
                f"{self.cosine_weight} would change nothing; train them (with peft: modules_to_save), or leave it out"
            )
        if (index := self.cosine_ignore_index) is not None and not 0 <= index < num_rows(layer):
            raise ValueError(f"ignore_index must be in [0, {num_rows(layer)}), got {index}")
        plugin = getattr(self.accelerator.state, "fsdp_plugin", None)
        if plugin is not None and plugin.fsdp_version == 1:
            raise ValueError("cosine_weight needs the second version of FSDP; set fsdp_version to 2 in fsdp_config")

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss as Trainer does, with the regularisation added to it in training."""
        found: Any = super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        if not return_outputs:
            return self._regularized(found, model, num_items_in_batch)
        return (self._regularized(found[0], model, num_items_in_batch), *found[1:])

    def _regularized(self, loss: Tensor, model: nn.Module, num_items_in_batch: Tensor | int | None) -> Tensor:
        """Return a batch's loss with its share of the step's regularisation, in training."""
        if not self.cosine_weight or not model.training:
            return loss
        value = call_inside(_output_layer(self.model), _penalty, self.cosine_ignore_index)
        value = value.full_tensor() if isinstance(value, DTensor) else value
        batches = getattr(self, "current_gradient_accumulation_steps", 1)
        self._keep_parts({"cosine": value}, 1 / batches)
        return loss + self.cosine_weight * value / (batches if self._sums_batches(num_items_in_batch) else 1)

    def _sums_batches(self, num_items_in_batch: Tensor | int | None) -> bool:
        """Return whether the loss of a step is the sum of its batches' losses, and not their mean."""
        if self.loss_is_scaled_for_ga is not None:
            return self.loss_is_scaled_for_ga
        counted = self.model_accepts_loss_kwargs and num_items_in_batch is not None
        return counted or self.compute_loss_func is not None


def _penalty(weight: Tensor, _: Tensor | None, ignore_index: int | None) -> Tensor:
    return pairwise_cosine_penalty(weight, ignore_index)


def _output_layer(model: Any) -> nn.Module:
    """Return the layer whose weights are the output embeddings; under peft the copy that is trained.

    Raises:
        ValueError: If the model has none.
    """
    core = unwrapped(model)
    layer = core.get_output_embeddings() if hasattr(core, "get_output_embeddings") else None
    if layer is None:
        raise ValueError(
            f"cosine regularisation is of output embeddings, and {type(core).__name__} has none; load the model with "
            "its language-modelling head, or leave out cosine_weight"
        )
    copies = getattr(layer, "modules_to_save", None)  # of peft
    active = [name for name in getattr(layer, "active_adapters", []) if copies is not None and name in copies]
    return copies[active[0]] if copies is not None and active else layer
