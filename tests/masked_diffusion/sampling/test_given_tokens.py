"""What is given stays, what is masked is filled: by every sampler, whatever the pattern."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.masked_diffusion.sampling.streaming import CanvasTrace
from tests.masked_diffusion.sampling.denoisers import MASK, SAMPLERS, VOCAB, Reader, canvas_of, sample

every_sampler = pytest.mark.parametrize("sampler", SAMPLERS)
TOKENS = st.integers(0, VOCAB - 1)  # the mask's among them


@st.composite
def canvases(draw):
    """Rows of tokens, masks and padding at either end, which may hold the mask id."""
    length = draw(st.integers(2, 6))
    rows = draw(st.lists(st.lists(TOKENS, min_size=length, max_size=length), min_size=1, max_size=4))
    keep, position = [], draw(st.integers(0, length - 1))
    rows[0][position] = MASK
    for row in range(len(rows)):  # at least one mask that is not padding
        left = draw(st.integers(0, length if row else position))
        right = draw(st.integers(0, length - left if row else length - 1 - position))
        keep.append([0] * left + [1] * (length - left - right) + [0] * right)
    return canvas_of(rows, keep)


@every_sampler
@given(canvas=canvases(), stride=st.none() | st.integers(1, 2), seed=st.integers(0, 99))
def test_given_tokens_and_padding_never_change_and_all_else_is_filled(sampler, canvas, stride, seed):
    denoiser, trace = Reader(6, seed), CanvasTrace()
    before = canvas.ids.clone()
    window = 6 if stride is None else 3
    output = sample(
        denoiser, canvas, sampler, seed=seed, window=window, stride=stride, streamer=trace, **SAMPLERS[sampler]
    )
    assert torch.equal(canvas.ids, before)  # a new canvas is returned
    states = [canvas.ids, *trace.canvases]
    for one, other in pairwise(states):  # a streamer sees every change
        changed = one != other
        assert changed.any() and (one[changed] == MASK).all() and (other[changed] != MASK).all()
        assert torch.equal(other[~canvas.masked], before[~canvas.masked])
    assert torch.equal(states[-1], output.sequences)
    assert trace.stacked().shape == (len(trace.canvases), *canvas.ids.shape)
    assert (output.sequences[canvas.masked] != MASK).all()
    assert output.num_generated_tokens == int(canvas.masked.sum())
    assert output.num_evaluations == len(denoiser.calls)
    assert all((ids == MASK).any(dim=1).all() for ids, *_ in denoiser.calls), "a full row is not evaluated again"
    assert output.num_row_evaluations == sum(len(ids) for ids, *_ in denoiser.calls)
    assert output.tokens_per_forward == output.num_generated_tokens / output.num_row_evaluations


@every_sampler
def test_the_time_told_falls_from_1(sampler):
    denoiser = Reader(5)
    sample(denoiser, (1, 5), sampler, **SAMPLERS[sampler])
    times = [float(t[0]) for *_, t in denoiser.calls]
    assert times == sorted(times, reverse=True)
    assert all(0 < t <= 1 for t in times)
    if sampler in ("ancestral", "confidence", "entropy_bound"):
        assert times[0] == pytest.approx(1)


@pytest.mark.parametrize("sampler", ["confidence", "entropy_bound"])
def test_at_temperature_0_order_by_the_network_leaves_nothing_to_chance(sampler):
    first, other = (
        sample(Reader(5), (3, 5), sampler, seed=seed, temperature=0, **SAMPLERS[sampler]).sequences for seed in (3, 4)
    )
    assert torch.equal(first, other)


@every_sampler
def test_at_temperature_0_every_token_is_the_most_probable(sampler):
    denoiser = Reader(5)
    trace = CanvasTrace()
    sample(denoiser, (2, 5), sampler, temperature=0, streamer=trace, **SAMPLERS[sampler])
    before = torch.full((2, 5), MASK)
    for after in trace.canvases:
        best = denoiser.logits(before, torch.ones(2))[..., :MASK].argmax(dim=-1)
        assert torch.equal(after[after != before], best[after != before])
        before = after
