"""A bound on the perplexity of a text under a masked diffusion model, with the error of its estimate."""

import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length, padded_rows
from hf_targets.data.token_rows import NUM_WORDS, sum_of_words
from hf_targets.evaluation.perplexity import row_of_block
from hf_targets.masked_diffusion.bound import EvaluationNoise, mean_bound
from hf_targets.masked_diffusion.length_protocols import (
    MAY_MASK,
    NUM_TOKENS,
    check_num_tokens,
    check_one_protocol,
    protocol_columns,
)
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.maths.losses import IGNORED, perplexity
from hf_targets.maths.statistics import student_margin
from hf_targets.progress import progress

_MAX_ALPHA_MIN = 0.01


@dataclass(frozen=True)
class PerplexityBound:
    """What a masked diffusion model makes of a test text: an estimate of an upper bound on its perplexity.

    Attributes:
        nelbo: Negative evidence lower bound, in nats a token, the mean of all draws.
        num_tokens: Targets, each counted once, whether a draw has masked it or not; without padding that is predicted.
        num_words: Words they make, where the rows say so; None else.
        num_draws: How many times each row was masked.
        standard_error: Of `nelbo`, over draws; None with one. It is the error of the draws alone, given these rows.
    """

    nelbo: float
    num_tokens: int
    num_words: int | None
    num_draws: int
    standard_error: float | None

    @property
    def perplexity(self) -> float:
        """Return exp(nelbo), for each token: to compare models with the same tokenizer."""
        return perplexity(self.nelbo)

    @property
    def per_word(self) -> float | None:
        """Return exp(tokens * nelbo / words), whatever the tokenizer; None where words are not counted."""
        return perplexity(self.nelbo * self.num_tokens / self.num_words) if self.num_words else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return exp(nelbo - margin) and exp(nelbo + margin), 95% sure by Student's t; None with one draw.

        The margin is 12.7 standard errors with two draws, 3.2 with four, 2.4 with eight.
        """
        if self.standard_error is None:
            return None
        margin = student_margin(self.standard_error, self.num_draws)
        return perplexity(self.nelbo - margin), perplexity(self.nelbo + margin)


def perplexity_bound(
    model: MdlmForMaskedDiffusion,
    rows: Iterable[Mapping[str, Any]],
    *,
    num_draws: int = 4,
    seed: int = 0,
    batch_size: int = 8,
) -> PerplexityBound:
    """Return the negative evidence lower bound of a text, whose exponential bounds the perplexity from above.

    Each row is masked `num_draws` times, at times spread evenly over all rows (`masked_diffusion.bound`), and its
    masked targets' -log p(token) are summed with the weight -alpha'(t) / (1 - alpha(t)), or that of the model's
    discrete time. Their sum over all rows for each token of text (each label but -100, without padding that is
    predicted) is `nelbo`. Neither hidden padding nor the size of batches changes anything but the last digits, and the
    same seed gives the same result.

    What the number is, and is not:

    - It is an estimate of a bound, as good as `standard_error` says. A model's perplexity itself is lower, by an
      unknown amount, so a lower bound of one of two diffusion models does not prove a lower perplexity.
    - alpha(1) of the tokens are never masked (1e-3 with the log-linear schedule) and cost nothing, which strictly makes
      it no bound. A model that knows nothing has, instead of log(V - 1), in expectation (alpha(s) - alpha(1)) / (1 - s)
      times that, where times are in [s, 1] with s = 1e-3, as in the published program; it is .999 with the log-linear
      schedule, whatever s. Discrete times begin with 1/T, and have alpha(0) - alpha(1). Published figures are the same.
    - It depends on how the rows are padded, the `length_protocol` of `masked_diffusion.rows.sentence_rows`, and
      compares only under the same one: it bounds the perplexity of a sentence and its length (`predicted`), of a
      sentence given its length (`conditional`), or is no bound (`published`, for comparison with published figures on
      LM1B).
    - It is for each token of the model's tokenizer, begin and end tokens with it. It does not compare with that of
      another tokenizer; `per_word` does, where rows have `num_words`.
    - A model of a curve with several candidates is measured as it generates, with the most probable one.

    Args:
        model: Its dropout is off meanwhile.
        rows: With `input_ids`, and maybe `attention_mask`, `labels` (-100 where a token is no target), `may_mask` (1
            where it may be masked; left out: at targets), `num_tokens` (what the sum is divided by; left out: the
            number of targets) and `num_words`, as from `masked_diffusion.rows`.
        num_draws: More of them make the error smaller, as 1 / sqrt(num_draws).
        seed: Of times and masks; the global random state is neither used nor changed.
        batch_size: Rows in one forward pass.
    Raises:
        ValueError: If there is no target, a row has holes in its mask, columns of different lengths or fewer labels
            than `num_tokens`, rows are of more than one `length_protocol`, some have `num_words` and others lack
            it, or `num_draws`, `seed` or `batch_size` is too small.
    Source: Sahoo et al. 2024, and the evaluation of its published program.  Departs: that has one time for each row,
        drawn evenly over a batch, and tells no error.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    left = model.schedule.alpha(torch.ones((), dtype=torch.float64)).item()
    if left > _MAX_ALPHA_MIN:
        warnings.warn(
            f"the {model.schedule.name} schedule never masks {left:.0%} of the tokens, which cost nothing, so that "
            "this is no bound on the perplexity; train with another noise_schedule to have one",
            stacklevel=2,
        )
    blocks, words, num_tokens, protocols = [], [], 0, set()
    for index, row in enumerate(rows):
        blocks.append(_columns(row, index))
        words.append(row.get(NUM_WORDS))
        check_num_tokens(row, index)
        protocols.add(protocol_columns(row))
        num_tokens += int(row[NUM_TOKENS] if NUM_TOKENS in protocol_columns(row) else (blocks[-1][1] != IGNORED).sum())
    check_one_protocol(protocols)
    num_words = sum_of_words(words)
    noise = EvaluationNoise(model, len(blocks), num_draws=num_draws, seed=seed)
    measured = [index for index, (_, labels, _) in enumerate(blocks) if (labels != IGNORED).any()]
    nelbos = torch.zeros(len(blocks), num_draws, dtype=torch.float64)
    with without_dropout(model), progress(len(measured), "measuring the bound", unit="row") as bar:
        for numbers in by_length([len(blocks[index][0]) for index in measured], batch_size):
            indices = [measured[number] for number in numbers]
            ids, labels, may_mask = (
                pad_sequence([blocks[index][column] for index in indices], batch_first=True, padding_value=fill)
                for column, fill in enumerate((0, IGNORED, 0))
            )
            _, mask = padded_rows([blocks[index][0] for index in indices])
            batch = (tensor.to(execution_device(model)) for tensor in (ids, labels, mask, may_mask))
            nelbos[indices] = noise.row_nelbos(model, indices, *batch).double().cpu()
            bar.update(len(indices))
    nelbo, error = mean_bound(nelbos, num_tokens)
    return PerplexityBound(nelbo, num_tokens, num_words, num_draws, error)


def _columns(row: Mapping[str, Any], index: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the tokens and labels of a row without its hidden padding, and where it may be masked."""
    ids, labels = row_of_block(row, index)
    if row.get(MAY_MASK) is None:
        return ids, labels, labels != IGNORED
    return ids, labels, row_of_block({**row, "labels": row[MAY_MASK]}, index)[1].bool()
