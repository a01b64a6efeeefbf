"""Rows of a batch that grow by different numbers of tokens: their tokens, processors, stopping and streaming."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import compress
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    LogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
)
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from hf_targets.backbones.generation import read_rows_alone, read_text
from hf_targets.multitoken.drafting.verification import Verified


class NewTokens(NamedTuple):
    """What a pass brought a row: its tokens, whether the row ends with them, and how many were drafted."""

    tokens: list[int]
    ended: bool
    num_drafted: int


class _AllowedTokens(LogitsProcessor):
    """`prefix_allowed_tokens_fn`, asked for some rows of a batch alone: the others do not have their own texts."""

    def __init__(self, allowed: Callable[[int, Tensor], Sequence[int]]) -> None:
        self._allowed = allowed
        self.rows: Sequence[int] = ()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """Return the scores (batch, vocab), with minus infinity at what is not allowed in `rows`."""
        for row in self.rows:
            alone = PrefixConstrainedLogitsProcessor(lambda _, text, row=row: list(self._allowed(row, text)), 1)
            scores[row : row + 1] = alone(input_ids[row : row + 1], scores[row : row + 1])
        return scores


class Rows:
    """The tokens of every row, with the processors, stopping criteria and streamer that `generate` was given.

    Args:
        input_ids: The prompts, padded on the left.

    Attributes:
        ids, lengths: The texts of all rows, and the number of tokens of each.
        known_lengths: `lengths` on the host.
        active, numbers: The rows that go on, as a tensor and on the host.
        max_length: That of the configuration, or of a `MaxLengthCriteria` that `generate` was given in its place.
        processors: All of them.
        draft_processors: Those that are known to keep no state from call to call, nor a value for each row.
    """

    def __init__(
        self,
        input_ids: Int[Tensor, "batch time"],
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        *,
        streamer: BaseStreamer | None,
    ) -> None:
        batch, prompt_length = input_ids.shape
        known = EosTokenCriteria, MaxLengthCriteria
        most = [rule.max_length for rule in criteria if type(rule) is MaxLengthCriteria]
        self.max_length: int = min(most, default=config.max_length)  # pyright: ignore, generate has set it
        self.ids = input_ids.long()
        self.lengths = torch.full((batch,), prompt_length, device=input_ids.device)
        self.known_lengths = [prompt_length] * batch
        self.active, self.numbers = torch.arange(batch, device=input_ids.device), list(range(batch))
        self.processors = LogitsProcessorList(
            _AllowedTokens(one._prefix_allowed_tokens_fn) if type(one) is PrefixConstrainedLogitsProcessor else one
            for one in processors
        )
        self.draft_processors = LogitsProcessorList(one for one in processors if read_rows_alone([one]))
        ends = [rule.eos_token_id.flatten() for rule in criteria if type(rule) is EosTokenCriteria]
        self.end_tokens = torch.cat(ends).to(input_ids.device) if ends else None
        self._other_criteria = StoppingCriteriaList(rule for rule in criteria if type(rule) not in known)
        self._pad_token = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
        self._streamer = streamer
        self._num_streamed = prompt_length
        recorded = bool(config.return_dict_in_generate)
        self._scores = [[] for _ in range(batch)] if recorded and config.output_scores else None
        self._logits = [[] for _ in range(batch)] if recorded and config.output_logits else None

    def drop(self, going: Sequence[bool]) -> None:
        """Let only these of the active rows go on."""
        self.numbers = list(compress(self.numbers, going))
        self.active = torch.tensor(self.numbers, dtype=torch.long, device=self.ids.device)

    def last_tokens(self, count: int = 1) -> Int[Tensor, "rows {count}"]:
        """Return the last tokens that each active row has so far."""
        at = self.lengths[self.active, None] + torch.arange(-count, 0, device=self.ids.device)
        return self.ids[self.active[:, None], at]

    def process(
        self,
        tokens: Int[Tensor, "rows _"],
        logits: Float[Tensor, "rows vocab"],
        processors: LogitsProcessorList | None = None,
    ) -> Float[Tensor, "rows vocab"]:
        """Return the processed logits after the text of the active rows followed by `tokens`.

        Rows of equal length share a call. A processor may hold one value for each row of the batch, so each call passes
        the whole batch, unless all processors are known to hold none.

        Args:
            processors: None: all.
        """
        processors = self.processors if processors is None else processors
        if not processors:
            return logits
        if not read_text(processors):
            return processors(self.ids[self.active], logits)  # pyright: ignore[reportArgumentType]
        self._write(tokens)
        processed, alone = None, read_rows_alone(processors)
        of_length = defaultdict(list)
        for index, row in enumerate(self.numbers):
            of_length[self.known_lengths[row] + tokens.shape[1]].append(index)
        for length, same in of_length.items():
            same = slice(None) if len(of_length) == 1 else torch.tensor(same, device=logits.device)
            rows = self.active[same]
            if alone:
                part: Any = processors(self.ids[rows, :length], logits[same])  # pyright: ignore[reportArgumentType]
            else:
                for one in processors:
                    if isinstance(one, _AllowedTokens):
                        one.rows = [self.numbers[index] for index in of_length[length]]
                batch = logits.new_zeros(len(self.ids), logits.shape[1])
                batch[rows] = logits[same]
                part = processors(self._texts_of(length, rows), batch)[rows]  # pyright: ignore[reportArgumentType]
            processed = torch.empty_like(logits, dtype=part.dtype) if processed is None else processed
            processed[same] = part
        return cast(Tensor, processed)

    def _texts_of(self, length: int, rows: Int[Tensor, "rows"]) -> Int[Tensor, "batch {length}"]:
        """Return the whole batch with texts of this length.

        `rows` have their own tokens. Any other row is cut to this length; if it is shorter, it gets the text of the
        first of `rows`.
        """
        texts = self.ids[:, :length].clone()
        shorter = self.lengths < length
        shorter[rows] = False
        texts[shorter] = self.ids[rows[0], :length]
        return texts

    def _write(self, tokens: Int[Tensor, "rows steps"]) -> None:
        """Write tokens after the text of active rows; they are part of the text only when `append` counts them."""
        if (missing := max(self.known_lengths) + tokens.shape[1] - self.ids.shape[1]) > 0:
            self.ids = F.pad(self.ids, (0, max(missing, self.ids.shape[1])))
        steps = torch.arange(tokens.shape[1], device=tokens.device)
        self.ids[self.active[:, None], self.lengths[self.active, None] + steps] = tokens

    def append(self, found: Verified) -> tuple[Int[Tensor, "rows"], list[NewTokens]]:
        """Append the verified tokens to the active rows, up to the token at which each row stops.

        Returns: The number of tokens appended to each row, and on the host these tokens.
        """
        rows, tokens = self.active, found.tokens
        before = self.lengths[rows]
        counts = torch.minimum(found.counts, self.max_length - before)
        finished = torch.zeros_like(counts, dtype=torch.bool)
        if self.end_tokens is not None:
            steps = torch.arange(tokens.shape[1], device=tokens.device)
            ends = torch.isin(tokens, self.end_tokens) & (steps < counts[:, None])
            counts = torch.where(ends.any(dim=1), ends.int().argmax(dim=1) + 1, counts)
            finished |= ends.any(dim=1)
        self._write(tokens)
        for index, most in enumerate(counts.tolist() if self._other_criteria else ()):
            for count in range(1, most + 1):
                texts = self._texts_of(self.known_lengths[self.numbers[index]] + count, rows[index : index + 1])
                if self._other_criteria(texts, None)[rows[index]]:  # pyright: ignore[reportArgumentType]
                    counts[index], finished[index] = count, True
                    break
        self.lengths[rows] = lengths = before + counts
        told = torch.stack([counts, finished | (lengths >= self.max_length), found.num_drafted], dim=1)
        told = torch.cat([told, tokens], dim=1).tolist()  # the one transfer from a GPU
        new = [NewTokens(tokens[:count], bool(ended), drafted) for count, ended, drafted, *tokens in told]
        for index, row in enumerate(self.numbers):
            count = len(new[index].tokens)
            self.known_lengths[row] += count
            for record, steps_given in ((self._scores, found.scores), (self._logits, found.logits)):
                if record is not None:
                    record[row] += [step[index] for step in steps_given[:count]]
        return counts, new

    def stream(self) -> None:
        """Send the streamer each new column that all active rows have reached; finished rows contain padding."""
        if self._streamer is None:
            return
        reached = min((self.known_lengths[row] for row in self.numbers), default=max(self.known_lengths))
        columns = self.sequences()
        while self._num_streamed < reached:
            self._streamer.put(columns[:, self._num_streamed].cpu())
            self._num_streamed += 1
        if not self.numbers:
            self._streamer.end()

    def sequences(self) -> Int[Tensor, "batch time"]:
        """Return all rows, padded on the right to the length of the longest."""
        longest = max(self.known_lengths)
        beyond = torch.arange(longest, device=self.ids.device) >= self.lengths[:, None]
        return self.ids[:, :longest].masked_fill(beyond, self._pad_token)

    def scores(self) -> tuple[Tensor, ...] | None:
        """Return each step's processed logits (batch, vocab), 0 after a row's end; None if they were not requested."""
        return _pad_steps(self._scores)

    def logits(self) -> tuple[Tensor, ...] | None:
        """Return each step's logits (batch, vocab), 0 after a row's end; None if they were not requested."""
        return _pad_steps(self._logits)


def _pad_steps(steps: list[list[Tensor]] | None) -> tuple[Tensor, ...] | None:
    if steps is None:
        return None
    blank = torch.zeros_like(steps[0][0])
    return tuple(
        torch.stack([row[step] if step < len(row) else blank for row in steps]) for step in range(max(map(len, steps)))
    )
