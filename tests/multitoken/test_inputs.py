"""Batches that cannot be read are refused by every model, in the words of `forward`'s arguments."""

import re

import pytest
import torch
from transformers import DynamicCache

from tests.mdlm_models import clean_ids, make_mdlm
from tests.tiny_models import make_dynamic_model, make_model, make_vocabulary, phrase_batch, token_ids

MULTITOKEN, PHRASES, MDLM = make_model("llama"), make_dynamic_model("llama"), make_mdlm()


@pytest.fixture(params=[MULTITOKEN, PHRASES], ids=["multitoken", "phrases"])
def model(request):
    return request.param


MASKS = [(2, 7), (2, 9), (1, 8), (3, 8), (8,), (2, 8, 1)]


@pytest.mark.parametrize("shape", MASKS, ids=str)
@pytest.mark.parametrize("embedded", [False, True])
def test_an_attention_mask_of_another_shape_than_the_text_is_refused(model, shape, embedded):
    ids = token_ids(2, 8)
    given = {"inputs_embeds": model.get_input_embeddings()(ids)} if embedded else {"input_ids": ids, "labels": ids}
    told = f"attention_mask must be (batch, time), (2, 8), got {shape}"
    with pytest.raises(ValueError, match=re.escape(told)):
        model(**given, attention_mask=torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_a_masked_diffusion_model_refuses_such_a_mask(shape):
    ids = clean_ids(2, 8)
    told = re.escape(f"attention_mask must have the shape of input_ids, (2, 8), got {shape}")
    for call in (MDLM, MDLM.generate):
        with pytest.raises(ValueError, match=told):
            call(ids, attention_mask=torch.ones(shape, dtype=torch.long))


def test_beside_a_cache_the_mask_has_the_positions_in_it_too(model):
    ids, cache = token_ids(2, 8), DynamicCache()
    model(ids[:, :5], past_key_values=cache)
    told = "attention_mask must be (batch, time), (2, 8) with the 5 positions in the cache, got (2, 3)"
    with pytest.raises(ValueError, match=re.escape(told)):
        model(ids[:, 5:], past_key_values=cache, attention_mask=torch.ones(2, 3))
    chunk = model(ids[:, 5:], past_key_values=cache, attention_mask=torch.ones(2, 8)).logits
    torch.testing.assert_close(chunk, model(ids).logits[:, 5:])


@pytest.mark.parametrize("wanted", [{}, {"draft_tokens": 2}, {"ensemble_weight": 0.2}, {"num_beams": 2}], ids=str)
@pytest.mark.parametrize("length", [5, 7])
def test_generate_refuses_a_mask_of_another_length(wanted, length):
    mask = torch.ones(1, length, dtype=torch.long)
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, time\), \(1, 6\)"):
        MULTITOKEN.generate(token_ids(1, 6), attention_mask=mask, max_new_tokens=3, **wanted)


@pytest.mark.parametrize("length", [5, 7])
def test_generate_with_phrases_refuses_a_mask_of_another_length(length):
    mask = torch.ones(1, length, dtype=torch.long)
    with pytest.raises(ValueError, match=r"attention_mask must be \(batch, time\), \(1, 6\)"):
        PHRASES.generate(token_ids(1, 6), attention_mask=mask, max_new_tokens=3, phrases=make_vocabulary())


def test_logits_are_kept_as_asked(model):
    ids = token_ids(2, 8)
    whole = model(ids).logits
    for wanted, kept in ((0, slice(None)), (3, slice(-3, None)), (8, slice(None))):
        torch.testing.assert_close(model(ids, logits_to_keep=wanted).logits, whole[:, kept])
    for places in ([0, 7], [3, -1], []):
        asked = torch.tensor(places, dtype=torch.long)
        torch.testing.assert_close(model(ids, logits_to_keep=asked).logits, whole[:, asked])


@pytest.mark.parametrize(
    "wanted",
    [
        -1, 9, True, False, 1.0, None, [1], torch.tensor([8]), torch.tensor([-9]), torch.tensor(3), torch.tensor([1.0]),
        torch.ones(8, dtype=torch.bool), torch.tensor([[1]]),
    ],
    ids=str,
)  # fmt: skip
def test_logits_of_positions_that_there_are_not_are_refused(model, wanted):
    told = r"logits_to_keep must be in \[0, 8\].* or indices in \[-8, 7\]"
    with pytest.raises(ValueError, match=told):
        model(token_ids(2, 8), logits_to_keep=wanted)


def test_scores_need_a_weight_and_labels():
    ids = token_ids(2, 8)
    with pytest.raises(ValueError, match=r"nll_weights must have an ensemble weight, .* got \[\]"):
        MULTITOKEN(ids, labels=ids, nll_weights=[])
    with pytest.raises(ValueError, match="nll_weights score labels; give labels"):
        MULTITOKEN(ids, nll_weights=[0.1])


def changed(name, change):
    """Return a training batch of a model with phrases of which a field is another."""
    batch = phrase_batch()
    batch[name] = change(batch[name].clone())
    return batch


def with_value(place, value):
    def change(tensor):
        tensor[place] = value
        return tensor

    return change


@pytest.mark.parametrize(
    ("name", "change", "told"),
    [
        ("phrase_windows", with_value((0, 0), -1), r"phrase_windows must name windows in \[0, \d+\], got -1"),
        ("phrase_windows", with_value((1, 0), 999), r"phrase_windows must name windows in \[0, \d+\], got 999"),
        ("phrase_windows", with_value((0, 1), 0), r"phrase_windows must have lengths in \[1, \d+\], got 0"),
        ("phrase_windows", with_value((0, 1), 99), r"phrase_windows must have lengths in \[1, \d+\], got 99"),
        ("phrase_windows", lambda t: t[:, :1], r"phrase_windows must be \(phrases, 2\), integers, got .*\(\d+, 1\)"),
        ("phrase_windows", lambda t: t.float(), r"phrase_windows must be \(phrases, 2\), integers, got torch.float32"),
        ("windows", lambda t: t[0], r"windows must be \(windows, length\), integers, got .* shape \(\d+,\)"),
        ("windows", with_value((0, 0), 50), r"windows must be in \[0, 49\], got 50"),
        ("phrase_input_ids", with_value((0, 0), 9999), r"phrase_input_ids must be in \[0, \d+\].*got 9999"),
        ("phrase_targets", with_value((0, 0), -7), r"phrase_targets must be in \[0, \d+\].*got -7"),
        ("phrase_targets", lambda t: t[:, 1:], r"phrase_targets must have the shape of phrase_input_ids, \(3, \d+\)"),
        ("phrase_attention_mask", lambda t: t[:, 1:], r"phrase_attention_mask must have the shape of phrase_input_ids"),
        ("token_positions", lambda t: t[:1], r"token_positions must have the shape of phrase_input_ids"),
        ("token_positions", with_value((0, 1), 15), r"token_positions must be in \[0, 14\].*got 15"),
        ("phrase_mask", lambda t: t[:, 1:], r"phrase_mask must have the shape of \(batch, phrases\), \(3, \d+\)"),
        ("masked_phrases", lambda t: torch.tensor([[0, 0, 999]]), r"must have phrases in \[0, \d+\], got 999"),
        ("masked_phrases", lambda t: torch.tensor([[3, 0, 0]]), r"must have rows in \[0, 2\], got 3"),
        ("masked_phrases", lambda t: torch.tensor([1]), r"masked_phrases must have the shape of \(k, 3\)"),
    ],
)  # fmt: skip
def test_a_training_batch_of_phrases_that_points_nowhere_is_refused(name, change, told):
    PHRASES(**phrase_batch())
    with pytest.raises(ValueError, match=told):
        PHRASES(**changed(name, change))
