"""`generate` has a position for each step, or says so before it begins."""

import pytest
import torch

from tests.phrases.models import make_phrase_model, random_vocabulary
from tests.tiny_models import make_dynamic_model, token_ids

PHRASES = random_vocabulary(20)
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}  # GPT-2, GPT-Neo and OPT here: 64 positions


@pytest.mark.parametrize("phrases", [PHRASES, None], ids=["phrases", "tokens"])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neo", "opt"])
def test_a_text_may_fill_all_positions_and_its_last_step_takes_none(family, phrases):
    model, prompt = make_phrase_model(family), token_ids(1, 60)
    for limit in ({"max_new_tokens": 5}, {"max_length": 65}, {"max_new_static_tokens": 30, "max_new_tokens": 5}):
        assert model.generate(prompt, phrases=phrases, **limit, **GREEDY).shape[1] <= 65
    for limit in ({"max_new_tokens": 6}, {"max_length": 66}, {"max_new_static_tokens": 6}):
        with pytest.raises(ValueError, match=f"64 positions.*lower {next(iter(limit))}"):
            model.generate(prompt, phrases=phrases, **limit, **GREEDY)


@pytest.mark.parametrize("family", ["llama", "phi"])
def test_a_backbone_that_computes_its_positions_goes_on_beyond_the_length_it_was_trained_on(family):
    model = make_dynamic_model(family)
    model.config.get_text_config().max_position_embeddings = 16
    assert model.generate(token_ids(1, 10), phrases=PHRASES, max_new_tokens=20, **GREEDY).shape == (1, 30)


def test_nothing_is_computed_before_a_refusal():
    model, called = make_dynamic_model("gpt2"), []
    for module in (model.backbone, model.phrase_encoder):
        module.register_forward_hook(lambda *_: called.append("forward"))
    with pytest.raises(ValueError, match="64 positions"):
        model.generate(token_ids(2, 60), phrases=PHRASES, max_new_tokens=128, **GREEDY)
    assert called == []


def test_a_text_that_may_end_earlier_is_refused_when_it_has_outgrown_the_positions():
    model, limits = make_phrase_model("gpt2"), {"max_new_tokens": 90, "phrases": PHRASES, **GREEDY}
    stop = [lambda ids, scores, **_: torch.tensor([ids.shape[1] >= 14])]
    assert model.generate(token_ids(1, 10), **limits, stopping_criteria=stop).shape == (1, 14)
    with pytest.raises(ValueError, match="did not end"):
        model.generate(token_ids(1, 10), **limits, stopping_criteria=[lambda ids, scores, **_: torch.tensor([False])])
