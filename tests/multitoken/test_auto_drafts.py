"""With `draft_tokens="auto"` the heads and the clock decide how far to draft, and never which text is written."""

import copy
import logging
from itertools import accumulate, cycle, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, Lfm2Config, StoppingCriteria, StoppingCriteriaList

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.drafting.auto import AutoDrafts
from hf_targets.multitoken.drafting.outputs import DraftedGenerationOutput
from hf_targets.multitoken.generation import AUTO_BRANCHES, AUTO_NODES
from tests.choices import require_clear_choices
from tests.tiny_models import TARGETS, left_padded, make_drafting_model, make_model, token_ids

GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}
SAMPLED = {"do_sample": True, "max_new_tokens": 20, "pad_token_id": 0, "temperature": 0.8}


@pytest.fixture
def drafted(monkeypatch):
    """Return the list of what was drafted, of all passes."""
    kinds, choose = [], AutoDrafts.choose
    monkeypatch.setattr(AutoDrafts, "choose", lambda self, **given: kinds.append(choose(self, **given)) or kinds[-1])
    return kinds


def with_cost(model, cost, rows=1, branches=None):
    """Return a copy of a model that has measured what drafts cost."""
    model, most, asked = copy.copy(model), model.config.ngram_size - 1, branches
    branches = asked or (AUTO_BRANCHES if rows == 1 else 1)
    nodes = min(most * branches, AUTO_NODES) * (branches > 1)
    sizes = {"lookup": 4, "heads": most * (asked is None or branches == 1), "tree": nodes}
    auto = AutoDrafts(sizes)
    auto.clock = lambda: 0.0
    for name in sizes:
        auto.kinds[name].cost = cost
    model._auto_drafts = {(rows, model.dtype, "cpu", False, *auto.num_tokens.values()): auto}
    return model


@settings(max_examples=5)
@given(
    cost=st.none() | st.floats(0, 4),
    seconds=st.lists(st.floats(0, 9), min_size=3, max_size=9),
    alone=st.booleans(),
    target=st.sampled_from(TARGETS),
    branches=st.none() | st.integers(1, 3),
)
def test_whatever_the_clock_says_the_greedy_text_is_the_plain_one(cost, seconds, alone, target, branches):
    model = make_drafting_model("llama", target)
    ids, mask = left_padded()
    ids, mask = (ids[:1], mask[:1]) if alone else (ids, mask)
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    model = copy.copy(model) if cost is None else with_cost(model, cost, len(ids), branches)
    model._auto_drafts = model._auto_drafts if cost is not None else {}
    times = iter(accumulate(cycle(seconds)))
    with pytest.MonkeyPatch.context() as patch:
        require_clear_choices(patch)
        patch.setattr("hf_targets.multitoken.drafting.auto.thread_time", lambda: next(times))
        for _ in range(2):
            told = {"draft_tokens": "auto", "draft_branches": branches, "return_dict_in_generate": True, **GREEDY}
            output = model.generate(ids, attention_mask=mask, **told)
            assert torch.equal(output.sequences, plain)
            assert isinstance(output, DraftedGenerationOutput) and output.tokens_per_pass >= 1


def test_a_sampled_row_draws_the_text_and_the_numbers_of_the_plain_one(drafted):
    ids = token_ids(1, 5).repeat(1, 3)
    for seed, branches in product(range(3), (None, 1)):
        model = with_cost(make_drafting_model("gpt2"), 0.0, branches=branches)
        options, states = {**SAMPLED, "eos_token_id": [*range(1, 4)], "max_new_tokens": 30}, []
        for drafts in ({}, {"draft_tokens": "auto", "draft_branches": branches}):
            torch.manual_seed(seed)
            text = model.generate(ids, **drafts, **options)
            states.append((text, torch.random.get_rng_state()))
        assert all(torch.equal(*pair) for pair in zip(*states, strict=True))
    assert {"lookup", "heads", "tree"} <= {*drafted}


def test_what_pays_is_drafted_and_what_does_not_is_left(drafted):
    model, ids = make_drafting_model("gpt2"), token_ids(1, 5)
    told = {**GREEDY, "max_new_tokens": 40, "draft_tokens": "auto", "return_dict_in_generate": True}
    assert with_cost(model, 0.0).generate(ids, **told).tokens_per_pass > 1.1
    assert "plain" not in drafted
    drafted.clear()
    with_cost(model, 1.9).generate(ids, **told)
    assert 0 < sum(kind != "plain" for kind in drafted) <= 4
    drafted.clear()
    assert with_cost(model, 3.0).generate(ids, **told).num_forward_passes == 40
    assert {*drafted} == {"plain"}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_what_stands_in_the_prompt_is_looked_up(rows, drafted):
    model, ids = with_cost(make_drafting_model("gpt2"), 0.0, rows), token_ids(rows, 5)
    plain = model.generate(ids, **GREEDY)
    output = model.generate(plain, draft_tokens="auto", return_dict_in_generate=True, **GREEDY)
    assert torch.equal(output.sequences, model.generate(plain, **GREEDY))
    assert ("lookup" if rows == 1 else "heads") in drafted and output.accepted_by_source["text"]


class Never(StoppingCriteria):
    def __call__(self, input_ids, scores, **kwargs):
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"num_beams": 2}, "they cannot be combined with beam search"),
        ({"use_cache": False}, "in memory, got none"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
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


def test_a_cache_that_keeps_the_last_states_drafts_in_step(drafted):
    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    kinds = ["conv", "full_attention"]
    config = Lfm2Config(vocab_size=50, num_hidden_layers=2, layer_types=kinds, bos_token_id=0, eos_token_id=0, **size)
    model = MultiTokenForCausalLM.from_base(AutoModelForCausalLM.from_config(config), ngram_size=3).eval()
    for ids in (token_ids(1, 5), token_ids(2, 5)):
        plain = model.generate(ids, **GREEDY)
        assert torch.equal(model.generate(ids, draft_tokens="auto", **GREEDY), plain)
        assert torch.equal(model.generate(ids, draft_tokens=2, draft_branches=2, **GREEDY), plain)
    assert drafted


def test_a_backbone_without_a_cache_decodes_plainly(caplog):
    model, ids = make_model("reformer"), token_ids(1, 8)
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        assert torch.equal(model.generate(ids, draft_tokens="auto", **GREEDY), model.generate(ids, **GREEDY))
    assert "Decoding without drafts" in caplog.text


def test_a_report_of_plain_decoding_counts_each_text_up_to_its_end():
    model, (ids, mask) = make_model("llama"), left_padded(6)
    ends = {"eos_token_id": list(range(10)), "return_dict_in_generate": True}
    output = model.generate(ids, attention_mask=mask, draft_tokens="auto", **SAMPLED, **ends)
    ended = output.sequences[:, ids.shape[1] :] < 10
    assert output.draft_report["tokens"] == int((ended.cumsum(dim=1) - ended.int() == 0).sum()) < ended.numel()
