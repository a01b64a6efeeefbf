"""A judge prefers a text whichever place it has, by the probabilities of the two answers."""

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from hf_targets.data.tokenization import train_bpe_tokenizer
from lab import pairwise
from lab.judges import log_odds
from lab.pairwise import PairwiseJudge, Preferences
from tests.tiny_backbones import make_backbone

PREFIXES = ["The cat", "A dog", "The {braces}"]
FIRSTS = [" sat down.", " barked at 1 cat.", " {first}."]
SECONDS = [" flew.", " read 2 books.", " stay."]
TOKENIZER = train_bpe_tokenizer([*PREFIXES, *FIRSTS, *SECONDS, "1 2"], vocab_size=300)


def tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend_tokenizer)


@pytest.fixture(autouse=True)
def short_question(monkeypatch):
    monkeypatch.setattr(pairwise, "QUESTION", "{prefix}|{first}|{second}|")


def judge() -> PairwiseJudge:
    return PairwiseJudge(make_backbone("gpt2", vocab_size=320), tokenizer())


@torch.no_grad()
def probability_of_one(question: str) -> float:
    """Return p(" 1") / (p(" 1") + p(" 2")) after a question, token by token."""
    model, tokens, found = make_backbone("gpt2", vocab_size=320), tokenizer(), []
    begin = len(tokens(question)["input_ids"])
    for answer in (" 1", " 2"):
        ids = torch.tensor(tokens(question + answer)["input_ids"])[None]
        log_p = model(input_ids=ids).logits[0].log_softmax(dim=-1)
        found.append(sum(log_p[at - 1, ids[0, at]] for at in range(begin, ids.shape[1])).exp().item())
    return found[0] / sum(found)


def test_margins_are_the_means_of_both_orders_by_definition():
    expected = []
    for prefix, first, second in zip(PREFIXES, FIRSTS, SECONDS, strict=True):
        ahead, behind = (probability_of_one(f"{prefix}|{a}|{b}|") for a, b in ((first, second), (second, first)))
        expected.append((2 * ahead - 1 - (2 * behind - 1)) / 2)
    assert judge().margins(PREFIXES, FIRSTS, SECONDS) == pytest.approx(expected, abs=1e-5)
    assert max(map(abs, expected)) > 1e-4


def test_margins_change_sign_with_the_texts_and_are_0_for_equal_ones():
    margins, swapped = judge().margins(PREFIXES, FIRSTS, SECONDS), judge().margins(PREFIXES, SECONDS, FIRSTS)
    assert margins == pytest.approx([-margin for margin in swapped], abs=1e-6)
    assert judge().margins(PREFIXES, FIRSTS, FIRSTS) == pytest.approx([0, 0, 0], abs=1e-6)


def test_shares_count_margins_beyond_the_tie():
    shares = Preferences.of([0.5, 0.1, 0.0, -0.3], tie=0.1)
    assert (shares.better, shares.none, shares.worse) == (0.25, 0.5, 0.25)


def test_the_first_models_texts_are_what_others_are_better_or_worse_than(monkeypatch):
    monkeypatch.setattr(
        PairwiseJudge,
        "_first_ahead",
        lambda self, _, firsts, seconds: [
            float("good" in first) - float("good" in second) for first, second in zip(firsts, seconds, strict=True)
        ],
    )
    texts = {"plain": [["bad", "bad"], ["bad", "good"]], "ours": [["good", "good"]], "worse": [["bad", "bad"]] * 3}
    compared = judge().compare_with_first(["a", "b"], texts)
    assert (compared["ours"].better, compared["ours"].worse) == (1, 0)
    assert compared["worse"].better == 0 and compared["worse"].worse == pytest.approx(1 / 6)


@torch.no_grad()
def test_the_question_is_a_message_where_the_tokenizer_has_a_chat_template():
    model, tokens = make_backbone("gpt2", vocab_size=320), tokenizer()
    tokens.chat_template = "<{{ messages[0].role }}>{{ messages[0].content }}</>{{ add_generation_prompt }}"
    ids = [tokens(text)["input_ids"] for text in ("<user>Which?</>True", "1", "2")]
    log_p = model(input_ids=torch.tensor([ids[0]])).logits[0, -1].log_softmax(dim=-1)
    expected = (log_p[ids[1][0]] - log_p[ids[2][0]]).item()
    assert log_odds(model, tokens, ["Which?"], ("1", "2")) == pytest.approx([expected], abs=1e-5)
