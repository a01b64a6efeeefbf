"""Repetition inside texts: rep-2, rep-3, rep-4 and diversity."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean

ORDERS = (2, 3, 4)
"""The orders n of the n-grams from which diversity is computed."""

Text = Sequence[Hashable]


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


def measure_repetition(texts: Sequence[Text]) -> Repetition:
    """Return rep-2, rep-3 and rep-4 of texts, from which diversity follows.

    Rep-n grows with the length of a text, and depends on the tokenizer. Compare models on the same prefixes, with the
    same number of static tokens, counted in the same words or tokens (`evaluation.continuations.repetition_units`).

    Args:
        texts: Each text is a list of words or token ids; give a phrase as the words or tokens in it.
    Raises:
        ValueError: As in `repeated_ngrams`.
    Source: Liu et al. (dynamic vocabulary), appendix C; Welleck et al. 2019.
    """
    return Repetition(*(repeated_ngrams(texts, order) for order in ORDERS))


def repeated_ngrams(texts: Sequence[Text], order: int) -> float:
    """Return the mean rep-n of texts, 100 (1 - distinct n-grams / n-grams), in percent.

    An n-gram is distinct within its text; the same n-gram in another text is no repetition.

    Args:
        texts: Each text is a list of words or token ids. Texts too short for an n-gram are left out.
        order: n, at least 1.
    Raises:
        ValueError: If no text has an n-gram, or a text is a string.
    Departs: the program of Lan et al. gives a text without an n-gram the repetition 100; we leave it out, as it shows
        nothing about repetition.
    """
    found = [_ngrams(text, order) for text in texts]
    if not any(found):
        raise ValueError(f"no text of {len(texts)} has {order} tokens for a {order}-gram; generate more")
    return 100 * fmean(1 - len(set(ngrams)) / len(ngrams) for ngrams in found if ngrams)


def _ngrams(text: Text, order: int) -> list[tuple[Hashable, ...]]:
    if isinstance(text, str):
        raise ValueError(f"a text must be a list of words or token ids, got {text!r:.40}; split or tokenize it first")
    if order < 1:
        raise ValueError(f"order must be at least 1, for n-grams of 1 token or more, got {order}")
    # elements of a tensor differ from each other even where their values do not
    tokens = text.tolist() if hasattr(text, "tolist") else text  # pyright: ignore[reportAttributeAccessIssue]
    return list(zip(*(tokens[start:] for start in range(order)), strict=False))
