"""Phrase embeddings on disk: what is read is what was computed, whatever happens to the folder."""

import copy
import os
import pickle

import pytest
import torch

from hf_targets.phrases.embedding_cache import PhraseEmbeddingFiles
from hf_targets.training.lora import add_lora
from tests.programs import run_program
from tests.tiny_models import PHRASES, TIES, make_dynamic_model, make_vocabulary


def rows_of(model, *phrases):
    with torch.no_grad():
        table = model.phrase_table(make_vocabulary(*phrases))
    return table.inputs[table.slots[0]], table.outputs[table.slots[0]]


def model_with(folder, *args, **config):
    model = make_dynamic_model(*args, **config)
    model.keep_phrase_embeddings(folder)
    return model


@pytest.mark.parametrize(("family", "tied"), TIES)
def test_a_later_model_reads_the_same_bits(family, tied, tmp_path, encoded):
    first = rows_of(model_with(tmp_path, family, tie_phrase_embeddings=tied), *PHRASES)
    again = rows_of(model_with(tmp_path, family, tie_phrase_embeddings=tied), *PHRASES)
    assert encoded == [4]
    assert all(map(torch.equal, first, again))


def test_each_vocabulary_of_a_batch_is_read_though_it_was_encoded_in_another(tmp_path, encoded):
    vocabularies = [make_vocabulary(), make_vocabulary((3, 4, 5), (11, 12))]
    with torch.no_grad():
        expected = model_with(tmp_path).phrase_table(vocabularies).output_rows
        for vocabulary, rows in zip(vocabularies, expected, strict=True):
            found = model_with(tmp_path).phrase_table(vocabulary).output_rows
            assert torch.equal(found, rows[: len(vocabulary)])
    assert encoded == [4, 1]


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
    expected, _ = rows_of(model_with(tmp_path / "kept"), *PHRASES)
    done = run_program(OTHER_PROCESS, tmp_path / "kept", tmp_path / "table")
    assert done.returncode == 0, done.stderr
    assert torch.equal(torch.load(tmp_path / "table"), expected)


def change_weight(model):
    with torch.no_grad():
        model.phrase_encoder.transformer.get_input_embeddings().weight[17, 3] += 1e-3


def train_copy(model):
    tuned = add_lora(model, 2).eval()
    with torch.no_grad():
        for name, parameter in tuned.named_parameters():
            if "phrase_encoder.modules_to_save" in name:
                parameter.mul_(1.5)


CHANGES = {
    "one weight": change_weight,
    "type": lambda model: model.bfloat16(),
    "setting": lambda model: setattr(model.phrase_encoder.transformer.config, "layer_norm_epsilon", 1e-3),
    "adapter": train_copy,
}


@pytest.mark.parametrize("change", CHANGES)
def test_embeddings_of_another_encoder_are_not_read(change, tmp_path, encoded):
    rows_of(model_with(tmp_path), *PHRASES)
    model = model_with(tmp_path)
    CHANGES[change](model)
    found, _ = rows_of(model, *PHRASES)
    assert encoded == [4, 4]
    model.keep_phrase_embeddings(None)
    assert torch.equal(found, rows_of(copy.deepcopy(model), *PHRASES)[0])


def test_embeddings_of_autocast_are_not_read_without_it(tmp_path, encoded):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows_of(model_with(tmp_path), *PHRASES)
    assert rows_of(model_with(tmp_path), *PHRASES)[0].dtype == torch.float32
    assert encoded == [4, 4]


DAMAGES = {
    "truncated": lambda file: os.truncate(file, file.stat().st_size // 2),
    "empty": lambda file: os.truncate(file, 0),
    "folder": lambda file: (file.unlink(), file.mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_costs_a_log_line_and_the_time_to_encode(damage, tmp_path, encoded, caplog):
    expected, _ = rows_of(model_with(tmp_path), *PHRASES)
    (file,) = tmp_path.iterdir()
    DAMAGES[damage](file)
    assert torch.equal(rows_of(model_with(tmp_path), *PHRASES)[0], expected)
    assert encoded == [4, 4] and "cannot be read" in caplog.text
    if damage != "folder":
        rows_of(model_with(tmp_path), *PHRASES)
        assert encoded == [4, 4], "the file was not written again"


def test_a_full_disk_costs_a_log_line(tmp_path, monkeypatch, caplog):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_targets.phrases.embedding_cache.save_file", full)
    found, _ = rows_of(model_with(tmp_path), *PHRASES)
    assert torch.equal(found, rows_of(make_dynamic_model(), *PHRASES)[0])
    assert "No space left" in caplog.text and not list(tmp_path.iterdir())


def test_the_folder_stays_below_its_bound_and_the_newest_stay(tmp_path):
    files = PhraseEmbeddingFiles(tmp_path, max_bytes=10_000)
    for number in range(20):
        files.write(str(number), [torch.full((100, 6), float(number))])
        assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 10_000
    assert [files.read(str(number), [(100, 6)]) is None for number in range(20)] == [True] * 16 + [False] * 4


def test_copies_and_pickles_of_a_model_use_the_same_folder(tmp_path, encoded):
    model = model_with(tmp_path)
    expected, _ = rows_of(model, *PHRASES)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(rows_of(other, *PHRASES)[0], expected)
    assert encoded == [4]
