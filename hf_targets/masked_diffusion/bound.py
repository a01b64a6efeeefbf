"""The bound of a masked diffusion model on a data set, with times and masks that do not depend on the batches."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from hf_targets.masked_diffusion.inputs import maskable
from hf_targets.masked_diffusion.model import MdlmForMaskedDiffusion
from hf_targets.maths.noise import MIN_TIME, discrete_times, mask_tokens
from hf_targets.maths.statistics import mean_and_standard_error

_TIMES, _MASKS = 0, 1  # random streams: one for times, one for masks


class EvaluationNoise:
    """The times and masks for evaluating a data set; those of a row do not depend on its batch.

    Draw k gives row i of n the time s + (1 - s) ((u_k + pi_k(i) / n) mod 1), with u_k uniform, pi_k a permutation and
    s = 1e-3. The time of each row is uniform in [s, 1]; the times of a draw are spread evenly, which lowers the
    variance of the mean. Discrete time has s = 0 and rounds up to a multiple of 1/T. Draws are independent, so the
    deviation of their means estimates the error. The seed determines all numbers; the global random state is neither
    used nor changed.

    Args:
        model: Its schedule, mask and number of time steps are used.
        num_rows: n, the number of rows in the data set.
        num_draws: How many times each row is masked.
        seed: 0 or more.
    Raises:
        ValueError: If there is no row, `num_draws` is below 1 or `seed` is below 0.
    """

    def __init__(self, model: MdlmForMaskedDiffusion, num_rows: int, *, num_draws: int, seed: int) -> None:
        if num_rows < 1:
            raise ValueError("a bound needs at least one row, got none; give a data set that is not empty")
        if num_draws < 1:
            raise ValueError(f"num_draws must be at least 1, got {num_draws}; more draws give a smaller error")
        if seed < 0:
            raise ValueError(f"seed must be 0 or more, got {seed}")
        assert model.config.mask_token_id is not None
        self.mask_token_id: int = model.config.mask_token_id
        self.schedule = model.schedule
        self.seed = seed
        num_steps = model.config.num_diffusion_steps
        self.times = torch.stack([self._draw_times(draw, num_rows, num_steps) for draw in range(num_draws)])
        """(draws, rows), in (0, 1], float64."""

    def _draw_times(self, draw: int, num_rows: int, num_steps: int | None) -> Tensor:
        generator = self._generator(_TIMES, draw)
        offset = torch.rand((), generator=generator, dtype=torch.float64)
        parts = (offset + torch.randperm(num_rows, generator=generator).double() / num_rows) % 1
        if num_steps is not None:
            return discrete_times(parts, num_steps)
        return MIN_TIME + (1 - MIN_TIME) * parts

    def _generator(self, *key: int) -> torch.Generator:
        state = np.random.SeedSequence(self.seed, spawn_key=key).generate_state(1)
        return torch.Generator().manual_seed(int(state[0]))

    def canvas(self, draw: int, indices: Sequence[int], input_ids: Tensor, may_mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masked rows and their times, (batch, length) and (batch,) in float32, on the rows' device.

        Args:
            draw: Index of the draw.
            indices: Indices of the rows in the data set.
            input_ids: (batch, length).
            may_mask: (batch, length), true where a token may be masked.
        """
        times = self.times[draw, list(indices)].float()
        ids, may = input_ids.cpu(), may_mask.cpu()
        rows = []
        for row, index in enumerate(indices):
            one_row, generator = slice(row, row + 1), self._generator(_MASKS, draw, index)
            rows.append(
                mask_tokens(
                    ids[one_row], times[one_row], may[one_row], self.mask_token_id, self.schedule, generator=generator
                )
            )
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
    """Return the bound in nats per token, and its standard error over draws (None with one draw).

    The bound of draw k on the whole data set is D_k = sum over rows / tokens. The result is the mean of the K draws,
    with the standard error sqrt(var(D) / K); the variance is unbiased.

    Args:
        row_nelbos: (rows, draws), the output of `EvaluationNoise.row_nelbos` for all rows.
        num_tokens: Number of targets in all rows, masked or not. Where padding is predicted, it does not count.
    Raises:
        ValueError: If `num_tokens` is 0.
    """
    if not num_tokens:
        raise ValueError(
            "a bound needs at least one target, and all labels are -100 or padding; give rows with other labels"
        )
    draws = row_nelbos.double().sum(dim=0) / num_tokens
    return mean_and_standard_error(draws.tolist())
