"""Random numbers that a generator draws, or torch's global one."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def drawn(
    draw: Callable[..., Tensor],
    shape: Sequence[int],
    generator: torch.Generator | None,
    device: torch.device | str | None = None,
) -> Tensor:
    """Return `draw(shape)` on a device.

    Args:
        draw: `torch.rand` or `torch.randn`.
        generator: It draws on its own device, so a seed gives the same numbers on every `device`. None: torch's own.
        device: None: that of the generator, or torch's default device.
    """
    if generator is None:  # torch.compile cannot trace this argument, even None, once batches of two sizes came
        return draw(shape, device=device)
    numbers = draw(shape, generator=generator, device=generator.device)
    return numbers if device is None else numbers.to(device)
