"""What a target adds to a model, whatever wraps it: the attribute `new_part` of its class names the submodule."""

from typing import Any

from torch import nn


def unwrapped(model: nn.Module) -> Any:
    """Return the model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]


def new_part_of(model: nn.Module) -> str | None:
    """Return the name of the submodule that a target adds to the backbone; None for a model that has none.

    A class of a target says it in its attribute `new_part`, such as `"heads"`.
    """
    return getattr(unwrapped(model), "new_part", None)


def new_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of what a target adds, none for a model without; under peft also its copies of them."""
    name = new_part_of(model)
    return [] if name is None else list(unwrapped(model).get_submodule(name).parameters())
