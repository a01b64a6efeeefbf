"""What a phrase miner is, what one is made for, and what it finds in a text."""

import re
import unicodedata
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.registry import Registry

_STOP = re.compile(r"""[.!?]+["'\u201d\u2019)\]]*(\s*)|[\u3002\uff01\uff1f]""")  # a match begun never fails
_CITATION = re.compile(r"\[\d+\]?")


class PhraseMiner(Protocol):
    """Whatever finds the phrases of a text."""

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the tokens [start, end) of each candidate: (phrases, 2) integers, sorted, distinct, 2 tokens or more.

        Candidates may overlap, and none holds a special token.
        """
        ...


MINERS: Registry[Any] = Registry("phrase miner", reserved=("none",))
"""Miners by the name that recipes take; `MINERS.register("mine", Mine)` adds one.

A class has `spans`, as a `PhraseMiner`, and a class method `for_task(task)` that makes a miner for a `MiningTask`."""


def check_miner(miner: Any) -> None:
    """Raise a ValueError if an object is no miner, such as the name of one."""
    if isinstance(miner, type) or not hasattr(miner, "spans"):
        raise ValueError(f"a miner must be an object such as WordNgrams(), got {miner!r:.60}; MINERS has those by name")


@dataclass(frozen=True)
class MiningTask:
    """Texts whose phrases are wanted, and the settings of a miner, of which each kind takes what it needs.

    Attributes:
        rows: Gives the token ids of each training text, lists or arrays; called only by kinds that look through them.
        max_tokens: Of a phrase, at most.
        min_count: How often a phrase must stand in the texts.
        excluded_ids: Tokens that no phrase has.
        parser: Folder of the models of a stanza pipeline.
    """

    rows: Callable[[], Sequence[Any]]
    max_tokens: int = 8
    min_count: int = 10
    excluded_ids: Collection[int] = ()
    parser: str | None = None


@dataclass(frozen=True, eq=False)
class MinedText:
    """The tokens of a text and the phrases in it.

    Attributes:
        ids: The tokens.
        spans: (phrases, 4): the tokens [first, stop) of a phrase, and its characters [start, end) without leading white
            space.
    """

    ids: tuple[int, ...]
    spans: np.ndarray

    @classmethod
    def of(cls, document: str, tokenizer: PreTrainedTokenizerBase, miner: PhraseMiner) -> "MinedText":
        """Return what a miner finds in a document."""
        check_miner(miner)
        text = TokenizedText.from_text(document, tokenizer)
        tokens = np.asarray(miner.spans(text), np.int64).reshape(-1, 2)
        starts, ends = text.offsets[tokens[:, 0], 0], text.offsets[tokens[:, 1] - 1, 1]
        phrases = (document[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True))
        spaces = np.array([len(phrase) - len(phrase.lstrip()) for phrase in phrases], np.int64)
        return cls(tuple(text.ids), np.column_stack([tokens, starts + spaces, ends]))


def sentence_ends(text: str) -> list[int]:
    """Return the index of the first stop of each end of a sentence, in time linear in the text.

    An end of a sentence is ".", "!" or "?", with quotes and brackets that close, before white space and no small
    letter, or at a line end; or such a stop of Chinese and Japanese. Abbreviations are not told from ends.

    >>> sentence_ends("e.g. cats. Dr. Who?")
    [9, 13, 18]
    """
    ends = []
    for found in _STOP.finditer(text):
        space, after = found[1], text[found.end() : found.end() + 1]
        if space is None or not after or "\n" in space or (space and not "a" <= after <= "z"):
            ends.append(found.start())
    return ends


class MarkablePhrases:
    """What another miner finds, without phrases after which a marker such as "[1]" would stand wrongly.

    Left out are phrases with the end of a sentence in them or at their end, whose marker would count for the next
    sentence (`sentence_ends`: "Dr. Who" is left out, and "e.g. cats" is not), and phrases that end inside a word.
    Chinese, Japanese and Korean characters are words of their own. Phrases whose first or last character is only partly
    theirs are left out too, and those with a part of a "[2]" of the text itself, which would cite another document.

    >>> from hf_targets.phrases.mining.ngrams import TokenNgrams
    >>> text = TokenizedText("a bc. D", [0, 1, 2, 3], np.array([[0, 1], [1, 3], [3, 4], [4, 7]]))
    >>> MarkablePhrases(TokenNgrams()).spans(text).tolist(), TokenNgrams(2, 2).spans(text).tolist()
    ([[0, 3], [1, 3]], [[0, 2], [1, 3], [2, 4]])
    """

    def __init__(self, miner: PhraseMiner) -> None:
        check_miner(miner)
        self.miner = miner

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the miner's spans that are left, (phrases, 2)."""
        spans = np.asarray(self.miner.spans(text), np.int64).reshape(-1, 2)
        stops = np.array(sentence_ends(text.text), np.int64)
        starts, ends = text.offsets[spans[:, 0], 0], text.offsets[spans[:, 1] - 1, 1]
        before, after = np.searchsorted(stops, starts), np.searchsorted(stops, ends)
        parted = np.array([False, *self._parted(text), False])
        in_words = np.array([is_in_a_word(text.text, end) for end in text.offsets[:, 1].tolist()], bool)
        cites = np.array([found.span() for found in _CITATION.finditer(text.text)], np.int64).reshape(-1, 2)
        keep = (before == after) & ~parted[spans[:, 0]] & ~parted[spans[:, 1]]
        keep &= np.searchsorted(cites[:, 1], starts, side="right") == np.searchsorted(cites[:, 0], ends)
        return spans[keep & ~in_words[spans[:, 1] - 1]] if len(spans) else spans

    @staticmethod
    def _parted(text: TokenizedText) -> list[bool]:
        """Return for each token but the first whether it begins inside a character, one of several bytes."""
        begins, ends = text.offsets[1:, 0].tolist(), text.offsets[:-1, 1].tolist()
        return [begin < end and not text.text[begin].isascii() for begin, end in zip(begins, ends, strict=True)]


def is_in_a_word(text: str, end: int) -> bool:
    """Return whether a word goes on at a position."""
    pair = text[end - 1 : end + 1]
    return len(pair) == 2 and pair.isalnum() and unicodedata.east_asian_width(pair[0]) not in "WF"
