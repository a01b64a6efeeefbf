"""Whether code runs inside `vmap`, `grad` or another transform of `torch.func`."""

from typing import Any

import torch


def inside_transform() -> bool:
    """Return whether a transform of `torch.func` is running in this thread.

    There a tensor's values cannot be read, and a function with a backward pass of its own cannot be called. torch has
    no public name for this question.

    >>> inside_transform(), torch.func.vmap(lambda x: x * inside_transform())(torch.ones(2)).tolist()
    (False, [1.0, 1.0])
    """
    functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    return functorch.peek_interpreter_stack() is not None
