"""Masks that do not fit, and positions that there are not, are refused by every model."""

import inspect
import re

import pytest
import torch
from transformers import DynamicCache, EncoderDecoderCache

from hf_targets.backbones.positions import position_limit
from tests.model_cases import every_class, every_wrapper_class, every_writing_wrapper_class
from tests.tiny_backbones import token_ids


@every_class
@pytest.mark.parametrize("shape", [(2, 7), (8,)], ids=str)
def test_an_attention_mask_of_another_shape_than_the_text_is_refused(case, shape):
    model, ids, mask = case.make(), token_ids(2, 8), torch.ones(shape, dtype=torch.long)
    given = [(model, {**case.reading(ids), "input_ids": ids, "labels": ids})]
    if "generation" not in case.lacks:
        given.append((model.generate, {"input_ids": ids}))
    if "inputs_embeds" not in case.refuses:
        embeds = model.get_input_embeddings()(ids)
        given.append((model, {**case.reading(ids), "input_ids": None, "inputs_embeds": embeds}))
    told = rf"attention_mask must .*, \(2, 8\), got {re.escape(str(shape))}"
    for call, inputs in given:
        with pytest.raises(ValueError, match=told):
            call(**{**inputs, "attention_mask": mask})


@every_wrapper_class
@pytest.mark.parametrize("wrong", [(3, 8), 100_000], ids=str)
def test_positions_of_another_shape_or_that_there_are_not_are_refused(case, wrong):
    model, ids = case.make(), token_ids(2, 8)
    if "position_ids" not in inspect.signature(model.forward).parameters or position_limit(model.backbone) is None:
        return  # it has none, or counts them itself
    shape, first = (wrong, 0) if isinstance(wrong, tuple) else ((1, 8), wrong)
    positions = first + torch.arange(shape[-1]).expand(shape)
    with pytest.raises(ValueError, match="position_ids must be"):
        model(**{**case.reading(ids), "input_ids": ids, "labels": ids, "position_ids": positions})


@every_writing_wrapper_class
def test_beside_a_cache_the_mask_has_the_positions_in_it_too(case):
    model = case.make()
    ids, cache, mask = token_ids(2, 8), DynamicCache(), f"{case.prefix}attention_mask"
    if case.source:
        cache = EncoderDecoderCache(cache, DynamicCache())
    model(**case.reading(ids[:, :5]), past_key_values=cache)
    told = f"{mask} must be (batch, time), (2, 8) with the 5 positions in the cache, got (2, 3)"
    with pytest.raises(ValueError, match=re.escape(told)):
        model(**case.reading(ids[:, 5:]), past_key_values=cache, **{mask: torch.ones(2, 3)})
    chunk = model(**case.reading(ids[:, 5:]), past_key_values=cache, **{mask: torch.ones(2, 8)}).logits
    torch.testing.assert_close(chunk, model(**case.reading(ids)).logits[:, 5:])


@every_writing_wrapper_class
def test_a_batch_without_a_text_is_refused(case):
    with pytest.raises(ValueError, match="at least one token"):
        case.make().generate(token_ids(2, 8)[:0], max_new_tokens=2)


@every_writing_wrapper_class
def test_logits_are_kept_as_asked(case):
    model = case.make()
    inputs = case.reading(token_ids(2, 8))
    whole = model(**inputs).logits
    for wanted, kept in ((0, slice(None)), (3, slice(-3, None)), (8, slice(None))):
        torch.testing.assert_close(model(**inputs, logits_to_keep=wanted).logits, whole[:, kept])
    for indices in ([0, 7], [3, -1], []):
        asked = torch.tensor(indices, dtype=torch.long)
        torch.testing.assert_close(model(**inputs, logits_to_keep=asked).logits, whole[:, asked])


@every_writing_wrapper_class
@pytest.mark.parametrize("wanted", [9, torch.tensor([-9]), torch.tensor([1.0])], ids=str)
def test_logits_of_positions_that_there_are_not_are_refused(case, wanted):
    with pytest.raises(ValueError, match="logits_to_keep"):
        case.make()(**case.reading(token_ids(2, 8)), logits_to_keep=wanted)
