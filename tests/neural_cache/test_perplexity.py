"""The perplexity of a text with a cache: the loop over its positions, across blocks, whatever the batch."""

import math

import pytest
import torch

from hf_targets import NeuralCache, cached_perplexities, perplexity_of_blocks, search_cache
from tests.awd_lstm.by_hand import read_by_hand
from tests.awd_lstm.models import make_awd_lstm
from tests.neural_cache.test_cache import by_hand, of_targets
from tests.tiny_backbones import make_backbone, token_ids
from tests.tiny_models import make_model

CACHES = {"small": NeuralCache(window=5, theta=0.3, weight=0.3), "large": NeuralCache(window=20, weight=0.1)}


def blocks(num_rows=5, length=8):
    ids = token_ids(1, num_rows * (length - 1) + 1)[0] % 6  # so that words come again
    return [{"input_ids": ids[i * (length - 1) :][:length].tolist(), "num_words": length} for i in range(num_rows)]


@pytest.mark.parametrize("make", [lambda: make_backbone("gpt2"), lambda: make_backbone("llama"), make_model])
def test_it_is_the_loop_over_the_positions_of_the_whole_text(make, monkeypatch):
    model, given = make(), blocks()
    states, words, probabilities = [], [], []
    for block in given:
        ids = torch.tensor([block["input_ids"]])
        output = model(ids, output_hidden_states=True)
        states.append(output.hidden_states[-1][0, :-1].double())
        probabilities.append(output.logits[0, :-1].double().softmax(dim=-1))
        words.append(ids[0, 1:])
    states, words, probabilities = map(torch.cat, (states, words, probabilities))
    monkeypatch.setattr("tests.neural_cache.test_cache.VOCAB", probabilities.shape[1])
    found = cached_perplexities(model, given, CACHES, batch_size=2)
    assert found["without cache"].nll == pytest.approx(perplexity_of_blocks(model, given).nll, rel=1e-5)
    for name, cache in CACHES.items():
        expected = of_targets(by_hand(cache, states, words, probabilities), words)
        assert found[name].nll == pytest.approx(-expected.log().sum().item(), rel=1e-5)
        assert found[name].num_tokens == len(words) and found[name].num_words == 40


@pytest.mark.parametrize("length", [8, 5, 36])
def test_a_model_whose_state_goes_on_reads_the_blocks_as_one_text(length, monkeypatch):
    model = make_awd_lstm().double()
    given = blocks(num_rows=35 // (length - 1), length=length)
    text = torch.tensor([*given[0]["input_ids"], *(id_ for block in given[1:] for id_ in block["input_ids"][1:])])
    probabilities = read_by_hand(model, text[:-1]).softmax(dim=-1)
    states = model.model(text[None, :-1]).last_hidden_state[0]
    monkeypatch.setattr("tests.neural_cache.test_cache.VOCAB", probabilities.shape[1])
    found = cached_perplexities(model, given, CACHES, carries_state=True)
    own = of_targets(probabilities, text[1:])
    assert found["without cache"].nll == pytest.approx(-own.log().sum().item(), rel=1e-6)
    for name, cache in CACHES.items():
        expected = of_targets(by_hand(cache, states, text[1:], probabilities), text[1:])
        assert found[name].nll == pytest.approx(-expected.log().sum().item(), rel=1e-6)
    broken = [given[0], {"input_ids": [given[0]["input_ids"][-1] + 1, 2, 3], "num_words": 3}]
    with pytest.raises(ValueError, match="last token of the one before"):
        cached_perplexities(model, broken, {}, carries_state=True)


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("carries_state", [False, True])
def test_the_search_finds_what_trying_each_cache_finds(waits, carries_state):
    model, given = make_awd_lstm(), blocks(num_rows=12)
    thetas, weights = [0.0, 0.3, 3.0], [0.0, 0.1, 0.4, 0.9]
    caches = {(t, w): NeuralCache(9, t, w, waits) for t in thetas for w in weights}
    tried = cached_perplexities(model, given, caches, carries_state=carries_state)
    found = search_cache(model, given, 9, thetas, weights, carries_state=carries_state, waits=waits)
    best = min(tried[pair].nll for pair in caches)
    assert tried[found.theta, found.weight].nll == pytest.approx(best, rel=1e-6)
    assert tried[found.theta, found.weight].nll < tried["without cache"].nll and found.waits == waits


def test_the_batch_and_padding_change_nothing():
    model = make_backbone("gpt2")
    given = blocks()
    padded = [
        {"input_ids": [0, 0, *one["input_ids"], 0], "attention_mask": [0, 0, *[1] * 8, 0], "num_words": 8}
        for one in given
    ]
    found = [cached_perplexities(model, rows, CACHES, batch_size=size) for rows, size in ((given, 1), (padded, 5))]
    for name in found[0]:
        assert found[0][name].nll == pytest.approx(found[1][name].nll, rel=1e-5)


def test_a_word_of_no_probability_in_floats_is_counted():
    model = make_backbone("gpt2")
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(1e5)
    given = blocks()
    expected = perplexity_of_blocks(model, given).nll
    assert expected > 1e4 and math.isfinite(expected)
    assert cached_perplexities(model, given, {})["without cache"].nll == pytest.approx(expected, rel=1e-5)
