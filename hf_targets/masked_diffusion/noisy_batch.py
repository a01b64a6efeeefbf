"""A batch as the bound sees it: a canvas, the times at which it was masked, its clean tokens, and each row's weight."""

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
    """What a masked diffusion model reads, and what its loss compares with.

    Attributes:
        canvas: (batch, length), a text with some of its tokens masked.
        timesteps: (batch,), in (0, 1], when they were masked; None where that is not known.
        labels: (batch, length), the clean tokens, -100 where a token is no target; None where nothing is learnt.
        weights: (batch,), what each row's losses are multiplied with; None without labels.
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
        """Return the batch of a call of `forward`: a text with labels and no times is masked at times drawn here.

        Args:
            config: Its mask and its number of time steps are used.
            input_ids: (batch, length); the others as `MdlmForMaskedDiffusion.forward` takes them.
        Raises:
            ValueError: If a label is the mask, or another token than the text's, or `may_mask` leaves out a target.
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
            smallest = MIN_TIME if steps is None else 0.0  # so that each of the steps is as likely
            timesteps = antithetic_times(
                len(input_ids), generator=generator, device=input_ids.device, smallest=smallest
            )
            timesteps = timesteps if steps is None else discrete_times(timesteps, steps)
            canvas = mask_tokens(input_ids, timesteps, may_mask, mask, schedule, generator=generator)
        weights = schedule.weight(timesteps) if steps is None else schedule.discrete_weight(timesteps, steps)
        return cls(canvas, timesteps, labels, weights)

    def row_sums(self, losses: Tensor) -> Tensor:
        """Return weight(t) times the sum of each row's losses (batch, length), (batch,).

        Raises:
            ValueError: If the batch has no labels.
        """
        if self.weights is None:
            raise ValueError("a batch without labels has no losses to weigh; give labels")
        return (losses * self.weights[:, None].to(losses.dtype)).sum(dim=1)
