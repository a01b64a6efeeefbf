import copy
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import AddedToken

from hf_targets.data.tokenization import special_token_ids, train_bpe_tokenizer
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.tokenization import character_ends, len_common_prefix
from hf_targets.phrases.vocabulary.vocabulary import PhraseSource, PhraseVocabulary
from tests.small_tokenizers import BPE, METASPACE, TEXTS, WORDS, every_tokenizer, subword_tokenizer


def ids_of(text, tokenizer):
    return tokenizer.encode(text, add_special_tokens=False)


def windows(text, tokenizer, length):
    ids = ids_of(text, tokenizer)
    return [ids[start : start + length] for start in range(len(ids) - length + 1)]


def without_special(phrases, tokenizer):
    return [phrase for phrase in phrases if not set(phrase) & set(tokenizer.all_special_ids)]


def vocabulary_of(texts, tokenizer):
    """All phrases of two and three tokens in the texts, some of them beginning or ending within a character."""
    phrases = [phrase for text in texts for length in (2, 3) for phrase in windows(text, tokenizer, length)]
    return PhraseVocabulary.from_token_ids(without_special(phrases, tokenizer), tokenizer)


def test_no_phrase_has_a_special_token_without_a_role():
    tokenizer = copy.deepcopy(BPE)
    tokenizer.add_special_tokens({"additional_special_tokens": []})
    tokenizer.add_tokens(AddedToken("<|end of turn|>", special=True), special_tokens=True)
    end = tokenizer.convert_tokens_to_ids("<|end of turn|>")
    assert end in special_token_ids(tokenizer) >= set(tokenizer.all_special_ids)
    document = "the cat<|end of turn|> sat on the mat"
    vocabulary = PhraseVocabulary.from_documents([document], tokenizer, TokenNgrams(2, 3))
    assert len(vocabulary) and not any(end in vocabulary.token_ids(id_) for id_ in vocabulary)


@every_tokenizer
@given(text=TEXTS, other=TEXTS)
def test_decoding_an_encoded_text_gives_what_its_tokens_give(tokenizer, text, other):
    vocabulary = vocabulary_of([text, other], tokenizer)
    ids = vocabulary.encode(text)
    assert vocabulary.expand(ids) == tokenizer.encode(text)
    assert vocabulary.decode(ids) == tokenizer.decode(tokenizer.encode(text))
    if len(vocabulary_of([text], tokenizer)):
        assert len(ids) < len(tokenizer.encode(text))


@every_tokenizer
@given(data=st.data(), text=TEXTS)
def test_spans_cut_the_text_of_each_phrase_out_of_the_output(tokenizer, data, text):
    vocabulary = vocabulary_of([text], tokenizer)
    chosen = data.draw(st.lists(st.sampled_from(list(vocabulary)), max_size=3)) if len(vocabulary) else []
    ids = vocabulary.merge_phrases(ids_of(text, tokenizer)) + chosen
    output, spans = vocabulary.decode(ids), vocabulary.spans(ids)
    assert [span.phrase_id for span in spans] == [id_ for id_ in ids if id_ >= vocabulary.vocab_size]
    end = 0
    for span in spans:
        assert end <= span.start <= span.end <= len(output)
        assert output[span.start : span.end] == span.text
        end = span.end
        of_phrase = vocabulary.text(span.phrase_id)
        if "\ufffd" not in of_phrase and "\ufffd" not in output:
            assert span.text.lstrip() == of_phrase.lstrip()
            assert span.text == of_phrase or span.start == 0, "only the space before a text is not written"


def test_a_character_split_between_phrases_belongs_to_the_one_that_ends_it():
    first, second = ids_of("é", BPE), ids_of("a€b", BPE)
    vocabulary = PhraseVocabulary.from_token_ids([[*first[1:], *second[:2]], second[2:]], BPE)
    spans = vocabulary.spans([first[0], *vocabulary])
    assert vocabulary.decode([first[0], *vocabulary]) == "éa€b"
    assert [(span.start, span.end, span.text) for span in spans] == [(0, 2, "éa"), (2, 4, "€b")]


@subword_tokenizer
@given(text=TEXTS, data=st.data())
def test_character_ends_from_neighbours_are_those_from_whole_prefixes(tokenizer, text, data):
    ids = ids_of(text + " the cat" * 8 + text, tokenizer)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(ids)))))
    whole = tokenizer.decode(ids)
    direct = np.maximum.accumulate([0] + [len_common_prefix(tokenizer.decode(ids[:cut]), whole) for cut in cuts])
    assert character_ends(ids, cuts, tokenizer, skip_special_tokens=False) == direct[1:].tolist()


def test_spans_leave_out_what_decoding_leaves_out():
    vocabulary = PhraseVocabulary.from_phrases(["the cat"], METASPACE)
    ids = [METASPACE.bos_token_id, *vocabulary.encode("a dog saw the cat", add_special_tokens=False)]
    (with_begin,), (without,) = vocabulary.spans(ids), vocabulary.spans(ids, skip_special_tokens=True)
    assert without.text == with_begin.text == " the cat"
    assert (without.start, without.end) == (9, 17)
    assert with_begin.start > without.start


@subword_tokenizer
def test_the_tokens_of_a_phrase_are_those_it_has_in_a_running_text(tokenizer):
    texts = ["the cat", "cat sat", "flat mat", "東京", "é a"]
    spaced = PhraseVocabulary.from_phrases(texts, tokenizer, leading_space="add")
    close = PhraseVocabulary.from_phrases(texts, tokenizer, leading_space="keep")
    for text, with_space, without in zip(texts, spaced, close, strict=True):
        after_space = ids_of(f"on {text}", tokenizer)
        assert spaced.merge_phrases(after_space) == [*ids_of("on", tokenizer), with_space]
        assert close.merge_phrases(ids_of(f"on [{text}", tokenizer))[-1] == without
        assert spaced.text(with_space) == f" {text}"
        assert close.text(without) == text


@subword_tokenizer
def test_a_phrase_with_white_space_in_front_is_taken_as_it_is(tokenizer):
    vocabulary = PhraseVocabulary(tokenizer)
    ids = vocabulary.add([" the cat", "\tthe cat", "\nthe cat", "  the cat"])
    assert [vocabulary.text(id_) for id_ in ids] == [" the cat", "\tthe cat", "\nthe cat", "  the cat"]
    assert vocabulary.add(["the cat", " the cat"]) == [ids[0], ids[0]]
    assert vocabulary.add([" the cat"], leading_space="both") == ids[:1]


def test_a_token_that_reaches_from_the_text_before_into_a_phrase_is_not_taken():
    line_ends = train_bpe_tokenizer(["the cat\n\n", "sat\n\n"] * 3, vocab_size=270)
    assert len(ids_of("\n\n", line_ends)) == 1
    vocabulary = PhraseVocabulary.from_phrases(["\nsat", "\n\nthe cat"], line_ends)
    assert [vocabulary.text(id_) for id_ in vocabulary] == ["\nsat", "\n\nthe cat"]


def test_another_normalisation_of_a_text_is_the_same_phrase():
    composed, decomposed = "é cat", unicodedata.normalize("NFD", "é cat")
    assert composed != decomposed
    assert len(PhraseVocabulary.from_phrases([composed, decomposed], BPE)) == 1


def test_the_sources_of_a_duplicate_are_joined_and_its_id_stays():
    vocabulary, (a, b) = PhraseVocabulary(BPE), (PhraseSource("a", 0, 7), PhraseSource("b", 3, 10))
    first = vocabulary.add(["the cat", "a dog"], sources=[[a], []])
    assert vocabulary.add(["a dog", "the cat"], sources=[[], [b, a]]) == first[::-1]
    assert vocabulary.sources(first[0]) == (a, b)
    assert vocabulary.sources(first[1]) == ()
    assert len(vocabulary) == vocabulary.num_ids == 2


@every_tokenizer
@given(documents=st.lists(TEXTS, max_size=3))
def test_each_source_is_where_its_document_has_the_phrase(tokenizer, documents):
    named = {f"document {index}": text for index, text in enumerate(documents)}
    vocabulary = PhraseVocabulary.from_documents(named, tokenizer, TokenNgrams(2, 3))
    mined = [TokenNgrams(2, 3).spans(TokenizedText.from_text(text, tokenizer)) for text in documents]
    assert sum(len(vocabulary.sources(id_)) for id_ in vocabulary) <= sum(map(len, mined))
    for id_ in vocabulary:
        assert vocabulary.sources(id_)
        for document, start, end in vocabulary.sources(id_):
            cut = named[document][start:end]
            assert cut == cut.lstrip()
            if "\ufffd" not in vocabulary.text(id_):
                assert cut.split() == vocabulary.text(id_).split()


def test_texts_that_are_added_in_several_calls_are_numbered_on():
    texts, miner = ["the cat sat", "a dog ran on the mat", "the cat sat on the mat"], TokenNgrams(2, 3)
    whole = PhraseVocabulary.from_documents(dict(zip("012", texts, strict=True)), BPE, miner)
    parts = PhraseVocabulary.from_documents(texts[:1], BPE, miner)
    parts.add_documents([], miner)
    parts.add_documents(texts[1:], miner)
    assert [parts.sources(id_) for id_ in parts] == [whole.sources(id_) for id_ in whole]
    named = PhraseVocabulary.from_documents({"1": texts[0]}, BPE, miner)
    named.add_documents(texts[1:2], miner)
    assert {source.document for id_ in named for source in named.sources(id_)} == {"1", "2"}


def test_ids_begin_at_the_vocabulary_size_and_are_never_given_again():
    vocabulary = PhraseVocabulary.from_phrases(["the cat", "a dog", "flat mat"], BPE, vocab_size=1000)
    assert list(vocabulary) == [1000, 1001, 1002]
    vocabulary.remove([1001])
    assert (list(vocabulary), len(vocabulary), vocabulary.num_ids, 1001 in vocabulary) == ([1000, 1002], 2, 3, False)
    assert vocabulary.encode(" a dog") == BPE.encode(" a dog")
    assert vocabulary.add(["a dog", "the cat"]) == [1003, 1000]
    assert vocabulary.sources(1003) == ()


@pytest.mark.parametrize("phrases", [[" \n"], ["a dog", "the"], ["a dog<|endoftext|>"], "the cat"])
def test_bad_texts_are_refused_and_nothing_is_added(phrases):
    vocabulary = PhraseVocabulary(BPE)
    with pytest.raises(ValueError, match="must"):
        vocabulary.add(phrases)
    assert vocabulary.num_ids == 0


def test_single_tokens_may_be_skipped_and_both_forms_of_a_phrase_taken():
    vocabulary = PhraseVocabulary(BPE)
    assert vocabulary.add(["the", "the cat", "a"], single_tokens="skip") == [vocabulary.vocab_size]
    assert len(PhraseVocabulary.from_phrases(["the cat"], BPE, leading_space="both")) == 2
    first, second = PhraseVocabulary(WORDS).add(["the cat"], leading_space="both")
    assert first == second, "this tokenizer does not tell them apart"


@pytest.mark.parametrize("use", ["expand", "decode", "spans", "remove"])
@pytest.mark.parametrize(("wrong", "says"), [(401, "removed"), (402, "402"), (-100, "-100")])
def test_unknown_and_removed_ids_are_refused(use, wrong, says):
    vocabulary = PhraseVocabulary.from_token_ids([[5, 6], [7, 8]], BPE, vocab_size=400)
    vocabulary.remove([401, 401])
    with pytest.raises(ValueError, match=says):
        getattr(vocabulary, use)([400, wrong])
    assert list(vocabulary) == [400], "nothing is removed where one id is bad"
