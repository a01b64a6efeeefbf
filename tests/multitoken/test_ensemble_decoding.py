"""The ensemble of equation (13) inside `generate`: with the key-value cache as without, and as the formula says."""

import copy

import pytest
import torch
from transformers import DynamicCache, GenerationConfig

from hf_targets.multitoken.hidden_state_cache import HiddenStateCache
from tests.choices import on_clear_draws, restart_draws
from tests.multitoken.by_hand import equations
from tests.tiny_models import (
    HEADS_OF_FAMILIES,
    TARGETS,
    left_padded,
    make_drafting_model,
    make_model,
    make_sliding_model,
    token_ids,
)

targets = pytest.mark.parametrize("target", TARGETS)


def make(family, target):
    return (make_sliding_model() if family == "mistral" else make_model(family, target=target)).double()


@targets
def test_cached_steps_give_equation_13_at_every_position(target):
    model = make_model("llama", target=target).double()  # GPT-Neo's attention stays in float32
    ids, cache = token_ids(1, 9), DynamicCache(config=model.backbone.config)
    *_, expected = equations(model, model.backbone.base_model(ids)[0], ids, weight=0.3)
    for start, end in ((0, 1), (1, 2), (2, 5), (5, 6), (6, 9)):
        step = model(ids[:, start:end], past_key_values=cache, ensemble_weight=0.3).logits
        torch.testing.assert_close(step, expected[:, start:end], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(("family", "target"), HEADS_OF_FAMILIES)
@pytest.mark.parametrize(
    "how",
    [
        {"do_sample": False, "num_beams": 3, "num_return_sequences": 2},
        {"do_sample": True, "top_k": 8, "num_return_sequences": 2},
        {"do_sample": False, "prefill_chunk_size": 2, "draft_tokens": 3},
    ],
    ids=str,
)
@pytest.mark.usefixtures("clear_choices")
@on_clear_draws
def test_cached_is_uncached(family, target, how):
    model = make(family, target)
    ids, mask = left_padded()
    texts = []
    for use_cache in (False, True):
        kept = how if use_cache else {k: v for k, v in how.items() if k not in ("prefill_chunk_size", "draft_tokens")}
        restart_draws()
        texts.append(
            model.generate(ids, attention_mask=mask, max_new_tokens=8, ensemble_weight=0.4, use_cache=use_cache, **kept)
        )
    assert torch.equal(*texts)


@targets
@pytest.mark.parametrize("alone", [True, False])
def test_drafts_are_verified_against_the_ensemble(target, alone):
    model = make_drafting_model("llama", target)
    _, mask = left_padded()
    ids = token_ids(4, 7, seed=1) * mask
    ids, mask = (ids[:1], mask[:1]) if alone else (ids, mask)
    wanted = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False, "ensemble_weight": 0.5}
    expected = model.generate(ids, use_cache=False, **wanted)
    assert not torch.equal(expected, model.generate(ids, **{**wanted, "ensemble_weight": 0.0}))
    output = model.generate(ids, draft_tokens=3, return_dict_in_generate=True, **wanted)
    assert torch.equal(output.sequences, expected)
    assert output.num_accepted_tokens > 0


def test_reordering_and_cropping_the_cache_moves_what_was_predicted():
    model, ids = make_model("gpt2"), token_ids(3, 8)
    cache = model(ids, ensemble_weight=0.3, use_cache=True).past_key_values
    order = torch.tensor([2, 0, 0])
    cache.reorder_cache(order)
    cache.crop(-3)
    following = model(ids[order, 5:6], past_key_values=cache, ensemble_weight=0.3).logits
    torch.testing.assert_close(following[:, 0], model(ids[order, :6], ensemble_weight=0.3).logits[:, -1])
    assert HiddenStateCache.find(cache).get_seq_length() == 6


def test_a_configured_weight_decodes_with_the_cache_too():
    model = make_model("gpt2", ensemble_weight=0.4)
    ids = token_ids(2, 6)
    expected = make_model("gpt2").generate(ids, max_new_tokens=8, do_sample=False, ensemble_weight=0.4)
    assert torch.equal(model.generate(ids, max_new_tokens=8, do_sample=False), expected)


def test_a_cache_that_cannot_tell_is_refused_before_it_is_touched():
    model, ids = make_model("gpt2"), token_ids(1, 6)
    cache = model(ids, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="holds 6 positions, and hidden states of 0 of them"):
        model(ids[:, :1], past_key_values=cache, ensemble_weight=0.3)
    assert cache.get_seq_length() == 6
    with pytest.raises(ValueError, match="got a StaticCache"):
        model.generate(ids, ensemble_weight=0.3, cache_implementation="static", max_new_tokens=3)
    filled = model(ids, ensemble_weight=0.3, use_cache=True).past_key_values
    with pytest.raises(ValueError, match="leave out past_key_values or labels"):
        model(ids, labels=ids, past_key_values=filled, ensemble_weight=0.3)


def test_without_a_weight_the_cache_is_the_backbones_own():
    model, ids = make_model("gpt2"), token_ids(1, 6)
    assert len(model(ids, use_cache=True).past_key_values) == len(model.backbone(ids, use_cache=True).past_key_values)


@targets
def test_guidance_takes_the_ensemble_of_the_call_for_both_sides_as_that_of_the_configuration(target):
    model = make("llama", target)
    call = {"guidance_scale": 2.0, "max_new_tokens": 6, "output_logits": True, "output_scores": True}
    call |= {"do_sample": False, "return_dict_in_generate": True}
    by_call = model.generate(token_ids(1, 6), ensemble_weight=0.4, **call)
    configured = copy.deepcopy(model)
    configured.config.ensemble_weight = 0.4
    torch.testing.assert_close(by_call.scores, configured.generate(token_ids(1, 6), **call).scores)
    plain = model.generate(token_ids(1, 6), **call)
    torch.testing.assert_close(configured.generate(token_ids(1, 6), ensemble_weight=0.0, **call).scores, plain.scores)


def test_continuous_batching_keeps_no_hidden_states_and_refuses_an_ensemble():
    model = copy.deepcopy(make_model("llama"))
    model.init_continuous_batching(GenerationConfig(ensemble_weight=0.0))
    with pytest.raises(ValueError, match="ensemble_weight"):
        model.generate_batch([[1, 2]], GenerationConfig(ensemble_weight=0.3))
    model.config.ensemble_weight = 0.3
    with pytest.raises(ValueError, match="ensemble_weight"):
        model.generate_batch([[1, 2]], GenerationConfig(ensemble_weight=0.0))
