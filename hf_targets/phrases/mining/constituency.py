"""Phrases in the grammatical sense: constituents of parsed sentences."""

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np

from hf_targets.extras import require
from hf_targets.phrases.mining.miner import MINERS, MiningTask
from hf_targets.phrases.mining.tokenized_text import TokenizedText

LABELS = ("NP", "VP", "PP")
"""Noun, verb and prepositional phrases: the constituents of the paper, section 3.5."""


def constituent_spans(text: TokenizedText, found: Sequence[tuple[int, int]], max_tokens: int | None) -> np.ndarray:
    """Return constituents as spans of tokens, (phrases, 2): sorted, distinct, without special tokens.

    Left out are those across a line end, those whose ends no tokens agree with, and those that do not have 2 to
    `max_tokens` tokens.

    Args:
        found: Characters [start, end) of each, without white space at either end.
        max_tokens: None: any number.
    """
    on_a_line = [(start, end) for start, end in found if len(text.text[start:end].splitlines()) == 1]
    starts, ends = text.token_edges(np.array(on_a_line, np.int64).reshape(-1, 2))
    lengths = np.where((starts >= 0) & (ends >= 0), ends - starts, 0)
    keep = (lengths >= 2) & (lengths <= (max_tokens or len(text)))
    return text.without_special(np.unique(np.stack([starts[keep], ends[keep]], axis=1), axis=0))


class ConstituencyPhrases:
    """The noun, verb and prepositional phrases of a text, as a stanza pipeline parses it ("parsing").

    Constituents are cut where tokens and words agree, as by `WordNgrams`; nested ones are all given, and those across
    a line end none.

    Args:
        pipeline: A `stanza.Pipeline` with the processor `constituency`, or the folder of models of an English one, as
            `stanza.download("en", model_dir=folder, processors="tokenize,pos,constituency")` writes it.
        labels: Labels of the constituents to keep.
        max_tokens: The longest to keep; None keeps whole clauses too.

    Source: Liu et al. 2024, section 3.5.
    """

    def __init__(
        self,
        pipeline: Callable[[str], Any] | str | os.PathLike[str],
        labels: Collection[str] = LABELS,
        max_tokens: int | None = None,
    ) -> None:
        self.labels, self.max_tokens = frozenset(labels), max_tokens
        if isinstance(pipeline, str | os.PathLike):
            make, kinds = require("stanza", extra="phrases").Pipeline, "tokenize,pos,constituency"
            pipeline = make("en", dir=os.fspath(pipeline), processors=kinds, download_method=None, verbose=False)
        self._pipeline: Any = pipeline

    @classmethod
    def for_task(cls, task: MiningTask) -> "ConstituencyPhrases":
        """Return the constituents that a parser finds."""
        if task.parser is None:
            raise ValueError("phrases of parsed sentences take a parser; give the folder of a stanza pipeline's models")
        return cls(task.parser, max_tokens=task.max_tokens)

    def spans(self, text: TokenizedText) -> np.ndarray:
        """Return the constituents of 2 to `max_tokens` tokens, (phrases, 2), sorted, distinct, without special ones."""
        found = []
        for sentence in self._pipeline(text.text).sentences:
            characters = list(_characters(sentence))
            for label, first, end in _constituents(sentence):
                start, stop = characters[first][0], characters[end - 1][1]
                if label in self.labels and start is not None and stop is not None:
                    found.append((start, stop))
        return constituent_spans(text, found, self.max_tokens)


def _constituents(sentence: Any) -> Iterator[tuple[str, int, int]]:
    """Yield the label of each constituent and its words [first, end)."""
    tree = getattr(sentence, "constituency", None)  # which a sentence has once it is parsed
    if tree is None:
        raise ValueError(
            "the pipeline does not parse; make it with stanza.Pipeline('en', processors='tokenize,pos,constituency')"
        )
    pending, word = [tree], 0
    while pending:
        node = pending.pop()
        if isinstance(node, tuple):
            yield *node, word
        elif not node.children:
            word += 1
        else:
            pending += [(node.label, word), *reversed(node.children)]


def _characters(sentence: Any) -> Iterator[tuple[int | None, int | None]]:
    """Yield the characters [start, end) of each word: of those written as one, the first start and the last end."""
    for token in sentence.tokens:
        for index, word in enumerate(token.words, start=1):
            start = token.start_char if index == 1 else word.start_char
            yield start, token.end_char if index == len(token.words) else word.end_char


MINERS.register("parsing", ConstituencyPhrases)
