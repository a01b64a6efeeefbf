"""Several correct targets of one source: pairs to train on, and references elsewhere."""

import json
import os
from functools import partial

import pytest
from datasets import Dataset, DatasetDict

from hf_targets.data.pairs import load_pairs

COLUMNS = {"source_lang": "en", "target_lang": "en", "source_column": "src", "target_column": "trg"}
ASSET = {"source_lang": "orig", "target_lang": "simp"}
SIMPLER = [("It commenced.", ["It began.", "It started."]), ("He perished.", ["He died."]), ("Big.", ["Large.", ""])]


def save(path, pairs):
    """Write pairs as JSON lines."""
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(f"{json.dumps({'src': source, 'trg': targets})}\n" for source, targets in pairs))


def save_lines(splits, folder):
    for split, rows in splits.items():
        rows.to_json(folder / f"{split}.jsonl")


def rows(split):
    return list(zip(split["source"], split["target"], strict=True))


def references(split):
    return list(zip(split["source"], split["references"], strict=True))


@pytest.mark.parametrize("saved", [False, True], ids=["JSON lines", "data set"])
def test_each_of_several_targets_is_a_pair_of_train_and_a_reference_elsewhere(tmp_path, saved):
    splits = {"train": SIMPLER, "validation": SIMPLER[:2], "test": SIMPLER[:2]}
    if saved:
        sides = {
            split: {"src": [one for one, _ in pairs], "trg": [n for _, n in pairs]} for split, pairs in splits.items()
        }
        DatasetDict({split: Dataset.from_dict(part) for split, part in sides.items()}).save_to_disk(tmp_path / "own")
    else:
        for split, pairs in splits.items():
            save(tmp_path / "own" / f"{split}.jsonl", pairs)
    path = str(tmp_path / "own")
    found = load_pairs(path, **COLUMNS)
    assert rows(found["train"]) == [(source, target) for source, targets in SIMPLER for target in targets]
    assert found["train"].column_names == ["source", "target"]
    assert references(found["test"]) == references(found["validation"]) == SIMPLER[:2]
    assert found["test"]["target"][:] == ["It began.", "He died."]
    for again, restored in ((tmp_path / "saved", found.save_to_disk), (tmp_path / "lines", partial(save_lines, found))):
        restored(again)
        loaded = load_pairs(str(again), **{**COLUMNS, "source_column": "source", "target_column": "target"})
        assert references(loaded["test"]) == SIMPLER[:2] and rows(loaded["train"]) == rows(found["train"])
    few = load_pairs(path, max_train_pairs=3, max_eval_pairs=1, **COLUMNS)
    assert few["train"]["target"][:] == ["It began.", "It started.", "He died."] and len(few["test"]) == 1


@pytest.mark.parametrize("target", [[], ["a", 3], [None], 7])
def test_a_list_without_texts_is_no_target(tmp_path, target):
    save(tmp_path / "own" / "train.jsonl", [("a", "b"), ("c", target)])
    with pytest.raises(ValueError, match=r"line 2 of .* a text and a list of texts, got 'c' and"):
        load_pairs(str(tmp_path / "own"), **COLUMNS)
    if target in ([], [None]):
        Dataset.from_dict({"src": ["a", "c"], "trg": [["b"], target]}).save_to_disk(tmp_path / "saved")
        with pytest.raises(ValueError, match=r"train of .*: trg must have a text in each row, got .* in row 1"):
            load_pairs(str(tmp_path / "saved"), **COLUMNS)


def test_an_empty_reference_of_test_is_refused(tmp_path):
    for word in ("train", "valid", "test"):
        save(tmp_path / "own" / f"{word}.jsonl", SIMPLER)
    with pytest.raises(ValueError, match=r"1 targets of test of .* are empty, the first in row 2"):
        load_pairs(str(tmp_path / "own"), **COLUMNS)


def test_asset_has_ten_simpler_sentences_of_each(tmp_path, monkeypatch):
    folder = tmp_path / "asset"
    folder.mkdir()
    for part, count in (("valid", 40), ("test", 3)):
        texts = {"orig": [f"{part} {n}" for n in range(count)]}
        texts |= {f"simp.{number}": [f"{n} {number}" for n in range(count)] for number in range(10)}
        for end, lines in texts.items():
            (folder / f"asset.{part}.{end}").write_text("\n".join(lines))
    monkeypatch.setenv("HF_TARGETS_DATA", str(tmp_path))
    found = load_pairs("asset", **ASSET)
    assert rows(found["train"]) == [(f"valid {n}", f"{n} {number}") for n in range(38) for number in range(10)]
    assert references(found["validation"]) == [(f"valid {n}", [f"{n} {i}" for i in range(10)]) for n in (38, 39)]
    assert references(found["test"]) == [(f"test {n}", [f"{n} {i}" for i in range(10)]) for n in range(3)]
    with pytest.raises(ValueError, match="give source_lang='orig' and target_lang='simp'"):
        load_pairs("asset", source_lang="de", target_lang="en")
    (folder / "asset.test.simp.9").unlink()
    with pytest.raises(ValueError, match=r"'asset' is read from the folder asset .* asset\.test\.simp\.9\(\.gz"):
        load_pairs("asset", **ASSET)


@pytest.mark.skipif("HF_TARGETS_DATA" not in os.environ, reason="HF_TARGETS_DATA names no folder with the corpora")
def test_asset_has_its_published_numbers_of_sentences():
    found = load_pairs("asset", **ASSET)
    assert {split: len(found[split]) for split in found} == {"train": 19_000, "validation": 100, "test": 359}
    assert {len(texts) for _, texts in references(found["test"])} == {10}
