"""`generate` of heads on encoder-decoder models: as the backbone, beams by hand, and drafts that change no text."""

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteriaList

from hf_targets.backbones.generation import takes_shifted_rows
from tests.tiny_backbones import VOCAB
from tests.tiny_seq2seq import EOS, SEQ2SEQ_FAMILIES, make_pair_drafting_model, make_pair_model, pairs

families = pytest.mark.parametrize("family", SEQ2SEQ_FAMILIES)
TARGETS = {"marian": "difference", "bart": "embedding", "t5": "conditional"}
some = pytest.mark.parametrize("family", TARGETS)
TWELVE = {"max_new_tokens": 12, "eos_token_id": None}
SIX = {**TWELVE, "max_new_tokens": 6}


def sources(num_rows=3):
    batch = pairs(num_rows)
    return {name: batch[name] for name in ("input_ids", "attention_mask")}


@families
def test_without_an_ensemble_texts_are_the_backbones(family):
    model, texts = make_pair_model(family), []
    for one in (model, model.backbone):
        torch.manual_seed(0)
        texts.append(one.generate(**sources(), num_beams=2, do_sample=True, **SIX))
    assert torch.equal(*texts)


@some
def test_cached_texts_are_those_without_a_cache(family):
    model, texts = make_pair_model(family).double(), []
    for use_cache in (True, False):
        way = {"num_beams": 3, "num_return_sequences": 2, "use_cache": use_cache}
        texts.append(model.generate(**sources(), ensemble_weight=0.4, **way, **SIX))
    assert torch.equal(*texts)


@some
def test_beams_with_the_ensemble_are_a_search_by_hand(family):
    model, beams, steps = make_pair_model(family).double(), 5, 6
    source = {name: ids[:1] for name, ids in sources().items()}
    found = model.generate(
        **source, num_beams=beams, max_new_tokens=steps, ensemble_weight=0.4, length_penalty=0.0, early_stopping=False
    )[0]
    start = model.config.decoder_start_token_id
    alive, finished = [([start], 0.0)], []
    for step in range(steps):
        candidates = []
        for text, score in alive:
            logits = model(**source, decoder_input_ids=torch.tensor([text]), ensemble_weight=0.4).logits[0, -1]
            for token, gain in enumerate(logits.log_softmax(dim=0).tolist()):
                candidates.append(([*text, token], score + gain))
        candidates.sort(key=lambda pair: -pair[1])
        finished += [pair for pair in candidates[:beams] if pair[0][-1] == EOS]
        alive = [pair for pair in candidates if pair[0][-1] != EOS][:beams]
        if step == steps - 1:
            finished += alive
    best = max(finished, key=lambda pair: pair[1])[0]
    assert found.tolist() == best + [model.config.pad_token_id] * (len(found) - len(best))


@pytest.mark.parametrize(
    ("family", "rows", "drafting"),
    [
        *((family, 4, {"draft_tokens": 3}) for family in TARGETS),
        ("marian", 1, {"draft_tokens": 3}),
        ("t5", 4, {"draft_tokens": 3, "draft_branches": 2}),
        ("marian", 4, {"draft_tokens": 3, "prompt_lookup_num_tokens": 4}),
        ("marian", 4, {"draft_tokens": "auto"}),
        ("bart", 4, {"draft_tokens": 2, "ensemble_weight": 0.3}),
    ],
    ids=str,
)
def test_drafts_change_no_greedy_text(family, rows, drafting):
    model, source = make_pair_drafting_model(family, TARGETS[family]), sources(rows)
    told = {"max_new_tokens": 18, "eos_token_id": 17, "ensemble_weight": drafting.get("ensemble_weight")}
    plain = model.generate(**source, **told)
    drafted = model.generate(**source, return_dict_in_generate=True, **{**told, **drafting})
    assert torch.equal(drafted.sequences, plain)
    if drafting["draft_tokens"] == 3 and "prompt_lookup_num_tokens" not in drafting:
        assert drafted.num_accepted_tokens > 0


@some
def test_drafts_go_on_from_a_beginning_that_is_given(family):
    model, source = make_pair_drafting_model(family, TARGETS[family]), sources(4)
    start = model.config.decoder_start_token_id
    begin = torch.tensor([[start, 5, 6], [start, 7, 5], [start, 9, 9], [start, 4, 8]])
    plain = model.generate(**source, decoder_input_ids=begin, **TWELVE)
    drafted = model.generate(**source, decoder_input_ids=begin, draft_tokens=3, **TWELVE)
    assert torch.equal(plain, drafted)
    assert torch.equal(plain[:, :3], begin)


def test_prompt_lookup_searches_the_source():
    """A model that copies its source: after the first token, each is the one that follows in the source."""
    model = make_pair_model("marian")
    source = torch.tensor([[11, 12, 13, 14, 15, 16, 17, 18]])

    class Copy(LogitsProcessor):
        def __call__(self, input_ids, scores):
            copied = torch.full_like(scores, -torch.inf)
            copied[:, source[0, (input_ids.shape[1] - 1) % 8]] = 0.0
            return copied

    drafts = {"draft_tokens": 1, "logits_processor": LogitsProcessorList([Copy()]), "return_dict_in_generate": True}
    settings = {"max_new_tokens": 8, "max_matching_ngram_size": 2, "assistant_confidence_threshold": 1.1}
    plain = model.generate(source, **drafts, max_new_tokens=8)
    found = model.generate(source, **drafts, **settings, prompt_lookup_num_tokens=3)
    assert found.sequences[0, 1:].tolist() == source[0].tolist() == plain.sequences[0, 1:].tolist()
    assert found.num_forward_passes < plain.num_forward_passes


def test_sampled_drafts_are_texts_of_the_vocabulary():
    model = make_pair_drafting_model("marian", "difference")
    texts = model.generate(**sources(4), do_sample=True, draft_tokens=3, **TWELVE)
    assert texts.shape == (4, 13)
    assert ((texts >= 0) & (texts < VOCAB)).all()


@families
def test_a_decoder_reads_a_text_that_begins_later_as_the_same(family):
    assert takes_shifted_rows(make_pair_model(family).backbone) == (family != "m2m_100")


@pytest.mark.parametrize("rows", [1, 3])
def test_without_positions_one_row_is_drafted_and_several_are_told(rows):
    model, source = make_pair_model("m2m_100").double(), sources(rows)
    plain = model.generate(**source, **TWELVE)
    assert torch.equal(plain, model.generate(**source, draft_tokens="auto", **TWELVE))
    if rows == 1:
        stop = {"stopping_criteria": StoppingCriteriaList([lambda ids, scores: torch.zeros(len(ids)).bool()])}
        assert torch.equal(plain, model.generate(**source, draft_tokens=3, draft_branches=2, **stop, **TWELVE))
    else:
        with pytest.raises(ValueError, match="M2M100ForConditionalGeneration does neither; generate row by row"):
            model.generate(**source, draft_tokens=3, **TWELVE)


@some
def test_a_source_of_embeddings_is_drafted_for_several_rows_too(family):
    model, source = make_pair_drafting_model(family, TARGETS[family]), sources(4)
    embeds = {"inputs_embeds": model.get_encoder().embed_tokens(source["input_ids"])}
    embeds |= {"attention_mask": source["attention_mask"]}
    plain = model.generate(**embeds, **TWELVE)
    assert torch.equal(plain, model.generate(**embeds, draft_tokens=3, **TWELVE))


def test_an_assistant_reads_the_source_too():
    model, source = make_pair_model(), {name: ids[:1] for name, ids in sources().items()}
    calls = []
    model.backbone.get_decoder().register_forward_hook(lambda module, inputs, output: calls.append(1))
    plain = model.generate(**source, **TWELVE)
    steps = len(calls)
    calls.clear()
    assert torch.equal(model.generate(**source, assistant_model=make_pair_model(), **TWELVE), plain)
    assert len(calls) < steps  # what the same model drafts of the same source is accepted
