"""Answers of tiny models: the phrases that they may use, where their text ends, and what is told of it."""

import copy
import re

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, set_seed

from hf_targets.evaluation.quotes import check_quotes
from hf_targets.phrases.citations import marker_of
from hf_targets.phrases.cited_answers import answer_with_phrases, first_line
from hf_targets.phrases.mining.ngrams import WordNgrams
from hf_targets.phrases.model import DynamicVocabForCausalLM
from hf_targets.phrases.vocabulary.vocabulary import PhraseSpan
from tests.small_tokenizers import BPE

DOCUMENTS = ["the cat sat on the mat", "a dog saw the cat and the dog sat"]
PROMPT = "Question: the cat?\n\nAnswer:"


@pytest.fixture(scope="module")
def model():
    set_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 128}
    base = GPT2LMHeadModel(GPT2Config(vocab_size=len(BPE), bos_token_id=None, eos_token_id=None, **sizes))
    return DynamicVocabForCausalLM.from_base(base, phrase_start="encoder").eval()


def answered(model, miner, seed=0, **settings):
    set_seed(seed)
    given = {"new_tokens": 30, "do_sample": True, "top_k": 0, **settings}
    return answer_with_phrases(model, BPE, PROMPT, DOCUMENTS, miner, **given)


def check_markers(answer):
    """Check that each marked phrase stands in the documents that its markers name, and that there are some."""
    checked = check_quotes(answer.text, DOCUMENTS, phrases=[(span.start, span.end) for span in answer.spans])
    assert checked.right and not (checked.fabricated or checked.spliced or checked.misattributed)


def test_phrases_cite_their_documents_and_all_markers_of_phrases_are_right(model):
    for seed in range(5):
        answer = answered(model, WordNgrams(max_tokens=12), seed)
        assert "\n" not in answer.text and answer.text == answer.text.strip()
        check_markers(answer)
        for span in answer.spans:
            assert answer.text[span.start : span.end].endswith(marker_of(int(span.sources[0].document)))


def test_markers_put_in_afterwards_are_of_phrases_that_have_none(model):
    for seed in range(5):
        answer = answered(model, WordNgrams(max_tokens=12), seed, marking="afterwards")
        check_markers(answer)
        assert not any("[" in answer.text[span.start : span.end] for span in answer.spans)


def test_without_a_miner_no_phrase_is_used_and_a_plain_model_answers_alike(model):
    answer, plain = answered(model, None), answered(model.backbone, None)
    assert answer.text == plain.text
    assert (answer.num_phrases, answer.spans, answer.num_from_documents) == (0, (), 0)
    assert answer.num_steps == answer.num_tokens <= 30


def test_a_plain_model_writes_its_own_text_in_which_phrases_of_documents_are_found(model):
    likely = {"sequence_bias": {(token,): 9.0 for token in BPE.encode(" the cat sat on")}}
    given = {"marking": "afterwards", **likely}
    answers = [answered(model.backbone, WordNgrams(2, 12), seed, **given) for seed in range(4)]
    texts = [answered(model.backbone, None, seed, **likely).text for seed in range(4)]
    assert all(answer.spans for answer in answers)
    for answer, text in zip(answers, texts, strict=True):
        assert re.sub(r"\[\d+\]", "", answer.text) == text
        check_markers(answer)
        assert answer.num_characters >= answer.num_from_documents > 0
        assert answer.num_steps == answer.num_tokens
    with pytest.raises(ValueError, match="afterwards"):
        answered(model.backbone, WordNgrams())


def test_nothing_is_generated_after_a_line_break(model):
    [line_break] = BPE.encode("\n")
    answer = answered(model, WordNgrams(max_tokens=12), sequence_bias={(line_break,): 1000.0})
    assert (answer.text, answer.num_steps) == ("", 1)


def test_messages_go_through_the_chat_template_and_end_tokens_of_the_model_end_the_answer(model):
    chatting = copy.deepcopy(BPE)
    chatting.chat_template = "{{ messages[0].content }}{{ add_generation_prompt }}"
    turns = [{"role": "user", "content": PROMPT}]
    asked = {"documents": DOCUMENTS, "miner": None, "new_tokens": 30, "do_sample": False}
    as_text = answer_with_phrases(model, BPE, f"{PROMPT}True", **asked)
    assert answer_with_phrases(model, chatting, turns, **asked).text == as_text.text
    first = BPE.encode(PROMPT[:1])[0]
    ending = {"sequence_bias": {(BPE.eos_token_id,): 1000.0}, "eos_token_id": [first, BPE.eos_token_id]}
    ended = answer_with_phrases(model, BPE, PROMPT, **asked, **ending)
    assert (ended.text, ended.num_steps) == ("", 1)


def test_a_prompt_that_the_model_cannot_read_as_it_is_meant_is_refused(model):
    foreign = copy.deepcopy(model)
    foreign.generation_config.eos_token_id = BPE.encode("cat")[0]
    longer = copy.deepcopy(BPE)
    longer.add_tokens([f"more {number}" for number in range(9)])
    turns = [{"role": "user", "content": PROMPT}]
    for given, word in (
        ((foreign, BPE, PROMPT), "own tokenizer"),
        ((model, longer, PROMPT), "own tokenizer"),
        ((model, BPE, turns), "chat template"),
        ((model, BPE, "cat " * 200), "positions"),
    ):
        with pytest.raises(ValueError, match=word):
            answer_with_phrases(*given, DOCUMENTS, None)


def test_a_text_ends_at_the_first_line_break_after_its_first_word():
    spans = [PhraseSpan(2, 6, 1, " cat", ()), PhraseSpan(6, 9, 2, "\nit", ())]
    assert first_line(" \nthe cat\nit", []) == ("the cat", ())
    assert first_line("a  cat\nit", spans[:1]) == ("a  cat", (PhraseSpan(2, 6, 1, " cat", ()),))
    assert first_line("a  cat\nit", spans)[1] == first_line("a  cat\nit", spans[:1])[1]
    assert first_line(" \n ", []) == ("", ())
