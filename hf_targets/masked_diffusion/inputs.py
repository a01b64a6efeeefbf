"""What a batch of a masked diffusion model must be; values are looked at on a CPU alone: elsewhere that would wait."""

from torch import Tensor

from hf_targets.backbones.inputs import can_look, check_integers, check_padding
from hf_targets.maths.losses import IGNORED


def check_batch(
    input_ids: Tensor, labels: Tensor | None, timesteps: Tensor | None, may_mask: Tensor | None = None
) -> None:
    """Check the shapes and types of ids, labels and times, the range of times, and that `may_mask` is of use.

    Raises:
        ValueError: If they are not as `forward` says.
    """
    if input_ids.dim() != 2 or not input_ids.numel():
        raise ValueError(f"input_ids must be (batch, length), with at least one token, got {tuple(input_ids.shape)}")
    if labels is not None and labels.shape != input_ids.shape:
        raise ValueError(
            f"labels must have the shape of input_ids, {tuple(input_ids.shape)}, got {tuple(labels.shape)}; each is "
            "the clean token at its own position"
        )
    check_integers(input_ids=input_ids, labels=labels)
    if may_mask is not None and (labels is None or timesteps is not None):
        raise ValueError("may_mask says where a text is masked, which has labels and no timesteps yet; leave it out")
    if timesteps is None:
        return
    if timesteps.shape != input_ids.shape[:1] or not timesteps.is_floating_point():
        raise ValueError(
            f"timesteps must be one number a row, ({len(input_ids)},), in (0, 1], got {timesteps.dtype} of shape "
            f"{tuple(timesteps.shape)}"
        )
    if can_look(timesteps) and not ((timesteps > 0) & (timesteps <= 1)).all():
        raise ValueError(f"timesteps must be in (0, 1], got {timesteps.tolist()}; at 0 nothing is masked")


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
            f"may_mask must be true at each target, as one that is never masked costs nothing; give it the label "
            f"{IGNORED}, or may_mask 1"
        )
    return may


def check_clean(labels: Tensor, mask_token_id: int, text: Tensor | None) -> None:
    """Check that labels hold no mask and are those of the text.

    Args:
        text: (batch, length), the input where it is clean text; None where it is a canvas, masked at times that are
            known.
    Raises:
        ValueError: If a label is the mask, or another token than the text's.
    """
    if not can_look(labels):
        return
    if (labels == mask_token_id).any():
        raise ValueError(
            f"labels must be clean tokens, got the mask, {mask_token_id}; a token that is no target has {IGNORED}"
        )
    if text is None:
        return
    wrong = (labels != IGNORED) & (labels != text)
    if wrong.any():
        row, position = wrong.nonzero()[0].tolist()
        raise ValueError(
            f"without timesteps input_ids are clean text, and labels the same or {IGNORED}; row {row} has "
            f"{text[row, position]} at position {position} and the label {labels[row, position]}. Give the text as it "
            "is, which the model masks, or the timesteps at which it was masked"
        )


def check_mask(attention_mask: Tensor | None, input_ids: Tensor) -> None:
    """Check that a mask is shaped as its batch, and is 0 at the ends of its rows alone.

    Raises:
        ValueError: If it is not, or a row has no token.
    """
    if attention_mask is None:
        return
    hint = "Masked tokens are attended to: give them mask_token_id and leave their attention at 1"
    check_padding(attention_mask, input_ids, hint=hint, needs_token=True)
