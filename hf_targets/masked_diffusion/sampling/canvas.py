"""A canvas, a text with masked positions, and the loop that fills it, window by window."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers.generation.streamers import BaseStreamer
from transformers.utils.generic import ModelOutput

from hf_targets.backbones.inputs import check_ids, check_integers, check_padding


@dataclass
class MaskedDiffusionGenerationOutput(ModelOutput):
    """The output of `generate(return_dict_in_generate=True)`.

    Attributes:
        sequences: The filled canvas, (batch, length).
        num_evaluations: Number of calls of the network.
        num_row_evaluations: Number of rows in all these calls together.
        num_generated_tokens: Number of masked positions that were filled.
    """

    sequences: Tensor
    num_evaluations: int | None = None
    num_row_evaluations: int | None = None
    num_generated_tokens: int | None = None

    @property
    def tokens_per_forward(self) -> float:
        """The mean number of tokens that one evaluation of a row unmasks."""
        return (self.num_generated_tokens or 0) / max(self.num_row_evaluations or 0, 1)


@dataclass(frozen=True)
class Canvas:
    """A batch of texts with masked positions to fill.

    Attributes:
        ids: The mask id where `masked` is true; given tokens or padding at other positions.
        masked: True at the positions to fill. A mask id in padding is not one of them.
        attention_mask: 0 at padding, 1 at other positions; None without padding.
    """

    ids: Int[Tensor, "batch length"]
    masked: Bool[Tensor, "batch length"]
    attention_mask: Int[Tensor, "batch length"] | None = None

    def columns(self, start: int, stop: int) -> "Canvas":
        """Return a view of some columns."""
        parts = (self.ids, self.masked, self.attention_mask)
        return Canvas(*(None if part is None else part[:, start:stop] for part in parts))  # pyright: ignore


def given_canvas(
    input_ids: Tensor, attention_mask: Tensor | None, *, max_length: int | None, config: Any, device: torch.device
) -> Canvas:
    """Return a canvas of given tokens (batch, length), with masks appended on the right up to `max_length`.

    Args:
        attention_mask: (batch, length), 0 at padding, which may be at both ends of a row.
        config: Its `mask_token_id` and `vocab_size` are used.
    Raises:
        ValueError: If an id is out of range, the attention mask has another shape or a hole, `input_ids` are longer
            than `max_length`, masks would be appended after padding, or there is nothing to fill.
    """
    if input_ids.dim() != 2 or not len(input_ids):
        raise ValueError(
            f"input_ids must be (batch, length) with at least one row, got {tuple(input_ids.shape)}; without given "
            "tokens leave them out and give batch_size"
        )
    check_integers(input_ids=input_ids)
    if input_ids.numel():
        check_ids(input_ids.cpu(), config.vocab_size, "input_ids")
    ids, keep = input_ids.to(device, torch.long), torch.ones(input_ids.shape, dtype=torch.bool, device=device)
    if attention_mask is not None:
        hint = "A token to fill in is attended to: give it the mask id and leave its attention at 1"
        check_padding(attention_mask.cpu(), input_ids, hint=hint)  # once a call, so that the wait is no loss
        keep = attention_mask.to(device) != 0
    more = 0 if max_length is None else max_length - ids.shape[1]
    if more < 0:
        raise ValueError(
            f"max_length includes the {ids.shape[1]} given tokens and must not be below, got {max_length}; raise it"
        )
    if more:
        if (keep.any(dim=1) & ~keep[:, -1:].all(dim=1)).any():
            raise ValueError(
                f"max_length={max_length} appends masks after the given tokens, so no row may end in padding; pad on "
                "the left (padding_side='left')"
            )
        ids, keep = F.pad(ids, (0, more), value=config.mask_token_id), F.pad(keep, (0, more), value=True)
    masked = (ids == config.mask_token_id) & keep
    if not masked.any():
        raise ValueError(
            f"there is nothing to generate: input_ids have no mask token (id {config.mask_token_id}) outside padding; "
            "put it at the positions to fill, or give a max_length above their length"
        )
    return Canvas(ids, masked, None if keep.all() else keep.long())


class Window:
    """Some columns of a canvas: the input of the network, and the part that a sampler must fill.

    Args:
        denoise: As `fill_canvas` takes it.
        canvas: Of these columns, which is filled in place.
        show: Is called after each change.
    """

    def __init__(self, denoise: Callable[..., Tensor], canvas: Canvas, show: Callable[[], None]) -> None:
        self._denoise, self._canvas, self._show = denoise, canvas, show
        self.num_evaluations = self.num_row_evaluations = 0

    @property
    def masked(self) -> Bool[Tensor, "batch length"]:
        """True at the positions that are masked now."""
        return self._canvas.masked.clone()

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
        rows = where.any(dim=1) if rows is None else rows
        attention = self._canvas.attention_mask
        self.num_evaluations += 1
        self.num_row_evaluations += int(rows.sum())
        return self._denoise(
            self._canvas.ids[rows],
            where[rows],
            attention_mask=None if attention is None else attention[rows],
            timesteps=times[rows].float(),
        )

    def fill(self, where: Bool[Tensor, "batch length"], tokens: Int[Tensor, "positions"]) -> None:
        """Fill masked positions with tokens, row by row."""
        self._canvas.ids[where] = tokens
        self._canvas.masked[where] = False
        if len(tokens):
            self._show()


def fill_canvas(
    denoise: Callable[..., Tensor],
    canvas: Canvas,
    fill: Callable[[Window], None],
    *,
    window: int,
    stride: int | None = None,
    streamer: BaseStreamer | None = None,
) -> MaskedDiffusionGenerationOutput:
    """Fill the masked positions of a canvas; given tokens do not change.

    Args:
        denoise: The network, `log_probabilities` of a model: takes ids and where to predict (both (rows, length), the
            latter perhaps all false), `attention_mask` and `timesteps`; returns log p(clean token), (positions, vocab).
        fill: Fills a `Window`, as a sampler does.
        window: Longest input of the network, in tokens. A longer canvas is filled window by window, from left to right.
            Each window starts `stride` tokens after the previous one, whose tokens are then given tokens.
        streamer: Receives the whole canvas after each change.
    Raises:
        ValueError: If the canvas is longer than a window and `stride` is None, or the stride is out of range.
    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models", semi-autoregressive generation.
    """
    whole = Canvas(canvas.ids.clone(), canvas.masked.clone(), canvas.attention_mask)

    def show() -> None:
        if streamer is not None:
            streamer.put(whole.ids.to("cpu", copy=True))

    starts = window_starts(canvas.ids.shape[1], window, stride)
    parts = [Window(denoise, whole.columns(start, start + window), show) for start in starts]
    for part in parts:
        if part.masked.any():
            fill(part)
    if streamer is not None:
        streamer.end()
    assert not whole.masked.any(), "a sampler must fill all masked positions"
    counts = (sum(part.num_evaluations for part in parts), sum(part.num_row_evaluations for part in parts))
    return MaskedDiffusionGenerationOutput(whole.ids, *counts, int(canvas.masked.sum()))


def window_starts(length: int, window: int, stride: int | None) -> list[int]:
    """Return the position at which each window of a canvas starts.

    Raises:
        ValueError: If the canvas needs several windows and `stride` is None, or the stride is out of range.
    Departs: in the published program all windows are a full stride apart. Here the last window ends where the canvas
        ends, so its stride may be shorter.

    >>> window_starts(20, window=8, stride=5)
    [0, 5, 10, 12]
    """
    if stride is not None and not 1 <= stride < window:
        raise ValueError(f"stride must be in [1, {window - 1}], so that windows of {window} overlap, got {stride}")
    if length <= window:
        return [0]
    if stride is None:
        raise ValueError(
            f"a canvas of {length} tokens is longer than the {window} that the model can read "
            f"(max_position_embeddings); give stride, in [1, {window - 1}], or lower max_length"
        )
    return [*range(0, length - window, stride), length - window]
