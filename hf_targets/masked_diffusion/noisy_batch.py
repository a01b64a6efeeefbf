"""A batch for the bound: a canvas, the times at which it was masked, its clean tokens, and a weight for each row.

Values of tensors are checked only on a CPU: on another device the check would wait for that device.
"""

from dataclasses import dataclass
from typing import Self, cast

import torch
from torch import Tensor

from hf_targets.backbones.inputs import can_look, check_ids, check_integers, check_padding, check_position_shape
from hf_targets.backbones.packing import num_texts, text_numbers
from hf_targets.masked_diffusion.configuration import MdlmConfig
from hf_targets.maths.losses import IGNORED
from hf_targets.maths.noise import NoiseSchedule, antithetic_times, mask_tokens

CURVES_ARE_PADDED = "a curve has its control points in one row of a batch, so that rows are padded and not packed"


@dataclass(frozen=True)
class NoisyBatch:
    """The input of a masked diffusion model, and the targets and weights of its loss.

    Attributes:
        canvas: (batch, length), a text with some of its tokens masked.
        timesteps: (batch,), in (0, 1], the times at which the rows were masked; None if unknown. In packed rows each
            text has one.
        labels: (batch, length), the clean tokens, -100 where a token is not a target; None if there is no loss.
        weights: (batch, 1), the factor of each row's losses, in packed rows (batch, length); None without labels.
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
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        timesteps: Tensor | None = None,
        may_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Self:
        """Return the batch for a call of `MdlmForMaskedDiffusion.forward`, after checks of its arguments.

        A text with labels and without times is masked at random times.

        Raises:
            ValueError: If an argument is not as `forward` says.
        """
        is_padded = attention_mask is not None and can_look(attention_mask) and not attention_mask.all()
        if position_ids is not None and is_padded:
            raise ValueError("position_ids tell packed rows, which have no padding; leave them out of padded rows")
        _check(config, input_ids, labels, timesteps, may_mask, position_ids)
        if attention_mask is not None:
            hint = "Masked tokens are attended to: give them mask_token_id and leave their attention at 1"
            check_padding(attention_mask, input_ids, hint=hint, needs_token=True)
        input_ids = input_ids.long()
        if labels is None:
            return cls(input_ids, timesteps)
        labels = labels.long()
        mask = cast(int, config.mask_token_id)
        if attention_mask is not None:
            labels = labels.masked_fill(attention_mask == 0, IGNORED)
        may_mask = maskable(labels, attention_mask, may_mask)
        _check_clean(labels, mask, None if timesteps is not None else input_ids)
        canvas = input_ids
        if timesteps is None:
            count = num_texts(input_ids, position_ids)
            timesteps = antithetic_times(count, generator=generator, device=input_ids.device)
            times = at_positions(timesteps, input_ids, position_ids)
            canvas = mask_tokens(input_ids, times, may_mask, mask, schedule, generator=generator)
        return cls(canvas, timesteps, labels, at_positions(schedule.weight(timesteps), input_ids, position_ids))


def at_positions(values: Tensor, ids: Tensor, position_ids: Tensor | None) -> Tensor:
    """Return the values (texts,) of texts at their positions in ids (batch, length), (batch, 1) if each row is one."""
    return values[:, None] if position_ids is None else values[text_numbers(ids, position_ids)]


def maskable(labels: Tensor, attention_mask: Tensor | None, may_mask: Tensor | None) -> Tensor:
    """Return (batch, length), true where the model may mask a token: at targets, or where `may_mask` says so.

    Args:
        labels: (batch, length), -100 where a token is no target.
        attention_mask: (batch, length), 0 at padding, which is never masked.
        may_mask: (batch, length); None: where labels are targets.
    Raises:
        ValueError: If `may_mask` has another shape, or leaves out a target.
    """
    if may_mask is None:
        return labels != IGNORED
    if may_mask.shape != labels.shape:
        raise ValueError(f"may_mask must have the shape of labels, {tuple(labels.shape)}, got {tuple(may_mask.shape)}")
    may = may_mask != 0
    if attention_mask is not None:
        may &= attention_mask != 0
    if can_look(labels) and ((labels != IGNORED) & ~may).any():
        raise ValueError(
            f"may_mask must be true at each target, as one that is never masked costs nothing; label others {IGNORED}"
        )
    return may


def _check(
    config: MdlmConfig,
    input_ids: Tensor,
    labels: Tensor | None,
    timesteps: Tensor | None,
    may_mask: Tensor | None,
    position_ids: Tensor | None,
) -> None:
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(f"input_ids must be (batch, length), with at least one token, got {tuple(input_ids.shape)}")
    if labels is not None and labels.shape != input_ids.shape:
        raise ValueError(
            f"labels must have the shape of input_ids, {tuple(input_ids.shape)}, got {tuple(labels.shape)}; each is "
            "the clean token at its own position"
        )
    check_position_shape(position_ids, input_ids)
    if position_ids is not None and config.curve is not None:
        raise ValueError(f"{CURVES_ARE_PADDED}; leave out position_ids")
    check_integers(input_ids=input_ids, labels=labels)
    check_ids(input_ids, config.vocab_size, "input_ids")
    if labels is not None:
        check_ids(labels, config.vocab_size, "labels", IGNORED)
    if may_mask is not None and (labels is None or timesteps is not None):
        raise ValueError("may_mask says where a text is masked, which has labels and no timesteps yet; leave it out")
    if timesteps is None:
        return
    counted = position_ids is None or can_look(input_ids)
    count = num_texts(input_ids, position_ids) if counted else len(timesteps)
    if timesteps.shape != (count,) or not timesteps.is_floating_point():
        raise ValueError(
            f"timesteps must be one number a row, or a text of a packed row, ({count},), in (0, 1], got "
            f"{timesteps.dtype} of shape {tuple(timesteps.shape)}"
        )
    if can_look(timesteps) and not ((timesteps > 0) & (timesteps <= 1)).all():
        raise ValueError(f"timesteps must be in (0, 1], got {timesteps.tolist()}; at 0 nothing is masked")


def _check_clean(labels: Tensor, mask_token_id: int, text: Tensor | None) -> None:
    """Check that labels hold no mask, and are those of the clean text (batch, length), if one is given."""
    if not can_look(labels):
        return
    if (labels == mask_token_id).any():
        raise ValueError(
            f"labels must be clean tokens, got the mask, {mask_token_id}; give {IGNORED} where no target is"
        )
    if text is not None and ((labels != IGNORED) & (labels != text)).any():
        row, position = ((labels != IGNORED) & (labels != text)).nonzero()[0].tolist()
        raise ValueError(
            f"without timesteps input_ids are clean text, and labels the same or {IGNORED}; row {row} has "
            f"{text[row, position]} at position {position} and the label {labels[row, position]}. Give the text as it "
            "is, which the model masks, or the timesteps at which it was masked"
        )
