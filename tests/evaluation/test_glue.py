"""Scores of GLUE's tasks, and fine-tuning on them."""

import math
import re
import shutil
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, TrainingArguments

from hf_targets import (
    GLUE_TASKS,
    CrammedBertConfig,
    CrammedBertForMaskedLM,
    GlueRun,
    MultiTokenForMaskedLM,
    load_glue,
    pretrained_of,
)
from hf_targets.data.tokenization import train_bpe_tokenizer, train_masking_tokenizer
from hf_targets.evaluation import glue
from hf_targets.evaluation.glue import SCORES, glue_scores
from tests.data.glue_files import write_glue

SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@settings(max_examples=50, deadline=None)
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


def test_one_number_for_all_has_no_correlation():
    found = glue_scores(GLUE_TASKS["stsb"], np.array([0.0, 1.0, 2.5]), np.full((3, 1), 2.0))
    assert found == {"pearson": 0.0, "spearman": 0.0, "score": 0.0}
    assert math.isnan(glue_scores(GLUE_TASKS["stsb"], np.array([0.0, 1.0]), np.full((2, 1), np.nan))["score"])


def test_the_score_of_a_task_is_the_mean_of_its_metrics_in_percent():
    labels, logits = np.array([0, 1, 1, 1]), np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 2.0], [3.0, 0.0]])
    scores = glue_scores(GLUE_TASKS["mrpc"], labels, logits)
    assert scores == pytest.approx({"accuracy": 75.0, "f1": 80.0, "score": 77.5})
    numbers = np.array([0.0, 1.0, 2.5, 5.0])
    assert glue_scores(GLUE_TASKS["stsb"], numbers, numbers[:, None] ** 3)["spearman"] == pytest.approx(100)


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    data = write_glue(folder / "data", sizes=(32, 16))
    tokenizer = train_masking_tokenizer(["film number is good bad It rains in wet 1 2 3"], vocab_size=300)
    plain = BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SMALL, max_position_embeddings=32))
    crammed = CrammedBertForMaskedLM(CrammedBertConfig(vocab_size=len(tokenizer), **SMALL, max_position_embeddings=32))
    for name, model in (("bert", plain), ("crammed", crammed)):
        if name == "crammed":
            tokenizer.model_input_names = ["input_ids", "attention_mask"]
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return folder, data


def arguments(folder, **changes):
    given = {"max_steps": 60, "learning_rate": 5e-3, "per_device_train_batch_size": 8, "report_to": "none"}
    return TrainingArguments(str(folder), use_cpu=True, disable_tqdm=True, **{**given, **changes})


@pytest.fixture
def data(pretrained, monkeypatch):
    folder, files = pretrained
    monkeypatch.setenv("HF_TARGETS_DATA", str(files))
    return folder


@pytest.mark.parametrize("name", ["bert", "crammed"])
def test_a_model_learns_a_task_and_writes_nothing(name, data, tmp_path, capsys):
    run = GlueRun(str(data / name), "sst2", max_length=32)
    scores, again, other = (run.fine_tune(arguments(tmp_path / "out"), seed) for seed in (1, 1, 2))
    assert scores.keys() == {"accuracy", "score", "loss"} and scores["score"] == 100
    assert not list((tmp_path / "out").glob("*")) and "newly initialized" not in capsys.readouterr().err
    assert again == scores and other["loss"] != scores["loss"]


@pytest.mark.parametrize("name", ["bert", "crammed"])
def test_both_texts_of_a_pair_are_read(name, data, tmp_path):
    rows = encoded_rows(GlueRun(str(data / name), "rte", max_length=32))
    tokenizer = AutoTokenizer.from_pretrained(data / name)
    text = tokenizer.decode(rows[1]["input_ids"], skip_special_tokens=True)
    assert "".join(text.split()) == "Itrainsin1.Itiswet."
    assert ("token_type_ids" in rows[1]) is (name == "bert")
    assert GlueRun(str(data / name), "rte", max_length=32).fine_tune(arguments(tmp_path, max_steps=2), 0)["score"] >= 0


def encoded_rows(run):
    tokenizer = AutoTokenizer.from_pretrained(run.model_name_or_path)
    return glue._encoded(load_glue(run.task)["train"], GLUE_TASKS[run.task], tokenizer, run.max_length)


def test_only_the_first_examples_are_trained_on(data, tmp_path):
    run = GlueRun(str(data / "bert"), "sst2", max_length=32, max_train_examples=1)
    assert run.fine_tune(arguments(tmp_path), 0)["score"] == 50  # it has class 0, as half of the validation split


def test_fields_of_the_model_may_be_changed(data, tmp_path):
    run = GlueRun(str(data / "crammed"), "sst2", max_length=32, model_fields={"classifier_pooling": "cls"})
    plain = GlueRun(str(data / "crammed"), "sst2", max_length=32)
    args = arguments(tmp_path, max_steps=1)
    assert run.fine_tune(args, 0)["loss"] != plain.fine_tune(args, 0)["loss"]


def test_a_model_that_lacks_a_layer_or_diverges_is_told(data, tmp_path):
    shutil.copytree(data / "bert", tmp_path / "bert")
    file = tmp_path / "bert" / "model.safetensors"
    kept = {name: one for name, one in load_file(file).items() if "layer.0.output" not in name}
    save_file(kept, file, {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks tensors below the classifier: bert\.encoder\.layer\.0\.output"):
        GlueRun(str(tmp_path / "bert"), "sst2", max_length=32).fine_tune(arguments(tmp_path / "out"), 0)
    wild = arguments(tmp_path / "out", learning_rate=1e30, max_grad_norm=0.0, max_steps=4)
    with pytest.raises(ValueError, match="on sst2 with seed 0 diverged"):
        GlueRun(str(data / "bert"), "sst2", max_length=32).fine_tune(wild, 0)


def test_what_scores_need_is_looked_for_before_the_training(data, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    with pytest.raises(ImportError, match=r"sklearn.metrics is not installed; run: pip install 'hf-targets\[eval\]'"):
        GlueRun(str(data / "bert"), "sst2", max_length=32)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"max_length": 7}, "max_length must be 8 or more"),
        ({"max_length": 64}, "max_length must be at most the 32 tokens"),
        ({"max_train_examples": 0}, "max_train_examples must be 1 or more, got 0"),
        ({"task": "qa"}, "task must be one of cola"),
        ({"model_fields": {"pooling": 1}}, "BertConfig has no field pooling"),
        ({"model_fields": {"num_labels": 3}}, "the task and the tokenizer set num_labels; leave it out"),
        ({"model_fields": {"hidden_dropout_prob": "x"}}, "make no BertConfig: "),
        ({"model_fields": {"hidden_size": 64}}, "change the shapes of pre-trained weights: bert."),
        ({"model_fields": {"num_hidden_layers": 2}}, "change the shapes of pre-trained weights: bert.encoder.layer.1"),
        ({"model_name_or_path": "nothing/here"}, "there is no pre-trained model at 'nothing/here'"),
    ],
)
def test_a_wrong_argument_is_told(changes, told, data):
    given = {"model_name_or_path": str(data / "bert"), "task": "sst2", "max_length": 32, **changes}
    with pytest.raises(ValueError, match=re.escape(told)):
        GlueRun(**given)


def test_a_model_without_its_tokenizer_and_one_with_heads_are_told(data, tmp_path):
    model = BertForMaskedLM.from_pretrained(data / "bert")
    model.save_pretrained(tmp_path / "bare")
    with pytest.raises(ValueError, match=r"tokenizer's files are missing; put them there"):
        GlueRun(str(tmp_path / "bare"), "sst2", max_length=32)
    MultiTokenForMaskedLM.from_base(model, ngram_size=2).save_pretrained(tmp_path / "heads")
    AutoTokenizer.from_pretrained(data / "bert").save_pretrained(tmp_path / "heads")
    with pytest.raises(ValueError, match=r"no classifier; give the model in it: the folder that model\.backbone"):
        GlueRun(str(tmp_path / "heads"), "sst2", max_length=32)


def test_a_tokenizer_that_joins_the_texts_of_a_pair_is_told(data, tmp_path, caplog):
    shutil.copytree(data / "bert", tmp_path / "bert")
    GlueRun(str(tmp_path / "bert"), "rte", max_length=32)
    assert not caplog.records
    tokenizer = train_bpe_tokenizer(["the cat sat\n"] * 9, vocab_size=300)
    tokenizer.save_pretrained(tmp_path / "bert")
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **SMALL)).save_pretrained(tmp_path / "bert")
    GlueRun(str(tmp_path / "bert"), "sst2", max_length=32)
    assert not caplog.records
    GlueRun(str(tmp_path / "bert"), "rte", max_length=32)
    assert "puts nothing between the two texts of a pair" in caplog.text


def test_rows_name_a_model_for_each_seed(tmp_path):
    for seed in (0, 3):
        (tmp_path / f"plain-seed{seed}").mkdir()
    place = f"{tmp_path}/plain-seed{{seed}}"
    assert pretrained_of(f'{{"plain": "{place}"}}', [0, 3]) == {
        "plain": {seed: f"{tmp_path}/plain-seed{seed}" for seed in (0, 3)}
    }
    for models, told in (
        ("{}", "models must name a model"),
        ('{"a": 3}', "model a must be a name on the Hub or a folder, got 3"),
        (f'{{"plain": "{place}"}}', f"model plain has no folder {tmp_path}/plain-seed4"),
    ):
        with pytest.raises(ValueError, match=re.escape(told)):
            pretrained_of(models, [0, 3, 4])
