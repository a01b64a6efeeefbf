"""Building a datastore of phrases in shards, in one process."""

import errno
from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from hf_targets import ForwardMaximumMatching, WordNgrams
from hf_targets.data.passages import clean_text, passages_of
from hf_targets.phrases import datastore_shards
from hf_targets.phrases.datastore import PhraseDatastore
from hf_targets.phrases.datastore_builder import PhraseDatastoreBuilder
from hf_targets.phrases.mining.miner import MinedText
from tests.phrases.datastores import MINED, assert_equal, build, builder, documents, load_model, save_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def built(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    return folder, build(folder, model)


def mined(folder, model, miners, *, min_count=MINED["min_count"], **given):
    made = builder(folder, model, **given)
    made.cut()
    vocabulary = made.mine(miners, **{**MINED, "min_count": min_count})
    counts = np.load(folder / "phrases" / "counts.npy").tolist()
    return {vocabulary.token_ids(id_): count for id_, count in zip(vocabulary, counts, strict=True)}


def test_the_phrases_are_those_of_one_count_over_all_passages_whatever_the_shards(model, tmp_path):
    tokenizer, counts = AutoTokenizer.from_pretrained(model), Counter()
    texts = [passage for text in documents()["text"] for passage in passages_of(clean_text(text), 30)]
    table = ForwardMaximumMatching.mine(
        tokenizer(texts, add_special_tokens=False)["input_ids"], min_count=MINED["min_count"], max_tokens=6
    )
    for text in texts:
        spans = {
            tuple(span[:2])
            for miner in (WordNgrams(2, 5), table)
            for span in MinedText.of(text, tokenizer, miner).spans.tolist()
        }
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        counts.update(tuple(ids[first:stop]) for first, stop in spans if stop - first <= 6)
    expected = {phrase: count for phrase, count in counts.items() if count >= 3}
    order = sorted(expected, key=lambda phrase: (-expected[phrase] * (len(phrase) - 1), len(phrase), phrase))
    for size in (7, 1000):
        found = mined(tmp_path / str(size), model, ["words", "fmm"], rows_per_shard=size)
        assert found == expected and list(found) == order


def test_documents_of_one_id_are_refused_before_any_of_them_is_lost(model, tmp_path):
    twice = documents(3).select_columns("text").add_column("id", ["a", "b", "a"])
    with pytest.raises(ValueError, match="got 2 ids of 3 documents"):
        PhraseDatastoreBuilder(tmp_path, twice, AutoTokenizer.from_pretrained(model))


def test_a_datastore_gives_a_model_the_embeddings_that_it_would_make(built, model):
    folder, made = built[0] / "phrases", load_model(model)
    store = PhraseDatastore.from_folder(folder, AutoTokenizer.from_pretrained(model))
    found, expected = store.table(made), made.phrase_table(store.vocabulary)
    for name in ("inputs", "outputs"):
        torch.testing.assert_close(getattr(found, name).float(), getattr(expected, name).detach(), rtol=1e-2, atol=1e-3)
    assert len(store.index) == len(store.vocabulary) == len(store.counts)
    made.phrase_encoder.input_projection[0].weight.data.add_(0.1)
    with pytest.raises(ValueError, match="another phrase encoder"):
        store.table(made)


def test_an_index_is_fitted_to_states_late_in_passages_of_every_shard(built, model):
    made, store = (
        load_model(model),
        PhraseDatastore.from_folder(built[0] / "phrases", AutoTokenizer.from_pretrained(model)),
    )
    build = builder(built[0], model)
    found = build._states(made, 7, store.outputs)  # three of each of three shards
    for shard, rows in enumerate(found.split(3)):
        text = build._passages.read(shard)["text"][0].as_py()
        ids = torch.tensor([build.tokenizer(text)["input_ids"][:64]])
        torch.testing.assert_close(rows[:, :16], made.base_model(ids)[0][0, -3:])
    assert len(found) == 9 and found.shape[1] == store.outputs.shape[1] == store.index.fit.root.shape[0]


def test_a_run_that_fills_the_disk_goes_on_with_the_shards_that_are_missing(built, model, tmp_path, monkeypatch):
    def fails(write, _, shard, parts):
        if shard == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(shard, parts)

    done = []
    for kind in ("CutPassages", "MinePhrases", "EncodePassages", "EncodePhrases"):
        work = getattr(datastore_shards, kind)
        call = work.__call__
        monkeypatch.setattr(
            work, "__call__", lambda self, shard, call=call, kind=kind: done.append((kind, shard)) or call(self, shard)
        )
    with monkeypatch.context() as patch:
        files = datastore_shards.ShardFiles
        patch.setattr(
            files,
            "write",
            lambda self, shard, parts, write=files.write: fails(partial(write, self), self, shard, parts),
        )
        with pytest.raises(OSError, match="No space"):
            build(tmp_path, model)
    assert done == [("CutPassages", 0), ("CutPassages", 1)]
    done.clear()
    assert_equal(build(tmp_path, model), built[1])
    assert ("CutPassages", 0) not in done and ("CutPassages", 1) in done
    done.clear()
    assert_equal(build(tmp_path, model), built[1])
    assert not done


def test_other_settings_are_refused_before_anything_is_done(built, model, tmp_path):
    folder = built[0]
    with pytest.raises(ValueError, match="of another passage_words"):
        builder(folder, model, passage_words=31).cut()
    with pytest.raises(ValueError, match="of another text"):
        builder(folder, model, texts=[*documents(119)["text"], "other"]).cut()
    with pytest.raises(ValueError, match="of another max_tokens"):
        builder(folder, model).mine(["words", "fmm"], **{**MINED, "max_tokens": 5})
    with pytest.raises(ValueError, match="of another encoder"):
        builder(folder, model).encode_passages(list, "others")
    with pytest.raises(ValueError, match="no phrase was found 9999 times"):
        mined(tmp_path, model, ["tokens"], min_count=9999)
