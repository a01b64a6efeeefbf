"""How right long answers are: the short answers in them, and their overlap with reference answers."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from hf_targets.data.words import check_texts
from hf_targets.evaluation.citations import answer_line, without_citations
from hf_targets.evaluation.sentences import punkt_sentences
from hf_targets.extras import require

Reader = Callable[[Sequence[str], Sequence[str]], list[str]]
"""Takes questions and a context for each, and returns the answer that it reads in each context."""


def normalized_answer(text: str) -> str:
    """Return a text in lower case without punctuation, articles and extra white space, as SQuAD compares answers.

    >>> normalized_answer("The  Eiffel Tower, Paris.")
    'eiffel tower paris'
    """
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def token_f1(answer: str, gold: str) -> float:
    """Return the harmonic mean of precision and recall of an answer's words, normalized, in [0, 1].

    >>> token_f1("in June 2003", "June 28, 2003")
    0.6666666666666666
    """
    ours, theirs = (normalized_answer(text).split() for text in (answer, gold))
    if not ours or not theirs:
        return float(ours == theirs)
    common = sum((Counter(ours) & Counter(theirs)).values())
    return 2 * common / (len(ours) + len(theirs))


def short_answers_found(answer: str, questions: Sequence[Mapping[str, Any]]) -> float:
    """Return the share of questions of which a short answer stands in the text, in [0, 1]: ASQA's exact match.

    Args:
        answer: Long, without citations.
        questions: With `short_answers`, several ways to say one.
    Raises:
        ValueError: If there is no question.
    """
    if not questions:
        raise ValueError("an answer is measured by the short answers of its questions, got none")
    text = normalized_answer(answer)
    return fmean(any(normalized_answer(short) in text for short in each["short_answers"]) for each in questions)


def measure_answers(
    answers: Sequence[str],
    items: Sequence[Mapping[str, Any]],
    *,
    reader: Reader | None = None,
    split: Callable[[str], list[str]] = punkt_sentences,
) -> dict[str, float]:
    """Return the columns of table 7 that citations are not part of, in percent, by name.

    `str_em` is the mean of `short_answers_found`. `qa_em` and `qa_f1` compare what a reader finds in the long answer
    with the short answers, the best of each question. `rouge_l` is ROUGE-Lsum's F-measure with stems, the better of the
    two reference answers. Answers are cut at the first line break, and their citations removed.

    Args:
        answers: Generated, one for each item.
        items: As in ALCE's file of ASQA: `qa_pairs` with `question` and `short_answers`, `annotations` with
            `long_answer`.
        reader: None: without the columns that need one.
        split: Cuts a text into sentences.
    Raises:
        ValueError: If `answers` is no list of texts, there are not as many answers as items, or none, an item lacks a
            part, or the reader does not give each question an answer.
        ImportError: If rouge-score is not installed.
        LookupError: If the default `split` has no model on this machine.
    Source: Gao et al. 2023, its program, eval.py. Departs: it takes the mean of ROUGE over bootstrap samples, which is
        the plain mean up to noise.
    """
    check_texts(answers, "answers")
    if len(answers) != len(items) or not answers:
        raise ValueError(f"each item has one answer, and there must be one, got {len(answers)} and {len(items)} items")
    check_references(items, for_reader=reader is not None)
    texts = [without_citations(answer_line(answer)) for answer in answers]
    scorer = require("rouge_score.rouge_scorer", extra="eval").RougeScorer(["rougeLsum"], use_stemmer=True)

    def rouge(text: str, item: Mapping[str, Any]) -> float:
        ours, *references = (
            "\n".join(split(each.lower())) for each in (text, *(one["long_answer"] for one in item["annotations"][:2]))
        )
        return max(scorer.score(reference, ours)["rougeLsum"].fmeasure for reference in references)

    pairs = list(zip(texts, items, strict=True))
    columns = {"str_em": 100 * fmean(short_answers_found(text, item["qa_pairs"]) for text, item in pairs)}
    if reader is not None:
        asked = [(pair["question"], text or " ") for text, item in pairs for pair in item["qa_pairs"]]
        read = reader(*map(list, zip(*asked, strict=True)))
        if len(read) != len(asked):
            raise ValueError(f"a reader must give each question an answer, got {len(read)} for {len(asked)} questions")
        found = iter(read)
        exact, overlap = [], []
        for _, item in pairs:
            of_item = [(next(found), pair["short_answers"]) for pair in item["qa_pairs"]]
            exact.append(fmean(_best(_equal, answer, shorts) for answer, shorts in of_item))
            overlap.append(fmean(_best(token_f1, answer, shorts) for answer, shorts in of_item))
        columns |= {"qa_em": 100 * fmean(exact), "qa_f1": 100 * fmean(overlap)}
    return columns | {"rouge_l": 100 * fmean(rouge(text, item) for text, item in pairs)}


def check_references(items: Sequence[Mapping[str, Any]], *, for_reader: bool = False) -> None:
    """Check that items have what answers are measured by.

    Args:
        for_reader: Whether a reader is to answer their questions.
    Raises:
        ValueError: If one lacks a part. The message says which.
    """
    for number, item in enumerate(items):
        pairs, notes = item.get("qa_pairs"), item.get("annotations")
        wrong = None
        if not isinstance(pairs, list) or not pairs or not all(isinstance(pair, Mapping) for pair in pairs):
            wrong = f"qa_pairs must list one or more with short_answers, got {pairs!r:.80}"
        elif bad := [pair.get("short_answers") for pair in pairs if not _are_texts(pair.get("short_answers"))]:
            wrong = f"short_answers must be a list of texts, got {bad[0]!r:.80}"
        elif for_reader and not all(_are_texts([pair.get("question")]) for pair in pairs):
            wrong = "a reader needs the question of each of its qa_pairs"
        elif not isinstance(notes, list) or not _are_texts(
            [note.get("long_answer") if isinstance(note, Mapping) else None for note in notes]
        ):
            wrong = f"annotations must list one or more with a long_answer, got {notes!r:.80}"
        if wrong is not None:
            raise ValueError(f"item {number} cannot be measured, as in ASQA {wrong}; leave it out")


def _are_texts(values: Any) -> bool:
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(isinstance(value, str) and value.strip() for value in values)
    )


def _equal(answer: str, gold: str) -> float:
    return float(normalized_answer(answer) == normalized_answer(gold))


def _best(measure: Callable[[str, str], float], answer: str, golds: Sequence[str]) -> float:
    return max(measure(answer, gold) for gold in golds)
