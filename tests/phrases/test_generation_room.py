"""`generate` has a position for each step, or says so before it begins."""

import pytest
import torch

from hf_targets import MultiTokenForCausalLM
from tests.phrases.models import make_phrase_model, random_vocabulary
from tests.tiny_models import left_padded, make_backbone, make_dynamic_model, token_ids

PHRASES = random_vocabulary(20)
LEARNED = ("gpt2", "gpt_neo", "opt")  # 64 positions, each with a row of its own
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}
with_and_without_phrases = pytest.mark.parametrize("phrases", [PHRASES, None], ids=["phrases", "tokens"])


@with_and_without_phrases
@pytest.mark.parametrize("family", LEARNED)
def test_a_text_may_fill_all_positions_and_its_last_step_takes_none(family, phrases):
    model, prompt = make_phrase_model(family), token_ids(1, 60)
    for limit in ({"max_new_tokens": 5}, {"max_length": 65}):
        assert model.generate(prompt, phrases=phrases, **limit, **GREEDY).shape == (1, 65)
    with pytest.raises(ValueError, match="got 60 tokens in the prompt and up to 6 new ones; lower max_new_tokens to 5"):
        model.generate(prompt, phrases=phrases, max_new_tokens=6, **GREEDY)
    with pytest.raises(ValueError, match=r"model's 64 positions.*lower max_length to 65"):
        model.generate(input_ids=prompt, phrases=phrases, max_length=66, **GREEDY)


@pytest.mark.parametrize("family", ["gpt2", "opt"])  # GPT-Neo's attention has 64 columns, with padding
def test_padding_on_the_left_takes_no_position(family):
    model = make_phrase_model(family)
    ids, mask = left_padded()
    longest = int(mask.sum(dim=1).max())
    padding = torch.zeros(len(ids), 40, dtype=torch.long)
    ids, mask = torch.cat([padding, ids], dim=1), torch.cat([padding, mask.long()], dim=1)
    room = 64 - longest + 1
    given = {"attention_mask": mask, "phrases": PHRASES, **GREEDY}
    assert model.generate(ids, max_new_tokens=room, **given).shape[1] == ids.shape[1] + room
    with pytest.raises(ValueError, match=f"lower max_new_tokens to {room}"):
        model.generate(ids, max_new_tokens=room + 1, **given)


def test_padding_that_no_mask_tells_takes_no_position_either():
    model, prompt = make_phrase_model("gpt2"), token_ids(1, 8).clamp(min=1)
    ids = torch.cat([torch.zeros(1, 40, dtype=torch.long), prompt], dim=1)
    given = {"do_sample": False, "eos_token_id": 2, "pad_token_id": 0, "min_new_tokens": 57, "phrases": PHRASES}
    assert model.generate(ids, max_new_tokens=57, **given).shape[1] == 48 + 57


@with_and_without_phrases
@pytest.mark.parametrize("family", ["llama", "phi"])
def test_a_backbone_that_computes_its_positions_goes_on_beyond_the_length_it_was_trained_on(family, phrases):
    model = make_phrase_model(family)
    trained_on, config = model.config.get_text_config().max_position_embeddings, model.config.get_text_config()
    try:
        config.max_position_embeddings = 16
        text = model.generate(token_ids(1, 10), phrases=phrases, max_new_tokens=20, **GREEDY)
    finally:
        config.max_position_embeddings = trained_on
    assert text.shape == (1, 30)


@pytest.mark.filterwarnings("ignore:Using the model-agnostic")
def test_without_a_limit_of_its_own_a_text_ends_where_positions_do():
    text = make_phrase_model("gpt2").generate(token_ids(1, 60), phrases=PHRASES, **GREEDY)
    assert text.shape[1] == 64


def test_tokens_are_counted_as_a_step_each_unless_steps_have_a_limit_too():
    model, prompt = make_phrase_model("gpt2"), token_ids(1, 60)
    told = "up to 30 new ones; lower max_new_static_tokens to 5 or shorten the prompt; with max_new_tokens as well"
    with pytest.raises(ValueError, match=told):
        model.generate(prompt, phrases=PHRASES, max_new_static_tokens=30, **GREEDY)
    text = model.generate(prompt, phrases=PHRASES, max_new_static_tokens=30, max_new_tokens=5, **GREEDY)
    assert text.shape == (1, 65)
    with pytest.raises(ValueError, match=r"lower max_new_static_tokens to 5 or shorten the prompt$"):
        model.generate(prompt, max_new_static_tokens=30, **GREEDY)


def test_a_prompt_longer_than_the_positions_is_told_to_be_shorter():
    with pytest.raises(ValueError, match="a prompt must fit into the model's 64 positions, got 65 tokens; shorten it"):
        make_phrase_model("gpt2").generate(token_ids(1, 65), phrases=PHRASES, max_new_tokens=3, **GREEDY)


def test_nothing_is_computed_before_a_refusal():
    model, called = make_dynamic_model("gpt2"), []
    for module in (model.backbone, model.phrase_encoder):
        module.register_forward_hook(lambda *_: called.append("forward"))
    with pytest.raises(ValueError, match="must fit into the model's 64 positions"):
        model.generate(token_ids(2, 60), phrases=PHRASES, max_new_tokens=128, **GREEDY)
    assert called == []
    model.generate(token_ids(2, 60), phrases=PHRASES, max_new_tokens=2, **GREEDY)
    assert called


def test_a_prompt_whose_positions_are_given_ends_at_the_last_of_them():
    model, prompt = make_phrase_model("gpt2"), token_ids(1, 4)
    given = {"position_ids": torch.arange(50, 54)[None], "phrases": PHRASES, **GREEDY}
    assert model.generate(prompt, max_new_tokens=11, **given).shape == (1, 15)
    with pytest.raises(ValueError, match=r"got 54 tokens in the prompt.*lower max_new_tokens to 11"):
        model.generate(prompt, max_new_tokens=12, **given)
    with pytest.raises(IndexError):
        model.backbone.generate(prompt, max_new_tokens=12, position_ids=given["position_ids"], **GREEDY)


@pytest.mark.parametrize(
    "make", [lambda: make_phrase_model("gpt2"), lambda: MultiTokenForCausalLM.from_base(make_backbone("gpt2"))]
)
def test_a_text_that_may_end_earlier_is_refused_when_it_has_outgrown_the_positions(make):
    model, ids = make().eval(), token_ids(1, 10)
    limits = {"max_new_tokens": 90, **GREEDY}
    with pytest.raises(ValueError, match="must fit into the model's 64 positions"):
        model.generate(ids, **limits)
    stop = [lambda ids, scores, **_: torch.tensor([ids.shape[1] >= 14])]
    assert model.generate(ids, **limits, stopping_criteria=stop).shape == (1, 14)
    with pytest.raises(ValueError, match="did not end within the model's 64 positions; lower max_new_tokens"):
        model.generate(ids, **limits, stopping_criteria=[lambda ids, scores, **_: torch.tensor([False])])
