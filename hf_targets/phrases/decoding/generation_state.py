"""The phrases of one call of `generate`, from its first step to its last."""

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.schedule import PhraseCount, PhraseFeed, checked_count
from hf_targets.phrases.decoding.table import PhraseSearch, PhraseTable, vocabularies_of
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary


class PhraseGenerationState:
    """The phrase table of each step of `generate`: one for all steps, or one that grows by a schedule or a feed.

    Args:
        make_table: Makes a table from vocabularies and the number of available slots of each (None: all).
        phrases: The argument `phrases` of `generate`.
        schedule: Gives the number of available phrases after a number of tokens. If several rows or beams share a
            vocabulary, the tokens of the longest one count.
        index: Finds the best phrases of a step.
        num_neighbours: The number of phrases that the index returns.
        static_limit: The number of new tokens at which a row ends.
    Raises:
        ValueError: If a schedule is given together with a table or an index, or an argument of the table is invalid.
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
        if isinstance(phrases, PhraseFeed) and schedule is None:
            phrases, schedule = phrases.vocabulary, phrases.schedule()
        if schedule is not None and (isinstance(phrases, PhraseTable | PhraseFeed) or index is not None):
            raise ValueError(
                "phrase_schedule and a PhraseFeed add phrases step by step, and a table or an index has all of them at "
                "once; give one of these"
            )
        self.static_limit, self.prompt_length = static_limit, 0
        self._make_table, self._schedule = make_table, schedule
        self._growing: list[PhraseVocabulary] = [] if schedule is None else vocabularies_of(phrases)
        self._num_tokens = [0] * len(self._growing)
        self._counts: list[int] | None = None
        if schedule is None:
            self._table: PhraseTable = make_table(phrases)
        else:
            self._grow()
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
        """Check that the number of rows is a multiple of the number of vocabularies."""
        self._table.check_batch(batch_size)

    def table_at(self, input_ids: Tensor) -> PhraseTable:
        """Return the table for the step after `input_ids` (rows, time), which include the prompt."""
        if self._growing:
            expansion = Expansion(self.vocabularies)
            for number, row in enumerate(expansion.rows(input_ids[:, self.prompt_length :])):
                index = expansion.vocabulary(number, len(input_ids))
                self._num_tokens[index] = max(self._num_tokens[index], len(row))
            self._grow()
        return self._table

    def _grow(self) -> None:
        """Make a new table if the schedule makes more phrases available than before."""
        assert self._schedule is not None
        pairs = zip(self._num_tokens, self._growing, strict=True)
        counts = [checked_count(self._schedule, number, one.num_ids) for number, one in pairs]
        if counts != self._counts:
            self._table, self._counts = self._make_table(self._growing, counts=counts), counts
