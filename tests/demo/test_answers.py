"""Answers shown while they are written: the text of plain decoding, and phrases as their documents have them."""

from itertools import pairwise
from threading import Event

import pytest
import torch
from transformers.generation.streamers import BaseStreamer

from demo.answers import MOST_CHARACTERS, AnsweringModel, texts_of
from demo.streamed import streamed
from tests.recipes.answering import QUESTION, TEXT, write_models
from tests.tiny_backbones import make_backbone


@pytest.fixture(scope="module")
def answering(tmp_path_factory):
    folder = tmp_path_factory.mktemp("answering")
    write_models(folder)
    return AnsweringModel(str(folder / "writer"), num_passages=2, passage_words=50, new_tokens=24)


def test_the_text_with_drafts_is_that_of_plain_decoding_in_fewer_passes(answering):
    asked = answering.ask(QUESTION, TEXT)
    given = {"do_sample": False, "max_new_tokens": 24, "stop_strings": ["\n"], "tokenizer": answering.tokenizer}
    plain = answering.model.generate(**asked.inputs, **given)[0, asked.inputs["input_ids"].shape[1] :]
    states = list(answering.with_drafts(asked))
    texts = ["".join(piece for piece, _ in state.pieces) for state in states]
    assert texts[-1] == answering.tokenizer.decode(plain) and len(texts) > 2
    assert all(later.startswith(one) for one, later in pairwise(texts))
    last = states[-1]
    assert last.num_tokens == len(plain) == last.passes + sum(last.accepted.values())
    drafted = [piece for piece, by_draft in last.pieces if by_draft]
    assert len(drafted) == sum(last.accepted.values()) and all(piece in TEXT for piece in drafted)


def test_each_phrase_is_what_its_document_has_where_its_source_is(answering):
    asked = answering.ask(QUESTION, f"# pets\n{TEXT}")
    states = list(answering.with_phrases(asked))
    assert [one["title"] for one in asked.read.values()] == ["pets, part 1"]
    spans = [(state, span) for state in states for span in state.spans]
    assert states[-1].spans and all(one.text.startswith(two.text) for two, one in pairwise(states))
    for state, span in spans:
        for source in span.sources:
            text = asked.read[source.document]["text"][source.start : source.end]
            assert state.text[span.start : span.end].strip() == text


@pytest.mark.parametrize(
    ("question", "text", "told"),
    [
        (" ", TEXT, "question is missing"),
        (QUESTION, "", "no prose"),
        (QUESTION, "| 1 | 2 | 3 | 4 |", "no prose"),
        (QUESTION * 200, TEXT, "tokens, got"),
        (QUESTION, "word " * (MOST_CHARACTERS // 4), "characters in all"),
    ],
)
def test_what_cannot_be_answered_is_told(answering, question, text, told):
    with pytest.raises(ValueError, match=told):
        answering.ask(question, text)


def test_a_question_without_a_word_of_the_documents_is_answered_from_the_first_with_a_note(answering):
    assert "first ones" in answering.ask("Zxcv?", TEXT).note
    assert answering.ask(QUESTION, TEXT).note == ""


def test_documents_of_one_name_are_all_kept(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "README.md").write_text(folder)
    found = texts_of("# README.md\npasted\n", [str(tmp_path / folder / "README.md") for folder in ("a", "b")])
    assert found == {"README.md": "pasted\n", "README.md (2)": "a", "README.md (3)": "b"}


def test_a_file_that_is_no_text_is_told_by_its_name(tmp_path):
    (tmp_path / "picture.txt").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(ValueError, match=r"picture\.txt"):
        texts_of("", [str(tmp_path / "picture.txt")])


def test_values_come_in_order_with_their_passes_and_errors_are_raised():
    model = make_backbone("gpt2")

    def write(streamer: BaseStreamer) -> None:
        for length in range(3):
            model(torch.zeros(1, 1, dtype=torch.long))
            streamer.put(torch.tensor(length))
        raise KeyError("late")

    seen = []
    with pytest.raises(KeyError, match="late"):
        for value, passes in streamed(model, write):
            seen.append((int(value), passes))
    assert seen == [(0, 1), (1, 2), (2, 3)]


def test_a_text_that_nobody_reads_any_more_ends():
    ended, written = Event(), []

    def write(streamer: BaseStreamer) -> None:
        try:
            while len(written) < 10**6:
                written.append(0)
                streamer.put(torch.tensor(0))
        finally:
            ended.set()

    values = streamed(make_backbone("gpt2"), write)
    next(values)
    values.close()
    assert ended.is_set() and len(written) < 10**6
