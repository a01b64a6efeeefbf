"""Confidence intervals of BLEU, and of the difference of two systems on one test set."""

from collections.abc import Sequence

import numpy as np

from hf_targets.evaluation.intervals import bootstrap_interval
from hf_targets.evaluation.translation import bleu_metric, references_of


def bleu_interval(
    hypotheses: Sequence[str],
    references: Sequence[str] | Sequence[Sequence[str]],
    *,
    baseline: Sequence[str] | None = None,
    lowercase: bool = False,
    tokenized: bool = False,
    target_lang: str | None = None,
    confidence: float = 0.95,
    num_resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of BLEU, or of its difference from a baseline, by resampling sentences.

    With a baseline the same sentences are drawn for both systems, so a hard sentence is hard for both. A difference
    whose interval contains 0 is none.

    Args:
        hypotheses: As in `translation_scores`, as are `references` and how words are cut.
        baseline: Translations of the same texts by another system. None: the interval of BLEU itself.
        confidence: Probability that such an interval has the true value, in (0, 1).
        seed: Of the resampling; the same seed draws the same sentences.
    Raises:
        ValueError: As `translation_scores` and `bootstrap_interval` do.
        ImportError: If sacrebleu is not installed.
    Source: Koehn 2004, paired bootstrap resampling.
    """
    cut = {"lowercase": lowercase, "tokenized": tokenized, "target_lang": target_lang}
    metric = bleu_metric(**cut)
    by_sentence = bleu_metric(**cut, effective_order=True)  # asked for the counts only: without it, each call warns

    def counts(texts: Sequence[str]) -> np.ndarray:
        """Return for each sentence its matching n-grams, its n-grams, and both lengths: (sentences, 10)."""
        scores = [
            by_sentence.sentence_score(text, list(of_one))
            for text, of_one in zip(texts, references_of(texts, references), strict=True)
        ]
        return np.array([[*score.counts, *score.totals, score.sys_len, score.ref_len] for score in scores])

    def bleu(sums: np.ndarray) -> np.ndarray:
        orders = metric.max_ngram_order
        return np.array(
            [
                metric.compute_bleu(
                    correct=row[:orders], total=row[orders:-2], sys_len=row[-2], ref_len=row[-1], smooth_method="exp"
                ).score
                for row in sums.tolist()
            ]
        )

    ours, theirs = counts(hypotheses), None if baseline is None else counts(baseline)

    def statistic(numbers: np.ndarray) -> np.ndarray:
        times = np.stack([np.bincount(row, minlength=len(ours)) for row in numbers.reshape(-1, len(ours))])
        found = bleu(times @ ours) - (0 if theirs is None else bleu(times @ theirs))
        return found.reshape(numbers.shape[:-1])

    return bootstrap_interval(statistic, len(ours), confidence=confidence, num_resamples=num_resamples, seed=seed)
