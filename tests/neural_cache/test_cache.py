"""The continuous cache against a loop over positions, in float64; its window, its memory, its settings."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_targets import NeuralCache
from hf_targets.neural_cache import cache as module

VOCAB, DIM = 6, 3


def text(batch, time, seed):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(batch, time, DIM, generator=generator, dtype=torch.float64)
    words = torch.randint(0, VOCAB, (batch, time), generator=generator)
    model = torch.randn(batch, time, VOCAB, generator=generator, dtype=torch.float64).softmax(dim=-1)
    return states, words, model


def by_hand(cache, states, words, model):
    """Return p of all words (time, VOCAB) of one text, position after position; words of -100 are not remembered."""
    found = []
    for t in range(len(states)):
        window = [i for i in range(max(0, t - cache.window), t) if words[i] >= 0]
        num_before = int((words[:t] >= 0).sum())
        if not window or (cache.waits and num_before <= cache.window):
            found.append(model[t])
            continue
        theta = cache.theta / (states[t] @ states[t]) if cache.relative else cache.theta
        weights = torch.softmax(torch.stack([theta * states[t] @ states[i] for i in window]), dim=0)
        cached = torch.zeros(VOCAB, dtype=torch.float64)
        for weight, i in zip(weights, window, strict=True):
            cached[words[i]] += weight
        found.append((1 - cache.weight) * model[t] + cache.weight * cached)
    return torch.stack(found)


def of_targets(all_words, words):
    return all_words.gather(-1, words.clamp(min=0)[..., None])[..., 0]


flags = {"waits": st.booleans(), "relative": st.booleans()}
caches = st.builds(NeuralCache, window=st.integers(1, 12), theta=st.floats(0, 3), weight=st.floats(0, 0.9), **flags)


@given(caches, st.integers(1, 30), st.lists(st.integers(1, 29), max_size=4), st.integers(1, 9), st.integers(0, 10**6))
def test_however_a_text_is_cut_the_cache_is_the_loop_over_its_positions(cache, time, cuts, at_once, seed):
    states, words, model = text(2, time, seed)
    words[torch.rand(2, time, generator=torch.Generator().manual_seed(seed)) < 0.2] = -100
    memory, found = cache.memory(2, states), []
    edges = sorted({0, time, *(cut for cut in cuts if cut < time)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_POSITIONS_AT_ONCE", at_once)
        for start, end in pairwise(edges):
            part = states[:, start:end], words[:, start:end]
            own = of_targets(model[:, start:end], part[1])
            found.append(cache.target_probabilities(own, *part, memory))
    expected = torch.stack([by_hand(cache, *rows) for rows in zip(states, words, model, strict=True)])
    ours, theirs = torch.cat(found, dim=1), of_targets(expected, words)
    torch.testing.assert_close(ours[words >= 0], theirs[words >= 0], rtol=1e-10, atol=1e-12)
    own = of_targets(model, words)
    assert torch.equal(ours[words < 0], own[words < 0])


@settings(max_examples=15)
@given(caches, st.integers(1, 20), st.integers(0, 10**6))
def test_the_next_word_has_the_probabilities_of_the_loop(cache, time, seed):
    states, words, model = text(2, time, seed)
    memory = cache.memory(2, states)
    for t in range(time):
        found = cache.mix(model[:, t].log(), states[:, t], memory)
        expected = torch.stack([by_hand(cache, *rows)[t] for rows in zip(states, words, model, strict=True)])
        torch.testing.assert_close(found.exp(), expected, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.exp().sum(dim=1), torch.ones(2, dtype=torch.float64))
        memory.append(states[:, t : t + 1], words[:, t : t + 1])


def test_a_share_of_0_leaves_the_model_as_it_is():
    states, words, model = text(1, 20, 0)
    cache, own = NeuralCache(window=5, weight=0.0), of_targets(model, words)
    memory = cache.memory(1, states)
    assert torch.equal(cache.target_probabilities(own, states, words, memory), own)
    torch.testing.assert_close(cache.mix(model[:, 3].log(), states[:, 3], memory), model[:, 3].log())


def test_states_that_are_no_numbers_show():
    states, words, model = text(1, 9, 1)
    states[0, 3] = math.nan
    cache, own = NeuralCache(window=4, weight=0.5), of_targets(model, words)
    found = cache.target_probabilities(own, states, words, cache.memory(1, states))
    assert torch.isfinite(found[0, :3]).all() and torch.isnan(found[0, 3:8]).all() and torch.isfinite(found[0, 8])


def test_forbidden_words_stay_so_and_the_rest_makes_one():
    states, words, model = text(2, 9, 3)
    cache = NeuralCache(window=9, weight=0.4)
    memory = cache.memory(2, states)
    memory.append(states[:, :8], words[:, :8])
    ban = torch.tensor([1, 3])
    scores = model[:, 8].log().index_fill(1, ban, -torch.inf).log_softmax(dim=1)
    found = cache.mix(scores, states[:, 8], memory).exp()
    assert not found[:, ban].any()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(2, dtype=torch.float64))
    every = cache.mix(scores.index_fill(1, words.unique(), -torch.inf), states[:, 8], memory)
    assert torch.equal(every, scores.index_fill(1, words.unique(), -torch.inf))


def test_rows_of_a_memory_can_change_places():
    states, words, model = text(3, 9, 2)
    cache, own = NeuralCache(window=4, weight=0.5), of_targets(model, words)
    order = torch.tensor([2, 0, 0])
    memory = cache.memory(3, states)
    cache.target_probabilities(own[:, :5], states[:, :5], words[:, :5], memory)
    rest = (own[order, 5:], states[order, 5:], words[order, 5:])
    found = cache.target_probabilities(*rest, memory.rows(order))
    turned = cache.memory(3, states)
    cache.target_probabilities(own[order, :5], states[order, :5], words[order, :5], turned)
    torch.testing.assert_close(found, cache.target_probabilities(*rest, turned))
