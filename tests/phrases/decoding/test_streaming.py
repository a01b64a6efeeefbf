"""Streamers made for tokens: a phrase streams as its words."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TextIteratorStreamer, TextStreamer
from transformers.generation.streamers import BaseStreamer

from hf_targets.phrases.decoding.expansion import Expansion, PhraseStreamer
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from tests.small_tokenizers import BPE, METASPACE, reproducible
from tests.tiny_models import VOCAB


def stream(streamer, vocabulary, prompt, steps):
    """Put ids to it as `generate` does: the prompt, then one id after another."""
    wrapped = PhraseStreamer(streamer, Expansion([vocabulary]))
    wrapped.put(torch.tensor([prompt], dtype=torch.long))
    for id_ in steps:
        wrapped.put(torch.tensor([id_]))
    wrapped.end()


@reproducible
@given(st.data())
def test_any_sequence_of_tokens_and_phrases_streams_as_its_text(data):
    tokenizer = data.draw(st.sampled_from([BPE, METASPACE]))
    vocabulary = PhraseVocabulary.from_phrases(["the cat", "é東京", "on a mat"], tokenizer)
    tokens = st.integers(max(tokenizer.all_special_ids) + 1, vocabulary.vocab_size + 2)
    ids = data.draw(st.lists(tokens, max_size=8))
    streamer = TextIteratorStreamer(tokenizer, timeout=1)
    stream(streamer, vocabulary, [], ids)
    # A new line starts its text anew, of which a leading space may be lost: that is the streamer's own way.
    plain = TextIteratorStreamer(tokenizer, timeout=1)
    for id_ in ids:
        plain.put(torch.tensor(vocabulary.expand([id_])))
    plain.end()
    assert "".join(streamer) == "".join(plain)


class Recorder(BaseStreamer):
    def __init__(self):
        self.values, self.ended = [], False

    def put(self, value):
        self.values.append(value)

    def end(self):
        self.ended = True


def test_the_prompt_comes_as_a_row_and_each_step_as_its_tokens():
    vocabulary = PhraseVocabulary.from_token_ids([[5, 6, 7]], BPE)
    phrase = vocabulary.vocab_size
    recorder = Recorder()
    stream(recorder, vocabulary, [3, phrase], [phrase, 4])
    assert [value.tolist() for value in recorder.values] == [[[3, 5, 6, 7]], [5, 6, 7], [4]]
    assert recorder.ended and all(value.dtype == torch.long for value in recorder.values)


def test_several_rows_are_refused_by_a_streamer_of_text_and_given_to_others():
    vocabulary = PhraseVocabulary(BPE)
    with pytest.raises(ValueError, match="only supports batch size 1"):
        PhraseStreamer(TextStreamer(BPE), Expansion([vocabulary])).put(torch.ones(2, 3, dtype=torch.long))
    recorder = Recorder()
    PhraseStreamer(recorder, Expansion([vocabulary])).put(torch.tensor([1, VOCAB]))
    assert recorder.values[0].tolist() == [1, VOCAB]
