"""With `draft_tokens="auto"` the clock decides how far to draft, and never which text is written."""

import copy
import logging
from itertools import count

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Lfm2Config, StoppingCriteria, StoppingCriteriaList

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.drafting import pace
from hf_targets.multitoken.drafting.output import DraftedGenerationOutput
from tests.choices import require_clear_choices
from tests.tiny_models import TARGETS, left_padded, make_drafting_model, make_model, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
SAMPLED = {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0, "temperature": 0.8}


@pytest.fixture
def drafted(monkeypatch):
    """Return the list of the settings of all passes, for paces that begin with the test."""
    chosen, choose = [], pace.MeasuredPace.choose
    monkeypatch.setattr(pace, "_PACES", type(pace._PACES)())
    monkeypatch.setattr(
        pace.MeasuredPace, "choose", lambda self, num_rows: chosen.append(choose(self, num_rows)) or chosen[-1]
    )
    return chosen


def with_clock(monkeypatch, seconds):
    """Let a pass take the seconds that an iterator gives."""
    times = count()
    monkeypatch.setattr(pace.MeasuredPace, "__init__", _init_with(lambda: next(times) + next(seconds)))


def _init_with(now):
    original = pace.MeasuredPace.__init__
    return lambda self, most: original(self, most, now)


@settings(max_examples=15, deadline=None)
@given(seconds=st.lists(st.floats(0, 9), min_size=3, max_size=9), alone=st.booleans(), target=st.sampled_from(TARGETS))
def test_whatever_the_clock_says_the_greedy_text_is_the_plain_one(seconds, alone, target):
    model = make_drafting_model("llama", target)
    ids, mask = left_padded()
    ids, mask = (ids[:1], mask[:1]) if alone else (ids, mask)
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    with pytest.MonkeyPatch.context() as patch:
        require_clear_choices(patch)
        with_clock(patch, iter(seconds * 999))
        for _ in range(2):
            output = model.generate(
                ids, attention_mask=mask, draft_tokens="auto", return_dict_in_generate=True, **GREEDY
            )
            assert torch.equal(output.sequences, plain)
            assert isinstance(output, DraftedGenerationOutput) and output.tokens_per_pass >= 1


@pytest.mark.parametrize("target", TARGETS)
def test_a_sampled_row_is_the_plain_one_of_the_same_seed(target, drafted):
    model, ids = make_drafting_model("gpt2", target), token_ids(1, 5)
    for seed in range(8):
        torch.manual_seed(seed)
        plain = model.generate(ids, **SAMPLED)
        torch.manual_seed(seed)
        assert torch.equal(model.generate(ids, draft_tokens="auto", **SAMPLED), plain)
    assert any(settings.num_tokens for settings in drafted)


def test_what_pays_is_drafted_and_what_does_not_is_left(drafted, monkeypatch):
    model, ids = make_drafting_model("gpt2"), token_ids(1, 5)
    with_clock(monkeypatch, iter([0.0] * 9999))  # all passes take as long: whatever is accepted is gained
    for _ in range(3):
        output = model.generate(
            ids, draft_tokens="auto", return_dict_in_generate=True, **{**GREEDY, "max_new_tokens": 40}
        )
    assert output.tokens_per_pass > 1.1
    assert {settings.num_branches for settings in drafted} == {1, 3}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_with_prompt_lookup_no_text_is_left_to_transformers_loop(rows, drafted, monkeypatch):
    model, ids = make_drafting_model("gpt2"), token_ids(rows, 5)
    plain = model.generate(ids, **GREEDY)
    monkeypatch.setattr(pace.MeasuredPace, "begins_plain", lambda self, num_rows: True)
    assert torch.equal(model.generate(ids, draft_tokens="auto", prompt_lookup_num_tokens=3, **GREEDY), plain)
    assert drafted


class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_beams": 2}, "they cannot be combined with beam search"),
        ({"use_cache": False}, "takes a DynamicCache in memory, got none"),
        ({"cache_implementation": "static"}, "takes a DynamicCache in memory, got StaticCache"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions and output_hidden_states"),
        ({"guidance_scale": 1.5}, "guidance_scale cannot be combined"),
        ({"do_sample": True, "num_return_sequences": 2}, "several rows that are sampled"),
        ({"do_sample": True, "stopping_criteria": StoppingCriteriaList([Never()])}, "would draw after its end"),
        ({"rows": 2, "stopping_criteria": StoppingCriteriaList([Never()])}, "several rows"),
    ],
)
def test_where_drafts_cannot_be_made_the_text_is_plain_and_the_log_says_why(options, why, drafted, caplog):
    options = dict(options)
    model, ids = make_drafting_model("gpt2"), token_ids(options.pop("rows", 1), 5)
    torch.manual_seed(0)
    plain = model.generate(ids, **{**GREEDY, **options})
    torch.manual_seed(0)
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        output = model.generate(ids, draft_tokens="auto", **{**GREEDY, **options})
    plain, output = (text if isinstance(text, torch.Tensor) else text.sequences for text in (plain, output))
    assert torch.equal(output, plain)
    assert not drafted
    assert f"Decoding without drafts: {why}"[:25] in caplog.text and why in caplog.text


def test_processes_that_share_weights_decode_plainly_as_their_clocks_differ(drafted, caplog):
    model, ids = copy.deepcopy(make_drafting_model("gpt2")), token_ids(1, 5)
    plain = model.generate(ids, **GREEDY)
    next(model.parameters()).ds_id = 0  # as ZeRO-3 marks a weight
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        assert torch.equal(model.generate(ids, draft_tokens="auto", **GREEDY), plain)
    assert not drafted and "their clocks differ" in caplog.text


@pytest.mark.parametrize("branches", [1, 3])
def test_a_cache_that_keeps_states_decodes_plainly(branches, drafted, caplog):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    kinds = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=50, num_hidden_layers=2, layer_types=kinds, bos_token_id=0, eos_token_id=0, **size)
    model = MultiTokenForCausalLM.from_base(AutoModelForCausalLM.from_config(config), ngram_size=3).eval()
    for ids in (token_ids(1, 5), token_ids(2, 5)):
        plain = model.generate(ids, **GREEDY)
        with caplog.at_level(logging.INFO, logger="hf_targets"):
            assert torch.equal(model.generate(ids, draft_tokens="auto", draft_branches=branches, **GREEDY), plain)
    assert not drafted and "this cache has a LinearAttentionLayer" in caplog.text


def test_a_sampled_text_draws_as_many_numbers_as_a_plain_one(drafted, monkeypatch):
    model, ids = make_drafting_model("gpt2"), token_ids(1, 5)
    with_clock(monkeypatch, iter([0.0] * 99999))  # all passes take as long, so that drafts pay
    for seed in range(20):
        options, states = {**SAMPLED, "eos_token_id": [*range(1, 9)], "max_new_tokens": 40}, []
        for draft_tokens in (None, "auto"):
            torch.manual_seed(seed)
            model.generate(ids, draft_tokens=draft_tokens, **options)
            states.append(torch.random.get_rng_state())
        assert torch.equal(*states)
    assert any(settings.num_tokens for settings in drafted)


def test_a_backbone_without_a_cache_decodes_plainly(caplog):
    model, ids = make_model("reformer"), token_ids(1, 8)
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        assert torch.equal(model.generate(ids, draft_tokens="auto", **GREEDY), model.generate(ids, **GREEDY))
    assert "Decoding without drafts" in caplog.text


def test_wrong_values_are_still_refused():
    model = make_drafting_model("gpt2")
    for options, told in (
        ({"draft_tokens": "always"}, r"must be in \[1, 3\].*got 'always'; give 0 to draft nothing, or \"auto\""),
        ({"draft_tokens": "auto", "draft_branches": 0}, "draft_branches must be an integer, 1 or more, got 0"),
    ):
        with pytest.raises(ValueError, match=told):
            model.generate(token_ids(1, 5), max_new_tokens=4, **options)
