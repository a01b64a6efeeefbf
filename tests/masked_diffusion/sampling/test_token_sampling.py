"""How tokens are drawn: frequencies, temperature, nuclei, and random numbers that come from where they should."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets.masked_diffusion.sampling import token_sampling
from hf_targets.masked_diffusion.sampling.token_sampling import TokenDraw
from tests.masked_diffusion.sampling.denoisers import CPU, MASK, VOCAB, chi_square


def random_log_p(*shape, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(*shape, generator=generator, dtype=dtype)
    logits[..., MASK] = -1e6
    return logits.log_softmax(dim=-1)


def make_draw(seed=0, **options):
    return TokenDraw(MASK, CPU, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_frequencies_are_the_softmax_of_log_p_over_temperature(temperature):
    log_p = random_log_p(VOCAB)
    drawn = make_draw(temperature=temperature)(log_p.expand(50_000, -1))
    counts = torch.bincount(drawn, minlength=VOCAB)
    assert chi_square(counts[:MASK], (log_p[:MASK].double() / temperature).softmax(dim=0)) < 3
    assert counts[MASK] == 0


def test_tokens_rarer_than_float32_noise_reaches_come_too(monkeypatch):
    largest = torch.where(torch.arange(VOCAB) == 1, 1 - torch.finfo(torch.float64).eps / 2, 0.5)[None]
    monkeypatch.setattr(TokenDraw, "uniforms", lambda *_: largest.double())
    log_p = torch.full((1, VOCAB), -1e6).index_fill(1, torch.tensor([0]), 0.0)
    log_p[:, 1] = -20.0  # the largest g is 36.7 in float64, 16.6 in float32
    assert make_draw()(log_p).tolist() == [1]


def test_the_only_token_that_can_be_is_drawn_also_with_the_worst_noise(monkeypatch):
    monkeypatch.setattr(TokenDraw, "uniforms", lambda _, *shape: torch.zeros(shape, dtype=torch.float64))
    log_p = random_log_p(5, VOCAB)
    assert torch.equal(make_draw(top_p=0.01)(log_p), log_p.argmax(dim=1))


@given(top_p=st.floats(0.01, 1.0), seed=st.integers(0, 99), temperature=st.sampled_from([0.0, 1.0, 5.0]))
def test_tokens_outside_the_nucleus_are_never_drawn(top_p, seed, temperature):
    log_p = random_log_p(VOCAB, seed=seed, dtype=torch.float64)
    order = log_p.argsort(descending=True)
    p = log_p.exp()[order]
    size = next((n for n in range(1, VOCAB) if float(p[:n].sum()) >= top_p), MASK)
    drawn = make_draw(seed, top_p=top_p, temperature=temperature)(log_p.expand(300, -1))
    assert set(drawn.tolist()) <= set(order[:size].tolist())


def test_inside_a_nucleus_tokens_keep_their_proportions():
    p = torch.tensor([0.5, 0.3, 0.15, 0.03, 0.01, 0.01, 0.0])
    drawn = make_draw(top_p=0.9)(p.log().clamp(min=-1e6).expand(20_000, -1))
    assert chi_square(torch.bincount(drawn)[:3], p[:3] / p[:3].sum()) < 4


def test_temperature_0_needs_no_random_numbers():
    draw = make_draw(temperature=0)
    assert torch.equal(draw(random_log_p(9, VOCAB)), random_log_p(9, VOCAB).argmax(dim=1))
    assert torch.equal(draw.uniforms(3), make_draw().uniforms(3))


@pytest.mark.parametrize("entries", [1, 3 * VOCAB, 10**9])
def test_tokens_do_not_depend_on_how_many_are_drawn_at_once(entries, monkeypatch):
    expected = make_draw()(random_log_p(50, VOCAB))
    monkeypatch.setattr(token_sampling, "ENTRIES_AT_ONCE", entries)
    assert torch.equal(make_draw()(random_log_p(50, VOCAB)), expected)


@pytest.mark.parametrize("options", [{"temperature": -0.1}, {"temperature": math.nan}, {"top_p": 0.0}, {"top_p": 1.01}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        make_draw(**options)
