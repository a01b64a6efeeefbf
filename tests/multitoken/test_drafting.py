"""Drafting leaves the text as it is: the same tokens, fewer passes."""

import copy
import logging

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForCausalLM,
    DynamicCache,
    LogitsProcessorList,
    StaticCache,
    StoppingCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from hf_targets.backbones.generation import takes_tree_mask
from hf_targets.multitoken.drafting.outputs import DraftedGenerationOutput
from tests.tiny_models import HEADS_OF_FAMILIES, left_padded, make_backbone, make_drafting_model, make_model, token_ids

families = pytest.mark.parametrize(("family", "target"), HEADS_OF_FAMILIES)
branches = pytest.mark.parametrize("num_branches", [1, 3])
ways = pytest.mark.parametrize(("num_branches", "alone"), [(1, True), (1, False), (3, False)])
"""Chains and trees, and a row without padding, which has the cache that a caller gets."""
GREEDY = {"do_sample": False, "max_new_tokens": 20, "pad_token_id": 0}


def rows_or_one(alone: bool):
    ids, mask = left_padded()
    return (ids[:1], mask[:1]) if alone else (ids, mask)


def num_generated(sequences: torch.Tensor, prompts: torch.Tensor) -> int:
    """Count generated tokens, the end token 0 included and padding behind it not."""
    new = sequences[:, prompts.shape[1] :] == 0
    return int((new.cumsum(dim=1) - new.int() == 0).sum())


@families
@ways
@pytest.mark.usefixtures("clear_choices")
def test_greedy_words_are_those_without_drafts_and_the_counts_add_up(family, target, num_branches, alone):
    model = make_drafting_model(family, target)
    ids, mask = rows_or_one(alone)
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    output = model.generate(
        ids, attention_mask=mask, draft_tokens=3, draft_branches=num_branches, return_dict_in_generate=True, **GREEDY
    )
    assert torch.equal(output.sequences, plain)
    assert isinstance(output, DraftedGenerationOutput)
    assert output.num_accepted_tokens > 0
    assert output.num_forward_passes <= 20
    assert not alone or output.num_forward_passes == 1 + output.num_verifications
    assert len(ids) + output.num_verifications + output.num_accepted_tokens == num_generated(plain, ids)
    assert output.num_drafted_tokens <= output.num_verifications * 3 * num_branches
    assert output.tokens_per_pass == output.accepted_per_pass + 1 > 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"repetition_penalty": 1.5},
        {"min_new_tokens": 12},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[3], [7]]},
        {"max_new_tokens": 1},
        {"max_new_tokens": 2},
        {"prompt_lookup_num_tokens": 5},
        {"prompt_lookup_num_tokens": 3, "repetition_penalty": 1.1},
    ],
    ids=str,
)
def test_processors_and_lengths_act_as_without_drafts(wanted):
    model = make_drafting_model("gpt2")
    ids, mask = left_padded()
    wanted = {**GREEDY, **wanted}
    plain = {name: value for name, value in wanted.items() if name != "prompt_lookup_num_tokens"}
    expected = model.generate(ids, attention_mask=mask, **plain)
    for num_branches in (1, 3):
        if num_branches > 1 and "prompt_lookup_num_tokens" in wanted:
            continue
        got = model.generate(ids, attention_mask=mask, draft_tokens=3, draft_branches=num_branches, **wanted)
        assert torch.equal(got, expected)


@branches
def test_an_end_token_inside_a_draft_ends_the_row(num_branches):
    model = make_drafting_model("llama")
    ids, mask = left_padded()
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    for end in plain[0, ids.shape[1] + 1 : ids.shape[1] + 5].tolist():
        wanted = {**GREEDY, "eos_token_id": [end, int(plain[-1, ids.shape[1] + 4])]}
        expected = model.generate(ids, attention_mask=mask, **wanted)
        got = model.generate(ids, attention_mask=mask, draft_tokens=3, draft_branches=num_branches, **wanted)
        assert torch.equal(got, expected)


class EndsOnPair(StoppingCriteria):
    """Stops each row after two tokens of its own; blind to any token that it is not shown as the last."""

    def __init__(self, pairs):
        self.pairs = pairs

    def __call__(self, input_ids, scores, **kwargs):
        return (input_ids[:, -2:] == self.pairs).all(dim=1)


@branches
def test_a_stopping_criterion_sees_every_word(num_branches):
    model = make_drafting_model("gpt2")
    ids, mask = left_padded()
    plain = model.generate(ids, attention_mask=mask, **GREEDY)
    for start in range(ids.shape[1], ids.shape[1] + 4):
        criteria = StoppingCriteriaList([EndsOnPair(plain[:, start : start + 2])])
        expected = model.generate(ids, attention_mask=mask, stopping_criteria=criteria, **GREEDY)
        got = model.generate(
            ids, attention_mask=mask, stopping_criteria=criteria, draft_tokens=3, draft_branches=num_branches, **GREEDY
        )
        assert torch.equal(got, expected)


class Record(BaseStreamer):
    """Keeps what it is given, column by column."""

    def __init__(self):
        self.columns, self.ended = [], 0

    def put(self, value):
        value = value.reshape(1, -1) if value.dim() == 1 else value
        self.columns += [value] if len(self.columns) == 0 else list(value)

    def end(self):
        self.ended += 1


@ways
def test_a_streamer_is_given_all_words_in_order_and_ended_once(num_branches, alone):
    model = make_drafting_model("gpt2")
    ids, mask = rows_or_one(alone)
    expected, got = Record(), Record()
    text = model.generate(ids, attention_mask=mask, streamer=expected, **GREEDY)
    model.generate(ids, attention_mask=mask, streamer=got, draft_tokens=3, draft_branches=num_branches, **GREEDY)
    tokens = [torch.cat([column.flatten() for column in record.columns[1:]]) for record in (expected, got)]
    assert torch.equal(*tokens)
    assert len(tokens[0]) == text[:, ids.shape[1] :].numel()
    assert (expected.ended, got.ended) == (1, 1)


@branches
def test_scores_and_logits_are_those_without_drafts(num_branches):
    model = make_drafting_model("llama")
    ids, mask = left_padded()
    wanted = {
        **GREEDY, "repetition_penalty": 1.3, "eos_token_id": None,
        "return_dict_in_generate": True, "output_scores": True, "output_logits": True,
    }  # fmt: skip
    plain = model.generate(ids, attention_mask=mask, **wanted)
    output = model.generate(ids, attention_mask=mask, draft_tokens=3, draft_branches=num_branches, **wanted)
    for expected, got in ((plain.scores, output.scores), (plain.logits, output.logits)):
        assert len(expected) == len(got) == 20
        torch.testing.assert_close(torch.stack(got), torch.stack(expected), atol=1e-4, rtol=1e-4)


@branches
def test_the_cache_returned_for_a_row_goes_on_as_the_plain_one(num_branches):
    model = make_drafting_model("llama")
    ids, _ = rows_or_one(True)
    output = model.generate(
        ids[:, 3:], draft_tokens=3, draft_branches=num_branches, return_dict_in_generate=True, **GREEDY
    )
    text = output.sequences
    assert output.past_key_values.get_seq_length() == text.shape[1] - 1
    following = model(text[:, -1:], past_key_values=output.past_key_values).logits[:, -1]
    torch.testing.assert_close(following, model(text).logits[:, -1], atol=1e-4, rtol=1e-4)


@families
def test_drafts_work_in_bfloat16_and_every_word_is_a_most_probable_one(family, target):
    model = copy.deepcopy(make_drafting_model(family, target)).to(torch.bfloat16)
    ids, mask = left_padded()
    for rows, num_branches in ((1, 3), (4, 1)):
        text = model.generate(
            ids[-rows:], attention_mask=mask[-rows:], draft_tokens=3, draft_branches=num_branches, **GREEDY
        )
        seen = torch.cat([mask[-rows:], mask.new_ones(rows, text.shape[1] - ids.shape[1])], dim=1)
        positions = (seen.cumsum(dim=1) - 1).clamp(min=0)
        logits = model(text, attention_mask=seen, position_ids=positions).logits.float()[:, ids.shape[1] - 1 : -1]
        chosen = logits.gather(2, text[:, ids.shape[1] :, None])[..., 0]
        going = (text[:, ids.shape[1] :] == 0).cumsum(dim=1) - (text[:, ids.shape[1] :] == 0).int() == 0
        behind = (logits.amax(dim=-1) - chosen)[going]
        assert behind.max() <= 0.05 * logits.std() * 4  # rounding, to 8 bits of a sum of many terms


@pytest.mark.usefixtures("clear_choices")
def test_a_text_may_fill_all_positions():
    model = make_drafting_model("gpt2")
    ids, mask = left_padded()
    wanted = {"do_sample": False, "max_length": 64, "eos_token_id": None}
    expected = model.generate(ids, attention_mask=mask, **wanted)
    for drafts in ({}, {"draft_branches": 3}, {"draft_branches": 3, "prompt_lookup_num_tokens": 5}):
        assert torch.equal(model.generate(ids, attention_mask=mask, draft_tokens=3, **drafts, **wanted), expected)


def test_whether_a_backbone_reads_trees_is_tried_once_for_each_type_of_it():
    model, read = copy.deepcopy(make_drafting_model("llama")), []
    model.backbone.base_model.register_forward_pre_hook(lambda *_: read.append(model.dtype))
    for dtype in (torch.float32, torch.float32, torch.float64, torch.float32):
        assert takes_tree_mask(model.to(dtype).backbone)
    assert read == [torch.float32] * 2 + [torch.float64] * 2


def test_a_backbone_with_a_window_drafts_chains_and_says_so(caplog):
    model, ids = make_drafting_model("gpt_neo", "embedding"), token_ids(1, 5)
    wanted = {"draft_tokens": 3, "return_dict_in_generate": True, **GREEDY}
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        fallen = model.generate(ids, draft_branches=3, **wanted)
    assert "Drafting a chain instead of 3 branches: GPTNeoForCausalLM takes no tree mask" in caplog.text
    chain = model.generate(ids, **wanted)
    assert fallen.num_drafted_tokens == chain.num_drafted_tokens
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="hf_targets"):
        make_drafting_model("gpt2").generate(ids, draft_branches=3, **wanted)
    assert not caplog.text


@branches
def test_a_filled_cache_is_gone_on_from(num_branches, weight=0.4):
    model, ids = make_drafting_model("llama"), token_ids(1, 9)
    texts = []
    for drafts in ({}, {"draft_tokens": 3, "draft_branches": num_branches}):
        cache = DynamicCache(config=model.backbone.config)
        model(ids[:, :4], past_key_values=cache, ensemble_weight=weight)
        texts.append(model.generate(ids, past_key_values=cache, ensemble_weight=weight, **drafts, **GREEDY))
    assert torch.equal(*texts)


def test_a_cache_that_would_be_lost_or_read_wrongly_is_refused():
    model, ids = make_drafting_model("llama"), token_ids(3, 9)
    filled = model(ids[:, :4], use_cache=True).past_key_values
    bad(model, "cannot start from a filled cache", inputs=ids, past_key_values=filled, draft_tokens=2)
    for num_branches in (1, 3):
        filled = model(ids[:1, :4], use_cache=True).past_key_values
        wanted = {"draft_tokens": 2, "draft_branches": num_branches, "attention_mask": torch.ones(1, 9)}
        bad(model, r"4 positions.*give the whole text.*got 5", inputs=ids[:1, 4:], past_key_values=filled, **wanted)
    windowed = make_drafting_model("mistral")
    static = StaticCache(windowed.backbone.config, max_cache_len=32)
    windowed(ids[:1, :4], past_key_values=static)
    bad(windowed, "StaticSlidingWindowLayer", inputs=ids[:1], past_key_values=static, draft_tokens=2)


class SeesText(TemperatureLogitsWarper):
    """Forbids the last token, which its base class does not look at."""

    def __call__(self, input_ids, scores):
        return scores.scatter(1, input_ids[:, -1:], -torch.inf)


@branches
def test_a_processor_of_ones_own_sees_the_text_whatever_it_inherits(num_branches):
    model = make_drafting_model("gpt2")
    ids, mask = left_padded()
    wanted = {"attention_mask": mask, "logits_processor": LogitsProcessorList([SeesText(1.0)]), **GREEDY}
    expected = model.generate(ids, **wanted)
    assert torch.equal(model.generate(ids, draft_tokens=3, draft_branches=num_branches, **wanted), expected)


def test_an_ensemble_takes_an_ordinary_assistant():
    model, ids = make_model("gpt2"), token_ids(1, 6)
    wanted = {"ensemble_weight": 0.4, **GREEDY}
    assisted = model.generate(ids, assistant_model=make_backbone("gpt2"), **wanted)
    assert torch.equal(assisted, model.generate(ids, **wanted))


def bad(model, match, **wanted):
    with pytest.raises(ValueError, match=match):
        model.generate(**{"inputs": token_ids(1, 5), "max_new_tokens": 4, **wanted})


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"draft_tokens": 4}, "got 4"),
        ({"draft_tokens": -1}, "draft_tokens must be in"),
        ({"draft_tokens": 1.5}, "draft_tokens must be in"),
        ({"draft_tokens": 1, "draft_branches": 0}, "draft_branches"),
        ({"draft_tokens": 1, "draft_nodes": 0}, "draft_nodes"),
        ({"draft_branches": 2}, "needs draft_tokens"),
        ({"draft_tokens": "always"}, "got 'always'"),
        ({"draft_tokens": 2, "assistant_early_exit": 1}, "assistant_early_exit"),
        ({"draft_tokens": 2, "use_cache": False}, "leave out use_cache=False"),
        ({"draft_tokens": 2, "num_beams": 2}, "num_beams"),
        ({"draft_tokens": 2, "guidance_scale": 1.5}, "guidance_scale"),
        ({"draft_tokens": 2, "output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
        ({"draft_tokens": 2, "assistant_model": AutoModelForCausalLM}, "assistant_model"),
        ({"draft_tokens": 2, "ensemble_weight": -0.1}, "got -0.1"),
        ({"draft_tokens": 2, "synced_gpus": True}, "synced_gpus"),
        ({"draft_tokens": 2, "family": "reformer"}, "ReformerModelWithLMHead"),
    ],
    ids=str,
)
def test_what_cannot_be_drafted_is_refused(wanted, told):
    wanted = dict(wanted)
    family = wanted.pop("family", "gpt2")
    bad(make_model(family) if family == "reformer" else make_drafting_model(family), told, **wanted)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
@pytest.mark.parametrize(
    "way",
    [
        {"draft_tokens": 3},
        {"draft_tokens": 3, "draft_branches": 3},
        {"draft_tokens": 3, "draft_branches": 3, "draft_nodes": 5, "prompt_lookup_num_tokens": 5},
        {"draft_tokens": "auto"},
    ],
    ids=str,
)
def test_a_static_cache_drafts_the_same_text_and_keeps_no_more_positions_than_it_has(family, way):
    model = make_drafting_model(family)
    for alone in (True, False):
        ids, mask = rows_or_one(alone)
        told = {"attention_mask": mask, **GREEDY}
        free = model.generate(ids, **told, eos_token_id=None)
        told["eos_token_id"] = [int(free[0, 20]), int(free[-1, 12])]  # rows end one after another
        plain = model.generate(ids, **told)
        output = model.generate(
            ids, cache_implementation="static", **way, **told, return_dict_in_generate=True, disable_compile=True
        )
        assert torch.equal(output.sequences, plain)
        assert way["draft_tokens"] == "auto" or output.num_accepted_tokens > 0


@pytest.mark.parametrize("kind", [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig])
def test_drafts_after_prompts_that_peft_has_learnt_are_refused_and_auto_decodes_plainly(kind):
    config = kind(task_type="CAUSAL_LM", num_virtual_tokens=3)
    tuned, ids = get_peft_model(copy.deepcopy(make_drafting_model("llama")), config).eval(), token_ids(1, 6)
    plain = tuned.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(tuned.generate(input_ids=ids, max_new_tokens=6, do_sample=False, draft_tokens="auto"), plain)
    with pytest.raises(ValueError, match="draft_tokens=0"):
        tuned.generate(input_ids=ids, max_new_tokens=6, do_sample=False, draft_tokens=2)


@pytest.fixture
def transfers(monkeypatch):
    """Collect what a program on a GPU would wait for: numbers asked of a tensor, outside of calls of a model."""
    seen, inside = [], [False]

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            masks = [index for index in args[1] if index is not None] if func is torch.ops.aten.index.Tensor else []
            asks = func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default)
            if not inside[0] and (asks or any(index.dtype == torch.bool for index in masks)):
                seen.append(str(func))
            return func(*args, **(kwargs or {}))

    as_list = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda one: seen.append("tolist") or as_list(one))
    monkeypatch.setattr(torch.Tensor, "is_cpu", False)

    def watch(model):
        model.register_forward_pre_hook(lambda *call: inside.__setitem__(0, True))
        model.register_forward_hook(lambda *call: inside.__setitem__(0, False))
        return Watch()

    return seen, watch


@branches
def test_one_transfer_from_a_gpu_lies_between_two_passes(num_branches, transfers):
    model, (ids, mask), (seen, watch) = make_drafting_model("llama"), left_padded(), transfers
    drafts = {"draft_tokens": 3, "draft_branches": num_branches, "return_dict_in_generate": True}
    counts = []
    for length in (6, 18):
        seen.clear()
        with watch(model):
            told = {**GREEDY, "max_new_tokens": length, "eos_token_id": None}
            passes = model.generate(ids, attention_mask=mask, **drafts, **told).num_forward_passes
        counts.append((passes, len(seen)))
    assert counts[1][1] - counts[0][1] == counts[1][0] - counts[0][0] > 2
