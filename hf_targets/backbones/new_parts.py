"""The submodule that a target adds to a model, found through the class attribute `new_part`, also under peft."""

from typing import Any

from torch import nn


def unwrapped(model: nn.Module) -> Any:
    """Return the model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]


def new_part_of(model: nn.Module) -> str | None:
    """Return the name of the submodule that a target adds to the backbone; None for a model without a target.

    It is the class attribute `new_part`, such as `"heads"`.
    """
    return getattr(unwrapped(model), "new_part", None)


def new_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the submodule that a target adds, with peft's copies of them; [] without a target."""
    name = new_part_of(model)
    return [] if name is None else list(unwrapped(model).get_submodule(name).parameters())
