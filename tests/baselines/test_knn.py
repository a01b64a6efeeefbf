"""kNN-LM against brute force in float64; its datastore in files, however it was built; what is refused."""

import itertools
import shutil
import signal

import numpy as np
import pytest
import torch

from hf_targets import KnnDatastore, KnnProcessor, NeuralCache, cache_processor, cached_perplexities
from hf_targets.baselines import knn_datastore as module
from hf_targets.retrieval import disk_index
from tests.programs import run_program
from tests.tiny_backbones import left_padded, make_backbone, token_ids
from tests.tiny_models import make_model
from tests.trainer_runs import run_processes

NEW = {"max_new_tokens": 6, "eos_token_id": None, "pad_token_id": 0, "do_sample": False}
GIVEN = {"k": 9, "temperature": 20.0, "weight": 0.4}
GRID = {"temperatures": [1.0], "weights": [0.1]}
SCORES = {"output_scores": True, "return_dict_in_generate": True}
MAKERS = [lambda: make_backbone("gpt2"), lambda: make_backbone("llama"), lambda: make_backbone("opt"), make_model]


def blocks(num_rows=12, length=8, seed=3):
    ids = token_ids(num_rows, length, seed=seed) % 9 + 1
    ids[:, 0] = torch.arange(20, 20 + num_rows)  # no two keys are equal
    labels = ids.masked_fill(ids == 5, -100)
    return [{"input_ids": row.tolist(), "labels": kept.tolist()} for row, kept in zip(ids, labels, strict=True)]


def states_and_logits(model, ids):
    output = model(ids, output_hidden_states=True)
    return output.hidden_states[-1].detach(), output.logits.detach()


def by_hand(model, ids, given):
    """Return p of the word after each position of texts (batch, time), in float64, by all keys of `blocks()`."""
    text = torch.tensor([block["input_ids"] for block in blocks()])
    keys, words = states_and_logits(model, text)[0][:, :-1].half().double().flatten(0, 1), text[:, 1:].flatten()
    keys, words = keys[words != 5], words[words != 5]
    states, logits = states_and_logits(model, ids)
    near = torch.cdist(states.double(), keys[None], compute_mode="donot_use_mm_for_euclid_dist").square()
    near, at = near.topk(given["k"], largest=False)
    own = logits.double().softmax(dim=-1)
    other = torch.zeros_like(own).scatter_add_(2, words[at], (-near / given["temperature"]).softmax(dim=-1))
    return (1 - given["weight"]) * own + given["weight"] * other


@pytest.fixture
def store(tmp_path):
    return KnnDatastore.build(make_backbone("gpt2"), blocks(), tmp_path / "store", shard_size=20)


def generate(processor, ids, **options):
    with processor:
        return processor.model.generate(ids, logits_processor=[processor], **{**NEW, **SCORES, **options})


@pytest.mark.parametrize("make", MAKERS)
def test_probabilities_are_those_of_brute_force_in_float64_in_texts_and_in_generate(make, tmp_path, monkeypatch):
    monkeypatch.setattr(disk_index, "_VECTORS_AT_ONCE", 7)
    monkeypatch.setattr(disk_index, "_QUERIES_AT_ONCE", 5)
    monkeypatch.setattr(disk_index, "_NUMBERS_AT_ONCE", 600)
    model = make()
    knn = KnnProcessor(KnnDatastore.build(model, blocks(), tmp_path), model, **GIVEN)
    test = token_ids(4, 8, seed=8) % 9 + 1
    expected = by_hand(model, test, GIVEN)[:, :-1].gather(2, test[:, 1:, None]).log().sum()
    found = cached_perplexities(model, [{"input_ids": row} for row in test.tolist()], {"knn": knn}, batch_size=3)
    assert found["knn"].nll == pytest.approx(-expected.item(), rel=1e-5)
    written = generate(knn, test)
    for step, scores in enumerate(written.scores):
        expected = by_hand(model, written.sequences[:, : 8 + step], GIVEN)[:, -1]
        torch.testing.assert_close(scores.exp().double(), expected, rtol=1e-4, atol=1e-7)


def test_a_share_of_0_is_the_model_bit_for_bit(store):
    model, ids = make_backbone("gpt2"), token_ids(3, 5)
    silent = KnnProcessor(store, model, k=9, weight=0.0)
    own = model.generate(ids, **NEW, **SCORES)
    assert all(map(torch.equal, generate(silent, ids).scores, own.scores))
    found = cached_perplexities(model, blocks(seed=8), {"knn": silent})
    assert found["knn"].nll == pytest.approx(found["without cache"].nll, rel=1e-12)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
def test_a_padded_batch_is_its_rows_alone(store, options):
    model, (ids, mask) = make_backbone("gpt2"), left_padded(3, 7)
    knn = KnnProcessor(store, model, **GIVEN)
    together = generate(knn, ids, attention_mask=mask, **options)
    for row, kept in enumerate(mask.bool()):
        alone = generate(knn, ids[row, kept][None], **options)
        assert torch.equal(together.sequences[row, 7:], alone.sequences[0, kept.sum() :])


def test_samples_are_of_the_mixture_and_a_cache_comes_on_top(store):
    model, ids = make_backbone("gpt2"), token_ids(1, 6) % 9 + 1
    knn, cache = KnnProcessor(store, model, **GIVEN), NeuralCache(window=5, weight=0.5)
    drawn = generate(knn, ids.repeat(4000, 1), do_sample=True, top_k=0, max_new_tokens=1).sequences[:, -1]
    shares = drawn.bincount(minlength=50) / len(drawn)
    torch.testing.assert_close(shares, by_hand(model, ids, GIVEN)[0, -1].float(), rtol=0, atol=0.035)
    with knn, cache_processor(cache, model) as cached:
        both = model.generate(ids, logits_processor=[knn, cached], **NEW, **SCORES)
    states, memory = states_and_logits(model, ids)[0], cache.memory(1, torch.zeros(1, 32))
    memory.append(states[:, :-1], ids[:, 1:])
    expected = cache.mix(by_hand(model, ids, GIVEN)[:, -1].log(), states[:, -1], memory)
    torch.testing.assert_close(both.scores[0].double(), expected, rtol=1e-4, atol=1e-5)


def test_tuning_finds_what_trying_each_pair_finds(store):
    model, text = make_backbone("gpt2"), blocks(seed=8)
    grid = {"temperatures": [0.5, 20.0, 400.0], "weights": [0.0, 0.1, 0.5]}
    pairs = itertools.product(grid["temperatures"], grid["weights"])
    tried = {(t, w): KnnProcessor(store, model, k=9, temperature=t, weight=w) for t, w in pairs}
    losses = cached_perplexities(model, text, tried)
    best = min(tried, key=lambda pair: losses[pair].nll)
    found = KnnProcessor(store, model, k=9).tuned(text, **grid)
    assert (found.temperature, found.weight) == best and found.weight > 0


PROGRAM = """
import os, signal, sys
from types import SimpleNamespace
from accelerate import PartialState
from hf_targets.baselines import knn_datastore as module
from tests.baselines.test_knn import blocks, make_backbone

calls, keys_of, most = [], module._keys_of, float(sys.argv[2])
def counted(*given):
    calls.append(1)
    return keys_of(*given) if len(calls) <= most else os.kill(os.getpid(), signal.SIGKILL)
module._keys_of = counted
module.KnnDatastore.build(make_backbone("gpt2"), blocks(), sys.argv[1] + "/store", shard_size=20)
print(len(calls) - 1)
trainer = SimpleNamespace(accelerator=PartialState())  # which the program's end waits for
"""


def test_a_build_that_was_killed_goes_on_and_ends_as_one_build(store, tmp_path, monkeypatch):
    folder, calls, keys_of = tmp_path / "killed", [], module._keys_of
    assert run_program(PROGRAM, folder, 3).returncode == -signal.SIGKILL
    with pytest.raises(ValueError, match="broken off"):
        KnnDatastore.from_folder(folder / "store")
    monkeypatch.setattr(module, "_keys_of", lambda *given: calls.append(1) or keys_of(*given))
    found = KnnDatastore.build(make_backbone("gpt2"), blocks(), folder / "store", shard_size=20)
    assert np.array_equal(found.keys, store.keys) and torch.equal(found.words, store.words) and len(calls) == 2


def test_two_processes_share_the_shards_of_one_build(store, tmp_path):
    assert [int(told) for told in run_processes(PROGRAM, tmp_path / "two", "inf")] == [2, 1]
    found = KnnDatastore.from_folder(tmp_path / "two" / "store")
    assert np.array_equal(found.keys, store.keys) and torch.equal(found.words, store.words)


@pytest.mark.parametrize("factory", ["IVF4,Flat", "IVF4,PQ8x4"])
def test_an_index_proposes_neighbours_whose_distances_are_exact_and_needs_no_new_keys(store, tmp_path, factory):
    model, queries = make_backbone("gpt2"), torch.tensor(store.keys[:5]).float()
    made = (tmp_path / "store" / "keys.npy").stat().st_mtime_ns
    found = KnnDatastore.build(model, blocks(), tmp_path / "store", factory=factory, num_probes=4, shard_size=20)
    distances, words = found.search(queries, 9)
    every, following = store.search(queries, len(store))
    assert (tmp_path / "store" / "keys.npy").stat().st_mtime_ns == made
    is_pair = (distances[:, :, None] - every[:, None]).abs().lt(1e-3) & (words[:, :, None] == following[:, None])
    assert is_pair.any(dim=2).all()
    if factory == "IVF4,Flat":
        torch.testing.assert_close(distances.sort().values, every.sort().values[:, :9])


def made(value=1.0, seed=0, last=None):
    model = make_backbone("gpt2", seed=seed)
    torch.nn.init.constant_(model.transformer.ln_f.weight, value)
    if last is not None:
        model.transformer.wte.weight.data[31] = last  # a token of the last block alone
    return model


def scored(store, **given):
    return cached_perplexities(made(), blocks(), {"knn": KnnProcessor(store, made(), k=9, **given)})


def damaged(path, keys_of):
    """Return a copy of a datastore with other keys."""
    folder = shutil.copytree(path, path.parent / "damaged")
    np.save(folder / "keys.npy", keys_of(np.load(folder / "keys.npy")))
    return KnnDatastore.from_folder(folder)


@pytest.mark.parametrize(
    ("act", "word"),
    [
        (lambda store, path: damaged(path, lambda keys: keys[1:]), "damaged files"),
        (lambda store, path: damaged(path, lambda keys: keys * np.nan).search(torch.ones(1, 32), 9), "has NaN"),
        (lambda store, path: KnnProcessor(store, made(seed=1), k=9), "other weights"),
        (lambda store, path: KnnDatastore.build(made(seed=1), blocks(), path), "another model"),
        (lambda store, path: KnnDatastore.build(made(), blocks(seed=4), path), "another text"),
        (lambda store, path: KnnDatastore.build(made(torch.nan), blocks(), path / "new"), "finite"),
        (lambda store, path: KnnDatastore.build(made(1e6), blocks(), path / "new"), "finite in float16"),
        (lambda store, path: KnnDatastore.build(made(last=torch.nan), blocks(), path / "new", shard_size=20), "finite"),
        (lambda store, path: KnnDatastore.build(made(), [{"input_ids": [1]}], path / "new"), "target"),
        (
            lambda store, path: KnnDatastore.build(
                made(), [*blocks(), {"input_ids": [1] * 65}], path / "new", shard_size=20
            ),
            "65 tokens, and the model 64 positions",
        ),
        (lambda store, path: KnnDatastore.from_folder(path / "new"), "no datastore"),
        (lambda store, path: KnnProcessor(store, made(), k=len(store) + 1), "size of the datastore"),
        (
            lambda store, path: store.search(torch.tensor(store.keys[:1]).float(), len(store) + 1),
            "size of the datastore",
        ),
        (lambda store, path: scored(store), "own_text"),
        (lambda store, path: KnnProcessor(store, made(), k=9).tuned(blocks(), **GRID), "own_text"),
        (lambda store, path: KnnProcessor(store, made(), k=9, temperature=0.0), "temperature"),
        (lambda store, path: KnnProcessor(store, made(), k=9).tuned([], temperatures=[1.0], weights=[1.0]), "weight"),
        (lambda store, path: KnnProcessor(store, made(), k=9).tuned([], temperatures=[1.0], weights=[0.1]), "target"),
        (lambda store, path: store.search(torch.full((1, 32), torch.nan), 9), "finite"),
    ],
)
def test_what_cannot_serve_is_refused(act, word, store, tmp_path):
    with pytest.raises(ValueError, match=word):
        act(store, tmp_path / "store")
    assert not (tmp_path / "store" / "new").exists()
    KnnProcessor(store, made().bfloat16(), k=len(store))  # another float type is the same model
    assert scored(store, own_text=True)["knn"].nll < scored(store, own_text=True)["without cache"].nll
