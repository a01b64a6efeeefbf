"""The submodule that a target adds to a model: named by the class attribute `new_part`, found also under peft."""

from typing import Any

from torch import nn


class ZeroInitLinear(nn.Linear):
    """A linear layer whose weight and bias are set to zero by the `_init_weights` of our models."""


def unwrapped(model: nn.Module) -> Any:
    """Return the model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]


def new_part_of(model: nn.Module) -> str | None:
    """Return the name of the submodule that a target adds, such as `"heads"`; None for a model without a target."""
    return getattr(unwrapped(model), "new_part", None)


def new_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the submodule that a target adds, with peft's copies of them; [] without a target."""
    name = new_part_of(model)
    return [] if name is None else list(unwrapped(model).get_submodule(name).parameters())


def check_no_adapters(model: nn.Module, what: str) -> None:
    """Raise a ValueError, which tells what cannot be done then, if a layer of a model has an adapter of peft."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") or hasattr(module, "original_module"):
            raise ValueError(
                f"{what} of a model without adapters, and {name} has one; merge them first: model.merge_and_unload()"
            )
