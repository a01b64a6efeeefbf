"""Positions for the decoder of an encoder-decoder model, which takes none: it counts the positions of its cache."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def decoder_positions(backbone: PreTrainedModel, positions: Tensor | None) -> Iterator[None]:
    """Make the decoder use given positions inside the `with` block, if it has a table of positions.

    T5 and its kin have none: their attention depends on distances between places in the cache.

    Args:
        positions: (batch, time); None: those that the decoder counts.
    """
    table = position_table(backbone)
    if positions is None or table is None:
        yield
        return

    def give(module: nn.Module, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        return args, {**kwargs, "position_ids": positions}

    def flatten(module: nn.Module, args: tuple, embeddings: Tensor) -> Tensor:
        return embeddings[0] if embeddings.ndim == 4 else embeddings  # BART adds a dimension

    hooks = [table.register_forward_pre_hook(give, with_kwargs=True), table.register_forward_hook(flatten)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def position_table(backbone: PreTrainedModel) -> nn.Module | None:
    """Return what gives the decoder the embeddings of positions; None if nothing does, or it takes no positions.

    M2M100's and LED's take none.
    """
    table = getattr(backbone.get_decoder(), "embed_positions", None)
    if not isinstance(table, nn.Module) or "position_ids" not in inspect.signature(table.forward).parameters:
        return None
    return table
