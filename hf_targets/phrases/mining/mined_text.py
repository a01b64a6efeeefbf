"""The phrases that a miner finds in texts, in this process or in several."""

from collections.abc import Collection, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.miner import PhraseMiner
from hf_targets.phrases.mining.tokenized_text import TokenizedText

_CHUNKS = 8  # for each process, so that none waits long for the last


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
    Raises:
        ValueError: If `num_proc` is not a positive integer, or the tokenizer is not a fast one.
    """
    if num_proc is not None and (type(num_proc) is not int or num_proc < 1):
        raise ValueError(f"num_proc must be a positive integer, or None for this process alone, got {num_proc!r}")
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
