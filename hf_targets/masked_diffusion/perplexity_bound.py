"""An estimated upper bound on the perplexity of a text under a masked diffusion model, with its standard error."""

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
from hf_targets.data.progress import progress
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

_MAX_ALPHA_MIN = 0.01


@dataclass(frozen=True)
class PerplexityBound:
    """An estimate of an upper bound on the perplexity of a test text under a masked diffusion model.

    Attributes:
        nelbo: Negative evidence lower bound in nats per token, the mean of all draws.
        num_tokens: Number of targets, masked or not, each counted once. Predicted padding does not count.
        num_words: Number of words in the rows; None if a row has no `num_words`.
        num_draws: How many times each row was masked.
        standard_error: Of `nelbo` over draws; None with one draw. It does not include the choice of the rows.
    """

    nelbo: float
    num_tokens: int
    num_words: int | None
    num_draws: int
    standard_error: float | None

    @property
    def perplexity(self) -> float:
        """Return exp(nelbo), the perplexity per token. Use it to compare models with the same tokenizer."""
        return perplexity(self.nelbo)

    @property
    def per_word(self) -> float | None:
        """Return exp(tokens * nelbo / words), comparable between tokenizers; None if words are not counted."""
        return perplexity(self.nelbo * self.num_tokens / self.num_words) if self.num_words else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """Return the 95% interval by Student's t, exp(nelbo - margin) and exp(nelbo + margin); None with one draw.

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
    """Return the negative evidence lower bound of a text; its exponential is an upper bound on the perplexity.

    Each row is masked `num_draws` times, at times spread evenly over all rows (`masked_diffusion.bound`). The
    -log p(token) of its masked targets are summed with the weight -alpha'(t) / (1 - alpha(t)), or with the weight of
    the model's discrete time. `nelbo` is the sum over all rows divided by the number of text tokens (labels other than
    -100, without predicted padding). Hidden padding and the batch size change only the last digits. The same seed gives
    the same result.

    How to read the result:

    - It is an estimate of a bound; `standard_error` is its error. The true perplexity of a model is lower by an unknown
      amount. So if one diffusion model has a smaller bound than another, its perplexity may still be larger.
    - A share alpha(1) of the tokens (1e-3 with the log-linear schedule) is never masked and costs nothing, so strictly
      this is not a bound. A model with a uniform prediction should have log(V - 1). It has in expectation
      (alpha(s) - alpha(1)) / (1 - s) times that, as times are in [s, 1] with s = 1e-3, as in the published program.
      This factor is .999 with the log-linear schedule, for any s. Discrete times begin at 1/T; their factor is
      alpha(0) - alpha(1). Published results have the same error.
    - It depends on how rows are padded, the `length_protocol` of `masked_diffusion.rows.sentence_rows`. Compare only
      results with the same protocol. `predicted` bounds the perplexity of a sentence and its length; `conditional`
      bounds that of a sentence given its length; `published` is no bound, but compares with published results on LM1B.
    - It is per token of the model's tokenizer, begin and end tokens included. Do not compare it between tokenizers;
      compare `per_word`, which needs rows with `num_words`.
    - A model that predicts K > 1 curves uses the most probable one, as in generation.

    Args:
        model: The model to evaluate; its dropout is off meanwhile.
        rows: Rows as from `masked_diffusion.rows`, with `input_ids`, and optionally `attention_mask`, `labels` (-100
            where a token is not a target), `may_mask` (1 where a token may be masked; default: at targets),
            `num_tokens` (text tokens, the divisor; default: the number of targets) and `num_words`.
        num_draws: 1 or more; the error falls as 1 / sqrt(num_draws).
        seed: Seed of times and masks, 0 or more; the global random state is neither used nor changed.
        batch_size: Rows in one forward pass, 1 or more.
    Raises:
        ValueError: If there is no target, a row has holes in its mask, columns of different lengths or fewer labels
            than `num_tokens`, rows are of more than one `length_protocol`, some have `num_words` and others lack
            it, or `num_draws`, `seed` or `batch_size` is too small.
    Source: Sahoo et al. 2024, and the evaluation of its published program.  Departs: that program draws one time for
        each row, evenly over a batch, and does not estimate the error.
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    never_masked = model.schedule.alpha(torch.ones((), dtype=torch.float64)).item()
    if never_masked > _MAX_ALPHA_MIN:
        warnings.warn(
            f"the {model.schedule.name} schedule never masks {never_masked:.0%} of the tokens. They cost nothing, so "
            "the result is no bound on the perplexity; train with another noise_schedule to get a bound",
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
    """Return the tokens of a row without its hidden padding, their labels, and true where they may be masked."""
    ids, labels = row_of_block(row, index)
    if row.get(MAY_MASK) is None:
        return ids, labels, labels != IGNORED
    return ids, labels, row_of_block({**row, "labels": row[MAY_MASK]}, index)[1].bool()
