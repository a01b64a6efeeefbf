"""Canvases longer than the network sees: windows from left to right, each with what was filled before it."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.masked_diffusion.sampling.canvas import window_starts
from hf_targets.masked_diffusion.sampling.streaming import CanvasTrace
from tests.masked_diffusion.sampling.denoisers import MASK, SAMPLERS, Reader, canvas_of, sample

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)


@given(st.integers(1, 40), st.integers(2, 12), st.data())
def test_windows_cover_the_canvas_and_each_has_some_of_the_one_before(length, window, data):
    stride = data.draw(st.integers(1, window - 1))
    starts = window_starts(length, window, stride)
    assert starts[0] == 0
    assert starts[-1] + window == max(length, window)
    steps = [after - before for before, after in pairwise(starts)]
    assert all(step == stride for step in steps[:-1])
    assert all(1 <= step <= stride for step in steps)


class Watcher(Reader):
    """Compares each canvas that it is shown with the window at work: the first with anything masked."""

    def __init__(self, length, batch, starts, window):
        super().__init__(window)
        self.trace, self.starts, self.window = CanvasTrace(), starts, window
        self.trace.put(torch.full((batch, length), MASK))
        self.asked = []

    def logits(self, canvas, timesteps):
        whole = self.trace.canvases[-1]
        parts = [(start, whole[:, start : start + self.window]) for start in self.starts]
        start, part = next((start, part) for start, part in parts if (part == MASK).any())
        assert torch.equal(canvas, part[(part == MASK).any(dim=1)])
        self.asked.append(start)
        return super().logits(canvas, timesteps)


@pytest.mark.parametrize("sampler", ["ancestral", "first_hitting", "confidence", "entropy_bound"])
def test_each_window_sees_what_was_filled_before_it_and_nothing_after(sampler):
    denoiser = Watcher(11, 2, [0, 4, 5], window=6)
    ids = sample(denoiser, (2, 11), sampler, window=6, stride=4, streamer=denoiser.trace, **SAMPLERS[sampler]).sequences
    assert ids.shape == (2, 11)
    assert (ids != MASK).all()
    assert denoiser.asked == sorted(denoiser.asked)
    assert set(denoiser.asked) == {0, 4, 5}


def test_a_window_is_filled_as_a_canvas_with_that_prefix_would_be():
    whole = sample(Reader(6), (3, 10), "confidence", window=6, stride=4, temperature=0).sequences
    first = sample(Reader(6), (3, 6), "confidence", temperature=0).sequences
    assert torch.equal(whole[:, :6], first)
    second = sample(Reader(6), canvas_of(first[:, 4:].tolist(), max_length=6), "confidence", temperature=0).sequences
    assert torch.equal(whole[:, 4:], second)


@every_sampler
def test_a_prompt_longer_than_a_window_is_gone_on_from(sampler):
    prompt = [[0, 1, 2, 3, 4, 5, 4, 3], [5, 4, 3, 2, 1, 0, 1, 2]]
    denoiser = Reader(6)
    needed = {"entropy_bound": 1.0} if sampler == "entropy_bound" else {}
    ids = sample(denoiser, canvas_of(prompt, max_length=11), sampler, window=6, stride=3, **needed).sequences
    assert ids[:, :8].tolist() == prompt
    assert ids.shape == (2, 11)
    assert all((canvas[:, :2] != MASK).all() for canvas, *_ in denoiser.calls)  # no window without anything to fill


def test_padding_on_the_left_moves_out_of_the_windows():
    denoiser = Reader(4)
    canvas = canvas_of([[0, 0, 1], [1, 2, 3]], [[0, 0, 1], [1, 1, 1]], max_length=8)
    sample(denoiser, canvas, "first_hitting", window=4, stride=2)
    masks = [mask.tolist() for _, _, mask, _ in denoiser.calls]
    assert masks[0] == [[0, 0, 1, 1], [1, 1, 1, 1]]
    assert masks[-1] == [[1, 1, 1, 1]] * 2


@pytest.mark.parametrize("sampler", ["ancestral", "confidence", "entropy_bound"])
def test_time_starts_at_1_in_every_window(sampler):
    denoiser = Reader(6)
    sample(denoiser, (1, 12), sampler, window=6, stride=3, **SAMPLERS[sampler])
    times = torch.cat([t for *_, t in denoiser.calls])
    assert int((times > 0.999).sum()) == 3


@pytest.mark.parametrize(("length", "stride"), [(4, 0), (9, 6), (7, None)])
def test_a_stride_out_of_range_is_refused_and_a_long_canvas_needs_one(length, stride):
    with pytest.raises(ValueError, match="stride"):
        window_starts(length, 6, stride)
