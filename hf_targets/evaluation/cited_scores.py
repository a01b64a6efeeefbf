"""All columns of an evaluation of answers with citations, which is the paper's table 7."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from hf_targets.evaluation.answers import Reader, measure_answers
from hf_targets.evaluation.citations import AfterStop, answer_line, check_documents, mean_citation_scores
from hf_targets.evaluation.entailment import Entailment, remembered
from hf_targets.evaluation.sentences import punkt_sentences


def measure_cited_answers(
    answers: Sequence[str],
    items: Sequence[Mapping[str, Any]],
    documents: Sequence[Sequence[Mapping[str, str]]],
    entailment: Entailment,
    *,
    reader: Reader | None = None,
    judged_by: str = "citation",
    split: Callable[[str], list[str]] = punkt_sentences,
) -> dict[str, float]:
    """Return citation recall and precision, then the columns of `measure_answers`, in percent, by name.

    Citations after a full stop belong to the next sentence in `citation_recall` and `citation_precision`, as in the
    published program, and to their own in `citation_recall_own` and `citation_precision_own`. Without any sentence in
    the answers these columns are left out.

    Args:
        documents: Those that each answer may cite.
        judged_by: What the names of the columns of citations begin with; "lexical" where `LexicalEntailment` judges.
        entailment: Asked once about each pair of texts.
    Raises:
        ValueError: As `mean_citation_scores` and `measure_answers`.
    Source: Liu et al., "Generation with Dynamic Vocabulary", table 7, with the measures of Gao et al. 2023.
    """
    check_documents(answers, documents)
    columns: dict[str, float] = {}
    entailment = remembered(entailment)
    if any(split(answer_line(answer)) for answer in answers):
        for after_stop in get_args(AfterStop):
            ending = "" if after_stop == "next" else f"_{after_stop}"
            given: Any = {"after_stop": after_stop, "split": split}
            recall, precision = mean_citation_scores(answers, documents, entailment, **given)
            columns |= {f"{judged_by}_recall{ending}": recall, f"{judged_by}_precision{ending}": precision}
    return columns | measure_answers(answers, items, reader=reader, split=split)
