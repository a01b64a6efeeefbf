"""Drafts without heads on models as Transformers has them: the same text in fewer passes, and where it stands."""

import copy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GptOssConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)
from transformers.generation.stopping_criteria import EosTokenCriteria

from hf_targets import PhraseVocabulary, RetroForCausalLM, draft
from hf_targets.multitoken.drafting.auto import AutoDrafts
from tests.multitoken.test_drafting import EndsOnPair, Record
from tests.multitoken.test_state_drafts import make_state_model
from tests.small_tokenizers import BPE
from tests.tiny_backbones import SMALL, left_padded, make_backbone, token_ids
from tests.tiny_models import WORDS, make_any, make_drafting_model, make_sliding_model, make_vocabulary
from tests.tiny_seq2seq import make_pair_backbone, pairs

GREEDY = {"do_sample": False, "max_new_tokens": 24, "pad_token_id": 0}
TOLD = {"return_dict_in_generate": True, **GREEDY}
SIZE = {**SMALL, "num_key_value_heads": 2, "intermediate_size": 64, "bos_token_id": 0, "eos_token_id": 0}
KINDS = ["sliding_attention", "full_attention"]
WINDOW = {**SIZE, "head_dim": 8, "sliding_window": 6, "layer_types": KINDS, "initializer_range": 0.2}
SHARED = {"num_hidden_layers": 4, "layer_types": KINDS * 2, "num_kv_shared_layers": 2}
WINDOWS = {
    "gemma2": lambda: Gemma2Config(**WINDOW),  # caps its logits
    "gemma3": lambda: Gemma3TextConfig(**WINDOW),
    "gemma4": lambda: Gemma4TextConfig(  # layers of several widths, some of which read another's keys
        **WINDOW | SHARED, global_head_dim=16, vocab_size_per_layer_input=50, hidden_size_per_layer_input=8
    ),
    "gpt_oss": lambda: GptOssConfig(**WINDOW, num_local_experts=2, num_experts_per_tok=1),
}
WHISPER = {
    "vocab_size": 50, "d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "num_mel_bins": 8,
    "max_source_positions": 20, "max_target_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 3, "suppress_tokens": None, "begin_suppress_tokens": None, "init_std": 0.2,
}  # fmt: skip


def make_plain(family):
    if family == "mistral":
        return make_sliding_model().backbone.double()
    if family in WINDOWS:
        torch.manual_seed(4)  # some texts repeat themselves
        return AutoModelForCausalLM.from_config(WINDOWS[family]()).eval()
    if family == "whisper":
        torch.manual_seed(0)
        return WhisperForConditionalGeneration(WhisperConfig(**WHISPER)).eval()
    return (make_pair_backbone if family in ("bart", "t5") else make_backbone)(family).double()


def inputs_of(model, rows):
    if model.config.model_type == "whisper":
        return {"input_features": torch.randn(rows, 8, 40, generator=torch.Generator().manual_seed(0))}
    if model.config.is_encoder_decoder:
        return {name: value for name, value in pairs(rows).items() if name != "labels"}
    ids, mask = left_padded(rows)
    return {"input_ids": ids, "attention_mask": mask}


FULL = ["gpt2", "llama", "opt", "phi", "bart", "t5"]
CACHES = [(family, None) for family in ["gpt_neo", "mistral", *FULL, *WINDOWS]]
CACHES += [(family, "static") for family in ["mistral", *FULL, *WINDOWS]]


@pytest.mark.parametrize(("family", "cache"), CACHES)
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.usefixtures("clear_choices")
def test_greedy_texts_are_the_plain_ones_and_the_report_adds_up(family, cache, rows):
    model = make_plain(family)
    inputs = inputs_of(model, rows)
    plain = model.generate(**inputs, **GREEDY)
    output = model.generate(**inputs, custom_generate=draft(), cache_implementation=cache, **TOLD)
    assert torch.equal(output.sequences, plain)
    report, new = output.draft_report, plain[:, -24:]
    assert report["tokens"] == int(((new == 0).cumsum(dim=1) - (new == 0).int() == 0).sum())
    assert report["passes"] == output.num_forward_passes <= 24
    accepted = report["accepted"].get("text", 0)
    assert report["share"] == accepted / report["tokens"] and (accepted or rows > 1)
    assert min(report["time"].values()) > 0 and sum(report["time"].values()) < 1


@pytest.mark.parametrize("family", ["llama", "gemma3"])
def test_passes_with_a_static_cache_are_compiled_whole(family):
    model, compiled = make_plain(family), []
    inputs = inputs_of(model, 3)
    plain = model.generate(**inputs, **GREEDY)
    torch._dynamo.reset()
    backend = lambda graph, _: compiled.append(graph) or graph.forward  # noqa: E731
    model.forward = torch.compile(model.forward, fullgraph=True, backend=backend)
    text = model.generate(**inputs, custom_generate=draft(), cache_implementation="static", **GREEDY)
    assert torch.equal(text, plain) and len(compiled) <= 4  # a prompt, and passes of any length


@pytest.mark.parametrize("rows", [1, 3])
def test_speech_is_written_as_without_drafts_in_fewer_passes(rows):
    model, passes = make_plain("whisper"), []
    inputs, drafts = inputs_of(model, rows), draft(answers=True)
    plain = model.generate(**inputs, max_new_tokens=24)
    drafts.others["answers"].extend([token for row in plain.tolist() for token in [*row, -1]])
    hook = model.get_decoder().register_forward_hook(lambda *_: passes.append(1))
    for told in ({}, {"return_dict_in_generate": True}):
        output = model.generate(**inputs, custom_generate=drafts, max_new_tokens=24, **told)
        assert torch.equal((output["sequences"] if told else output)[:, -plain.shape[1] :], plain)
    hook.remove()
    assert len(passes) < 24


def test_processors_criteria_and_a_streamer_act_as_without_drafts():
    model = make_plain("gpt2")
    inputs = inputs_of(model, 3)
    plain = model.generate(**inputs, **GREEDY)
    told = {
        "logits_processor": LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.1)]),
        "stopping_criteria": StoppingCriteriaList([EndsOnPair(plain[:, 10:12])]),
        **inputs, **GREEDY,
    }  # fmt: skip
    expected, got = Record(), Record()
    text = model.generate(**told, streamer=expected)
    assert torch.equal(model.generate(**told, custom_generate=draft(), draft_streamer=got), text)
    tokens = [torch.cat([column.flatten() for column in record.columns]) for record in (expected, got)]
    assert torch.equal(*tokens) and got.ended == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_each_pass_goes_on_with_the_last_token_type(rows):
    model, (ids, mask) = make_plain("gpt2"), left_padded(rows)
    told = {"attention_mask": mask, "token_type_ids": token_ids(*ids.shape, seed=5) % 3, **GREEDY}
    assert torch.equal(model.generate(ids, custom_generate=draft(), **told), model.generate(ids, **told))


def test_answers_end_at_their_end_tokens_and_a_smaller_model_gets_no_other_tokens():
    large, drafts = make_plain("llama"), draft(lookup=False, answers=True)
    first = large.generate(token_ids(1, 7), **GREEDY)[0, 7:]
    stop = first.tolist().index(int(first[4])) + 1
    end = {"eos_token_id": int(first[4])}
    large.generate(token_ids(2, 7), custom_generate=drafts, **{**GREEDY, **end})
    assert drafts.others["answers"].tokens[: stop + 1] == [*first[:stop].tolist(), -1]
    ids, most = token_ids(1, 3), int(first.max())
    drafts.others["answers"].extend([*ids[0].tolist(), most] * 3)
    small = make_backbone("gpt2", vocab_size=most).double()
    assert torch.equal(small.generate(ids, custom_generate=drafts, **GREEDY), small.generate(ids, **GREEDY))


def test_a_sampled_row_draws_the_text_of_the_plain_one():
    model, ids = make_plain("gpt2"), token_ids(1, 5).repeat(1, 3)
    texts = []
    for way in ({}, {"custom_generate": draft()}):
        torch.manual_seed(1)
        texts.append(model.generate(ids, temperature=0.5, **way, **{**GREEDY, "do_sample": True}))
    assert torch.equal(*texts)


def drafts_with_cost(model, texts, cost):
    """Return drafts from texts that have measured what they cost; None: not yet."""
    drafts, auto = draft(answers=True), AutoDrafts({"lookup": 16, "heads": 0})
    drafts.others["answers"].extend([token for row in texts.tolist() for token in [*row, -1]])
    if cost is not None:
        auto.kinds["lookup"].cost, auto.clock = cost, lambda: 0.0
    drafts.learnt[model] = {(len(texts), model.dtype, "cpu", "answers"): auto}
    return drafts


@pytest.mark.parametrize("family", ["llama", "mamba2", "bart", "whisper"])
@pytest.mark.parametrize("rows", [1, 3])
def test_auto_drafts_what_pays_and_the_text_is_the_plain_one(family, rows):
    model = make_state_model("mamba2") if family == "mamba2" else make_plain(family)
    inputs, passes = inputs_of(model, rows), []
    told = {**inputs, **GREEDY, "max_new_tokens": 40} if family != "whisper" else {**inputs, "max_new_tokens": 40}
    plain, core = model.generate(**told), model.get_decoder() if model.config.is_encoder_decoder else model
    hook = core.register_forward_hook(lambda *_: passes.append(1))
    for drafts in (drafts_with_cost(model, plain, cost) for cost in (None, 0.0, 1e9)):
        for _ in range(2):
            passes.append(0)
            assert torch.equal(model.generate(**told, custom_generate=drafts, draft_tokens="auto"), plain)
        assert len(drafts.learnt[model]) == 1
    hook.remove()
    counts = [len(part) for part in "".join(map(str, passes)).split("0")[1:]]
    assert counts[2] < counts[4] and counts[3] < counts[5]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        ({"use_cache": False}, "in memory, got none"),
        ({"do_sample": True, "num_return_sequences": 2}, "several rows that are sampled"),
        ({"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    ],
)
def test_where_auto_cannot_draft_the_text_is_plain_and_the_log_says_why(wanted, why, caplog):
    model, texts = make_plain("gpt2"), []
    for way in ({}, {"custom_generate": draft(), "draft_tokens": "auto"}):
        torch.manual_seed(1)
        with caplog.at_level("INFO", logger="hf_targets"):
            output = model.generate(token_ids(1, 5), **way, **{**GREEDY, **wanted})
        texts.append(output if isinstance(output, torch.Tensor) else output.sequences)
    assert torch.equal(*texts)
    assert f"Decoding without drafts: {why}"[:25] in caplog.text and why in caplog.text
    assert isinstance(output, torch.Tensor) or output.draft_report["time"] == {}


def test_what_it_wrote_before_is_looked_up_if_it_is_kept():
    model, passes = make_plain("llama"), []
    for drafts in (draft(lookup=False, answers=True), draft()):
        outputs = [model.generate(token_ids(3, 7), custom_generate=drafts, **TOLD) for _ in range(2)]
        assert torch.equal(outputs[0].sequences, outputs[1].sequences)
        passes.append([output.num_forward_passes for output in outputs])
    assert passes[0][1] < passes[1][1] == passes[1][0]


@pytest.mark.parametrize("rows", [1, 3])
def test_tokens_that_stand_in_documents_are_drafted_and_their_places_told(rows):
    model = make_plain("llama")
    inputs: dict = {name: of[-1:].repeat(rows, 1) for name, of in inputs_of(model, rows).items()}
    inputs["suppress_tokens"] = [47, 48, 49]  # which stand in no phrase
    plain = model.generate(**inputs, **GREEDY)
    text = WORDS.decode(plain[-1, 10:26].tolist())
    drafts = draft(documents={"other": "w1 w2 w3 w2", "own": f"w3 w3  {text} w3"}, tokenizer=WORDS, lookup=False)
    output = model.generate(**inputs, custom_generate=drafts, **TOLD)
    assert torch.equal(output.sequences, plain)
    assert output.draft_report["accepted"]["documents"] >= 12
    written = plain[-1, 7:]
    [span] = [span for span in drafts.spans(written) if len(span.text.split()) > 4]  # others stand there by chance
    assert WORDS.decode(written)[span.start : span.end].strip() == span.text.strip() == text
    assert span.sources == (("own", 7, 7 + len(text)),) and span.phrase_id is None
    drafts = draft(documents={"cat": "The flat cat sat on the mat."}, tokenizer=BPE)
    [quote] = drafts.spans(BPE.encode("a cat sat on it"), min_tokens=3)
    assert quote.text == " cat sat on" and quote.sources == (("cat", 9, 19),)  # without the space before it
    phrases = PhraseVocabulary.from_token_ids([plain[-1, 12:22].tolist()], WORDS, vocab_size=50)
    drafts = draft(documents=phrases, lookup=False)
    assert model.generate(**inputs, custom_generate=drafts, **TOLD).draft_report["accepted"]["documents"] >= 5
    assert [span.phrase_id for span in drafts.spans(written)] == [50]


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"draft_tokens": 3},
        {"draft_tokens": 3, "draft_branches": 3},
        {"draft_tokens": "auto"},
        {"draft_tokens": "auto", "draft_branches": 3},
        {"ensemble_weight": 0.4},
    ],
    ids=str,
)
def test_a_model_with_heads_drafts_by_them_and_by_other_sources(asked):
    model, (ids, mask) = make_drafting_model("llama"), left_padded(1)
    told = {"attention_mask": mask, "ensemble_weight": asked.get("ensemble_weight"), **TOLD}
    plain = model.generate(ids, **told).sequences
    drafts = draft(documents=[WORDS.decode(plain[0, 15:])], tokenizer=WORDS)
    output = model.generate(ids, custom_generate=drafts, **{**told, **asked})
    assert torch.equal(output.sequences, plain)
    assert sum(output.accepted_by_source.values()) == output.num_accepted_tokens
    if asked.get("draft_tokens") != "auto":
        assert output.accepted_by_source["documents"] and ("heads" in output.accepted_by_source) == (
            "draft_tokens" in asked
        )


@pytest.mark.parametrize(
    ("family", "wanted", "told"),
    [
        ("gpt2", {"num_beams": 2}, "beam search"),
        ("gpt2", {"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens"),
        ("gpt2", {"use_cache": False}, "use_cache=False"),
        ("gpt2", {"draft_tokens": 3}, "without heads"),
        ("gpt2", {"max_new_tokens": 80}, "within the model's 64 positions"),
        ("gpt2", {"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
        ("reformer", {}, "key-value cache"),
    ],
)
def test_what_cannot_be_drafted_is_refused(family, wanted, told):
    with pytest.raises(ValueError, match=told):
        make_plain(family).generate(token_ids(1, 8), custom_generate=draft(), **{**GREEDY, **wanted})


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({"num_tokens": 0}, "num_tokens"),
        ({"lookup": False}, "something to look in"),
        ({"documents": ["a b"]}, "tokenizer"),
        ({"documents": "a b", "tokenizer": WORDS}, "list"),
        ({"documents": {"a": " "}, "tokenizer": WORDS}, "text"),
    ],
)
def test_wrong_sources_are_told(wanted, told):
    with pytest.raises(ValueError, match=told):
        draft(**wanted)


def test_phrases_and_passages_that_read_the_whole_text_are_refused():
    retro = RetroForCausalLM.from_base(make_backbone("llama"), layers=[1], chunk_length=4, neighbor_length=4)
    passages = {"retrieve": lambda chunks: [[] for _ in chunks]}
    for model, told in ((make_any("gpt2", "phrases"), {"phrases": make_vocabulary()}), (retro, passages)):
        with pytest.raises(ValueError, match=next(iter(told))):
            model.generate(token_ids(1, 8), custom_generate=draft(), **told, **GREEDY)


def test_documents_in_tokens_that_are_not_the_models_are_told():
    pictured = copy.deepcopy(BPE)
    pictured.add_special_tokens({"additional_special_tokens": ["<picture>"]})  # as of a model that has no eyes
    drafts, own = draft(documents=["the cat"], tokenizer=pictured), make_backbone("llama", vocab_size=len(BPE))
    assert own.generate(token_ids(1, 3), custom_generate=drafts, **GREEDY).numel()
    own.generation_config.eos_token_id = BPE.encode("t")
    with pytest.raises(ValueError, match="own tokenizer"):
        own.generate(token_ids(1, 3), custom_generate=drafts, **GREEDY)
    phrases = PhraseVocabulary.from_token_ids([[3, 46], [2, 7]], WORDS, vocab_size=50)
    with pytest.raises(ValueError, match="46"):
        make_backbone("gpt2", vocab_size=40).generate(
            token_ids(1, 3), custom_generate=draft(documents=phrases), **GREEDY
        )
    with pytest.raises(ValueError, match="no documents"):
        draft().spans([1, 2])


class LateEnd(EosTokenCriteria):
    """An end token that counts after some tokens."""

    def __call__(self, input_ids, scores, **kwargs):
        return super().__call__(input_ids, scores, **kwargs) & (input_ids.shape[1] > 14)


def one_text(free):
    """Return the tokens that follow each row's own text so far, and no other."""

    def allowed(row, text):
        own = free[row].tolist()
        assert text.tolist() == own[: len(text)]
        return [own[len(text)]]

    return allowed


@pytest.mark.parametrize("way", ["text", "chain", "tree", "tree and text", "auto"])
@pytest.mark.parametrize(
    "given",
    [
        {"attention_mask": "ends in 0"},
        {"stopping_criteria": StoppingCriteriaList([MaxLengthCriteria(12)])},
        {"stopping_criteria": StoppingCriteriaList([LateEnd([*range(20)])])},
        {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2, 3, 4], ngram_len=3)},
        {"prefix_allowed_tokens_fn": one_text},
        {"max_new_tokens": 10**12},
        {"input_ids": torch.int32},
    ],
    ids=lambda given: str(*given),
)
@pytest.mark.parametrize("cpu", [True, False])
def test_what_generate_is_given_acts_as_without_drafts(way, given, cpu, monkeypatch):
    model, (ids, mask) = make_drafting_model("llama"), left_padded()
    drafts = {"draft_tokens": "auto" if way == "auto" else 3, "draft_branches": 3 if "tree" in way else 1}
    drafts = {"custom_generate": draft()} if way == "text" else drafts
    drafts |= {"custom_generate": draft()} if way == "tree and text" else {}
    told = {"attention_mask": mask, **TOLD, "eos_token_id": None, **given}
    if "max_new_tokens" in given:
        told["eos_token_id"] = [*range(12)]
    if "attention_mask" in given:
        told["attention_mask"] = torch.ones_like(mask).index_fill(1, torch.tensor([ids.shape[1] - 1]), 0)
    if "prefix_allowed_tokens_fn" in given:
        told["prefix_allowed_tokens_fn"] = one_text(model.generate(ids, attention_mask=mask, **GREEDY))
        told["max_new_tokens"] = 12
    ids = ids.to(given.get("input_ids", ids.dtype))
    told.pop("input_ids", None)
    if "watermarking_config" in given:  # which counts its calls
        ids, told["attention_mask"] = ids[:1], mask[:1]
    plain = model.generate(ids, **told)
    monkeypatch.setattr(torch.Tensor, "is_cpu", cpu)
    output = model.generate(ids, **told, **drafts)
    assert torch.equal(output.sequences, plain.sequences)
    assert way in ("text", "auto") or "watermarking_config" in given or output.num_accepted_tokens


def test_rows_that_end_leave_the_states_of_their_sources_also_in_a_tuple():
    model, given = make_plain("bart"), pairs()
    del given["labels"]
    states = model.get_encoder()(**given)[0]
    told = {"attention_mask": given["attention_mask"], **TOLD, "eos_token_id": [*range(3, 12)]}
    texts = [model.generate(encoder_outputs=(states,), **told, **way) for way in ({}, {"custom_generate": draft()})]
    assert torch.equal(*(one.sequences for one in texts))
    assert len({row.tolist().index(0, 1) if 0 in row[1:] else 0 for row in texts[0].sequences}) > 1
