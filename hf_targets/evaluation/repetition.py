"""How much texts repeat themselves: rep-2, rep-3, rep-4 and diversity."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from statistics import fmean
from typing import Literal

ORDERS = (2, 3, 4)
"""The n of the n-grams that diversity is made of."""

Text = Sequence[Hashable]
Average = Literal["texts", "corpus"]


@dataclass(frozen=True)
class Repetition:
    """How much texts repeat themselves.

    Attributes:
        rep_2, rep_3, rep_4: Share of the n-grams that repeat an earlier one of the same text, in percent.
    """

    rep_2: float
    rep_3: float
    rep_4: float

    @property
    def diversity(self) -> float:
        """Return the product of 1 - rep_n / 100 over n = 2, 3, 4, in [0, 1]; the papers print it times 100."""
        return prod(1 - rep / 100 for rep in (self.rep_2, self.rep_3, self.rep_4))


def measure_repetition(texts: Sequence[Text], *, average: Average = "texts") -> Repetition:
    """Return rep-2, rep-3 and rep-4 of texts, and with them their diversity.

    Rep-n grows with the length of a text, and depends on what a token is: compare models over the same prefixes, at the
    same number of static tokens, with the same words or tokens (the published numbers count spaCy's words of prefix
    and continuation, `shorten_to_equal` having cut the continuation).

    Args:
        texts: Each a list of words or token ids; a phrase as the words or tokens in it.
        average: As in `repeated_ngrams`.
    Raises:
        ValueError: As in `repeated_ngrams`.
    Source: Liu et al. (dynamic vocabulary), appendix C; Welleck et al. 2019.
    """
    return Repetition(*(repeated_ngrams(texts, order, average=average) for order in ORDERS))


def repeated_ngrams(texts: Sequence[Text], order: int, *, average: Average = "texts") -> float:
    """Return rep-n, 100 (1 - distinct n-grams / n-grams), of texts, in percent.

    Distinct is meant within a text: an n-gram of another text is no repetition.

    Args:
        texts: Each a list of words or token ids. One too short for an n-gram counts for nothing.
        order: n, at least 1.
        average: `"texts"`, the mean of the texts' rep-n, as in the paper and its predecessor (Lan et al. 2023);
            `"corpus"`, the counts of all texts before they are divided, as in Su et al. 2022: a long text weighs more.
    Raises:
        ValueError: If no text has an n-gram, a text is a string, or `order` is below 1.
    Departs: Lan et al.'s program gives a text without an n-gram the repetition 100; we leave it out, as it says nothing
        about repetition. Su et al.'s overlooks the last n-gram of each text; we count it.
    """
    if average not in ("texts", "corpus"):
        raise ValueError(f'average must be "texts" or "corpus", got {average!r}')
    counts = [(len(set(ngrams)), len(ngrams)) for ngrams in _ngrams_of_texts(texts, order) if ngrams]
    if average == "texts":
        return 100 * fmean(1 - distinct / total for distinct, total in counts)
    distinct, total = map(sum, zip(*counts, strict=True))
    return 100 * (1 - distinct / total)


def distinct_ngrams(texts: Sequence[Text], order: int) -> float:
    """Return distinct-n, distinct n-grams / n-grams over all texts together, in (0, 1].

    Unlike 1 - rep-n / 100, it falls when texts are alike, and when there are more of them.

    Raises:
        ValueError: As in `repeated_ngrams`.
    Source: Li et al. 2016.
    """
    ngrams = [ngram for of_text in _ngrams_of_texts(texts, order) for ngram in of_text]
    return len(set(ngrams)) / len(ngrams)


def shorten_to_equal(texts: Sequence[Text], others: Sequence[Text]) -> tuple[list[Text], list[Text]]:
    """Return both lists with each pair cut to the shorter of the two, since repetition and MAUVE depend on length.

    Args:
        texts: Of tokens, without the prefixes.
        others: What they are compared with: as many, such as the true continuations.
    Raises:
        ValueError: If there is not one for each.
    Source: Lan et al. 2023, who cut so before both measures.
    """
    if len(texts) != len(others):
        raise ValueError(f"each text is cut with its partner, got {len(texts)} texts and {len(others)} partners")
    lengths = [min(len(text), len(other)) for text, other in zip(texts, others, strict=True)]
    return (
        [text[:length] for text, length in zip(texts, lengths, strict=True)],
        [other[:length] for other, length in zip(others, lengths, strict=True)],
    )


def _ngrams_of_texts(texts: Sequence[Text], order: int) -> list[list[tuple[Hashable, ...]]]:
    if order < 1:
        raise ValueError(f"an n-gram has at least 1 token, got order={order}")
    if isinstance(texts, str) or any(isinstance(text, str) for text in texts):
        raise ValueError("texts must be lists of words or token ids, got a string; split or tokenize it first")
    found = [list(_ngrams(text, order)) for text in texts]
    if not any(found):
        raise ValueError(
            f"at least one text must have {order} tokens for a {order}-gram, got {len(texts)} texts, the longest of "
            f"{max(map(len, texts), default=0)} tokens; generate more"
        )
    return found


def _ngrams(text: Text, order: int) -> Iterator[tuple[Hashable, ...]]:
    return zip(*(text[start:] for start in range(order)), strict=False)
