"""Bags of words as targets of a translation: each word of the target should be said somewhere, in any order.

Source: Ma et al. 2018, "Bag-of-Words as Target for Neural Machine Translation", sections 2.3 and 2.4.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from hf_targets.maths.losses import IGNORED


def bag_of_words_losses(
    logits: Float[Tensor, "batch time vocab"], targets: Int[Tensor, "batch time"], *, absent_words: bool = False
) -> Float[Tensor, "batch"]:
    """Return each row's -sum over the distinct words b of its target of log sigmoid(sum_t s_t[b]), 0 without targets.

    s_t are the logits of position t; positions without a target are left out of the sum.

    Args:
        absent_words: Whether the words that are not in the target count too, as log(1 - sigmoid(...)). Without them, as
            in the paper, the loss falls if the logits of all words rise alike, which changes no translation.
    Related: the published program labels all words of the vocabulary as present, as it compares counts with >= 0.
    """
    is_target = targets != IGNORED
    full = torch.promote_types(logits.dtype, torch.float32)
    scores = (logits.to(full) * is_target[..., None]).sum(dim=1)
    words = targets.masked_fill(~is_target, 0)
    counts = torch.zeros_like(scores).scatter_add_(1, words, is_target.to(full))
    present = counts > 0
    said = F.logsigmoid(scores).masked_fill(~present, 0.0).sum(dim=1)
    if not absent_words:
        return -said
    silent = F.logsigmoid(-scores).masked_fill(present | ~is_target.any(dim=1, keepdim=True), 0.0).sum(dim=1)
    return -(said + silent)


def bag_of_words_weight(epoch: int, *, first: float = 0.1, rise: float = 0.1, most: float = 1.0) -> float:
    """Return lambda_i = min(lambda, k + alpha i), the weight of the bag of words in an epoch counted from 0.

    Args:
        first: k.
        rise: Alpha.
        most: Lambda.
    """
    return min(most, first + rise * epoch)
