"""Streamers that show how a canvas fills: one keeps every state, one prints to a terminal."""

import shutil
import sys
from typing import Any, TextIO

import torch
from jaxtyping import Int
from torch import Tensor
from transformers.generation.streamers import BaseStreamer


class CanvasTrace(BaseStreamer):
    """Keeps the canvas (batch, length) after every change.

    >>> trace = CanvasTrace()
    >>> trace.put(torch.tensor([[1, 9]]))
    >>> trace.put(torch.tensor([[1, 2]]))
    >>> trace.stacked()[:, 0].tolist()
    [[1, 9], [1, 2]]
    """

    def __init__(self) -> None:
        self.canvases: list[Tensor] = []

    def put(self, canvas: Int[Tensor, "batch length"]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Keep a canvas."""
        self.canvases.append(canvas)

    def end(self) -> None:
        """Do nothing: the last canvas is full."""

    def stacked(self) -> Int[Tensor, "changes batch length"]:
        """Return all canvases in the order of the changes."""
        return torch.stack(self.canvases)


class CanvasStreamer(BaseStreamer):
    """Prints one row of a canvas while it fills.

    In a terminal it overwrites one line, cut to the width of the terminal, and at the end prints the whole row. In any
    other file it prints a line for each change. White space is collapsed and special tokens are left out.

    Args:
        tokenizer: Its `decode` turns tokens into text.
        row: Index of the row in the batch.
        mask_text: Printed for each masked token.
        mask_token_id: Mask id of the canvas; None: that of the tokenizer.
        file: Where to print; None: standard output.
    Raises:
        ValueError: If the tokenizer has no mask token and `mask_token_id` is None.
    """

    def __init__(
        self,
        tokenizer: Any,
        row: int = 0,
        mask_text: str = "_",
        *,
        mask_token_id: int | None = None,
        file: TextIO | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._row = row
        self._mask_text = mask_text
        known = tokenizer.mask_token_id if mask_token_id is None else mask_token_id
        if known is None:
            raise ValueError(
                "this tokenizer has no mask token; give mask_token_id, the model's (model.config.mask_token_id)"
            )
        self._mask_token_id: int = known
        self._file = sys.stdout if file is None else file
        self._last = ""

    def put(self, canvas: Int[Tensor, "batch length"]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Print the row if its text has changed."""
        text = self._text_of(canvas[self._row].tolist())
        if text != self._last:
            self._file.write(self._line(text) if self._file.isatty() else f"{text}\n")
            self._file.flush()
        self._last = text

    def end(self) -> None:
        """Print the whole filled row, if this is a terminal."""
        if self._file.isatty():
            self._file.write(f"{self._line('')}\r{self._last}\n")
            self._file.flush()
        self._last = ""

    def _line(self, text: str) -> str:
        width = shutil.get_terminal_size().columns - 1
        return f"\r{text[:width]:<{width}}"

    def _text_of(self, ids: list[int]) -> str:
        pieces, tokens = [], []
        for token in [*ids, self._mask_token_id]:  # the extra mask ends the last piece
            if token != self._mask_token_id:
                tokens.append(token)
                continue
            pieces += [self._tokenizer.decode(tokens, skip_special_tokens=True)] if tokens else []
            pieces.append(self._mask_text)
            tokens = []
        return " ".join(" ".join(pieces[:-1]).split())
