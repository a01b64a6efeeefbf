"""How embeddings become noise in training, and which steps lead back, in discrete steps or in continuous time."""

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor

from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.maths.gaussian_noise import ReverseStep, ancestral_steps, cedi_steps, signal_shares, spaced_steps
from hf_targets.maths.torch_modes import widest

_LEAST_TIME = 1e-3
_TOLD_STEPS = 1000.0
"""The time embedding counts the steps of any schedule from 0 to this."""


@dataclass(frozen=True)
class DiscreteProcess:
    """T steps of a schedule: z_t = sqrt(a_t) z_0 + sqrt(1 - a_t) F e. Times are steps, 0 to T - 1.

    The noise of training is F times as large as the schedule says, and the signal is as it says: the variance is not
    kept. Decoding begins with noise of factor 1, unless it is told otherwise.

    Source: Gao et al. 2024, section 4.3 ("noise rescaling"), and the published program.
    """

    config: DifformerConfig
    num_skipped_steps: ClassVar[int] = 5
    """How many of the last steps decoding leaves out, unless it is told otherwise."""

    @property
    def shares(self) -> Tensor:
        """a_t of all steps, (T,), in float64 on the CPU."""
        return signal_shares(cast(str, self.config.noise_schedule), self.config.num_diffusion_steps)

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last time."""
        return 0.0, self.config.num_diffusion_steps - 1.0

    def times(self, uniforms: Tensor, least: Tensor | float) -> Tensor:
        """Return a time for each number in [0, 1), (batch,)."""
        return (uniforms * self.config.num_diffusion_steps).floor()

    def told(self, times: Tensor) -> Tensor:
        """Return times as the time embedding reads them."""
        return times * (_TOLD_STEPS / self.config.num_diffusion_steps)

    def deviations(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of signal and noise, each (batch,), in float64 where the device has it."""
        kept = self.shares.to(times.device, widest(times.device))[times.long()]
        return kept.sqrt(), (1 - kept).sqrt() * cast(float, self.config.noise_factor)

    def steps_back(self, num_steps: int, num_skipped: int) -> list[ReverseStep]:
        """Return the steps of decoding, from noise to text, without the last `num_skipped`."""
        total = self.config.num_diffusion_steps
        chosen = spaced_steps(total, num_steps)
        return ancestral_steps(self.shares, chosen, num_skipped=num_skipped, time_scale=_TOLD_STEPS / total)


@dataclass(frozen=True)
class ContinuousProcess:
    """z_t = sqrt(1 - t^2) z_0 + t F e for t in [.001, 1].

    Source: Ye et al. 2023, "DINOISER", and the published program.
    """

    config: DifformerConfig
    num_skipped_steps: ClassVar[int] = 0
    """How many of the last steps decoding leaves out, unless it is told otherwise."""

    @property
    def bounds(self) -> tuple[float, float]:
        """The first and the last time."""
        return _LEAST_TIME, 1.0

    def times(self, uniforms: Tensor, least: Tensor | float) -> Tensor:
        """Return a time in [least, 1) for each number in [0, 1), (batch,)."""
        bound = torch.as_tensor(least, dtype=uniforms.dtype, device=uniforms.device).clamp(min=_LEAST_TIME)
        return bound + (1 - bound) * uniforms

    def told(self, times: Tensor) -> Tensor:
        """Return times as the time embedding reads them."""
        return times

    def deviations(self, times: Tensor) -> tuple[Tensor, Tensor]:
        """Return the factors of signal and noise, each (batch,), in float32."""
        return (1 - times.float().square()).sqrt(), times.float() * cast(float, self.config.noise_factor)

    def steps_back(self, num_steps: int, num_skipped: int) -> list[ReverseStep]:
        """Return the steps of decoding, from noise to text, without the last `num_skipped`."""
        return cedi_steps(num_steps)[: num_steps - num_skipped]


Process = DiscreteProcess | ContinuousProcess


def decoding_steps(config: DifformerConfig, num_reverse_steps: int, num_skipped_steps: int | None) -> list[ReverseStep]:
    """Return the steps of decoding with these settings of `generate`.

    Args:
        num_skipped_steps: None: as many as the process leaves out by itself.
    Raises:
        ValueError: If the schedule has fewer steps, or none is left.
    """
    process = process_of(config)
    skipped = process.num_skipped_steps if num_skipped_steps is None else num_skipped_steps
    most = config.num_diffusion_steps if isinstance(process, DiscreteProcess) else num_reverse_steps
    if not 0 <= skipped < num_reverse_steps <= most:
        limit = f", and at most {most}, the steps of the schedule" if num_reverse_steps > most else ""
        raise ValueError(
            f"num_reverse_steps must be above num_skipped_steps={skipped}, 0 or more{limit}, got {num_reverse_steps}"
        )
    return process.steps_back(num_reverse_steps, skipped)


def process_of(config: DifformerConfig) -> Process:
    """Return the process that a configuration names."""
    return ContinuousProcess(config) if config.noise_schedule == "continuous" else DiscreteProcess(config)
