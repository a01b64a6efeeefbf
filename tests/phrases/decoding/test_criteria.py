"""Stopping criteria and streamers on texts with phrases: as on the same text token by token."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TextIteratorStreamer
from transformers.generation.stopping_criteria import EosTokenCriteria, StopStringCriteria
from transformers.generation.streamers import BaseStreamer

from hf_targets.phrases.decoding.expansion import Expansion, PhraseStreamer, phrase_criteria
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.phrases.models import WORDS, make_phrase_model, random_vocabulary, vocabulary_of
from tests.small_tokenizers import BPE, METASPACE
from tests.tiny_models import VOCAB, token_ids

PHRASES = vocabulary_of([1, 2], [2, 3, 4], [5, 6, 7, 8])
OTHERS = vocabulary_of([3, 1], [1, 2, 3, 4, 5])
IDS = st.lists(st.one_of(st.integers(1, 8), st.integers(VOCAB, VOCAB + 1)), min_size=3, max_size=3)


def done(criterion, rows, vocabularies=(PHRASES,)):
    [wrapped] = phrase_criteria([criterion], Expansion(vocabularies), static_limit=None, prompt_length=0, pads=True)
    return wrapped(torch.tensor(rows), None).tolist()


@given(st.lists(IDS, min_size=2, max_size=2), st.lists(st.integers(1, 8), min_size=1, max_size=2))
def test_an_end_token_ends_a_row_also_inside_its_last_phrase(rows, ends):
    expected = [
        not set(ends).isdisjoint(vocabulary.expand(row[-1:]))
        for vocabulary, row in zip((PHRASES, OTHERS), rows, strict=True)
    ]
    assert done(EosTokenCriteria(torch.tensor(ends)), rows, (PHRASES, OTHERS)) == expected


@pytest.mark.parametrize("least", ["min_new_tokens", "min_length"])
def test_no_phrase_with_an_end_token_is_written_before_the_least_length(least):
    model, ids = make_phrase_model(), token_ids(1, 4)
    phrases = random_vocabulary(40)
    options = {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    free = model.generate(ids, phrases=phrases, **options, eos_token_id=None)[0, 4:].tolist()
    end = phrases.expand(free[:1])[-1]  # which the first step writes
    assert model.generate(ids, phrases=phrases, **options, eos_token_id=end).shape[1] == 5
    wanted = {"min_new_tokens": 5, "min_length": 9}[least]
    longer = model.generate(ids, phrases=phrases, **options, eos_token_id=end, **{least: wanted})[0, 4:].tolist()
    assert len(longer) > 5 and end not in phrases.expand(longer[:5])


@pytest.mark.parametrize("pads", [True, False])
def test_rows_at_their_limit_are_padded_where_padding_is_known(pads):
    criteria = phrase_criteria([], Expansion([PHRASES]), static_limit=3, prompt_length=1, pads=pads)
    assert any(hasattr(criterion, "eos_token_id") for criterion in criteria) == pads
    assert criteria(torch.tensor([[1, 2, VOCAB], [1, 2, 3]]), None).tolist() == [True, False]


def stream(streamer, vocabulary, prompt, steps):
    """Put ids to it as `generate` does: the prompt, then one id after another."""
    wrapped = PhraseStreamer(streamer, Expansion([vocabulary]))
    wrapped.put(torch.tensor([prompt], dtype=torch.long))
    for id_ in steps:
        wrapped.put(torch.tensor([id_]))
    wrapped.end()


@given(st.data())
def test_any_sequence_of_tokens_and_phrases_streams_as_its_text(data):
    tokenizer = data.draw(st.sampled_from([BPE, METASPACE]))
    vocabulary = PhraseVocabulary.from_phrases(["the cat", "é東京", "on a mat"], tokenizer)
    tokens = st.integers(max(tokenizer.all_special_ids) + 1, vocabulary.vocab_size + 2)
    ids = data.draw(st.lists(tokens, max_size=8))
    streamer = TextIteratorStreamer(tokenizer, timeout=1)
    stream(streamer, vocabulary, [], ids)
    plain = TextIteratorStreamer(tokenizer, timeout=1)
    for id_ in ids:
        plain.put(torch.tensor(vocabulary.expand([id_])))
    plain.end()
    assert "".join(streamer) == "".join(plain)


class StreamRecorder(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], False

    def put(self, value):
        self.values.append(value)

    def end(self):
        self.ended = True


def test_the_prompt_comes_as_a_row_and_each_step_as_its_tokens():
    vocabulary = PhraseVocabulary.from_token_ids([[5, 6, 7]], BPE)
    phrase = vocabulary.vocab_size
    recorder = StreamRecorder()
    stream(recorder, vocabulary, [3, phrase], [phrase, 4])
    assert [value.tolist() for value in recorder.values] == [[[3, 5, 6, 7]], [5, 6, 7], [4]]
    assert recorder.ended and all(value.dtype == torch.long for value in recorder.values)


@given(
    st.lists(IDS, min_size=2, max_size=2),
    st.sampled_from(["w02", "w02 w03", "2 w0", "w08", "abcdef w02 w03", "w04 w0", "f w02 w"]),
)
def test_a_stop_string_ends_a_row_whose_last_step_completes_it(rows, string):
    criterion = StopStringCriteria(WORDS, string)
    expected = []
    for vocabulary, row in zip((PHRASES, OTHERS), rows, strict=True):
        tokens, before = vocabulary.expand(row), len(vocabulary.expand(row[:-1]))
        ends = range(before + 1, len(tokens) + 1)
        expected.append(any(criterion(torch.tensor([tokens[:end]]), None).item() for end in ends))
    assert done(criterion, rows, (PHRASES, OTHERS)) == expected
