"""What a phrase miner is, what one is made for, and what it finds in texts, in this process or in several."""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.tokenized_text import TokenizedText

_CHUNKS = 8  # for each process, so that none waits long for the last


class PhraseMiner(Protocol):
    """Whatever finds the phrases of a text."""

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the tokens [start, end) of each candidate: (phrases, 2) integers, sorted, distinct, 2 tokens or more.

        Candidates may overlap, and none holds a special token.
        """
        ...


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
        text = TokenizedText.from_text(document, tokenizer)
        tokens = np.asarray(miner.spans(text), np.int64).reshape(-1, 2)
        begins = np.array([_next_character(document, start) for start in text.offsets[:, 0].tolist()], np.int64)
        ends = text.offsets[tokens[:, 1] - 1, 1]
        starts = np.minimum(begins[tokens[:, 0]], ends)
        return cls(tuple(text.ids), np.column_stack([tokens, starts, ends]))


def mined_texts(
    documents: Collection[str], tokenizer: PreTrainedTokenizerBase, miner: PhraseMiner, num_proc: int | None = None
) -> Iterator[MinedText]:
    """Yield what a miner finds in each document, in their order.

    Args:
        num_proc: The number of processes; None: this process.
    """
    find = partial(MinedText.of, tokenizer=tokenizer, miner=miner)
    if num_proc is None or not documents:
        yield from map(find, documents)
        return
    with ProcessPoolExecutor(min(num_proc, len(documents))) as processes:
        yield from processes.map(find, documents, chunksize=-(-len(documents) // (num_proc * _CHUNKS)))


def _next_character(document: str, start: int) -> int:
    """Return the index of the first character from `start` on that is not white space."""
    while start < len(document) and document[start].isspace():
        start += 1
    return start
