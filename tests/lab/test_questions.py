"""Questions are read in each form, and asked in prompts as ALCE writes them."""

import copy
import gzip
import json

import pytest

from hf_targets.evaluation.sentences import train_splitter
from lab.questions import (
    QuestionSettings,
    choose_demonstration,
    cited_answer,
    cited_prompt,
    load_questions,
    shown_documents,
)
from tests.small_tokenizers import BPE


def item(question, *texts, answer="An answer."):
    documents = [{"title": f"T{number}", "text": text} for number, text in enumerate(texts, start=1)]
    pairs = [{"question": question, "short_answers": ["cats"]}]
    return {"question": question, "docs": documents, "qa_pairs": pairs, "annotations": [{"long_answer": answer}]}


CATS = item("Do cats sleep?", "Cats sleep all day.", "Dogs bark at night.", answer="Dogs bark. Cats sleep!")
DOGS = item("Do  dogs\nbark?", "Birds sing.", "Dogs bark at night.", answer="Dogs bark loudly at birds.")
ITEMS = [DOGS, CATS]
LINES = "\n".join(map(json.dumps, ITEMS)) + "\n\n"


@pytest.mark.parametrize("content", [LINES, json.dumps(ITEMS), json.dumps(ITEMS, indent=1), "\ufeff" + LINES])
@pytest.mark.parametrize("pack", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_lines_and_lists_are_read_alike_packed_or_not(content, pack, tmp_path):
    (tmp_path / "file").write_bytes(pack(content.encode()))
    assert load_questions(tmp_path / "file") == ITEMS


@pytest.mark.parametrize("change", [{"question": ""}, {"docs": []}, {"annotations": None}], ids=str)
def test_a_question_that_lacks_a_part_is_named(change, tmp_path):
    (tmp_path / "file").write_text(LINES + json.dumps(CATS | change))
    with pytest.raises(ValueError, match="question 3 "):
        load_questions(tmp_path / "file")


def asked(tmp_path, tokenizer=BPE, **settings):
    (tmp_path / "file").write_text(LINES)
    given = {"num_questions": 1, "num_documents": 2, "document_words": 3, "instruction": "none", **settings}
    return QuestionSettings(str(tmp_path / "file"), **given).ask(tokenizer)


def test_a_prompt_is_the_demonstration_then_the_question_as_published(tmp_path):
    [prompt] = asked(tmp_path).prompts
    assert prompt == (
        "Question: Do cats sleep?\n\n"
        "Document [1](Title: T1): Cats sleep all\nDocument [2](Title: T2): Dogs bark at\n\n"
        "Answer:Dogs bark[2]. Cats sleep[1]!"
        "\n\n\n"
        "Question: Do dogs bark?\n\n"
        "Document [1](Title: T1): Birds sing.\nDocument [2](Title: T2): Dogs bark at\n\nAnswer:"
    )
    assert prompt.endswith("\n\n\n" + asked(tmp_path, demonstration=False).prompts[0])
    assert cited_prompt("A?", [{"title": "", "text": "b"}], instruction="Write.").startswith("Write.\n\nQuestion: A?")


def test_a_model_with_a_chat_template_is_asked_in_turns_unless_text_is_wanted(tmp_path):
    chatting = copy.deepcopy(BPE)
    chatting.chat_template = "{{ messages }}"
    [[system, shown, answer, question]] = asked(tmp_path, chatting, instruction="light").prompts
    assert (system["role"], shown["role"], answer["role"], question["role"]) == ("system", "user", "assistant", "user")
    assert "Instruction" not in system["content"] and answer["content"] == "Dogs bark[2]. Cats sleep[1]!"
    assert question["content"] == (
        "Document [1](Title: T1): Birds sing.\nDocument [2](Title: T2): Dogs bark at\n\nQuestion: Do dogs bark?"
    )
    assert asked(tmp_path, chatting, chat=False).prompts == asked(tmp_path).prompts
    [[_, _, answer, _]] = asked(tmp_path, chatting, instruction="quotes").prompts
    assert answer["content"] == '"Dogs bark at"[2] "Cats sleep all"[1]'
    with pytest.raises(ValueError, match="chat template"):
        asked(tmp_path, chat=True)


def test_documents_are_the_first_ones_in_one_line_without_a_line_that_repeats_the_title():
    shown = shown_documents(item("A?", '"T1"\nb  c\nd', "T2", "left out"), 2)
    assert shown == [{"title": "T1", "text": "b c d"}, {"title": "T2", "text": "T2"}]
    assert [document["text"] for document in shown_documents(CATS, 2, 2)] == ["Cats sleep", "Dogs bark"]


@pytest.mark.parametrize(
    ("answer", "cited"),
    [
        ("Dogs bark. Cats sleep!", "Dogs bark[2]. Cats sleep[1]!"),
        ("Cats \uff01\u300d", "Cats [1]\uff01\u300d"),
        ('He said "Cats sleep." Dogs', 'He said "Cats sleep[1]." Dogs[2]'),
        ("Dogs and cats.", "Dogs and cats[1]."),
        ("Nobody knows.", "Nobody knows."),
    ],
)
def test_each_sentence_of_a_demonstration_cites_the_document_with_most_of_its_words(answer, cited):
    assert cited_answer([{"long_answer": answer}], shown_documents(CATS, 2), train_splitter([])) == cited


def test_the_demonstration_is_the_question_whose_documents_say_most_of_its_answer():
    short = item("B?", "one", answer="one")
    assert choose_demonstration([short, DOGS, CATS, CATS | {"question": "again"}], 2)[0] is CATS
    assert choose_demonstration([DOGS, short], 1)[0] is short
