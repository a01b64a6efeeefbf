"""The loop behind `generate`: one window of the canvas after another, each filled by a sampler."""

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
    """Fill what is masked on a canvas; what is given stays.

    Args:
        window: Tokens that the network sees at once. A longer canvas is filled window by window, from left to right:
            each starts `stride` tokens after the one before, whose tokens it has as given ones.
        streamer: Gets the whole canvas after each change.
    Raises:
        ValueError: If the canvas is longer than a window and there is no stride, or the stride is out of range.
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
    """Return where the windows of a canvas start.

    Raises:
        ValueError: If it takes several and there is no stride, or the stride is out of range.
    Departs: the published program makes whole strides only. Here the last window ends where the canvas does, and has as
        much before it as a window holds.

    >>> window_starts(20, window=8, stride=5)
    [0, 5, 10, 12]
    """
    if stride is not None and (type(stride) is not int or not 1 <= stride < window):
        raise ValueError(
            f"stride must be an integer in [1, {window - 1}], so that a window of {window} tokens has some of the one "
            f"before, got {stride}; leave it out for a canvas of one window"
        )
    if length <= window:
        return [0]
    if stride is None:
        raise ValueError(
            f"a canvas of {length} tokens is longer than the {window} that the model sees at once "
            f"(max_position_embeddings); give stride, in [1, {window - 1}], to fill it window by window, or lower "
            "max_length"
        )
    return [*range(0, length - window, stride), length - window]
