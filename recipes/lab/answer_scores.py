"""How right long answers with citations are: the paper's table 7, with the measures of ALCE and ASQA.

Source: Liu et al., "Generation with Dynamic Vocabulary", table 7; Gao et al. 2023, its program, eval.py. Departs: it
takes the mean of ROUGE over bootstrap samples, which is the plain mean up to noise.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any

from hf_targets.evaluation.citations import answer_line, citation_scores, mean_citation_scores, without_citations
from hf_targets.evaluation.quotes import QuoteCheck
from hf_targets.evaluation.sentences import Splitter
from hf_targets.extras import require
from hf_targets.phrases.cited_answers import CitedAnswer


def normalized_answer(text: str) -> str:
    """Return a text in lower case without punctuation, articles and extra white space, as SQuAD compares answers.

    >>> normalized_answer("The  Eiffel Tower, Paris.")
    'eiffel tower paris'
    """
    letters = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", letters).split())


def exact_match(answer: str, gold: str) -> float:
    """Return 1.0 for two answers that are equal, normalized, else 0.0."""
    return float(normalized_answer(answer) == normalized_answer(gold))


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
    """Return the share of questions of which a short answer stands in the text, in [0, 1]: ASQA's exact match."""
    text = normalized_answer(answer)
    return fmean(any(normalized_answer(short) in text for short in each["short_answers"]) for each in questions)


def measure_answers(
    answers: Sequence[str],
    items: Sequence[Mapping[str, Any]],
    split: Splitter,
    reader: Callable[[Sequence[str], Sequence[str]], list[str]] | None = None,
) -> dict[str, float]:
    """Return the columns of table 7 that citations are not part of, in percent, by name.

    `str_em` is the mean of `short_answers_found`. `qa_em` and `qa_f1` compare what a reader finds in the long answer
    with the short answers, the best of each question. `rouge_l` is ROUGE-Lsum's F-measure with stems, the better of the
    two reference answers. Answers are cut at the first line break, and their citations removed.

    There is an answer for each item, which are as `load_questions` returns them.
    """
    scorer = require("rouge_score.rouge_scorer", extra="eval").RougeScorer(["rougeLsum"], use_stemmer=True)
    pairs = [(without_citations(answer_line(text)), item) for text, item in zip(answers, items, strict=True)]

    def rouge(text: str, item: Mapping[str, Any]) -> float:
        references = [one["long_answer"] for one in item["annotations"][:2]]
        ours, *theirs = ("\n".join(split(each.lower())) for each in (text, *references))
        return max(scorer.score(reference, ours)["rougeLsum"].fmeasure for reference in theirs)

    columns = {"str_em": 100 * fmean(short_answers_found(text, item["qa_pairs"]) for text, item in pairs)}
    if reader is not None:
        asked = [(pair["question"], text or " ") for text, item in pairs for pair in item["qa_pairs"]]
        found = iter(reader(*map(list, zip(*asked, strict=True))))
        read = [[(next(found), pair["short_answers"]) for pair in item["qa_pairs"]] for _, item in pairs]
        for name, score in (("qa_em", exact_match), ("qa_f1", token_f1)):
            of_items = [[max(score(answer, gold) for gold in golds) for answer, golds in of_item] for of_item in read]
            columns[name] = 100 * fmean(map(fmean, of_items))
    return columns | {"rouge_l": 100 * fmean(rouge(*pair) for pair in pairs)}


def measure_citations(
    answers: Sequence[str],
    documents: Sequence[Sequence[Mapping[str, str]]],
    entails: Callable[[str, str], bool],
    split: Splitter,
    judged_by: str = "citation",
) -> dict[str, float]:
    """Return citation recall and precision, in percent; nothing where no answer has a sentence.

    Citations after a full stop belong to the next sentence, as in the published program, and to their own in the
    columns that end with `_own`. `judged_by` is what the names begin with; "lexical" where `shares_words` judges.
    """
    columns: dict[str, float] = {}
    entails = cache(entails)
    if any(split(answer_line(answer)) for answer in answers):
        for after_stop, ending in (("next", ""), ("own", "_own")):
            given: Any = {"after_stop": after_stop, "split": split}
            recall, precision = mean_citation_scores(answers, documents, entails, **given)
            columns |= {f"{judged_by}_recall{ending}": recall, f"{judged_by}_precision{ending}": precision}
    return columns


def measure_quotes(checked: Sequence[QuoteCheck]) -> dict[str, float]:
    """Return how many marked spans the answers have, and how many of them are wrong, by kind (`check_quotes`)."""
    kinds = ("right", "fabricated", "spliced", "misattributed")
    return {f"quotes_{kind}": float(sum(len(getattr(one, kind)) for one in checked)) for kind in kinds}


def measure_provenance(answers: Sequence[CitedAnswer]) -> dict[str, float]:
    """Return how much of answers comes from documents, and what they cost.

    `from_documents` is the share, in percent, of their characters that stands in phrases of documents, left out where
    there is no character; `documents_used` the mean number of documents that an answer has phrases of. `steps` are an
    answer's; `seconds` include mining and encoding, which are `phrase_seconds`.
    """
    columns: dict[str, float] = {}
    if num_characters := sum(answer.num_characters for answer in answers):
        columns["from_documents"] = 100 * sum(answer.num_from_documents for answer in answers) / num_characters
    columns["documents_used"] = fmean(map(num_documents, answers))
    phrases = fmean(answer.seconds["mining"] + answer.seconds["encoding"] for answer in answers)
    seconds = phrases + fmean(answer.seconds["generation"] for answer in answers)
    steps = fmean(answer.num_steps for answer in answers)
    return columns | {"steps": steps, "seconds": seconds, "phrase_seconds": phrases}


def num_documents(answer: CitedAnswer) -> int:
    """Return the number of documents that an answer has phrases of."""
    return len({span.sources[0].document for span in answer.spans})


def told_answer(
    answer: CitedAnswer, documents: Sequence[Mapping[str, str]], entails: Callable[[str, str], bool], split: Splitter
) -> str:
    """Return the scores of one answer in a line, for a page."""
    recall, precision = citation_scores(answer.text, documents, entails, split=split)
    share = 100 * answer.num_from_documents / max(answer.num_characters, 1)
    return (
        f"Citation recall {recall:.0f}%, precision {precision:.0f}%. {share:.0f}% of the characters stand in phrases "
        f"of {num_documents(answer)} of {len(documents)} documents. {answer.num_tokens} tokens in {answer.num_steps} "
        "steps."
    )
