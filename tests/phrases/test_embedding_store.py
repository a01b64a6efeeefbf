"""Phrase embeddings on disk: what is stored is what was computed, whatever happens to the folder."""

import copy
import logging
import os
import pickle
import shutil

import numpy as np
import pytest
import torch

from hf_targets.phrases import embedding_store
from hf_targets.phrases.embedding_segments import SUFFIX, EmbeddingSegment, merge_segments, write_segment
from hf_targets.phrases.embedding_store import PhraseEmbeddingStore
from hf_targets.phrases.encoder_version import embedding_fingerprint
from hf_targets.training.lora import add_lora
from tests.programs import EVERYTHING, run_program, server
from tests.tiny_models import PHRASES, TIES, make_dynamic_model, make_vocabulary, token_ids

WIDTH = 6


def table_of(model, *phrases):
    with torch.no_grad():
        table = model.phrase_table(make_vocabulary(*phrases))
    return table.inputs[table.slots[0]], table.outputs[table.slots[0]]


def stored_model(folder, *args, dtype=torch.float32, max_bytes=2**30, **config):
    model = make_dynamic_model(*args, **config).to(dtype)
    model.keep_phrase_embeddings(folder, max_bytes=max_bytes)
    return model


def files_in(folder):
    return sorted(folder.glob(f"*/*{SUFFIX}"), key=lambda file: file.name)


def rows(first, count, dtype=torch.float32):
    """Return keys and embeddings that tell which key they belong to."""
    keys = [np.array([number, number + 1], np.int64).tobytes() for number in range(first, first + count)]
    return keys, (torch.arange(first, first + count)[:, None].expand(-1, WIDTH).to(dtype),)


def assert_has(store, first, count):
    keys, (expected,) = rows(first, count)
    found, (table,) = store.read("f" * 32, keys, [WIDTH])
    assert sorted(found.tolist()) == list(range(count))
    assert torch.equal(table, expected[torch.from_numpy(found)])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("family", "tied"), TIES[:1] + TIES[-1:])
def test_a_second_model_reads_what_the_first_computed(family, tied, dtype, tmp_path, encoded):
    settings = {"dtype": dtype, "tie_phrase_embeddings": tied}
    expected = table_of(stored_model(tmp_path, family, **settings), *PHRASES)
    found = table_of(stored_model(tmp_path, family, **settings), *reversed(PHRASES))
    assert encoded == [4]
    for ours, theirs in zip(expected, found, strict=True):
        assert ours.dtype == theirs.dtype == dtype
        assert torch.equal(ours, theirs.flip(0))
    alone = table_of(make_dynamic_model(family, tie_phrase_embeddings=tied).to(dtype), *PHRASES)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(expected, alone, strict=True))


def test_only_new_phrases_are_encoded_and_all_come_in_their_order(tmp_path, encoded):
    one = stored_model(tmp_path)
    table_of(one, PHRASES[1], PHRASES[3])
    pair = table_of(stored_model(tmp_path), *PHRASES)
    assert encoded == [2, 2]
    expected = table_of(make_dynamic_model(), *PHRASES)
    for ours, theirs in zip(pair, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


OTHER_PROCESS = """
import sys, torch
from hf_targets.phrases import embedding_cache
from tests.tiny_models import make_dynamic_model, make_vocabulary
def encode(*_): raise AssertionError("encoded again")
embedding_cache.encode = encode
model = make_dynamic_model()
model.keep_phrase_embeddings(sys.argv[1])
with torch.no_grad():
    torch.save(model.phrase_table(make_vocabulary()).inputs, sys.argv[2])
"""


def test_another_process_reads_what_this_one_computed(tmp_path):
    expected, _ = table_of(stored_model(tmp_path / "store"), *PHRASES)
    done = run_program(OTHER_PROCESS, tmp_path / "store", tmp_path / "table")
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "table"), expected)


def test_a_text_generated_with_a_store_is_the_text_without(tmp_path, encoded):
    plain, prompt = make_dynamic_model(), token_ids(2, 5)
    settings = {"phrases": make_vocabulary(), "do_sample": False, "max_new_tokens": 12, "pad_token_id": 0}
    expected = plain.generate(prompt, **settings)
    for _ in range(2):
        assert torch.equal(stored_model(tmp_path).generate(prompt, **settings), expected)
    assert encoded == [4, 4]


def change_weight(model):
    with torch.no_grad():
        model.phrase_encoder.transformer.get_input_embeddings().weight[17, 3] += 1e-3


CHANGES = {
    "one weight": change_weight,
    "type": lambda model: model.bfloat16(),
    "setting": lambda model: setattr(model.phrase_encoder.transformer.config, "layer_norm_epsilon", 1e-3),
}


@pytest.mark.parametrize("change", CHANGES)
def test_embeddings_of_another_encoder_are_not_read(change, tmp_path, encoded):
    table_of(stored_model(tmp_path), *PHRASES)
    model = stored_model(tmp_path)
    CHANGES[change](model)
    found = table_of(model, *PHRASES)
    assert encoded == [4, 4]
    fresh = copy.deepcopy(model)
    fresh.keep_phrase_embeddings(None)
    assert torch.equal(found[0], table_of(fresh, *PHRASES)[0])


def test_training_with_a_store_reads_no_older_embeddings(tmp_path, encoded):
    model = stored_model(tmp_path)
    before, _ = table_of(model, *PHRASES)
    change_weight(model)
    model.phrase_encoder.input_projection[-1].bias.data.add_(1.0)
    after, _ = table_of(model, *PHRASES)
    assert encoded == [4, 4] and not torch.equal(before, after)


def test_autocast_and_adapters_have_embeddings_of_their_own(tmp_path):
    model = make_dynamic_model()
    prints = [embedding_fingerprint(model.phrase_encoder)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prints.append(embedding_fingerprint(model.phrase_encoder))
    tuned = add_lora(model, 2).eval()
    core = tuned.get_base_model()
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "phrase_encoder.modules_to_save" in name:
                parameter.mul_(1.5)
    prints.append(embedding_fingerprint(core.phrase_encoder))
    assert len(set(prints)) == 3
    with tuned.disable_adapter():
        assert embedding_fingerprint(core.phrase_encoder) == prints[0]


def test_a_loaded_model_has_the_fingerprint_of_the_saved_one(tmp_path):
    model = make_dynamic_model()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert embedding_fingerprint(loaded.phrase_encoder) == embedding_fingerprint(model.phrase_encoder)


def truncated(file):
    os.truncate(file, file.stat().st_size // 2)


def rewritten(file):
    content = bytearray(file.read_bytes())
    content[-4 * 32 * 4] ^= 1  # a bit of the first embedding
    file.write_bytes(content)


def of_another_encoder(file):
    hashes = np.zeros((1, 2), np.uint64)
    write_segment(file.parent, file.name.removesuffix(SUFFIX), "0" * 32, hashes, [torch.zeros(1, 32)])


def of_another_width(file):
    hashes = np.zeros((1, 2), np.uint64)
    write_segment(file.parent, file.name.removesuffix(SUFFIX), file.parent.name, hashes, [torch.zeros(1, 31)])


DAMAGES = {
    "truncated": truncated,
    "altered": rewritten,
    "empty": lambda file: os.truncate(file, 0),
    "text": lambda file: file.write_text("not what it should be"),
    "other encoder": of_another_encoder,
    "other width": of_another_width,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_passed_over_with_a_log_line(damage, tmp_path, encoded, caplog):
    expected, _ = table_of(stored_model(tmp_path), *PHRASES)
    (file,) = files_in(tmp_path)
    DAMAGES[damage](file)
    with caplog.at_level(logging.WARNING):
        model = stored_model(tmp_path)
        found, _ = table_of(model, *PHRASES)
    assert torch.equal(found, expected) and encoded == [4, 4]
    assert [record.getMessage().count("is passed over") for record in caplog.records] == [1]
    assert torch.equal(table_of(stored_model(tmp_path), *PHRASES)[0], expected)
    assert encoded == [4, 4], "the embeddings were not written again"


def test_a_file_cut_short_after_it_was_opened_is_passed_over(tmp_path, encoded, caplog):
    model = stored_model(tmp_path)
    table_of(model, *PHRASES)
    store = PhraseEmbeddingStore(tmp_path)
    (file,) = files_in(tmp_path)
    keys = [b"none"]
    assert store.read(file.parent.name, keys, [32]) is None  # which opens it
    os.truncate(file, 100)
    with caplog.at_level(logging.WARNING):
        assert store.read(file.parent.name, keys, [32]) is None
    assert "was cut from" in caplog.text and "is passed over" in caplog.text


KILLED = """
import os, signal, sys
from hf_targets.phrases import embedding_segments
save_file = embedding_segments.save_file
def killed(tensors, file, metadata):
    save_file(tensors, file, metadata)
    os.truncate(file, os.path.getsize(file) // 2)
    os.kill(os.getpid(), signal.SIGKILL)
embedding_segments.save_file = killed
from tests.phrases.test_embedding_store import PHRASES, stored_model, table_of
from pathlib import Path
table_of(stored_model(Path(sys.argv[1])), *PHRASES)
"""


def test_a_process_killed_while_it_writes_leaves_nothing_that_is_read(tmp_path, encoded, caplog):
    assert run_program(KILLED, tmp_path).returncode == -9
    (unfinished,) = tmp_path.glob("*/.unfinished-*")
    table_of(stored_model(tmp_path), *PHRASES)
    assert encoded == [4] and not caplog.records
    assert unfinished.exists()  # it might be of a process that still writes
    os.utime(unfinished, (0, 0))
    table_of(stored_model(tmp_path), (5, 5))
    assert not unfinished.exists()


TWO = """
import os, sys
from pathlib import Path
from hf_targets.phrases.embedding_store import PhraseEmbeddingStore
from tests.phrases.test_embedding_store import WIDTH, rows
store = PhraseEmbeddingStore(Path(sys.argv[1]))
first = int(os.environ["FIRST"])
for start in range(first, first + 300, 5):
    keys, tables = rows(start, 5)
    store.write("f" * 32, keys, tables)
    found, _ = store.read("f" * 32, keys, [WIDTH])
    assert len(found) == 5, start
assert store._writes and not store._refused
"""


def test_two_processes_write_and_merge_at_once(tmp_path):
    both = server(*EVERYTHING).run(TWO, tmp_path, variables=[{"FIRST": "0"}, {"FIRST": "150"}])
    assert [done.returncode for done in both] == [0, 0], both
    assert_has(PhraseEmbeddingStore(tmp_path), 0, 450)
    assert len(files_in(tmp_path)) <= 2 * embedding_store.MAX_SEGMENTS


def test_what_another_process_merges_between_listing_and_opening_is_found(tmp_path, monkeypatch):
    store, other = PhraseEmbeddingStore(tmp_path), PhraseEmbeddingStore(tmp_path)
    for start in (0, 5):
        other.write("f" * 32, *rows(start, 5))
    open_segment = EmbeddingSegment.open

    def merged_first(file, *about):
        monkeypatch.setattr(EmbeddingSegment, "open", open_segment)
        merge_segments("1-merged", "f" * 32, other._segments("f" * 32, [WIDTH]))
        return open_segment(file, *about)

    monkeypatch.setattr(EmbeddingSegment, "open", merged_first)
    assert_has(store, 0, 10)


def test_what_another_process_merges_while_it_is_opened_is_found(tmp_path, monkeypatch):
    store, other = PhraseEmbeddingStore(tmp_path), PhraseEmbeddingStore(tmp_path)
    for start in (0, 5):
        other.write("f" * 32, *rows(start, 5))
    segments = other._segments("f" * 32, [WIDTH])
    map_file = torch.UntypedStorage.from_file

    def merged_first(*args, **kwargs):  # safetensors has read the header, and torch opens the file again
        monkeypatch.setattr(torch.UntypedStorage, "from_file", map_file)
        merge_segments("1-merged", "f" * 32, segments)
        return map_file(*args, **kwargs)

    monkeypatch.setattr(torch.UntypedStorage, "from_file", merged_first)
    assert_has(store, 0, 10)
    assert torch.UntypedStorage.from_file == map_file


def test_many_small_files_become_few_with_the_same_content(tmp_path):
    store = PhraseEmbeddingStore(tmp_path)
    for start in range(100):
        store.write("f" * 32, *rows(start, 2))  # each phrase but two is written twice
    assert len(files_in(tmp_path)) <= embedding_store.MAX_SEGMENTS
    assert_has(store, 0, 101)
    assert_has(PhraseEmbeddingStore(tmp_path), 0, 101)


def test_the_folder_stays_below_its_bound_and_the_newest_embeddings_stay(tmp_path):
    store = PhraseEmbeddingStore(tmp_path, max_bytes=20_000)
    store.write("0" * 32, *rows(0, 50))  # of an encoder that is used no more
    for start in range(0, 2000, 40):
        store.write("f" * 32, *rows(start, 40))
        assert sum(file.stat().st_size for file in files_in(tmp_path)) <= 20_000
    assert_has(store, 1900, 100)
    assert store.read("f" * 32, rows(0, 40)[0], [WIDTH]) is None
    assert not list(tmp_path.glob("0*/*"))


def test_of_more_phrases_than_fit_the_first_are_kept(tmp_path):
    store = PhraseEmbeddingStore(tmp_path, max_bytes=30_000)
    store.write("f" * 32, *rows(0, 10_000))
    found, _ = store.read("f" * 32, rows(0, 10_000)[0], [WIDTH])
    assert 300 < len(found) < 700
    assert sum(file.stat().st_size for file in files_in(tmp_path)) <= 30_000


def no_folder(folder, fingerprint):
    (folder / fingerprint).write_text("a file where a folder should be")


@pytest.mark.parametrize("when", ["before", "later"])
def test_a_folder_that_cannot_be_written_to_is_told_once_and_generation_goes_on(when, tmp_path, caplog, monkeypatch):
    model = stored_model(tmp_path)
    if when == "before":
        no_folder(tmp_path, embedding_fingerprint(model.phrase_encoder))
    else:

        def full(*_):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr("hf_targets.phrases.embedding_segments.save_file", full)
    expected = table_of(make_dynamic_model(), *PHRASES)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(table_of(model, *PHRASES)[0], expected[0])
        table_of(model, (5, 5), (6, 6, 6))
    assert [record.getMessage().count("no longer written") for record in caplog.records] == [1]


def test_safetensors_on_a_full_disk_is_an_os_error(tmp_path):
    program = """
import resource, signal, sys
from pathlib import Path
from tests.phrases.test_embedding_store import assert_has, rows
from hf_targets.phrases.embedding_store import PhraseEmbeddingStore
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
store = PhraseEmbeddingStore(Path(sys.argv[1]))
store.write("f" * 32, *rows(0, 1000))
assert store._writes is False
assert store.read("f" * 32, rows(0, 10)[0], [6]) is None
"""
    done = run_program(program, tmp_path)
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_folder_removed_meanwhile_is_made_again(tmp_path):
    store = PhraseEmbeddingStore(tmp_path / "store")
    store.write("f" * 32, *rows(0, 3))
    shutil.rmtree(tmp_path / "store")
    assert store.read("f" * 32, rows(0, 3)[0], [WIDTH]) is None
    store.write("f" * 32, *rows(0, 3))
    assert_has(store, 0, 3)


def test_what_is_no_folder_and_no_size_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    model = make_dynamic_model()
    with pytest.raises(
        ValueError, match=r"must exist or be possible to make, and .*file cannot be made .*give another"
    ):
        model.keep_phrase_embeddings(tmp_path / "file")
    with pytest.raises(ValueError, match="max_bytes must be a positive integer, got 0"):
        model.keep_phrase_embeddings(tmp_path, max_bytes=0)


def test_copies_and_pickles_of_a_model_use_the_same_folder(tmp_path, encoded):
    model = stored_model(tmp_path)
    expected, _ = table_of(model, *PHRASES)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(table_of(other, *PHRASES)[0], expected)
    assert encoded == [4]
