"""What a phrase miner is, and what one is made for."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hf_targets.phrases.mining.tokenized_text import TokenizedText


class PhraseMiner(Protocol):
    """Whatever finds the phrases of a text."""

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the tokens [start, end) of each candidate: (phrases, 2) integers, sorted, distinct, 2 tokens or more.

        Candidates may overlap, and none holds a special token.
        """
        ...


@dataclass(frozen=True)
class MiningTask:
    """Texts whose phrases are wanted, and the settings of a recipe; a kind of miner takes of it what it needs.

    Attributes:
        rows: Gives the token ids of each training text, lists or arrays; called only by a kind that looks through them
        first.
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
