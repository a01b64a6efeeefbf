"""Prompts as ALCE writes them: nothing is cut silently, and a demonstration cites the nearest document."""

import pytest

from hf_targets.evaluation.cited_prompts import (
    INSTRUCTIONS,
    check_prompts_fit,
    cited_prompt,
    cited_prompts,
    shown_documents,
)
from hf_targets.evaluation.demonstrations import choose_demonstration, demonstration_answer
from hf_targets.evaluation.sentences import train_splitter

SPLIT = train_splitter([])


def item(question, *texts, answer="", **more):
    documents = [{"title": f"T{number}", "text": text} for number, text in enumerate(texts, start=1)]
    return {"question": question, "docs": documents, "annotations": [{"long_answer": answer}], **more}


CATS = item("Do cats sleep?", "Cats sleep all day.", "Dogs bark at night.", answer="Dogs bark. Cats sleep!")
DOGS = item("Do  dogs\nbark?", "Birds sing.", "Dogs bark at night.", answer="Dogs bark loudly at birds.")


def test_a_prompt_is_the_demonstration_then_the_question_as_published():
    [prompt] = cited_prompts([DOGS], (CATS, "Yes[1]."), num_documents=2, document_words=3, instruction="Write.")
    assert prompt == (
        "Write.\n\nQuestion: Do cats sleep?\n\n"
        "Document [1](Title: T1): Cats sleep all\nDocument [2](Title: T2): Dogs bark at\n\nAnswer: Yes[1]."
        "\n\n\n"
        "Write.\n\nQuestion: Do dogs bark?\n\n"
        "Document [1](Title: T1): Birds sing.\nDocument [2](Title: T2): Dogs bark at\n\nAnswer:"
    )
    [alone] = cited_prompts([DOGS], None, num_documents=2, document_words=3, instruction="Write.")
    assert prompt.endswith("\n\n\n" + alone)
    assert cited_prompt("A?", [{"title": "", "text": "b"}], instruction="").startswith("Question: A?\n\nDocument [1]")
    assert INSTRUCTIONS["full"].startswith("Instruction: Write an accurate, engaging, and concise answer")


def test_documents_are_the_first_ones_in_one_line_without_a_line_that_repeats_the_title():
    shown = shown_documents(item("A?", '"T1"\nb  c\nd', "T2", "left out"), 2)
    assert shown == [{"title": "T1", "text": "b c d"}, {"title": "T2", "text": "T2"}]
    assert [document["text"] for document in shown_documents(CATS, 2, 2)] == ["Cats sleep", "Dogs bark"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: shown_documents(CATS, 3), "'Do cats sleep\\?' has 2 documents, and 3 are asked for; lower num_docum"),
        (lambda: shown_documents(CATS, 0), "numbers must be 1 or more, got num_documents=0"),
        (lambda: shown_documents(CATS, 1, 0), "got num_documents=1 and document_words=0"),
        (lambda: shown_documents(item("A?", " \n"), 1), "document 1 has no text; leave it out"),
        (lambda: cited_prompt(" ", [{"title": "", "text": "b"}]), "needs a question and documents, got ' ' and 1"),
        (lambda: cited_prompt("A?", []), "got 'A\\?' and 0 documents"),
        (lambda: cited_prompts([CATS], (CATS, "x"), num_documents=1), "must not be evaluated itself, and 'Do cats"),
        (lambda: demonstration_answer(item("A?", "b"), [{"title": "", "text": "b"}], SPLIT), "'A\\?' has none; take"),
        (lambda: choose_demonstration([item("A?", "b")], 1), "none of 1 questions that are not evaluated has them"),
    ],
)
def test_what_makes_no_prompt_is_named(call, told):
    with pytest.raises(ValueError, match=told):
        call()


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
    assert demonstration_answer(item("A?", answer=answer), shown_documents(CATS, 2), SPLIT) == cited


def test_the_demonstration_is_the_question_whose_documents_say_most_of_its_answer():
    unanswered, short = item("A?", "a b", "c"), item("B?", "one", answer="one")
    assert choose_demonstration([unanswered, short, DOGS, CATS, CATS | {"question": "again"}], 2) is CATS
    assert choose_demonstration([DOGS, short], 1) is short


def fit(room, *, document_words=4, new_tokens=2):
    def prompts_of(words):
        return cited_prompts([CATS, DOGS], None, num_documents=2, document_words=words, instruction="")

    def num_tokens(prompt):
        return len(prompt.split())

    longest = max(map(num_tokens, prompts_of(document_words)))
    limits = {"document_words": document_words, "new_tokens": new_tokens}
    return longest, lambda room=room: check_prompts_fit(prompts_of, num_tokens, room, **limits), prompts_of


def test_prompts_that_fit_are_returned_whole():
    longest, check, prompts_of = fit(None)
    assert check() == prompts_of(4)
    assert check(longest + 2) == prompts_of(4)


@pytest.mark.parametrize("document_words", [4, None])
def test_a_prompt_that_does_not_fit_names_the_most_words_that_do(document_words):
    longest, check, prompts_of = fit(None, document_words=document_words)
    for missing in (1, 3, 5):
        with pytest.raises(ValueError, match="; lower document_words to ") as told:
            check(room := longest + 2 - missing)
        words = int(str(told.value).split("document_words to ")[1].split(",")[0])
        sizes = [max(len(prompt.split()) for prompt in prompts_of(number)) + 2 for number in (words, words + 1)]
        assert sizes[0] <= room < sizes[1]


def test_where_no_words_fit_other_settings_are_named():
    with pytest.raises(ValueError, match="lower num_documents or new_tokens, or give a shorter instruction"):
        fit(None)[1](5)
