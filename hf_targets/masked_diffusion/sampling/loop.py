"""The loop behind `generate`: a sampler fills one window of the canvas after another."""

from hf_targets.masked_diffusion.sampling.canvas import Canvas
from hf_targets.masked_diffusion.sampling.output import MaskedDiffusionGenerationOutput
from hf_targets.masked_diffusion.sampling.sampler import Sampler
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from hf_targets.masked_diffusion.sampling.window import Denoiser, Filling, Streamer
from hf_targets.maths.noise import NoiseSchedule


def fill_canvas(
    denoiser: Denoiser,
    canvas: Canvas,
    sampler: Sampler,
    draw: TokenDraw,
    schedule: NoiseSchedule,
    *,
    window: int,
    stride: int | None = None,
    streamer: Streamer | None = None,
) -> MaskedDiffusionGenerationOutput:
    """Fill the masked positions of a canvas; given tokens do not change.

    Args:
        window: Longest input of the network, in tokens. A longer canvas is filled window by window, from left to right.
            Each window starts `stride` tokens after the previous one, whose tokens are then given tokens.
        streamer: Receives the whole canvas after each change.
    Raises:
        ValueError: If the canvas is longer than a window and `stride` is None, or the stride is out of range.
    Source: Sahoo et al. 2024, "Simple and Effective Masked Diffusion Language Models", semi-autoregressive generation.
    """
    filling = Filling(denoiser, canvas, streamer)
    for start in window_starts(canvas.ids.shape[1], window, stride):
        part = filling.window(start, start + window)
        if part.masked.any():
            sampler.fill(part, draw, schedule)
    if streamer is not None:
        streamer.end()
    return filling.output()


def window_starts(length: int, window: int, stride: int | None) -> list[int]:
    """Return the position at which each window of a canvas starts.

    Raises:
        ValueError: If the canvas needs several windows and `stride` is None, or the stride is out of range.
    Departs: in the published program all windows are a full stride apart. Here the last window ends where the canvas
        ends, so its stride may be shorter.

    >>> window_starts(20, window=8, stride=5)
    [0, 5, 10, 12]
    """
    if stride is not None and (type(stride) is not int or not 1 <= stride < window):
        raise ValueError(
            f"stride must be an integer in [1, {window - 1}], so that windows of {window} tokens overlap, got "
            f"{stride}; leave it out if the canvas fits into one window"
        )
    if length <= window:
        return [0]
    if stride is None:
        raise ValueError(
            f"a canvas of {length} tokens is longer than the {window} that the model can read "
            f"(max_position_embeddings); give stride, in [1, {window - 1}], to fill it window by window, or lower "
            "max_length"
        )
    return [*range(0, length - window, stride), length - window]
