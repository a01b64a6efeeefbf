"""The phrases of one call of `generate`, from its first step to its last."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.schedule import PhraseCount
from hf_targets.phrases.decoding.table import PhraseSearch, PhraseTable, vocabularies_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class PhraseGenerationState:
    """The phrase table of each step of `generate`: one for all steps, or one that grows with a schedule.

    Args:
        make_table: Makes a table from vocabularies and the number of available slots of each; None: all.
        phrases: The argument `phrases` of `generate`.
        schedule: Gives the number of available phrases after a number of tokens. If several rows or beams share a
            vocabulary, the tokens of the longest one count.
        index: Finds the best phrases of a step.
        num_neighbours: The number of phrases that the index returns.
        static_limit: The number of new tokens at which a row ends.
    Raises:
        ValueError: If the schedule is not a function, or is given together with a table or an index, or if an argument
            of the table is invalid.
    Attributes:
        prompt_length: Steps of the prompt (tokens and phrases); 0 until `generate` has prepared the prompt.
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
                "phrase_schedule adds phrases step by step, but a table or an index has all of them at once; "
                "leave out phrase_schedule, or give vocabularies without phrase_index"
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
        """The vocabularies: one for all rows, or one for each row."""
        return self._table.vocabularies

    @property
    def vocab_size(self) -> int:
        """V, the id of the first phrase."""
        return self._table.vocab_size

    def check_rows(self, batch_size: int) -> None:
        """Check that the number of rows fits the number of vocabularies.

        Raises:
            ValueError: If the number of rows is not a multiple of the number of vocabularies.
        """
        self._table.check_batch(batch_size)

    def _counts_now(self) -> list[int]:
        assert self._schedule is not None
        counts = []
        for num_tokens, vocabulary in zip(self._num_tokens, self._vocabularies, strict=True):
            count = self._schedule(num_tokens, vocabulary.num_ids)
            if not isinstance(count, int) or not 0 <= count <= vocabulary.num_ids:
                raise ValueError(
                    f"phrase_schedule must return a number of phrases in [0, {vocabulary.num_ids}], got {count} after "
                    f"{num_tokens} tokens"
                )
            counts.append(count)
        return counts

    def table_at(self, input_ids: Tensor) -> PhraseTable:
        """Return the table for the step after `input_ids` (rows, time), which include the prompt."""
        if self._schedule is not None:
            expansion = Expansion(self._vocabularies)
            for number, row in enumerate(expansion.rows(input_ids[:, self.prompt_length :])):
                index = expansion.vocabulary(number, len(input_ids))
                self._num_tokens[index] = max(self._num_tokens[index], len(row))
            counts = self._counts_now()
            if counts != self._counts:
                self._table, self._counts = self._make_table(self._vocabularies, counts=counts), counts
        return self._table
