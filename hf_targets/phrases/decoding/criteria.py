"""Stopping criteria that see a text with its phrases expanded, and one that counts its tokens."""

# pyright: reportArgumentType=false
# (ids are any integer tensor, and Transformers names them LongTensor)

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

from hf_targets.phrases.decoding.expansion import Expansion

COUNT_STEPS = (EosTokenCriteria, MaxLengthCriteria, MaxTimeCriteria)


class ExpandedCriteria(StoppingCriteria):
    """Asks a criterion made for tokens about a text with phrases.

    Stop strings are looked for after every token of the last phrase: one may end inside it.
    """

    def __init__(self, criterion: StoppingCriteria, expansion: Expansion) -> None:
        self.criterion = criterion
        self.expansion = expansion

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows are done, (rows,) bool."""
        rows = self.expansion.rows(input_ids)
        done = self.criterion(self.expansion.padded(rows, input_ids.device), scores, **kwargs)
        if not isinstance(self.criterion, StopStringCriteria):
            return done
        last = [len(row) for row in self.expansion.rows(input_ids[:, -1:])]
        for fewer in range(1, max(last)):
            cut = [row[: len(row) - fewer] if fewer < count else row for row, count in zip(rows, last, strict=True)]
            done = done | self.criterion(self.expansion.padded(cut, input_ids.device), scores, **kwargs)
        return done


class MaxNewStaticTokens(StoppingCriteria):
    """Ends a row that has so many new tokens, or more, with its phrases expanded.

    Args:
        limit: New tokens.
        prompt_length: Steps of the prompt, padding included.
        expansion: Of the rows.
    """

    def __init__(self, limit: int, prompt_length: int, expansion: Expansion) -> None:
        self.limit = limit
        self.prompt_length = prompt_length
        self.expansion = expansion

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        """Return which rows are done, (rows,) bool."""
        new = self.expansion.rows(input_ids[:, self.prompt_length :])
        return torch.tensor([len(row) >= self.limit for row in new], device=input_ids.device)


class PaddedMaxNewStaticTokens(MaxNewStaticTokens):
    """The same where a padding token is known: rows that are done are filled with it while others go on."""

    eos_token_id = None  # the sign by which `generate` knows that rows end on their own


def phrase_criteria(
    criteria: Sequence[StoppingCriteria],
    expansion: Expansion,
    *,
    static_limit: int | None,
    prompt_length: int,
    pads: bool,
) -> StoppingCriteriaList:
    """Return criteria made for tokens as a list for texts with phrases, and a limit on tokens if there is one."""
    wrapped = [
        criterion if isinstance(criterion, COUNT_STEPS) else ExpandedCriteria(criterion, expansion)
        for criterion in criteria
    ]
    if static_limit is not None:
        kind = PaddedMaxNewStaticTokens if pads else MaxNewStaticTokens
        wrapped.append(kind(static_limit, prompt_length, expansion))
    return StoppingCriteriaList(wrapped)
