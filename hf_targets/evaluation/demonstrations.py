"""Demonstrations of an answer with citations, made of a question's own reference answer."""

import re
from collections.abc import Mapping, Sequence

from hf_targets.data.words import word_runs
from hf_targets.evaluation.cited_prompts import shown_documents
from hf_targets.evaluation.cited_questions import Question, name_of
from hf_targets.evaluation.sentences import Splitter

_STOP = re.compile(r"[.!?\u3002\uff0e\uff01\uff1f]+[\"'\u201d\u2019)\]\u300d\u300f\uff09]*$")


def choose_demonstration(
    questions: Sequence[Question], num_documents: int = 3, document_words: int | None = None
) -> Question:
    """Return the question whose first reference answer has the largest share of its words in its documents.

    Of several the first one. Questions without a reference answer or enough documents are passed over.

    Raises:
        ValueError: If none is left.
    """
    best, chosen = -1.0, None
    for question in questions:
        answers = [one.get("long_answer", "") for one in question.get("annotations") or ()]
        if not any(map(_words, answers)) or len(question.get("docs") or ()) < num_documents:
            continue
        wanted = next(filter(None, map(_words, answers)))
        known = set().union(
            *(_words(document["text"]) for document in shown_documents(question, num_documents, document_words))
        )
        if (share := len(wanted & known) / len(wanted)) > best:
            best, chosen = share, question
    if chosen is None:
        raise ValueError(
            f"a demonstration needs {num_documents} documents and a long_answer, and none of {len(questions)} "
            "questions that are not evaluated has them; lower num_questions or num_documents"
        )
    return chosen


def demonstration_answer(item: Question, documents: Sequence[Mapping[str, str]], split: Splitter) -> str:
    """Return the first reference answer of a question, each sentence citing the document that has most of its words.

    The marker stands before the full stop, as in "Cats sleep[1].", and without a space, as phrases with markers write
    it. Of documents with as many words the first is cited; a sentence that shares no word with any cites none.

    Args:
        documents: As `shown_documents` returns them.
        split: Cuts a text into sentences.
    Raises:
        ValueError: If the question has no reference answer.
    """
    answers = [one.get("long_answer", "") for one in item.get("annotations") or ()]
    text = next((" ".join(answer.split()) for answer in answers if answer.strip()), "")
    if not text:
        raise ValueError(
            f"a demonstration needs a long_answer in its annotations, and question {name_of(item)} has none; take "
            "another"
        )
    return " ".join(_cited(sentence, documents) for sentence in split(text))


def _cited(sentence: str, documents: Sequence[Mapping[str, str]]) -> str:
    wanted = _words(sentence)
    shared = [len(wanted & _words(f"{document['title']} {document['text']}")) for document in documents]
    if not max(shared, default=0):
        return sentence
    stop = _STOP.search(sentence)
    end = len(sentence) if stop is None else stop.start()
    return f"{sentence[:end]}[{shared.index(max(shared)) + 1}]{sentence[end:]}"


def _words(text: str) -> set[str]:
    return set(word_runs(text))
