"""Expansion of phrases into tokens, for processors, criteria and streamers that read tokens."""

from collections.abc import Sequence

import torch
from torch import Tensor

from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class Expansion:
    """The expansion of the rows of a batch, each by its own vocabulary.

    Args:
        vocabularies: One for all rows, or one for each row of the prompt. The beams of a row follow each other and
            share its vocabulary.
        pad_id: The token with which `padded` pads rows on the left.
    """

    def __init__(self, vocabularies: Sequence[PhraseVocabulary], pad_id: int = 0) -> None:
        self.vocabularies = tuple(vocabularies)
        self.pad_id = pad_id

    def vocabulary(self, row: int, num_rows: int) -> int:
        """Return the index of the vocabulary of row `row` in a batch of `num_rows` rows."""
        return row * len(self.vocabularies) // num_rows

    def rows(self, ids: Tensor) -> list[list[int]]:
        """Return the tokens of each row of ids (rows, time).

        A phrase id that is not in the row's vocabulary expands to no tokens: beam search also passes continuations of
        probability 0.
        """
        return [self._expand(row, number, len(ids)) for number, row in enumerate(ids.tolist())]

    def row(self, ids: Tensor, number: int) -> list[int]:
        """Return the tokens of row `number` of ids (rows, time)."""
        return self._expand(ids[number].tolist(), number, len(ids))

    def _expand(self, row: list[int], number: int, num_rows: int) -> list[int]:
        vocabulary = self.vocabularies[self.vocabulary(number, num_rows)]
        return vocabulary.expand([id_ for id_ in row if id_ < vocabulary.vocab_size or id_ in vocabulary])

    def padded(self, rows: list[list[int]], device: torch.device) -> Tensor:
        """Return rows of tokens as one tensor (rows, longest), padded on the left."""
        longest = max(map(len, rows))
        padded = [[self.pad_id] * (longest - len(row)) + row for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=device)
