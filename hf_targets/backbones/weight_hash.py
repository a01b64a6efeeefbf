"""The parts of a model's state that its outputs depend on, for hashes that are the same in every process."""

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "architectures", "dtype")


class _Digest(Protocol):
    def update(self, data: Any, /) -> None:
        """Add bytes."""
        ...


def add_weights(digest: _Digest, weights: Mapping[str, Tensor]) -> None:
    """Add the names, shapes, types and values of some weights to a hash, in the order of their names."""
    for name, weight in sorted(weights.items()):
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy())


def model_settings(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration without its name, its version, and what the weights say themselves."""
    return {name: value for name, value in config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
