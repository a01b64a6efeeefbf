"""Logits processors for tokens and phrases: they read expanded phrases, and their bans also apply to phrases."""

# pyright: reportArgumentType=false
# (ids are any integer tensor, but Transformers annotates LongTensor)

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor
from transformers.generation import logits_process
from transformers.generation.logits_process import LogitsProcessor, LogitsProcessorList

from hf_targets.phrases.decoding.expansion import Expansion
from hf_targets.phrases.decoding.matching import PhraseLookup

READ_NO_TOKENS = (
    logits_process.TemperatureLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.TopPLogitsWarper,
    logits_process.TopHLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.LogitNormalization,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.ExponentialDecayLengthPenalty,
)
"""Processors that read only scores or the number of steps. They are applied to tokens and phrases without a change."""

REFUSED = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.ClassifierFreeGuidanceLogitsProcessor,
    logits_process.WatermarkLogitsProcessor,
    logits_process.SynthIDTextWatermarkLogitsProcessor,
)


class PhraseProcessors(LogitsProcessor):
    """Processors made for tokens, applied to the scores of tokens and phrases.

    A repetition penalty also applies to each phrase whose tokens occur in the text, generated as a phrase or as tokens.
    Blocked n-grams, bad words and suppressed tokens also block each phrase that would complete one. Other processors
    that read the text get it with phrases expanded, and the scores of phrases after those of tokens.

    Raises:
        ValueError: If a processor is for guidance or watermarks, which support only tokens.
    """

    def __init__(self, processors: Sequence[LogitsProcessor], expansion: Expansion, vocab_size: int) -> None:
        for processor in processors:
            if isinstance(processor, REFUSED):
                raise ValueError(f"{type(processor).__name__} supports only tokens; leave it out, or phrases")
        self.processors = processors
        self.expansion = expansion
        self.vocab_size = vocab_size
        self._lookups: list[PhraseLookup] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return processed scores (rows, V + P)."""
        rows = None
        for processor in self.processors:
            if isinstance(processor, READ_NO_TOKENS):
                scores = processor(input_ids, scores)
                continue
            rows = self.expansion.rows(input_ids) if rows is None else rows
            if isinstance(processor, _EXTENDED_TO_PHRASES):
                # kept by the state of a vocabulary, to which phrases may have been added
                self._lookups = [PhraseLookup.of(vocabulary) for vocabulary in self.expansion.vocabularies]
                scores = torch.cat(
                    [self._processed_row(processor, number, input_ids, rows, scores) for number in range(len(rows))]
                )
            else:
                scores = self._applied(processor, self.expansion.padded(rows, scores.device), scores)
        return scores

    def _applied(self, processor: LogitsProcessor, texts: Tensor, scores: Tensor) -> Tensor:
        """Return the scores after a processor; a table of biases is made again if phrases have been added."""
        if isinstance(processor, logits_process.SequenceBiasLogitsProcessor) and processor.prepared_bias_variables:
            processor.prepared_bias_variables = cast(Tensor, processor.length_1_bias).shape[-1] == scores.shape[-1]
        return processor(texts, scores)

    def _processed_row(
        self, processor: LogitsProcessor, number: int, ids: Tensor, rows: list[list[int]], scores: Tensor
    ) -> Tensor:
        text, lookup = rows[number], self._lookups[self.expansion.vocabulary(number, len(rows))]
        given = scores[number : number + 1]
        if isinstance(processor, logits_process.RepetitionPenaltyLogitsProcessor):
            seen = self.expansion.row(ids[:, _ignored_steps(processor, number, ids) :], number)
            columns = torch.cat([self._tokens(seen, scores), self._columns(lookup.standing_in(seen), scores)])
            marked = given[:, columns]
            marked = torch.where(marked < 0, marked * processor.penalty, marked / processor.penalty)
            return given.index_copy(1, columns, marked)
        if isinstance(processor, _COUNT_STEPS):
            changed = processor(ids, given)
        else:
            changed = self._applied(processor, self.expansion.padded([text], scores.device), given)
        return changed.index_fill(1, self._columns(_banned(processor, lookup, text, ids, changed), scores), -torch.inf)

    def _tokens(self, text: list[int], scores: Tensor) -> Tensor:
        return torch.tensor(sorted(set(text)), dtype=torch.long, device=scores.device)

    def _columns(self, slots: set[int], scores: Tensor) -> Tensor:
        num_slots = scores.shape[1] - self.vocab_size  # without phrases that were added since
        known = sorted(slot for slot in slots if slot < num_slots)
        return torch.tensor(known, dtype=torch.long, device=scores.device) + self.vocab_size


_LEAST_LENGTHS = (logits_process.MinLengthLogitsProcessor, logits_process.MinNewTokensLengthLogitsProcessor)
_COUNT_STEPS = (*_LEAST_LENGTHS, logits_process.SuppressTokensAtBeginLogitsProcessor)
_EXTENDED_TO_PHRASES = (
    *_COUNT_STEPS,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
)


def _banned(processor: Any, lookup: PhraseLookup, text: list[int], ids: Tensor, scores: Tensor) -> set[int]:
    """Return the slots of the phrases that a processor bans after the tokens of a text, with its scores of tokens."""
    if isinstance(processor, logits_process.NoRepeatNGramLogitsProcessor):
        return lookup.repeating_ngrams(text, processor.ngram_size)
    if isinstance(processor, logits_process.NoBadWordsLogitsProcessor):
        return lookup.completing(text, processor.sequence_bias)
    if isinstance(processor, logits_process.SuppressTokensAtBeginLogitsProcessor):
        tokens = processor.begin_suppress_tokens.tolist() if ids.shape[1] == processor.begin_index else []
        return set().union(*(lookup.beginning_with([token]) for token in tokens))
    if isinstance(processor, _LEAST_LENGTHS):
        ends = processor.eos_token_id.tolist()
        tokens = ends if scores[:, ends].isneginf().all() else []
    else:
        tokens = processor.suppress_tokens.tolist()
    return lookup.completing(text, [(token,) for token in tokens])


def _ignored_steps(processor: logits_process.RepetitionPenaltyLogitsProcessor, number: int, ids: Tensor) -> int:
    """Return the number of first steps of a row without penalty: its padding, or the number that the user set."""
    ignored = processor.prompt_ignore_length
    if isinstance(ignored, Tensor):
        return int(ignored[number])
    return ignored or 0


def phrase_processors(
    processors: Sequence[LogitsProcessor], expansion: Expansion, vocab_size: int
) -> LogitsProcessorList:
    """Return processors for the scores of tokens and phrases, given processors made for tokens."""
    if all(isinstance(processor, READ_NO_TOKENS) for processor in processors):
        return LogitsProcessorList(processors)
    return LogitsProcessorList([PhraseProcessors(processors, expansion, vocab_size)])
