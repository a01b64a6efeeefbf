"""Tasks of GLUE from files and from the Hub, their scores, and fine-tuning on them."""

import math
from functools import partial

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, TrainingArguments

from hf_targets import CrammedBertConfig, CrammedBertForMaskedLM, train_masking_tokenizer
from lab import glue
from lab.glue import GLUE_TASKS, SCORES, fine_tune, glue_score, load_glue
from tests.lab.glue_files import write_glue

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
FIRST = {
    "cola": {"sentence": "The cats number 1 sleep.", "label": 1},
    "sst2": {"sentence": "film number 1 is good ", "label": 1},
    "mrpc": {"sentence1": 'He said " no 1 .', "sentence2": 'He said " yes 1 .', "label": 1},
    "rte": {"sentence1": "It rains in 1.", "sentence2": "It is wet.", "label": 1},
}


@pytest.mark.parametrize("name", FIRST)
def test_files_are_read_line_by_line_as_they_stand(name, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(write_glue(tmp_path)))
    data = load_glue(name)
    assert {str(split): len(rows) for split, rows in data.items()} == {"train": 12, "validation": 6}
    assert data["train"][1] == FIRST[name] and data["validation"][1] == FIRST[name]
    assert data["train"]["label"] == [0, 1] * 6


@pytest.mark.parametrize("name", ["mnli", "stsb", "cola"])
def test_without_files_a_task_is_that_of_the_hub(name, monkeypatch):
    monkeypatch.delenv("HF_TARGETS_DATA", raising=False)
    rows = Dataset.from_list([{**dict.fromkeys(GLUE_TASKS[name].texts, "a"), "label": 0, "idx": 3}])
    parts = ("train", "validation", "validation_matched", "validation_mismatched", "test")
    splits = DatasetDict(dict.fromkeys(parts, rows))
    monkeypatch.setattr(glue, "load_parts", lambda *asked: splits if asked == ("nyu-mll/glue", name) else None)
    found = load_glue(name)
    assert found["validation"].column_names == [*GLUE_TASKS[name].texts, "label"]
    assert ("validation_mismatched" in found) is (name == "mnli")


@given(pairs=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=2, max_size=30))
def test_scores_of_two_classes_are_those_of_their_counts(pairs):
    labels, predicted = np.array(pairs).T
    tp, tn = int((labels & predicted).sum()), int(((1 - labels) & (1 - predicted)).sum())
    fp, fn = int((predicted & (1 - labels)).sum()), int((labels & (1 - predicted)).sum())
    assert SCORES["accuracy"](labels, predicted) == pytest.approx((tp + tn) / len(pairs))
    if tp:
        assert SCORES["f1"](labels, predicted) == pytest.approx(2 * tp / (2 * tp + fp + fn))
    spread = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert SCORES["matthews"](labels, predicted) == pytest.approx((tp * tn - fp * fn) / spread if spread else 0.0)


def test_the_score_of_a_task_is_one_metric_as_published_in_percent():
    labels, logits = np.array([0, 1, 1, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    for task, score in (("mrpc", 80.0), ("qqp", 80.0), ("rte", 75.0)):  # F1 or accuracy, and not their mean
        assert glue_score(GLUE_TASKS[task], labels, logits) == pytest.approx(score)
    numbers = np.array([0.0, 1.0, 2.5, 5.0])
    assert glue_score(GLUE_TASKS["stsb"], numbers, 3 * numbers[:, None] - 1) == pytest.approx(100)
    assert glue_score(GLUE_TASKS["stsb"], numbers, numbers[:, None] ** 3) < 99  # no correlation of ranks


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    write_glue(folder / "data", sizes=(32, 16))
    tokenizer = train_masking_tokenizer(["film number is good bad It rains in wet 1 2 3"], vocab_size=300)
    sizes = {"vocab_size": len(tokenizer), "max_position_embeddings": 32, **SMALL}
    for name, model in (
        ("bert", BertForMaskedLM(BertConfig(**sizes))),
        ("crammed", CrammedBertForMaskedLM(CrammedBertConfig(**sizes))),
    ):
        if name == "crammed":
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder


@pytest.fixture
def data(pretrained, monkeypatch):
    monkeypatch.setenv("HF_TARGETS_DATA", str(pretrained / "data"))
    return pretrained


def arguments(folder, **changes):
    given = {"max_steps": 45, "learning_rate": 5e-3, "per_device_train_batch_size": 8, "report_to": "none", **changes}
    return TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **given)


@pytest.mark.parametrize(("name", "seeds"), [("bert", (1, 1, 2)), ("crammed", (1,))])
def test_a_model_learns_a_task_under_a_seed_and_writes_nothing(name, seeds, data, tmp_path):
    found = [fine_tune(str(data / name), "sst2", arguments(tmp_path / "out", seed=n), max_length=32) for n in seeds]
    assert found[0].keys() == {"score", "loss"} and found[0]["score"] == 100
    assert not list((tmp_path / "out").glob("*"))
    if name == "bert":
        assert found[1] == found[0] and found[2]["loss"] != found[0]["loss"]


@pytest.mark.parametrize("name", ["bert", "crammed"])
def test_both_texts_of_a_pair_are_read(name, data):
    tokenizer = AutoTokenizer.from_pretrained(data / name)
    rows = glue.encoded_rows(load_glue("rte")["train"], GLUE_TASKS["rte"], tokenizer, 32)
    text = tokenizer.decode(rows[1]["input_ids"], skip_special_tokens=True)
    assert "".join(text.split()) == "Itrainsin1.Itiswet."
    assert ("token_type_ids" in rows[1]) is (name == "bert")


@pytest.mark.parametrize("single_as_pair", [False, True])
def test_one_text_alone_may_be_read_as_a_pair_with_an_empty_second_text(single_as_pair, data):
    tokenizer = AutoTokenizer.from_pretrained(data / "bert")
    encode = partial(glue.encoded_rows, tokenizer=tokenizer, max_length=32, single_as_pair=single_as_pair)
    row = encode(load_glue("sst2")["train"], GLUE_TASKS["sst2"])[1]["input_ids"]
    assert row.count(tokenizer.sep_token_id) == 1 + single_as_pair and row[-1] == tokenizer.sep_token_id
    pair = encode(load_glue("rte")["train"], GLUE_TASKS["rte"])[1]["input_ids"]
    assert pair.count(tokenizer.sep_token_id) == 2 and pair[-2] != tokenizer.sep_token_id


def test_the_columns_of_mnli_are_those_of_both_validation_splits(data, tmp_path, monkeypatch):
    rows = {"premise": ["a b"] * 2, "hypothesis": ["b"] * 2}
    splits = {"train": [0, 1], "validation_matched": [0, 0], "validation_mismatched": [1, 1]}
    parts = DatasetDict({name: Dataset.from_dict({**rows, "label": labels}) for name, labels in splits.items()})
    monkeypatch.setattr(glue, "load_parts", lambda *asked: parts)
    found = fine_tune(str(data / "bert"), "mnli", arguments(tmp_path, max_steps=1), max_length=32)
    assert found["score"] + found["mismatched_score"] in (0, 100)  # rows alike have one class


def test_fields_of_the_model_may_be_changed(data, tmp_path):
    losses = [
        fine_tune(str(data / "crammed"), "sst2", arguments(tmp_path, max_steps=1), model_fields=fields, max_length=32)
        for fields in ({"classifier_pooling": "cls"}, None)
    ]
    assert losses[0]["loss"] != losses[1]["loss"]
