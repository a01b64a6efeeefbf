"""Positions for the decoder of an encoder-decoder model, which takes none: it counts the positions of its cache."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel


@contextmanager
def decoder_positions(backbone: PreTrainedModel, positions: Tensor | None) -> Iterator[None]:
    """Make the decoder use given positions inside the `with` block, in this thread, if it has a table of positions.

    T5 and its kin have none: their attention depends on distances between places in the cache.

    Args:
        positions: (batch, time); None: those that the decoder counts.
    """
    table = position_table(backbone)
    if positions is None or table is None:
        yield
        return

    thread = get_ident()

    def give(module: nn.Module, args: tuple, *named: dict[str, Any]) -> tuple[tuple, dict[str, Any]] | None:
        if get_ident() != thread or not named:  # torch may not know yet that this hook takes named arguments
            return None
        return args, {**named[0], "position_ids": positions}

    def flatten(module: nn.Module, args: tuple, embeddings: Tensor) -> Tensor:
        is_wide = embeddings.ndim == 4 and get_ident() == thread  # BART adds a dimension to positions that are given
        return embeddings[0] if is_wide else embeddings

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
