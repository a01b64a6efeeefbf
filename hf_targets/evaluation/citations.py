"""How well the documents that an answer cites support it: citation recall and precision, as ALCE counts them."""

import re
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import Literal, get_args

from hf_targets.data.words import check_texts
from hf_targets.evaluation.entailment import Entailment, Pair, each_by
from hf_targets.evaluation.sentences import punkt_sentences

AfterStop = Literal["next", "own"]
_CITATION = re.compile(r"\[\d+")
_LEADING = re.compile(r"^(?:\s*\[\d+\]?)+")
_Judging = Generator[list[Pair], list[bool], tuple[float, float] | None]


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
    judging = _judge(answer, documents, at_most, after_stop, split)
    return (_drive([judging], each_by(entails)) or [(0.0, 0.0)])[0]


def mean_citation_scores(
    answers: Sequence[str],
    documents: Sequence[Sequence[Mapping[str, str]]],
    entailment: Entailment,
    *,
    at_most: int | None = 3,
    after_stop: AfterStop = "next",
    split: Callable[[str], list[str]] = punkt_sentences,
) -> tuple[float, float]:
    """Return the means of `citation_scores` over answers with a sentence, judged together: each pair of texts once.

    Args:
        documents: Those of each answer.
        entailment: Takes pairs of premises and hypotheses, and says of each whether it holds.
    Raises:
        ValueError: As `citation_scores`, or if there is no answer with a sentence, or not as many lists of documents.
    """
    check_documents(answers, documents)
    judge = partial(_judge, at_most=at_most, after_stop=after_stop, split=split)
    scores = _drive([judge(*each) for each in zip(answers, documents, strict=True)], entailment)
    if not scores:
        raise ValueError("citations are scored in answers with a sentence, and there is none; give other answers")
    recalls, precisions = zip(*scores, strict=True)
    return sum(recalls) / len(scores), sum(precisions) / len(scores)


def check_documents(answers: Sequence[str], documents: Sequence[Sequence[Mapping[str, str]]]) -> None:
    """Check that there are documents for each answer.

    Raises:
        ValueError: If `answers` is no list of texts, or there are not as many lists of documents.
    """
    check_texts(answers, "answers")
    if len(answers) != len(documents):
        raise ValueError(f"each answer needs its documents, got {len(answers)} answers and {len(documents)} lists")


def _drive(judgings: Sequence[_Judging], entailment: Entailment) -> list[tuple[float, float]]:
    """Return the results, after giving all that wait the answers to the pairs that they ask about, at once."""
    results: dict[int, tuple[float, float]] = {}
    known: dict[Pair, bool] = {}
    asked: dict[int, list[Pair]] = {}

    def go_on(number: int, answers: list[bool] | None) -> None:
        try:
            asked[number] = judgings[number].send(answers)  # pyright: ignore[reportArgumentType]
        except StopIteration as stop:
            if stop.value is not None:
                results[number] = stop.value

    for number in range(len(judgings)):
        go_on(number, None)
    while asked:
        new = list(dict.fromkeys(pair for pairs in asked.values() for pair in pairs if pair not in known))
        known.update(zip(new, entailment(new) if new else [], strict=True))
        waiting, asked = asked, {}
        for number, pairs in waiting.items():
            go_on(number, [known[pair] for pair in pairs])
    return [results[number] for number in sorted(results)]


def _judge(
    answer: str,
    documents: Sequence[Mapping[str, str]],
    at_most: int | None,
    after_stop: AfterStop,
    split: Callable[[str], list[str]],
) -> _Judging:
    """Ask about pairs, in three rounds, and return recall and precision; None if there is no sentence."""
    if at_most is not None and at_most < 1:
        raise ValueError(f"at_most must be 1 or more, or None for all citations, got {at_most}")
    if after_stop not in get_args(AfterStop):
        raise ValueError(f"after_stop must be one of {', '.join(get_args(AfterStop))}, got {after_stop!r}")
    for number, document in enumerate(documents, start=1):
        if missing := {"title", "text"} - document.keys():
            raise ValueError(
                f"a document needs title and text, and document {number} lacks {', '.join(sorted(missing))}; give an "
                "empty text where there is none"
            )
    sentences = split(answer_line(answer))
    if after_stop == "own":
        sentences = _with_own_citations(sentences)
    if not sentences:
        return None
    claims = [without_citations(sentence).strip() for sentence in sentences]
    cited = [_cited(sentence, len(documents), at_most) for sentence in sentences]

    def pair(documents_of_claim: Sequence[int], number: int) -> Pair:
        passages = (f"Title: {documents[cite]['title']}\n{documents[cite]['text']}" for cite in documents_of_claim)
        return "\n".join(passages), claims[number]

    asked = [number for number, cites in enumerate(cited) if cites]
    answers = yield [pair(cited[number], number) for number in asked]
    entailed = [number for number, holds in zip(asked, answers, strict=True) if holds]
    right = sum(len(cited[number]) == 1 for number in entailed)
    several = [(number, place) for number in entailed if len(cited[number]) > 1 for place in range(len(cited[number]))]
    answers = yield [pair([cited[number][place]], number) for number, place in several]
    right += sum(answers)
    doubtful = [each for each, holds in zip(several, answers, strict=True) if not holds]
    answers = yield [pair(_without(cited[number], place), number) for number, place in doubtful]
    right += len(doubtful) - sum(answers)
    total = sum(map(len, cited))
    return 100 * len(entailed) / len(sentences), 100 * right / total if total else 0.0


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
