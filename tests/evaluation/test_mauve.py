import logging

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import BloomConfig, BloomModel

from hf_targets import extras
from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.evaluation.mauve import GIVEN, mauve_score, text_features
from tests.tiny_backbones import make_backbone

SENTENCES = ["the cat sat on the mat", "a dog", "the dog sat", "a", "the cat and the dog sat on a mat and a hat"]
TOKENIZER = train_bpe_tokenizer(SENTENCES, vocab_size=270)
MODEL = make_backbone("gpt2", vocab_size=280)


def clouds(shift, num_texts=60, width=4):
    random = np.random.default_rng(0)
    return random.normal(size=(num_texts, width)), random.normal(size=(num_texts, width)) + shift


@pytest.fixture
def mauve():
    return pytest.importorskip("mauve")


@torch.no_grad()
def alone(model, text, max_length=64):
    ids = TOKENIZER(text)["input_ids"][:max_length]
    return model(torch.tensor([ids]), output_hidden_states=True).hidden_states[-1][0, -1].numpy()


@pytest.mark.parametrize("family", ["gpt2", "opt", "qwen3"])
def test_features_are_the_last_state_of_the_last_token_of_each_text_alone(family):
    model = make_backbone(family, vocab_size=280)
    expected = np.stack([alone(model, text) for text in SENTENCES])
    for of_model in (model, model.base_model):
        assert np.allclose(text_features(SENTENCES, of_model, TOKENIZER), expected, atol=1e-5)


@settings(derandomize=True, deadline=None, max_examples=20)
@given(order=st.permutations(range(5)), batch_size=st.integers(1, 6), max_length=st.integers(1, 30))
def test_order_and_batches_do_not_matter_and_what_lies_beyond_the_length_is_cut(order, batch_size, max_length):
    texts = [SENTENCES[position] for position in order]
    found = text_features(texts, MODEL, TOKENIZER, batch_size=batch_size, max_length=max_length)
    assert np.allclose(found, [alone(MODEL, text, max_length) for text in texts], atol=1e-5)
    assert found.dtype == np.float32


def test_features_are_those_of_mauve_text_itself(mauve):
    from mauve.utils import featurize_tokens_from_model

    ids = [torch.tensor([TOKENIZER(text)["input_ids"]]) for text in SENTENCES]
    theirs = featurize_tokens_from_model(MODEL.transformer, ids, batch_size=2)
    assert np.allclose(text_features(SENTENCES, MODEL, TOKENIZER), theirs, atol=1e-5)


def test_features_come_without_dropout():
    model = make_backbone("gpt2")
    tokens = train_bpe_tokenizer(["ab"], vocab_size=258)  # ids of bytes; these letters are below 50
    letters = [text for text in '!"#$%&' if max(tokens(text)["input_ids"]) < 50]
    assert len(letters) > 2
    expected = text_features(letters, model, tokens)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    model.train()
    assert np.allclose(text_features(letters, model, tokens), expected, atol=1e-5)
    assert model.training


def test_a_score_is_the_one_of_mauve_text_with_its_settings_told(mauve):
    ours, theirs = clouds(0.7)
    found = mauve_score(None, None, features=(ours, theirs), seeds=(25, 3))
    for index, seed in enumerate((25, 3)):
        direct = mauve.compute_mauve(p_features=theirs, q_features=ours, mauve_scaling_factor=2.0, seed=seed)
        assert found.scores[index] == pytest.approx(direct.mauve)
        assert found.smoothed_scores[index] == pytest.approx(direct.mauve_star)
        assert found.frontier_integrals[index] == pytest.approx(direct.frontier_integral)
    assert (found.scaling, found.seeds, found.num_buckets, found.num_texts) == (2.0, (25, 3), 6, 60)
    assert (found.feature_model, found.max_length) == (GIVEN, None)
    assert found.score == pytest.approx(np.mean(found.scores))
    assert found.deviation == pytest.approx(np.std(found.scores))


def test_equal_sides_score_one_and_distant_ones_little_and_less_with_more_scaling(mauve):
    ours, near = clouds(0.5)
    assert mauve_score(None, None, features=(ours, ours)).score == pytest.approx(1)
    scores = [mauve_score(None, None, features=(ours, near + more), num_buckets=6).score for more in (0, 1, 20)]
    assert 1 > scores[0] > scores[1] > scores[2] > 0
    stricter = mauve_score(None, None, features=(ours, near), scaling=5.0, num_buckets=6)
    assert (stricter.score < scores[0], stricter.scaling, stricter.num_buckets) == (True, 5.0, 6)


def test_texts_are_scored_by_the_features_of_the_model_that_is_recorded(mauve, tmp_path):
    texts = [f"{first} and {second}" for first in SENTENCES for second in SENTENCES]
    references = [text.upper() for text in texts]
    sides = [text_features(side, MODEL, TOKENIZER, max_length=16) for side in (texts, references)]
    given_features = mauve_score(None, None, features=tuple(sides))
    found = mauve_score(texts, references, feature_model=MODEL, tokenizer=TOKENIZER, max_length=16, batch_size=3)
    assert found.scores == pytest.approx(given_features.scores)
    assert (found.feature_model, found.max_length, found.num_texts) == ("GPT2LMHeadModel", 16, 25)
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    by_name = mauve_score(texts, references, feature_model=str(tmp_path), max_length=16)
    assert by_name.scores == pytest.approx(found.scores)
    assert by_name.feature_model == str(tmp_path)
    whole = mauve_score(texts, references, feature_model=MODEL, tokenizer=TOKENIZER)
    assert whole.max_length == 64


def test_few_texts_bring_a_warning(mauve, caplog):
    with caplog.at_level(logging.WARNING):
        mauve_score(None, None, features=clouds(0.0))
    assert "MAUVE of 60 texts is noisy" in caplog.text


def test_without_mauve_text_its_extra_is_named_before_any_feature_is_made(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", missing)
    with pytest.raises(ImportError, match=r"mauve is not installed.*hf-targets\[eval\]"):
        mauve_score(["a"] * 20, ["b"] * 20, feature_model="no/model")


@pytest.mark.parametrize(
    ("texts", "references", "arguments", "says"),
    [
        (["a"] * 20, None, {}, "got None for one"),
        (["a"] * 20, ["a"] * 21, {}, r"counts of \[20, 21\]"),
        (["a"] * 60, None, {"features": (np.ones((60, 2)), np.ones((59, 2)))}, r"counts of \[59, 60\]"),
        (["a"] * 19, ["a"] * 19, {}, "at least 20 texts.*got 19"),
        ([], [], {}, "at least 20 texts.*got 0"),
        (["a"] * 4, ["a"] * 4, {"num_buckets": 5}, "at least 5 texts for num_buckets=5"),
        (["a"] * 20, ["a"] * 20, {"num_buckets": 1}, "at least 2, got 1"),
        (["a"] * 20, ["a"] * 20, {"scaling": 0.0}, "scaling must be above 0"),
        (["a"] * 20, ["a"] * 20, {"seeds": ()}, r"at least one seed, got 2.0 and seeds \[\]"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_is_loaded(texts, references, arguments, says):
    with pytest.raises(ValueError, match=says):
        mauve_score(texts, references, feature_model="no/model", **arguments)


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ((np.ones((20, 2)), np.ones((20, 3))), r"one width, got shapes \(20, 2\) and \(20, 3\)"),
        ((np.ones(20), np.ones(20)), "must be two matrices"),
        ((np.full((20, 2), np.nan), np.ones((20, 2))), "must be finite"),
    ],
)
def test_features_that_are_none_are_refused(mauve, features, says):
    with pytest.raises(ValueError, match=says):
        mauve_score(None, None, features=features)


def test_texts_without_features_are_refused(mauve):
    with pytest.raises(ValueError, match=r"text 1 .* has none; put its prefix first"):
        text_features(["a", ""], MODEL, TOKENIZER)
    for max_length in (0, 65):
        with pytest.raises(ValueError, match=rf"in \[1, 64\], the model's positions, got {max_length}"):
            text_features(["a"], MODEL, TOKENIZER, max_length=max_length)
    unlimited = BloomModel(BloomConfig(vocab_size=280, hidden_size=8, n_layer=1, n_head=2))  # any number of positions
    with pytest.raises(ValueError, match="max_length must be at least 1, got 0"):
        text_features(["a"], unlimited, TOKENIZER, max_length=0)
    with pytest.raises(ValueError, match="a list of texts"):
        text_features([], MODEL, TOKENIZER)
    with pytest.raises(ValueError, match="needs its tokenizer"):
        mauve_score(["a"] * 20, ["b"] * 20, feature_model=MODEL)


def test_seeds_may_be_drawn_once_and_features_be_tensors_of_a_model(mauve):
    sides = torch.randn(2, 40, 3, generator=torch.Generator().manual_seed(0))
    expected = mauve_score(None, None, features=sides.bfloat16().float().numpy(), seeds=[1, 2])
    assert mauve_score(None, None, features=sides.bfloat16().requires_grad_(), seeds=iter([1, 2])) == expected
    with pytest.raises(ValueError, match=r"scaling must be above 0, .* got nan"):
        mauve_score(None, None, features=sides, scaling=float("nan"))
    with pytest.raises(ValueError, match=r"must be two matrices, .* got 3"):
        mauve_score(None, None, features=torch.ones(3, 40, 3))
