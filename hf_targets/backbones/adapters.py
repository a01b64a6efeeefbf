"""Adapters of peft on the layers of a model."""

from torch import nn


def check_no_adapters(model: nn.Module, what: str) -> None:
    """Check that no layer of a model has an adapter.

    Args:
        what: What cannot be done with adapters, in the error.
    Raises:
        ValueError: If one has.
    """
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") or hasattr(module, "original_module"):
            raise ValueError(
                f"{what} of a model without adapters, and {name} has one; merge them first: model.merge_and_unload()"
            )
