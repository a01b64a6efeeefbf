"""Checks of what a Gaussian diffusion model is given."""

from torch import Tensor

from hf_targets.backbones.inputs import can_look, check_ids, check_integers
from hf_targets.gaussian_diffusion.configuration import DifformerConfig
from hf_targets.gaussian_diffusion.process import DiscreteProcess, Process
from hf_targets.maths.losses import IGNORED


def check_labels(config: DifformerConfig, labels: Tensor, input_ids: Tensor) -> None:
    """Check that labels are texts, one for each source.

    Raises:
        ValueError: If they are not, one is too long, an id is out of range, or -100 comes before a token.
    """
    if labels.dim() != 2 or len(labels) != len(input_ids) or not labels.numel():
        raise ValueError(
            f"labels must be (batch, time) with a row for each source, ({len(input_ids)}, time), got "
            f"{tuple(labels.shape)}"
        )
    check_integers(labels=labels)
    check_ids(labels, config.vocab_size, "labels", IGNORED)
    check_length(config, "a text", labels)
    if can_look(labels):
        is_target = labels != IGNORED
        if (is_target[:, 1:] & ~is_target[:, :-1]).any():
            raise ValueError(
                "labels may be -100 after the end of a text only, got -100 before a token; pad on the right"
            )


def check_noise(process: Process, timesteps: Tensor, noise: Tensor, clean: Tensor) -> None:
    """Check times (batch,) and noise for embeddings (batch, time, latent).

    Raises:
        ValueError: If shapes do not agree, a time is out of range, or between two steps of a schedule.
    """
    if timesteps.shape != clean.shape[:1] or noise.shape != clean.shape:
        raise ValueError(
            f"timesteps must be ({len(clean)},) and noise {tuple(clean.shape)}, got {tuple(timesteps.shape)} and "
            f"{tuple(noise.shape)}"
        )
    least, most = process.bounds
    if can_look(timesteps) and not ((timesteps >= least) & (timesteps <= most)).all():
        raise ValueError(f"timesteps must be in [{least:g}, {most:g}], got {timesteps.tolist()}")
    if isinstance(process, DiscreteProcess) and can_look(timesteps) and (timesteps != timesteps.floor()).any():
        raise ValueError(f"timesteps must be whole, as the schedule has steps, got {timesteps.tolist()}")


def check_length(config: DifformerConfig, what: str, ids: Tensor) -> None:
    """Check that ids (batch, length) fit into the model's positions.

    Raises:
        ValueError: If they do not.
    """
    limit = config.max_position_embeddings
    if ids.shape[1] > limit:
        raise ValueError(
            f"{what} must fit into the model's {limit} positions, got {ids.shape[1]} tokens; shorten it, or have "
            f"the tokenizer cut it, with truncation=True and max_length={limit}"
        )
