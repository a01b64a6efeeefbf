"""An upper bound on the perplexity of a text under a masked diffusion model, estimated at times and masks of a seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.inputs import without_padding
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.batches import by_length
from hf_targets.data.progress import progress
from hf_targets.data.token_rows import NUM_WORDS, sum_of_words
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.masked_diffusion.noisy_batch import maskable
from hf_targets.masked_diffusion.rows import (
    MAY_MASK,
    NUM_TOKENS,
    DiffusionCollator,
    check_one_protocol,
    protocol_columns,
)
from hf_targets.maths.losses import IGNORED, perplexity
from hf_targets.maths.noise import MIN_TIME, mask_tokens
from hf_targets.maths.statistics import mean_and_standard_error, student_margin

_TIMES, _MASKS = 0, 1  # random streams: one for times, one for masks


class EvaluationNoise:
    """The times and masks for evaluating a data set; those of a row do not depend on its batch.

    Draw k gives row i of n the time s + (1 - s) ((u_k + pi_k(i) / n) mod 1), with u_k uniform, pi_k a permutation and
    s = 1e-3: the times of a draw are spread evenly, which lowers the variance of the mean. Draws are independent. The
    seed determines all numbers.

    Args:
        model: Its schedule and mask are used.
        num_draws: How many times each row is masked.
    Raises:
        ValueError: If there is no row, or `num_draws` is below 1.
    """

    def __init__(self, model: MdlmForMaskedDiffusion, num_rows: int, *, num_draws: int, seed: int) -> None:
        if num_rows < 1 or num_draws < 1:
            raise ValueError(f"a bound needs at least one row and one draw, got {num_rows} and {num_draws}")
        assert model.config.mask_token_id is not None
        self.mask_token_id: int = model.config.mask_token_id
        self.schedule = model.schedule
        self.seed = seed
        self.times = torch.stack([self._draw_times(draw, num_rows) for draw in range(num_draws)])
        """(draws, rows), in (0, 1], float64."""

    def _draw_times(self, draw: int, num_rows: int) -> Tensor:
        generator = self._generator(_TIMES, draw)
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        parts = (offset + torch.randperm(num_rows, generator=generator).double() / num_rows) % 1
        return MIN_TIME + (1 - MIN_TIME) * parts

    def _generator(self, *key: int) -> torch.Generator:
        state = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1)
        return torch.Generator().manual_seed(int(state[0]))

    def canvas(self, draw: int, indices: Sequence[int], input_ids: Tensor, may_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masked rows and their times, (batch, length) and (batch,) in float32, on the rows' device.

        Args:
            indices: Indices of the rows in the data set.
            input_ids, may_mask: (batch, length), true where a token may be masked.
        """
        times = self.times[draw, list(indices)].float()
        ids, may = input_ids.cpu(), may_mask.cpu()
        mask, rows = partial(mask_tokens, mask_token_id=self.mask_token_id, schedule=self.schedule), []
        for row, index in enumerate(indices):
            one = slice(row, row + 1)
            rows.append(mask(ids[one], times[one, None], may[one], generator=self._generator(_MASKS, draw, index)))
        return torch.cat(rows).to(input_ids.device), times.to(input_ids.device)

    @torch.no_grad()
    def row_nelbos(
        self,
        model: nn.Module,
        indices: Sequence[int],
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        may_mask: Tensor | None = None,
    ) -> Tensor:
        """Return the negative evidence lower bound of each row, summed over its targets, (batch, draws), in nats.

        Args:
            model: The model, or the wrapper that a Trainer put around it; its dropout must be off.
            indices: Indices of the rows in the data set.
            input_ids: (batch, length), clean text.
            labels: (batch, length), the same ids, with -100 where a token is not a target.
            attention_mask: (batch, length), 0 at padding.
            may_mask: (batch, length), true where a token may be masked; None: only targets may.
        """
        nelbos, may_mask = [], maskable(labels, attention_mask, may_mask)
        for draw in range(len(self.times)):
            canvas, times = self.canvas(draw, indices, input_ids, may_mask)
            outputs = model(
                input_ids=canvas,
                attention_mask=attention_mask,
                labels=labels,
                timesteps=times,
                skip_logits=True,
                return_dict=True,
            )
            nelbos.append(outputs.row_nelbos)
        return torch.stack(nelbos, dim=1)


def mean_bound(row_nelbos: Tensor, num_tokens: int) -> tuple[float, float | None]:
    """Return the bound in nats per token, the mean of all draws, and its standard error over draws (None with one).

    Args:
        row_nelbos: (rows, draws), the output of `EvaluationNoise.row_nelbos` for all rows.
        num_tokens: Number of targets in all rows, masked or not. Where padding is predicted, it does not count.
    Raises:
        ValueError: If `num_tokens` is 0.
    """
    if not num_tokens:
        raise ValueError("a bound needs at least one target, and all labels are -100 or padding")
    draws = row_nelbos.double().sum(dim=0) / num_tokens
    return mean_and_standard_error(draws.tolist())


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

    Each row is masked `num_draws` times, at times spread evenly over all rows (`EvaluationNoise`). The -log p(token) of
    its masked targets are summed with the weight -alpha'(t) / (1 - alpha(t)), and divided by the number of text tokens.
    Hidden padding and the batch size change only the last digits.

    - The true perplexity is lower by an unknown amount, so that a model with the smaller bound may have the larger one.
    - A share alpha(1) = 1e-3 of the tokens is never masked and costs nothing, so strictly this is no bound. Published
      results have the same error.
    - Compare only results with the same `length_protocol` (`masked_diffusion.rows.sentence_rows`); between tokenizers
      compare `per_word`, which needs `num_words`.
    - A model that predicts K > 1 curves uses the most probable one, as in generation.

    Args:
        model: The model to evaluate; its dropout is off meanwhile.
        rows: Rows as from `masked_diffusion.rows`, with `input_ids`, and optionally `attention_mask`, `labels` (-100
            where a token is not a target), `may_mask` (default: at targets), `num_tokens` (text tokens, the divisor;
            default: the number of targets) and `num_words`.
        num_draws: The error falls as 1 / sqrt(num_draws).
        seed: Of times and masks; the global random state is neither used nor changed.
        batch_size: Rows in one forward pass.
    Raises:
        ValueError: If there is no target, a row has holes in its mask, rows are of more than one `length_protocol`, or
            some lack `num_words`.
    Source: Sahoo et al. 2024, and the evaluation of its published program.  Departs: that program draws one time for
        each row, evenly over a batch, and does not estimate the error; ours are even over all rows and always the same.
    """
    rows, collate = list(rows), DiffusionCollator()
    check_one_protocol({protocol_columns(row) for row in rows})
    num_words = sum_of_words([row.get(NUM_WORDS) for row in rows])
    noise = EvaluationNoise(model, len(rows), num_draws=num_draws, seed=seed)
    nelbos, num_tokens = torch.zeros(len(rows), num_draws, dtype=torch.float64), 0
    with without_dropout(model), progress(len(rows), "measuring the bound", unit="row") as bar:
        read = [index for index, row in enumerate(rows) if any(row.get("attention_mask", row["input_ids"]))]
        for some in by_length([len(rows[index]["input_ids"]) for index in read], batch_size):
            indices = [read[number] for number in some]
            batch = collate([rows[index] for index in indices])
            labels = without_padding(batch["labels"], batch["attention_mask"])
            num_tokens += int(batch[NUM_TOKENS].sum() if NUM_TOKENS in batch else (labels != IGNORED).sum())
            columns = (batch["input_ids"], labels, batch["attention_mask"], batch.get(MAY_MASK))
            placed = (None if column is None else column.to(execution_device(model)) for column in columns)
            nelbos[indices] = noise.row_nelbos(model, indices, *placed).cpu().double()  # pyright: ignore
            bar.update(len(indices))
    nelbo, error = mean_bound(nelbos, num_tokens)
    return PerplexityBound(nelbo, num_tokens, num_words, num_draws, error)
