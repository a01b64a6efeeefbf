"""The phrases of one call of `generate`, from its first step to its last."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.schedule import PhraseCount
from hf_targets.phrases.decoding.table import PhraseSearch, PhraseTable, vocabularies_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class PhraseGenerationState:
    """Gives each step of `generate` its table: the same for all, or one that grows with a schedule.

    Args:
        make_table: Makes a table of vocabularies, given how many slots of each are there; None is all.
        phrases: As `generate` was given them.
        schedule: How many phrases are there after so many tokens: those of the longest row or beam so far, where
            several share a vocabulary.
        index: Finds the best phrases of a step.
        num_neighbours: How many it is asked for.
        static_limit: New tokens at which a row ends.
    Raises:
        ValueError: If these do not go together.
    Attributes:
        prompt_length: Steps of the prompt; known when the first step is taken.
    """

    def __init__(
        self,
        make_table: Callable[..., PhraseTable],
        phrases: Any,
        *,
        schedule: PhraseCount | None = None,
        index: PhraseSearch | None = None,
        num_neighbours: int = 64,
        static_limit: int | None = None,
    ) -> None:
        if schedule is not None and not callable(schedule):
            raise ValueError(
                "phrase_schedule must be a function of the tokens so far and the number of phrases, such as "
                f"PhraseSchedule(), got {schedule!r}"
            )
        if schedule is not None and (isinstance(phrases, PhraseTable) or index is not None):
            raise ValueError(
                "a schedule embeds phrases when they come, and a table or an index has them all; leave out one of them"
            )
        self._make_table, self._schedule = make_table, schedule
        self.static_limit, self.prompt_length = static_limit, 0
        if schedule is None:
            self._table = make_table(phrases)
        else:
            self._vocabularies = vocabularies_of(phrases)
            self._num_tokens = [0] * len(self._vocabularies)
            self._counts = self._counts_now()
            self._table = make_table(self._vocabularies, counts=self._counts)
        if index is not None:
            self._table = self._table.searched(index, num_neighbours)

    @property
    def vocabularies(self) -> Sequence[PhraseVocabulary]:
        """One for all rows, or one for each."""
        return self._table.vocabularies

    @property
    def vocab_size(self) -> int:
        """V, the first phrase's id."""
        return self._table.vocab_size

    def check_rows(self, batch_size: int) -> None:
        """Check that the rows can be shared out among the vocabularies; a ValueError says so if not."""
        self._table.check_batch(batch_size)

    def _counts_now(self) -> list[int]:
        assert self._schedule is not None
        counts = []
        for num_tokens, vocabulary in zip(self._num_tokens, self._vocabularies, strict=True):
            count = self._schedule(num_tokens, vocabulary.num_ids)
            if not isinstance(count, int) or not 0 <= count <= vocabulary.num_ids:
                raise ValueError(
                    f"a schedule must give a number of phrases in [0, {vocabulary.num_ids}], got {count} after "
                    f"{num_tokens} tokens"
                )
            counts.append(count)
        return counts

    def table_at(self, input_ids: Tensor) -> PhraseTable:
        """Return the table for the step after `input_ids` (rows, time), prompt included."""
        if self._schedule is not None:
            expansion = Expansion(self._vocabularies)
            for number, row in enumerate(expansion.rows(input_ids[:, self.prompt_length :])):
                index = expansion.vocabulary(number, len(input_ids))
                self._num_tokens[index] = max(self._num_tokens[index], len(row))
            counts = self._counts_now()
            if counts != self._counts:
                self._table, self._counts = self._make_table(self._vocabularies, counts=counts), counts
        return self._table
