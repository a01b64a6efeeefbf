import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hf_targets import extras
from hf_targets.data.tokenization import train_bpe_tokenizer
from hf_targets.evaluation.mauve import mauve_score, text_features
from tests.tiny_backbones import make_backbone

SENTENCES = ["the cat sat on the mat", "a dog", "the dog sat", "a", "the cat and the dog sat on a mat and a hat"]
TOKENIZER = train_bpe_tokenizer(SENTENCES, vocab_size=270)
MODEL = make_backbone("gpt2", vocab_size=280)


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


ENDS = ("", " a", " on", " hat")
TEXTS = [f"{first} and {second}{end}" for first in SENTENCES for second in SENTENCES for end in ENDS]
REFERENCES = [text.upper() for text in TEXTS]
OURS = {"feature_model": MODEL, "tokenizer": TOKENIZER}


def test_a_score_is_the_one_of_mauve_text_by_the_features_of_the_model(mauve, tmp_path):
    ours, theirs = (text_features(side, MODEL, TOKENIZER, max_length=16) for side in (TEXTS, REFERENCES))
    direct = [
        mauve.compute_mauve(p_features=theirs, q_features=ours, mauve_scaling_factor=2.0, seed=n) for n in (25, 3)
    ]
    assert mauve_score(TEXTS, REFERENCES, **OURS, max_length=16, batch_size=3) == pytest.approx(direct[0].mauve)
    assert mauve_score(TEXTS, REFERENCES, **OURS, max_length=16, seed=3) == pytest.approx(direct[1].mauve)
    MODEL.save_pretrained(tmp_path)
    TOKENIZER.save_pretrained(tmp_path)
    by_name = mauve_score(TEXTS, REFERENCES, feature_model=str(tmp_path), max_length=16)
    assert by_name == pytest.approx(direct[0].mauve)


def test_equal_sides_score_one_and_different_ones_less_with_more_scaling(mauve):
    assert mauve_score(TEXTS, TEXTS, **OURS) == pytest.approx(1)
    scores = [mauve_score(TEXTS, REFERENCES, **OURS, scaling=scaling) for scaling in (2.0, 5.0)]
    assert 1 > scores[0] > scores[1] > 0


def test_without_mauve_text_its_extra_is_named_before_any_feature_is_made(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(name=name)

    monkeypatch.setattr(extras, "import_module", missing)
    with pytest.raises(ImportError, match=r"mauve is not installed.*\[eval\]"):
        mauve_score(["a"] * 100, ["b"] * 100, feature_model="no/model")


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="100 or more"):
        mauve_score(["a"] * 99, ["a"] * 99, feature_model="no/model")
    with pytest.raises(ValueError, match="must have a token"):
        text_features(["a", ""], MODEL, TOKENIZER)
