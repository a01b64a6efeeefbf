"""Logits processors over tokens and phrases: what they read is expanded, and what they forbid binds phrases too."""

# pyright: reportArgumentType=false
# (ids are any integer tensor, and Transformers names them LongTensor)

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers.generation import logits_process as theirs
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.matching import PhraseLookup

READ_NO_WORDS = (
    theirs.TemperatureLogitsWarper,
    theirs.TopKLogitsWarper,
    theirs.TopPLogitsWarper,
    theirs.TopHLogitsWarper,
    theirs.MinPLogitsWarper,
    theirs.TypicalLogitsWarper,
    theirs.EpsilonLogitsWarper,
    theirs.EtaLogitsWarper,
    theirs.LogitNormalization,
    theirs.InfNanRemoveLogitsProcessor,
    theirs.MinLengthLogitsProcessor,
    theirs.MinNewTokensLengthLogitsProcessor,
    theirs.ForcedBOSTokenLogitsProcessor,
    theirs.ForcedEOSTokenLogitsProcessor,
    theirs.ExponentialDecayLengthPenalty,
)
"""Processors of scores alone, or of the number of steps: they see tokens and phrases as they are."""

REFUSED = (
    theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    theirs.ClassifierFreeGuidanceLogitsProcessor,
    theirs.WatermarkLogitsProcessor,
    theirs.SynthIDTextWatermarkLogitsProcessor,
)


class PhraseProcessors(LogitsProcessor):
    """Applies processors made for tokens to scores of tokens and phrases.

    A repetition penalty is also on each phrase that stands in the text, written as a phrase or not; blocked n-grams,
    bad words and suppressed tokens also block each phrase that would bring one. All others that read the text see it
    expanded into tokens, and the scores of phrases behind those of tokens.

    Args:
        processors: In the order in which they are applied.
        expansion: Of the rows.
        vocab_size: V, where the scores of phrases begin.
    Raises:
        ValueError: If a processor runs the model on its own, or marks tokens by their ids.
    """

    def __init__(self, processors: Sequence[LogitsProcessor], expansion: Expansion, vocab_size: int) -> None:
        for processor in processors:
            if isinstance(processor, REFUSED):
                raise ValueError(
                    f"{type(processor).__name__} is made for tokens alone; leave out guidance_scale and watermarks, or "
                    "phrases"
                )
        self.processors = processors
        self.expansion = expansion
        self.vocab_size = vocab_size
        self._matchers = [PhraseLookup(vocabulary) for vocabulary in expansion.vocabularies] if self._matches() else []

    def _matches(self) -> bool:
        return any(isinstance(processor, _BINDING) for processor in self.processors)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return processed scores (rows, V + P)."""
        rows = None
        for processor in self.processors:
            if isinstance(processor, READ_NO_WORDS):
                scores = processor(input_ids, scores)
                continue
            rows = self.expansion.rows(input_ids) if rows is None else rows
            if isinstance(processor, _BINDING):
                scores = torch.cat(
                    [self._bind(processor, number, input_ids, rows, scores) for number in range(len(rows))]
                )
            else:
                scores = processor(self.expansion.padded(rows, scores.device), scores)
        return scores

    def _bind(
        self, processor: LogitsProcessor, number: int, ids: Tensor, rows: list[list[int]], scores: Tensor
    ) -> Tensor:
        text, matcher = rows[number], self._matchers[self.expansion.vocabulary(number, len(rows))]
        given = scores[number : number + 1]
        if isinstance(processor, theirs.RepetitionPenaltyLogitsProcessor):
            seen = self.expansion.row(ids[:, _ignored_steps(processor, number, ids) :], number)
            columns = torch.cat([self._tokens(seen, scores), self._columns(matcher.standing_in(seen), scores)])
            marked = given[:, columns]
            marked = torch.where(marked < 0, marked * processor.penalty, marked / processor.penalty)
            return given.index_copy(1, columns, marked)
        if isinstance(processor, theirs.SuppressTokensAtBeginLogitsProcessor):
            at_begin = ids.shape[1] == processor.begin_index
            tokens = processor.begin_suppress_tokens.tolist() if at_begin else []
            found = set().union(*(matcher.beginning_with([token]) for token in tokens))
            return processor(ids, given).index_fill(1, self._columns(found, scores), -torch.inf)
        changed = processor(self.expansion.padded([text], scores.device), given)
        if isinstance(processor, theirs.NoRepeatNGramLogitsProcessor):
            found = matcher.repeating_ngrams(text, processor.ngram_size)
        elif isinstance(processor, theirs.NoBadWordsLogitsProcessor):
            found = matcher.completing(text, processor.sequence_bias)
        else:
            assert isinstance(processor, theirs.SuppressTokensLogitsProcessor)
            found = matcher.completing(text, [(token,) for token in processor.suppress_tokens.tolist()])
        return changed.index_fill(1, self._columns(found, scores), -torch.inf)

    def _tokens(self, text: list[int], scores: Tensor) -> Tensor:
        return torch.tensor(sorted(set(text)), dtype=torch.long, device=scores.device)

    def _columns(self, slots: set[int], scores: Tensor) -> Tensor:
        return torch.tensor(sorted(slots), dtype=torch.long, device=scores.device) + self.vocab_size


_BINDING = (
    theirs.RepetitionPenaltyLogitsProcessor,
    theirs.NoRepeatNGramLogitsProcessor,
    theirs.NoBadWordsLogitsProcessor,
    theirs.SuppressTokensLogitsProcessor,
    theirs.SuppressTokensAtBeginLogitsProcessor,
)


def _ignored_steps(processor: theirs.RepetitionPenaltyLogitsProcessor, number: int, ids: Tensor) -> int:
    """Return how many of a row's first steps have no penalty: its padding, or what the user says."""
    ignored = processor.prompt_ignore_length
    if isinstance(ignored, Tensor):
        if len(ignored) != len(ids):
            raise ValueError(f"prompt_ignore_length must be one number for each of {len(ids)} rows, got {len(ignored)}")
        return int(ignored[number])
    return ignored or 0


def phrase_processors(
    processors: Sequence[LogitsProcessor], expansion: Expansion, vocab_size: int
) -> LogitsProcessorList:
    """Return processors made for tokens as a list for scores of tokens and phrases."""
    if all(isinstance(processor, READ_NO_WORDS) for processor in processors):
        return LogitsProcessorList(processors)
    return LogitsProcessorList([PhraseProcessors(processors, expansion, vocab_size)])
