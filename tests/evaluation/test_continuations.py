from itertools import pairwise

import pytest
import torch

from hf_targets import train_bpe_tokenizer
from hf_targets.evaluation import continuations
from hf_targets.evaluation.continuations import (
    Continuations,
    Prefix,
    continue_prefixes,
    measure_continuations,
    take_prefixes,
)
from hf_targets.evaluation.perplexity import perplexity_of_generated_texts
from hf_targets.evaluation.repetition import repeated_ngrams
from tests.tiny_backbones import make_backbone

TEXT = "the cat sat on the mat and the dog ran over the hill\n"
TOKENIZER = train_bpe_tokenizer([TEXT] * 3, 300)


def test_prefixes_that_do_not_fit_are_refused_with_how_many_do():
    with pytest.raises(ValueError, match=r"has at most 6 prefixes .*; ask for fewer"):
        take_prefixes([[1], *[list(range(200))] * 6], 7, prefix_tokens=32, new_tokens=128)


def test_prefixes_begin_with_paragraphs_that_have_as_many_tokens_and_do_not_overlap():
    lengths = [3, 50, 50, 2, 70, 200, 5, 90, 100, 40, 160, 31, 10]  # of headings and paragraphs
    ids = iter(range(sum(lengths)))
    rows = [[next(ids) for _ in range(length)] for length in lengths]
    prefixes = take_prefixes(rows, 4, prefix_tokens=32, new_tokens=68)
    begins = {row[0] for row in rows if len(row) >= 32}
    starts = [prefix.tokens[0] for prefix in prefixes]
    assert set(starts) <= begins
    assert all(later - earlier >= 100 for earlier, later in pairwise(starts))
    for prefix in prefixes:
        assert prefix.tokens + prefix.reference == list(range(prefix.tokens[0], prefix.tokens[0] + 100))
    rows = [list(range(start, start + 200)) for start in range(0, 1200, 200)]
    assert [prefix.tokens[0] for prefix in take_prefixes(rows, 3)] == [0, 400, 800]
    with pytest.raises(ValueError, match="num_return_sequences"):
        continue_prefixes(make_backbone("gpt2"), prefixes, new_tokens=2, num_return_sequences=2)


def test_without_expansions_it_is_plain_greedy_decoding():
    backbone = make_backbone("gpt2", vocab_size=len(TOKENIZER))
    prefix = Prefix([5, 6, 7], [])
    result = continue_prefixes(backbone, [prefix], new_tokens=6)
    expected = backbone.generate(
        torch.tensor([prefix.tokens]), max_new_tokens=6, do_sample=False, eos_token_id=None, pad_token_id=0
    )
    assert result.tokens == expected[:, 3:].tolist()
    assert (result.num_steps, result.num_phrases) == ([6], [0])
    after = continue_prefixes(backbone, [Prefix([7], [])], before=[5, 6], new_tokens=6)
    assert after.tokens == result.tokens
    assert continue_prefixes(backbone.train(), [prefix], new_tokens=6).tokens == result.tokens  # without dropout
    backbone.eval()


def test_a_text_ends_with_its_end_token_whatever_it_shares_a_batch_with():
    backbone = make_backbone("gpt2", vocab_size=len(TOKENIZER))
    prefixes = [Prefix([first, 6, 7], []) for first in range(5, 11)]
    whole = continue_prefixes(backbone, prefixes, new_tokens=8)
    end = whole.tokens[2][1]
    results = [continue_prefixes(backbone, prefixes, new_tokens=8, batch_size=n, eos_token_id=end) for n in (1, 6)]
    for result in results:
        for text, tokens, steps in zip(whole.tokens, result.tokens, result.num_steps, strict=True):
            assert tokens == (text[: text.index(end) + 1] if end in text else text)
            assert steps == len(tokens)


def test_steps_are_expanded_and_cut_and_texts_of_a_batch_share_its_time(monkeypatch):
    clock = iter([1.0, 2.0, 5.0])
    monkeypatch.setattr(continuations, "settled_time", lambda device: next(clock))

    def prepare(group, new_tokens):
        return {"max_new_tokens": new_tokens - 1}, [lambda id_: [id_] * 2] * len(group)

    prefixes = [Prefix([5, 6], []), Prefix([7, 8], [])]
    found = continue_prefixes(make_backbone("gpt2"), prefixes, new_tokens=3, prepare=prepare)
    assert all(len(text) == 3 and text[0] == text[1] for text in found.tokens)
    assert found.num_steps == found.num_phrases == [2, 2]
    assert (found.seconds, found.phrase_seconds) == ([1.5] * 2, [0.5] * 2)


def test_columns_are_those_of_the_texts():
    # "a b a b": of three bigrams one is repeated, of two trigrams and one 4-gram none
    tokens = [[10, 11, 10, 11]]
    prefixes = [Prefix([5, 6], [7, 8, 9, 10])]
    continued = Continuations(tokens, [2], [1], [0.5], [0.25])
    judge = make_backbone("gpt2", vocab_size=len(TOKENIZER))
    columns = measure_continuations(continued, prefixes, TOKENIZER, words=None, judge=judge)
    assert columns["rep_2"] == pytest.approx(100 / 3)
    assert columns["rep_3"] == columns["rep_4"] == 0
    assert columns["diversity"] == pytest.approx(200 / 3)
    assert (columns["latency"], columns["phrase_latency"], columns["steps"]) == (0.5, 0.25, 2)
    assert columns["latency_median"] == columns["latency_p95"] == 0.5
    assert columns["phrase_share"] == 50
    assert columns["bytes_per_step"] == len(TOKENIZER.decode(tokens[0]).encode()) / 2
    logits = judge(torch.tensor([[5, 6, 10, 11, 10, 11]])).logits[0].log_softmax(-1)
    expected = -sum(logits[position, id_] for position, id_ in zip(range(1, 5), tokens[0], strict=True)) / 4
    assert columns["generated_ppl"] == pytest.approx(expected.exp().item(), rel=1e-4)
    assert "mauve" not in columns


def test_repetition_counts_words_of_prefix_and_continuation_up_to_the_length_of_the_reference():
    prefix, continuation = (TOKENIZER(text)["input_ids"] for text in ("the cat sat", " on the cat sat on the cat sat"))
    reference = TOKENIZER(" on the cat sat")["input_ids"]
    continued = Continuations([continuation], [3], [2], [0.5], [0.25])
    columns = measure_continuations(continued, [Prefix(prefix, reference)], TOKENIZER)
    # the cat, cat sat, sat on, on the, the cat, cat sat
    assert columns["rep_2"] == pytest.approx(100 * 2 / 6)
    assert columns["rep_3"] == pytest.approx(100 * 1 / 5)
    letters = measure_continuations(continued, [Prefix(prefix, [])], TOKENIZER, words=list)
    assert letters["rep_2"] == repeated_ngrams([list("the cat sat on the cat sat on the cat sat")], 2)


def test_a_judge_with_another_tokenizer_takes_a_character_of_which_the_prefix_has_a_part_as_generated():
    letters, judge = train_bpe_tokenizer([], 260), make_backbone("gpt2", vocab_size=300)
    ids, begin = letters("the é cat")["input_ids"], len("the ") + 1  # and one of two bytes
    continued = Continuations([ids[begin:]], [3], [2], [0.5], [0.25])
    given = {"words": None, "judge": judge, "judge_tokenizer": letters}
    columns = measure_continuations(continued, [Prefix(ids[:begin], [])], letters, **given)
    judged = perplexity_of_generated_texts(judge, ["the é cat"], letters, prefix_lengths=begin - 1)
    assert columns["generated_ppl"] == judged.perplexity


def test_compression_counts_a_models_text_anew_under_every_tokenizer_beside_its_own_steps():
    text = " the cat sat on the mat"
    ours = Continuations([TOKENIZER(text)["input_ids"]], [3], [2], [0.5], [0.25])
    letters, judge = train_bpe_tokenizer([], 260), make_backbone("gpt2", vocab_size=300)
    given = {"other_tokenizers": {"letters": letters}, "words": None, "judge": judge, "judge_tokenizer": letters}
    columns = measure_continuations(ours, [Prefix(TOKENIZER("the cat")["input_ids"], [])], TOKENIZER, **given)
    judged = perplexity_of_generated_texts(judge, ["the cat" + text], letters, prefix_lengths=len("the cat"))
    assert columns["generated_ppl"] == judged.perplexity
    assert columns["steps"] == 3 and columns["nsl"] == len(ours.tokens[0]) > 3
    assert columns["nsl_letters"] == len(text) and columns["bytes_per_token_letters"] == 1
    assert columns["bytes_per_token"] * columns["nsl"] == columns["bytes_per_step"] * 3 == len(text)
