"""A batch for the bound: a canvas, the times at which it was masked, its clean tokens, and a weight for each row."""

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor

from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.masked_diffusion.inputs import check_clean, maskable
from hf_targets.maths.losses import IGNORED
from hf_targets.maths.noise import MIN_TIME, NoiseSchedule, antithetic_times, discrete_times, mask_tokens


@dataclass(frozen=True)
class NoisyBatch:
    """The input of a masked diffusion model, and the targets and weights of its loss.

    Attributes:
        canvas: (batch, length), a text with some of its tokens masked.
        timesteps: (batch,), in (0, 1], the times at which the rows were masked; None if unknown.
        labels: (batch, length), the clean tokens, -100 where a token is not a target; None if there is no loss.
        weights: (batch,), the factor of each row's losses; None without labels.
    """

    canvas: Tensor
    timesteps: Tensor | None = None
    labels: Tensor | None = None
    weights: Tensor | None = None

    @classmethod
    def of(
        cls,
        config: MdlmConfig,
        schedule: NoiseSchedule,
        input_ids: Tensor,
        *,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        timesteps: Tensor | None,
        may_mask: Tensor | None,
        generator: torch.Generator | None,
    ) -> Self:
        """Return the batch for a call of `forward`. A text with labels and without times is masked at random times.

        Args:
            config: Its mask and its number of time steps are used.
            input_ids: (batch, length). This and all other arguments are those of `MdlmForMaskedDiffusion.forward`.
        Raises:
            ValueError: If a label is the mask or differs from the token of the text, or `may_mask` is false at a
                target.
        """
        if labels is None:
            return cls(input_ids, timesteps)
        mask, steps = cast(int, config.mask_token_id), config.num_diffusion_steps
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
        may_mask = maskable(labels, attention_mask, may_mask)
        check_clean(labels, mask, None if timesteps is not None else input_ids)
        canvas = input_ids
        if timesteps is None:
            smallest = MIN_TIME if steps is None else 0.0  # with 0.0 all discrete steps are equally likely
            timesteps = antithetic_times(
                len(input_ids), generator=generator, device=input_ids.device, smallest=smallest
            )
            timesteps = timesteps if steps is None else discrete_times(timesteps, steps)
            canvas = mask_tokens(input_ids, timesteps, may_mask, mask, schedule, generator=generator)
        weights = schedule.weight(timesteps) if steps is None else schedule.discrete_weight(timesteps, steps)
        return cls(canvas, timesteps, labels, weights)

    def row_sums(self, losses: Tensor) -> Tensor:
        """Return (batch,): for each row, weight(t) times the sum of its losses (batch, length).

        Raises:
            ValueError: If the batch has no labels.
        """
        if self.weights is None:
            raise ValueError("row_sums needs a batch with labels, got none; give labels")
        return (losses * self.weights[:, None].to(losses.dtype)).sum(dim=1)
