"""How well the documents that an answer cites support it: citation recall and precision, as ALCE counts them."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, get_args

from hf_targets.data.words import check_texts
from hf_targets.evaluation.sentences import punkt_sentences

AfterStop = Literal["next", "own"]
_CITATION = re.compile(r"\[\d+")
_LEADING = re.compile(r"^(?:\s*\[\d+\]?)+")


def without_citations(text: str) -> str:
    """Return a text without its citations, as ALCE removes them: "[1", a space before it, "]" and " |".

    >>> without_citations("Cats sleep [1][2]. In [2019] too.")
    'Cats sleep. In too.'
    """
    return re.sub(r" ?\[\d+", "", text).replace(" |", "").replace("]", "")


def answer_line(text: str) -> str:
    """Return the part of a generated text that ALCE scores: up to the first line break, without chat end tokens."""
    return text.strip().split("\n")[0].replace("<|im_end|>", "")


def citation_scores(
    answer: str,
    documents: Sequence[Mapping[str, str]],
    entails: Callable[[str, str], bool],
    *,
    at_most: int | None = 3,
    after_stop: AfterStop = "next",
    split: Callable[[str], list[str]] = punkt_sentences,
) -> tuple[float, float]:
    """Return the citation recall and precision of one answer, each in [0, 100].

    Recall is the share of the answer's sentences that the documents they cite entail together. A sentence without a
    citation, or with one out of range, counts as not entailed. Precision is the share of the citations that are needed
    and right: all of a sentence that is entailed, but for those that alone do not entail it and without which the
    others do. Both are 0 for an answer without a sentence, which `mean_citation_scores` leaves out.

    A citation is "[" and a number, whether "]" follows or not, and documents count from 1. So a year in brackets is a
    citation out of range, and "[0]" is one of the last document, as in the published program.

    Args:
        answer: A generated text, of which the first line counts.
        documents: With `title` and `text`.
        entails: Takes a premise, such as "Title: Cats\\nCats sleep.", and a hypothesis.
        at_most: Citations of a sentence that count, the first ones; None: all.
        after_stop: Where citations belong that follow a full stop: to the `next` sentence, as in the published program,
            or to the one before them, their `own`.
        split: Cuts a text into sentences.
    Raises:
        ValueError: If `at_most` is below 1, `after_stop` is unknown, or a document lacks its title or text.
        LookupError: If the default `split` has no model on this machine.
    Source: Gao et al. 2023, "Enabling Large Language Models to Generate Text with Citations", section 3 and its
        program, eval.py.
    """
    return _scores(answer, documents, entails, at_most, after_stop, split) or (0.0, 0.0)


def mean_citation_scores(
    answers: Sequence[str],
    documents: Sequence[Sequence[Mapping[str, str]]],
    entails: Callable[[str, str], bool],
    **settings: Any,
) -> tuple[float, float]:
    """Return the means of `citation_scores` over answers with a sentence; each pair of texts is judged once.

    Args:
        documents: Those of each answer.
        settings: Those of `citation_scores`.
    Raises:
        ValueError: As `citation_scores`, or if there is no answer with a sentence, or not as many lists of documents.
    """
    check_texts(answers, "answers")
    if len(answers) != len(documents):
        raise ValueError(f"each answer needs its documents, got {len(answers)} answers and {len(documents)} lists")
    judge = cache(entails)
    each = (_scores(*both, judge, **settings) for both in zip(answers, documents, strict=True))
    scores = [found for found in each if found is not None]
    if not scores:
        raise ValueError("citations are scored in answers with a sentence, and there is none; give other answers")
    recalls, precisions = zip(*scores, strict=True)
    return sum(recalls) / len(scores), sum(precisions) / len(scores)


def _scores(
    answer: str,
    documents: Sequence[Mapping[str, str]],
    entails: Callable[[str, str], bool],
    at_most: int | None = 3,
    after_stop: AfterStop = "next",
    split: Callable[[str], list[str]] = punkt_sentences,
) -> tuple[float, float] | None:
    """Return recall and precision; None if there is no sentence."""
    if (at_most is not None and at_most < 1) or after_stop not in get_args(AfterStop):
        raise ValueError(f"at_most must be 1 or more or None, after_stop next or own, got {at_most}, {after_stop!r}")
    for number, document in enumerate(documents, start=1):
        has = list(document) if isinstance(document, Mapping) else [type(document).__name__]
        if not {"title", "text"} <= {*has}:
            raise ValueError(f"a document needs title and text, and document {number} has {', '.join(has)}")
    sentences = split(answer_line(answer))
    if after_stop == "own":
        sentences = _with_own_citations(sentences)
    if not sentences:
        return None
    entailed = right = total = 0
    for sentence in sentences:
        cites, claim = _cited(sentence, len(documents), at_most), without_citations(sentence).strip()
        total += len(cites)

        def supported(chosen: list[int], claim: str = claim) -> bool:
            passages = (f"Title: {documents[cite]['title']}\n{documents[cite]['text']}" for cite in chosen)
            return bool(entails("\n".join(passages), claim))

        if cites and supported(cites):
            entailed += 1
            right += sum(
                len(cites) == 1 or supported([cite]) or not supported(_without(cites, place))
                for place, cite in enumerate(cites)
            )
    return 100 * entailed / len(sentences), 100 * right / total if total else 0.0


def _cited(sentence: str, num_documents: int, at_most: int | None) -> list[int]:
    """Return the places of the documents that a sentence cites; none if one of them is out of range."""
    # ten digits are out of range already, and int() refuses some thousand
    cites = [int(found[1:].lstrip("0")[:10] or "0") - 1 for found in _CITATION.findall(sentence)]
    if any(cite >= num_documents for cite in cites) or not num_documents:
        return []
    return cites[:at_most]


def _without(cites: list[int], place: int) -> list[int]:
    """Return the other citations; of a document cited twice, its first citation is left out, whichever is meant."""
    first = cites.index(cites[place])
    return cites[:first] + cites[first + 1 :]


def _with_own_citations(sentences: list[str]) -> list[str]:
    """Return the sentences with citations at the beginning of one moved to the end of the one before."""
    moved: list[str] = []
    for sentence in sentences:
        begin = _LEADING.match(sentence)
        if begin is None or not moved:
            moved.append(sentence)
            continue
        moved[-1] += " " + begin[0].strip()
        rest = sentence[begin.end() :].strip()
        if re.search(r"\w", rest):
            moved.append(rest)
        else:
            moved[-1] += rest  # a full stop after the citation
    return moved
