"""Phrases expanded into tokens, for what reads tokens: streamers, stopping criteria and a limit on new tokens."""

# pyright: reportArgumentType=false
# (ids are any integer tensor, but Transformers annotates LongTensor)

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StopStringCriteria,
)
from transformers.generation.streamers import BaseStreamer

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
        return [self.row(ids, number) for number in range(len(ids))]

    def row(self, ids: Tensor, number: int) -> list[int]:
        """Return the tokens of row `number` of ids (rows, time)."""
        vocabulary = self.vocabularies[self.vocabulary(number, len(ids))]
        ids_of_row = ids[number].tolist()
        return vocabulary.expand([id_ for id_ in ids_of_row if id_ < vocabulary.vocab_size or id_ in vocabulary])

    def padded(self, rows: list[list[int]], device: torch.device) -> Tensor:
        """Return rows of tokens as one tensor (rows, longest), padded on the left."""
        longest = max(map(len, rows))
        padded = [[self.pad_id] * (longest - len(row)) + row for row in rows]
        return torch.tensor(padded, dtype=torch.long, device=device)


class PhraseStreamer(BaseStreamer):
    """A streamer that expands phrases into tokens, for a streamer made for tokens."""

    def __init__(self, streamer: BaseStreamer, expansion: Expansion) -> None:
        self.streamer = streamer
        self.expansion = expansion

    def put(self, value: Tensor) -> None:
        """Pass on ids: (rows, time), or (rows,) for one step."""
        rows = value if value.ndim == 2 else value[:, None]
        if len(rows) > 1:
            self.streamer.put(value)  # the streamer itself raises on several rows, or handles them
            return
        tokens = torch.tensor(self.expansion.rows(rows), dtype=torch.long)
        self.streamer.put(tokens if value.ndim == 2 else tokens[0])

    def end(self) -> None:
        """Tell the other streamer that the text has ended."""
        self.streamer.end()


class ExpandedCriteria(StoppingCriteria):
    """A criterion made for tokens, applied to a text with its phrases expanded.

    A stop string may end inside the last phrase, so stop strings are searched for after each token of that phrase.
    """

    def __init__(self, criterion: StoppingCriteria, expansion: Expansion) -> None:
        self.criterion = criterion
        self.expansion = expansion

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return whether each row is done, (rows,) bool."""
        rows = self.expansion.rows(input_ids)
        done = self.criterion(self.expansion.padded(rows, input_ids.device), scores, **kwargs)
        if not isinstance(self.criterion, StopStringCriteria):
            return done
        last = [len(row) for row in self.expansion.rows(input_ids[:, -1:])]
        for fewer in range(1, max(last)):
            cut = [row[: len(row) - fewer] if fewer < count else row for row, count in zip(rows, last, strict=True)]
            done = done | self.criterion(self.expansion.padded(cut, input_ids.device), scores, **kwargs)
        return done


class PhraseEnd(EosTokenCriteria):
    """A criterion that ends a row with an end token, also with one inside its last phrase."""

    def __init__(self, criterion: EosTokenCriteria, expansion: Expansion) -> None:
        self.eos_token_id, self.expansion = criterion.eos_token_id, expansion
        self._ends = set(criterion.eos_token_id.tolist())

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return whether each row is done, (rows,) bool."""
        last = self.expansion.rows(input_ids[:, -1:])
        return torch.tensor([not self._ends.isdisjoint(row) for row in last], device=input_ids.device)


class MaxNewStaticTokens(StoppingCriteria):
    """A criterion that ends a row with `limit` new tokens or more, counted with phrases expanded.

    Args:
        prompt_length: The number of steps of the prompt (tokens and phrases), padding included.
        pads: Whether rows that are done are padded while others go on, which takes a padding token.
    """

    def __init__(self, limit: int, prompt_length: int, expansion: Expansion, *, pads: bool) -> None:
        self.limit, self.prompt_length, self.expansion = limit, prompt_length, expansion
        if pads:
            self.eos_token_id = None  # `generate` pads finished rows if a criterion has this attribute

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return whether each row is done, (rows,) bool."""
        new = self.expansion.rows(input_ids[:, self.prompt_length :])
        return torch.tensor([len(row) >= self.limit for row in new], device=input_ids.device)


def phrase_criteria(
    criteria: Sequence[StoppingCriteria],
    expansion: Expansion,
    *,
    static_limit: int | None,
    prompt_length: int,
    pads: bool,
) -> StoppingCriteriaList:
    """Return criteria for texts with phrases, given criteria made for tokens.

    Args:
        static_limit: The number of new tokens at which a row ends; None: no such limit.
        prompt_length: Steps of the prompt, padding included.
        pads: Whether there is a padding token.
    """
    wrapped: list[StoppingCriteria] = []
    for criterion in criteria:
        if isinstance(criterion, EosTokenCriteria):
            wrapped.append(PhraseEnd(criterion, expansion))
        else:
            counts_steps = isinstance(criterion, MaxLengthCriteria | MaxTimeCriteria)
            wrapped.append(criterion if counts_steps else ExpandedCriteria(criterion, expansion))
    if static_limit is not None:
        wrapped.append(MaxNewStaticTokens(static_limit, prompt_length, expansion, pads=pads))
    return StoppingCriteriaList(wrapped)
