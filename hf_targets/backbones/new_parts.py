"""The submodules that a target adds to a model: named by the attribute `new_part`, found also under peft."""

from typing import Any

from torch import nn
from torch.optim import Optimizer
from transformers import initialization as init


class ZeroInitLinear(nn.Linear):
    """A linear layer that begins with weight and bias of zero."""

    def reset_parameters(self) -> None:
        """Set both to zero, but for what a checkpoint has filled."""
        init.zeros_(self.weight)
        if self.bias is not None:
            init.zeros_(self.bias)


def unwrapped(model: nn.Module) -> Any:
    """Return the model inside peft's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model  # pyright: ignore[reportCallIssue]


def new_parts_of(model: nn.Module) -> list[str]:
    """Return the names of the submodules that a target adds, such as `"heads"`; [] for a model without a target."""
    told = getattr(unwrapped(model), "new_part", None)
    return [told] if isinstance(told, str) else list(told or ())


def new_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of the submodules that a target adds, with peft's copies of them; [] without a target."""
    parts = (unwrapped(model).get_submodule(name) for name in new_parts_of(model))
    return [parameter for part in parts for parameter in part.parameters()]


def split_new_parts(optimizer: Optimizer, model: nn.Module, rate: float | None) -> Optimizer:
    """Return the optimizer with the parameters of a new part in groups of their own, at a rate of their own if any."""
    ours = {id(parameter) for parameter in new_parameters(model)}
    for group in list(optimizer.param_groups):
        new = [p for p in group["params"] if id(p) in ours]
        group["params"] = [p for p in group["params"] if id(p) not in ours]
        rest = {key: value for key, value in group.items() if key != "params"}
        optimizer.add_param_group({**rest, "params": new, **({} if rate is None else {"lr": rate})})
    # nothing is left of a frozen backbone, whose rate the log would show
    optimizer.param_groups[:] = [group for group in optimizer.param_groups if group["params"]]
    return optimizer


def check_no_adapters(model: nn.Module, what: str) -> None:
    """Raise a ValueError, which tells what cannot be done then, if a layer of a model has an adapter of peft."""
    for name, module in model.named_modules():
        if hasattr(module, "base_layer") or hasattr(module, "original_module"):
            raise ValueError(
                f"{what} of a model without adapters, and {name} has one; merge them first: model.merge_and_unload()"
            )
