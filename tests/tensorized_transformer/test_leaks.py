"""The published attention, which reads later tokens: a model with it says so, and does what it can do."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import DynamicCache

from lab.results import is_leaky
from tests.tensorized_transformer.models import SEGMENT, make_heads, make_tensorized
from tests.tiny_backbones import make_backbone, token_ids


def leaky_heads():
    return make_heads("difference", ngram_size=3, paper_leaky=True)


LEAKY = {
    "model": lambda: make_tensorized(paper_leaky=True),
    "heads": leaky_heads,
    "adapters": lambda: get_peft_model(leaky_heads(), LoraConfig(target_modules=["qkv_proj"])),
    "compiled": lambda: torch.compile(leaky_heads()),
}


@pytest.mark.parametrize("kind", LEAKY)
def test_a_leaky_model_is_known_by_its_configuration_also_inside_of_another(kind):
    assert is_leaky(LEAKY[kind]())


@pytest.mark.parametrize("make", [make_tensorized, lambda: make_backbone("gpt2")])
def test_causal_models_are_not_leaky(make):
    assert not is_leaky(make())


def test_a_leaky_model_says_so(caplog):
    make_tensorized()
    assert not caplog.records
    make_tensorized(paper_leaky=True)
    assert "paper_leaky" in caplog.text


def test_a_leaky_model_does_not_generate():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    for run in (model.generate, leaky_heads().generate):
        with pytest.raises(ValueError, match="cannot generate"):
            run(ids, max_new_tokens=2)
    with pytest.raises(ValueError, match="cannot generate"):
        leaky_heads().generate(ids, max_new_tokens=2, draft_tokens=1)


def test_the_same_weights_are_causal_once_the_configuration_says_so():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    model.config.paper_leaky = False
    assert torch.equal(model(ids).logits, make_tensorized()(ids).logits)
    assert torch.equal(model.generate(ids, max_new_tokens=2), make_tensorized().generate(ids, max_new_tokens=2))


@pytest.mark.parametrize("time", [1, SEGMENT - 1, SEGMENT + 1, 3 * SEGMENT - 1])
def test_a_text_that_does_not_fill_its_segments_is_refused(time):
    with pytest.raises(ValueError, match="segment_length=4"):
        make_tensorized(paper_leaky=True)(token_ids(2, time))


def test_texts_packed_into_a_segment_and_caches_are_refused():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    apart = torch.arange(SEGMENT).repeat(2).expand(2, -1)
    assert torch.equal(model(ids, position_ids=apart).logits, model(ids).logits)
    for packed in ([0, 1, 2, 0, 1, 2, 3, 4], [0] * 8, [0, 1, 2, 3, 4, 4, 5, 6]):
        with pytest.raises(ValueError, match="position_ids restart"):
            model(ids, position_ids=torch.tensor([packed]))
    assert model(ids, use_cache=True).past_key_values is None
    assert model(ids, past_key_values=DynamicCache()).past_key_values is None
    with pytest.raises(ValueError, match="cache"):
        model(ids, past_key_values=make_tensorized()(ids).past_key_values)


def test_padding_of_a_segment_is_not_read():
    model, ids = make_tensorized(paper_leaky=True).double(), token_ids(2, 2 * SEGMENT)
    mask = torch.ones_like(ids)
    mask[:, -3:] = 0
    other = torch.where(mask.bool(), ids, token_ids(*ids.shape, seed=9))
    expected, found = (model(text, attention_mask=mask).logits[:, :-3] for text in (ids, other))
    torch.testing.assert_close(found, expected)
    assert not torch.isclose(model(ids).logits[:, SEGMENT], expected[:, SEGMENT]).any()
    assert torch.equal(model(ids).logits[:, :SEGMENT], expected[:, :SEGMENT])
    positions = mask.cumsum(1) - 1
    for padded in (positions, positions.masked_fill(mask == 0, 1)):  # both are common
        assert torch.equal(model(ids, attention_mask=mask, position_ids=padded).logits[:, :-3], expected)
    with pytest.raises(ValueError, match="padding before text"):
        model(ids, attention_mask=mask.flip(1))


def test_texts_may_be_padded_to_the_end_of_their_segments():
    model, ids = make_tensorized(paper_leaky=True), token_ids(2, 2 * SEGMENT)
    mask = torch.ones_like(ids)
    mask[:, SEGMENT - 1] = 0
    apart = torch.arange(SEGMENT).repeat(2).expand(2, -1)
    logits = model(ids, attention_mask=mask, position_ids=apart).logits
    torch.testing.assert_close(logits[:, SEGMENT:], model(ids).logits[:, SEGMENT:])


def test_heads_train_on_a_leaky_model_as_in_the_paper():
    model, ids = leaky_heads().train(), token_ids(2, 2 * SEGMENT)
    output = model(ids, labels=ids)
    output.loss.backward()
    assert output.loss_parts.keys() == {"next_token", "head_1", "head_2"}
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_equal_words_of_a_segment_have_equal_logits_in_the_published_model():
    model = make_tensorized(paper_leaky=True).eval()
    ids = token_ids(1, SEGMENT)
    ids[0, 2] = ids[0, 0]
    logits = model(ids).logits[0]
    torch.testing.assert_close(logits[0], logits[2])
    assert not torch.allclose(logits[0], logits[1], atol=1e-3)
