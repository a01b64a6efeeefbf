"""The phrases of a call: their embeddings, which of them each row has, and their tokens."""

import copy
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from hf_targets.maths.dynamic_losses import phrase_logits, with_ones
from hf_targets.phrases.decoding.schedule import PhraseFeed
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.vector_search import VectorSearch


class PhraseTable:
    """The phrases of a call, with their embeddings: an argument of the call, never a part of the model.

    With R vocabularies and a batch of R x k rows (beams, or several returned sequences), rows 0 to k - 1 have the first
    vocabulary.

    Args:
        vocabularies: One for all rows, or one a row; ids above V are their slots.
        inputs: (phrases, d), embeddings for the model's input, of every phrase of every vocabulary once.
        outputs: (phrases, d), for its output, or (phrases, d + 1) with a bias of each phrase in the last column.
        slots: (R, P), which of these embeddings each slot of each vocabulary has; P is the longest vocabulary's.
        exists: (R, P) bool, false at removed phrases and beyond the end of a shorter vocabulary.
    """

    def __init__(
        self,
        vocabularies: Sequence[PhraseVocabulary],
        inputs: Tensor,
        outputs: Tensor,
        slots: Tensor,
        exists: Tensor,
    ) -> None:
        self.vocabularies = tuple(vocabularies)
        self.vocab_size = self.vocabularies[0].vocab_size
        self.inputs, self.outputs, self.slots, self.exists = inputs, outputs, slots, exists
        self._index: VectorSearch | None = None
        self._num_neighbours = 0
        self._prior: Tensor | None = None  # (R, P), added to the logits
        self._were_alive = [vocabulary.arrays()[2] for vocabulary in self.vocabularies]

    @property
    def num_slots(self) -> int:
        """How many ids above V there are: P."""
        return self.slots.shape[1]

    @cached_property
    def output_rows(self) -> Tensor:
        """Output embeddings by slot: (P, d) for one vocabulary, else (R, P, d); anything at removed phrases."""
        slots = self.slots[0] if len(self.slots) == 1 else self.slots
        in_order = slots.ndim == 1 and len(slots) == len(self.outputs)
        if in_order and torch.equal(slots, torch.arange(len(slots), device=slots.device)):
            return self.outputs
        return self.outputs[slots.to(self.outputs.device)]

    @cached_property
    def _all_exist(self) -> bool:
        return bool(self.exists.all())

    def rows_of_batch(self, batch_size: int, time: int) -> tuple[Tensor, Tensor | None]:
        """Return the output embeddings, (P, d) or (batch, P, d), and which are missing, (batch, time, P) or None."""
        rows = self.output_rows if self.output_rows.ndim == 2 else self._per_row(self.output_rows, batch_size)
        if self._all_exist:
            return rows, None
        return rows, ~self._per_row(self.exists, batch_size)[:, None].expand(-1, time, -1)

    def searched(self, index: VectorSearch, num_neighbours: int) -> "PhraseTable":
        """Return the same table, whose logits are those of the best `num_neighbours` phrases that an index finds."""
        if len(self.vocabularies) > 1:
            raise ValueError(f"an index is over one vocabulary for all rows, got {len(self.vocabularies)}")
        if len(index) != self.num_slots:
            raise ValueError(
                f"an index must have an embedding for each of the vocabulary's {self.num_slots} ids, got {len(index)}; "
                "build it anew with index_phrases"
            )
        if index.metric != "inner_product":
            raise ValueError(f"an index of phrases must be by inner products, got one by {index.metric}")
        if num_neighbours < 1:
            raise ValueError(f"num_neighbours must be 1 or more, got {num_neighbours}")
        table = copy.copy(self)
        table._index, table._num_neighbours = index, num_neighbours
        return table

    def with_prior(self, bias: float, length_correction: float) -> "PhraseTable":
        """Return the same table, with a bias added to each phrase's logit, and a correction for each token but one."""
        if not bias and not length_correction:
            return self
        prior = torch.zeros(self.slots.shape)
        for row, vocabulary in zip(prior, self.vocabularies, strict=True):
            lengths = torch.from_numpy(np.diff(vocabulary.arrays()[1]))[: len(row)]
            row[: len(lengths)] = bias + length_correction * (lengths - 1)
        table = copy.copy(self)
        table._prior = prior.to(self.slots.device)
        return table

    def check_current(self, width: int) -> None:
        """Check that the embeddings have this width, and that no phrase was removed since the table was made.

        Those added since are not in it.
        """
        if self.inputs.shape[1] != width:
            raise ValueError(
                f"a table of phrases has embeddings of {self.inputs.shape[1]} numbers, and the model of {width}; make "
                "it with this model: phrase_table"
            )
        for vocabulary, then in zip(self.vocabularies, self._were_alive, strict=True):
            now = vocabulary.arrays()[2][: len(then)]
            if not np.array_equal(now, then):
                raise ValueError("the vocabulary has changed since the table was made; make it anew with phrase_table")

    def check_batch(self, batch_size: int, *, expanded: bool = False) -> None:
        """Check that there is one vocabulary, or one for each row; with `expanded`, for each group of k rows."""
        count = len(self.vocabularies)
        if count > 1 and (batch_size % count if expanded else batch_size != count):
            raise ValueError(
                f"phrases must be one vocabulary, or one for each row, got {count} for a batch of {batch_size}"
            )

    def check_ids(self, ids: Tensor, name: str, ignored: int | None = None) -> None:
        """Check that each id of (batch, time) is a token or a phrase that its row has."""
        wrong = self.missing(ids) & (ids != ignored if ignored is not None else True)
        if wrong.any():
            row, position = (int(part) for part in wrong.nonzero()[0])
            raise ValueError(
                f"{name} must be tokens in [0, {self.vocab_size - 1}] or phrases of the row's vocabulary, got "
                f"{ids[row, position].item()} in row {row}"
            )

    def missing(self, ids: Tensor) -> Tensor:
        """Return which ids of (batch, time) are neither a token nor a phrase that their row has, bool."""
        missing = (ids < 0) | (ids >= self.vocab_size + self.num_slots)
        if not self.num_slots or self._all_exist:
            return missing
        slots = (ids - self.vocab_size).clamp(min=0, max=self.num_slots - 1)
        return missing | ((ids >= self.vocab_size) & ~self._per_row(self.exists, len(ids)).gather(1, slots))

    def _per_row(self, by_vocabulary: Tensor, batch_size: int) -> Tensor:
        if len(by_vocabulary) == 1:
            return by_vocabulary.expand(batch_size, *by_vocabulary.shape[1:])
        return by_vocabulary.repeat_interleave(batch_size // len(by_vocabulary), dim=0)

    def embed(self, ids: Tensor, tokens: Tensor) -> Tensor:
        """Return the embeddings of ids (batch, time), given those of its tokens (batch, time, d)."""
        if not self.num_slots:
            return tokens
        is_phrase = ids >= self.vocab_size
        slots = (ids - self.vocab_size).clamp(min=0, max=self.num_slots - 1)
        chosen = self._per_row(self.slots, len(ids)).gather(1, slots)
        embedded = F.embedding(chosen.to(self.inputs.device), self.inputs)  # a datastore's stay in a file
        return torch.where(is_phrase[..., None], embedded.to(tokens), tokens)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the phrases' logits (batch, time, P) at hidden states (batch, time, d); -inf where a row has none."""
        if self._index is not None:
            logits = self._searched_logits(hidden)
        elif self.output_rows.ndim == 2:
            logits = phrase_logits(hidden, self.output_rows)
        else:
            grouped = hidden.reshape(len(self.output_rows), -1, hidden.shape[-1])
            logits = phrase_logits(grouped, self.output_rows).reshape(*hidden.shape[:2], -1)
        if self._prior is not None:
            logits = logits + self._per_row(self._prior, len(hidden))[:, None].to(logits.dtype)
        if self._all_exist:
            return logits
        return logits.masked_fill(~self._per_row(self.exists, len(hidden))[:, None], -torch.inf)

    def _searched_logits(self, hidden: Tensor) -> Tensor:
        assert self._index is not None
        queries = with_ones(hidden.reshape(-1, hidden.shape[-1]), self.output_rows)
        slots = self._index.search(queries, self._num_neighbours)[1]
        found = self.output_rows[slots.clamp(min=0).to(self.output_rows.device)]
        scores = torch.einsum("qd,qkd->qk", queries, found.to(queries))
        logits = hidden.new_full((len(slots), self.num_slots), -torch.inf)
        # a slot of -1 is written to the position of the first found, with its score
        first, best = slots[:, :1].clamp(min=0), scores[:, :1]
        found = slots >= 0
        logits.scatter_(1, torch.where(found, slots, first), torch.where(found, scores, best).to(logits.dtype))
        return logits.reshape(*hidden.shape[:2], -1)


def vocabularies_of(phrases: Any) -> list[PhraseVocabulary]:
    """Return what is one vocabulary, several, a feed or a table, as a list of vocabularies."""
    phrases = phrases.vocabularies if isinstance(phrases, PhraseTable) else phrases
    phrases = phrases.vocabulary if isinstance(phrases, PhraseFeed) else phrases
    is_one = isinstance(phrases, PhraseVocabulary) or not isinstance(phrases, Iterable)
    vocabularies: list[Any] = [phrases] if is_one else list(phrases)
    if not vocabularies or not all(isinstance(vocabulary, PhraseVocabulary) for vocabulary in vocabularies):
        kinds = ", ".join(type(vocabulary).__name__ for vocabulary in vocabularies) or "none"
        raise ValueError(f"phrases must be a PhraseVocabulary, or one for each row, got {kinds}")
    return vocabularies
