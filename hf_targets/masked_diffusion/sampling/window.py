"""A canvas while it fills: its masked positions, its calls of the network, and its streamer."""

from typing import Protocol

from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.masked_diffusion.sampling.canvas import Canvas
from hf_targets.masked_diffusion.sampling.output import MaskedDiffusionGenerationOutput


class Denoiser(Protocol):
    """A network that predicts the clean tokens of a canvas, a text with some tokens masked."""

    def log_probabilities(
        self,
        canvas: Int[Tensor, "rows length"],
        where: Bool[Tensor, "rows length"],
        *,
        attention_mask: Int[Tensor, "rows length"] | None,
        timesteps: Float[Tensor, "rows"],
    ) -> Float[Tensor, "positions vocab"]:
        """Return log p(clean token) at the positions where `where` is true, row by row; `where` may be all false."""
        ...


class Streamer(Protocol):
    """Receives a canvas while it fills."""

    def put(self, canvas: Int[Tensor, "batch length"]) -> None:
        """Receive the whole canvas, on the CPU, after a change."""
        ...

    def end(self) -> None:
        """Receive the end: the canvas will not change again."""
        ...


class Filling:
    """The canvas of one call of `generate`, and the counts for its output."""

    def __init__(self, denoiser: Denoiser, canvas: Canvas, streamer: Streamer | None = None) -> None:
        self.denoiser = denoiser
        self.attention_mask = canvas.attention_mask
        self.streamer = streamer
        self.ids = canvas.ids.clone()
        self.masked = canvas.masked.clone()
        self.num_evaluations = self.num_row_evaluations = 0
        self.num_generated = int(canvas.masked.sum())

    def window(self, start: int, stop: int) -> "Window":
        """Return the columns of the canvas from `start` to `stop` - 1, to be filled."""
        return Window(self, slice(start, stop))

    def output(self) -> MaskedDiffusionGenerationOutput:
        """Return the filled canvas and the counts."""
        assert not self.masked.any(), "a sampler must fill all masked positions"
        return MaskedDiffusionGenerationOutput(
            self.ids, self.num_evaluations, self.num_row_evaluations, self.num_generated
        )


class Window:
    """Some columns of a canvas: the input of the network, and the part that a sampler must fill."""

    def __init__(self, filling: Filling, columns: slice) -> None:
        self._filling = filling
        self._columns = columns

    @property
    def masked(self) -> Bool[Tensor, "batch length"]:
        """True at the positions that are masked now."""
        return self._filling.masked[:, self._columns].clone()

    def log_probabilities(
        self,
        where: Bool[Tensor, "batch length"],
        times: Float[Tensor, "batch"],
        rows: Bool[Tensor, "batch"] | None = None,
    ) -> Float[Tensor, "positions vocab"]:
        """Evaluate the network on the current window; return log p(clean token) at given positions.

        Args:
            where: True at these positions, which are returned row by row.
            times: The time of each row; not used for rows that are not evaluated.
            rows: True at the rows to evaluate: at least one, and all rows of `where`; None: the rows of `where`.
        """
        filling = self._filling
        rows = where.any(dim=1) if rows is None else rows
        attention = filling.attention_mask
        filling.num_evaluations += 1
        filling.num_row_evaluations += int(rows.sum())
        return filling.denoiser.log_probabilities(
            filling.ids[rows, self._columns],
            where[rows],
            attention_mask=None if attention is None else attention[rows, self._columns],
            timesteps=times[rows].float(),
        )

    def fill(self, where: Bool[Tensor, "batch length"], tokens: Int[Tensor, "positions"]) -> None:
        """Fill masked positions with tokens, row by row."""
        filling = self._filling
        filling.ids[:, self._columns][where] = tokens
        filling.masked[:, self._columns] &= ~where
        if filling.streamer is not None and len(tokens):
            filling.streamer.put(filling.ids.to("cpu", copy=True))
