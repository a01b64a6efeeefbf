"""Repetition inside texts: rep-2, rep-3, rep-4 and diversity."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean
from typing import Literal

ORDERS = (2, 3, 4)
"""The orders n of the n-grams from which diversity is computed."""

Text = Sequence[Hashable]
Average = Literal["texts", "corpus"]


@dataclass(frozen=True)
class Repetition:
    """How much texts repeat themselves.

    Attributes:
        rep_2, rep_3, rep_4: Share of n-grams that repeat an earlier n-gram of the same text, in percent.
    """

    rep_2: float
    rep_3: float
    rep_4: float

    @property
    def diversity(self) -> float:
        """Return the product of 1 - rep_n / 100 for n = 2, 3, 4, in [0, 1]; the papers print it times 100."""
        return prod(1 - rep / 100 for rep in (self.rep_2, self.rep_3, self.rep_4))


def measure_repetition(texts: Sequence[Text], *, average: Average = "texts") -> Repetition:
    """Return rep-2, rep-3 and rep-4 of texts, from which diversity follows.

    Rep-n grows with the length of a text, and depends on the tokenizer. Compare models on the same prefixes, with the
    same number of static tokens, counted in the same words or tokens (`evaluation.continuations.repetition_units`).

    Args:
        texts: Each text is a list of words or token ids; give a phrase as the words or tokens in it.
        average: As in `repeated_ngrams`.
    Raises:
        ValueError: As in `repeated_ngrams`.
    Source: Liu et al. (dynamic vocabulary), appendix C; Welleck et al. 2019.
    """
    return Repetition(*(repeated_ngrams(texts, order, average=average) for order in ORDERS))


def repeated_ngrams(texts: Sequence[Text], order: int, *, average: Average = "texts") -> float:
    """Return rep-n, 100 (1 - distinct n-grams / n-grams), of texts, in percent.

    An n-gram is distinct within its text; the same n-gram in another text is no repetition.

    Args:
        texts: Each text is a list of words or token ids. Texts too short for an n-gram are left out.
        order: n, at least 1.
        average: `"texts"`: the mean of each text's rep-n, as in the paper and its predecessor (Lan et al. 2023).
            `"corpus"`: counts are summed over texts before the division, as in Su et al. 2022; long texts weigh more.
    Raises:
        ValueError: If no text has an n-gram, or a text is a string.
    Departs: the program of Lan et al. gives a text without an n-gram the repetition 100; we leave it out, as it shows
        nothing about repetition. The program of Su et al. ignores the last n-gram of each text; we count it.
    """
    if average not in ("texts", "corpus"):
        raise ValueError(f'average must be "texts" or "corpus", got {average!r}')
    counts = [(len(set(ngrams)), len(ngrams)) for ngrams in _ngrams_of_texts(texts, order) if ngrams]
    if average == "texts":
        return 100 * fmean(1 - distinct / total for distinct, total in counts)
    distinct, total = map(sum, zip(*counts, strict=True))
    return 100 * (1 - distinct / total)


def distinct_ngrams(texts: Sequence[Text], order: int) -> float:
    """Return distinct-n, the number of distinct n-grams over that of all n-grams, in all texts together, in (0, 1].

    Unlike 1 - rep-n / 100, it is lower if texts resemble each other, and if there are more texts.

    Raises:
        ValueError: As in `repeated_ngrams`.
    Source: Li et al. 2016.
    """
    ngrams = [ngram for of_text in _ngrams_of_texts(texts, order) for ngram in of_text]
    return len(set(ngrams)) / len(ngrams)


def _ngrams_of_texts(texts: Sequence[Text], order: int) -> list[list[tuple[Hashable, ...]]]:
    found = [_ngrams(text, order) for text in texts]
    if not any(found):
        raise ValueError(f"no text of {len(texts)} has {order} tokens for a {order}-gram; generate more")
    return found


def _ngrams(text: Text, order: int) -> list[tuple[Hashable, ...]]:
    if isinstance(text, str):
        raise ValueError(f"a text must be a list of words or token ids, got {text!r:.40}; split or tokenize it first")
    if order < 1:
        raise ValueError(f"order must be at least 1, for n-grams of 1 token or more, got {order}")
    # elements of a tensor differ from each other even where their values do not
    tokens = text.tolist() if hasattr(text, "tolist") else text  # pyright: ignore[reportAttributeAccessIssue]
    return list(zip(*(tokens[start:] for start in range(order)), strict=False))
