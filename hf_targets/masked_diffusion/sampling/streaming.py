"""Looking on while a canvas fills: in a terminal, or keeping every state of it."""

import shutil
import sys
from typing import Any, TextIO

import torch
from jaxtyping import Int
from torch import Tensor


class CanvasTrace:
    """Keeps the canvas after every change, (batch, length) each.

    >>> trace = CanvasTrace()
    >>> trace.put(torch.tensor([[1, 9]]))
    >>> trace.put(torch.tensor([[1, 2]]))
    >>> trace.stacked()[:, 0].tolist()
    [[1, 9], [1, 2]]
    """

    def __init__(self) -> None:
        self.canvases: list[Tensor] = []
        self.ended = False

    def put(self, canvas: Int[Tensor, "batch length"]) -> None:
        """Keep a canvas."""
        self.canvases.append(canvas)

    def end(self) -> None:
        """Take note that the canvas is filled."""
        self.ended = True

    def stacked(self) -> Int[Tensor, "changes batch length"]:
        """Return all of them, the first change first."""
        return torch.stack(self.canvases)


class CanvasStreamer:
    """Prints one row of a canvas as it fills: over the same line in a terminal, a line for each change elsewhere.

    A terminal's line shows as much of the row as it is wide, and the whole row once it is filled. White space is
    collapsed, special tokens are left out.

    Args:
        tokenizer: Whose `decode` makes text of the tokens.
        row: Of the batch.
        mask_text: Stands for each masked token.
        mask_token_id: Of the canvas; None takes the tokenizer's.
        file: Where to print; None: standard output.
    Raises:
        ValueError: If the tokenizer has no mask token and no id is given.
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

    def put(self, canvas: Int[Tensor, "batch length"]) -> None:
        """Print the row as it is now.

        Raises:
            ValueError: If there is no such row.
        """
        if not 0 <= self._row < len(canvas):
            raise ValueError(f"row must be in [0, {len(canvas) - 1}] for {len(canvas)} rows, got {self._row}")
        text = self._text_of(canvas[self._row].tolist())
        if text != self._last:
            self._file.write(self._over(text) if self._file.isatty() else f"{text}\n")
            self._file.flush()
        self._last = text

    def end(self) -> None:
        """Print the filled row whole."""
        if self._file.isatty():
            self._file.write(f"{self._over('')}\r{self._last}\n")
            self._file.flush()
        self._last = ""

    def _over(self, text: str) -> str:
        width = shutil.get_terminal_size().columns - 1
        return f"\r{text[:width]:<{width}}"

    def _text_of(self, ids: list[int]) -> str:
        pieces, run = [], []
        for token in [*ids, self._mask_token_id]:  # one mask more ends the last run
            if token != self._mask_token_id:
                run.append(token)
                continue
            pieces += [self._tokenizer.decode(run, skip_special_tokens=True)] if run else []
            pieces.append(self._mask_text)
            run = []
        return " ".join(" ".join(pieces[:-1]).split())
