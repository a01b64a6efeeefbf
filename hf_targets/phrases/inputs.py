"""What a training batch of phrases must be; values are looked at on a CPU alone: elsewhere that would wait."""

import torch
from torch import Tensor

from hf_targets.backbones.inputs import check_integers, check_range
from hf_targets.maths.losses import IGNORED


def check_windows(windows: Tensor, phrase_windows: Tensor) -> None:
    """Check that each phrase is the first tokens of a window; shapes are those of `PhraseEncoder`.

    Raises:
        ValueError: If one is not.
    """
    for name, tensor, right in (
        ("windows must be (windows, length)", windows, windows.dim() == 2),
        ("phrase_windows must be (phrases, 2)", phrase_windows, phrase_windows.shape[1:] == (2,)),
    ):
        if not right or tensor.dtype not in (torch.int64, torch.int32):
            got = f"{tensor.dtype} of shape {tuple(tensor.shape)}"
            raise ValueError(f"{name}, integers, got {got}; PhraseCollator makes such batches")
    check_range(phrase_windows[:, 0], len(windows), "phrase_windows must name windows")
    check_range(phrase_windows[:, 1], windows.shape[1] + 1, "phrase_windows must have lengths", start=1)


def check_phrase_batch(
    ids: Tensor,
    attention_mask: Tensor | None,
    labels: Tensor,
    token_positions: Tensor,
    windows: Tensor,
    phrase_mask: Tensor | None,
    masked_phrases: Tensor | None,
    *,
    num_phrases: int,
    vocab_size: int,
    time: int,
) -> None:
    """Check that a text with phrases, and what stands beside it, point to phrases and tokens that there are.

    Args:
        ids: `phrase_input_ids` of `DynamicVocabForCausalLM.forward`, as the others are its fields of these names.
        num_phrases: Of the batch's table.
        vocab_size: V, where the ids of phrases begin.
        time: Positions of the text in tokens.
    Raises:
        ValueError: If one does not, or has another shape than the text with phrases.
    """
    beside = {"phrase_attention_mask": attention_mask, "phrase_targets": labels, "token_positions": token_positions}
    for name, tensor in beside.items():
        _check_shape(name, tensor, ids.shape, "phrase_input_ids")
    check_integers(phrase_input_ids=ids, phrase_targets=labels, token_positions=token_positions)
    check_range(ids, vocab_size + num_phrases, "phrase_input_ids must be")
    check_range(labels.masked_fill(labels == IGNORED, 0), vocab_size + num_phrases, "phrase_targets must be")
    check_range(token_positions, time, "token_positions must be")
    check_range(windows, vocab_size, "windows must be")
    _check_shape("phrase_mask", phrase_mask, (len(ids), num_phrases), "(batch, phrases)")
    if masked_phrases is not None:
        _check_shape("masked_phrases", masked_phrases, (len(masked_phrases), 3), "(k, 3)")
        stops = {"rows": ids.shape[0], "places": ids.shape[1], "phrases": num_phrases}
        for column, (what, stop) in zip(masked_phrases.T, stops.items(), strict=True):
            check_range(column, stop, f"masked_phrases must have {what}")


def _check_shape(name: str, tensor: Tensor | None, shape: tuple[int, ...], what: str) -> None:
    if tensor is not None and tensor.shape != shape:
        raise ValueError(f"{name} must have the shape of {what}, {tuple(shape)}, got {tuple(tensor.shape)}")
