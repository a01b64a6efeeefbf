"""Losses over a vocabulary of tokens and phrases, computed without holding the logits of all rows at once."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hf_targets.maths.losses import IGNORED, LOGITS_PER_CHUNK


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = F.linear(hidden, weight.to(hidden.dtype), None if bias is None else bias.to(hidden.dtype))
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def phrase_logits(hidden: Tensor, phrases: Tensor) -> Tensor:
    """Return hidden . e_p for hidden states (..., d) and phrases (..., P, d), plus a bias if they have d + 1 columns.

    The last of the d + 1 columns is the bias of each phrase.
    """
    return with_ones(hidden, phrases) @ phrases.mT.to(hidden.dtype)


def with_ones(hidden: Tensor, phrases: Tensor) -> Tensor:
    """Return hidden states (..., d), with a last column of ones if `phrases` (..., d + 1) have a bias there."""
    return F.pad(hidden, (0, phrases.shape[-1] - hidden.shape[-1]), value=1.0)


def _normalizer_and_chosen(hidden: Tensor, tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    logits = _logits(hidden, weight, bias)
    return torch.stack([logits.logsumexp(dim=-1), logits.gather(1, tokens[:, None])[:, 0]], dim=1)


def _in_chunks(function, width: int, rows: tuple[Tensor, ...], *shared) -> Tensor:
    """Apply `function` to chunks of rows with at most `LOGITS_PER_CHUNK` logits each, and concatenate the results.

    The backward pass recomputes each chunk. If all rows fit into one chunk, nothing is recomputed.

    Args:
        width: Logits in a row.
        rows: Arguments that are split by rows.
        shared: Arguments that are passed whole.
    """
    size = max(1, LOGITS_PER_CHUNK // width)
    if len(rows[0]) <= size:
        return function(*rows, *shared)
    results = []
    for chunk in zip(*(part.split(size) for part in rows), strict=True):
        results.append(checkpoint(function, *chunk, *shared, use_reentrant=False, preserve_rng_state=False))
    return torch.cat(results)  # pyright: ignore[reportArgumentType]


def dynamic_cross_entropy(
    hidden: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    phrases: Float[Tensor, "phrases width"],
    targets: Int[Tensor, "rows"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    excluded: Bool[Tensor, "rows phrases"] | None = None,
) -> Float[Tensor, "rows"]:
    """Return -log P(target | hidden) of equation (1) over tokens and phrases; 0 where the target is -100.

    P(k) = exp(hidden . e_k) / (sum over V + sum over P). The two sums are computed separately, so that the output
    matrix and the phrase embeddings are not copied into one matrix, and an excluded phrase has exactly no weight.

    Args:
        targets: In [0, vocab) for a token, vocab + p for phrase p, or -100.
        phrases: Of width dim, or dim + 1 with a bias of each phrase in the last column.
        bias: Bias of the tokens.
        excluded: True for a phrase that is left out of the sum of a row, such as another correct continuation. The
            target of a row must not be excluded.
    Source: Liu et al., "Generation with Dynamic Vocabulary", equation (1).
    """
    vocab_size, kept = weight.shape[0], targets != IGNORED
    hidden, targets = hidden[kept], targets[kept]
    losses = hidden.new_zeros(kept.shape, dtype=torch.promote_types(hidden.dtype, torch.float32))
    if not len(targets):
        return losses + hidden.sum() * 0 + phrases.sum() * 0
    is_phrase = targets >= vocab_size
    tokens = targets.masked_fill(is_phrase, 0) if len(phrases) else targets  # then an id beyond them is an error
    normalizer, chosen = _in_chunks(_normalizer_and_chosen, vocab_size, (hidden, tokens), weight, bias).unbind(dim=1)
    if len(phrases):
        logits = _logits(with_ones(hidden, phrases), phrases, None)
        slots = (targets - vocab_size).clamp(min=0)
        chosen = torch.where(is_phrase, logits.gather(1, slots[:, None])[:, 0], chosen)
        if excluded is not None:
            logits = logits.masked_fill(excluded[kept], -torch.inf)
        # if all phrases of a row are excluded, its gradient through -inf would be nan
        has_phrases = logits.isfinite().any(dim=1)
        of_phrases = logits.masked_fill(~has_phrases[:, None], 0.0).logsumexp(dim=1)
        normalizer = torch.where(has_phrases, torch.logaddexp(normalizer, of_phrases), normalizer)
    return losses.masked_scatter(kept, normalizer - chosen)


def _chunk_kl(hidden: Tensor, teacher: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    log_q = _logits(teacher, weight, bias).log_softmax(dim=-1).detach()  # also from the matrix, which both share
    log_p = _logits(hidden, weight, bias).log_softmax(dim=-1)
    return (log_p.exp() * (log_p - log_q)).sum(dim=-1)


def token_kl_divergence(
    hidden: Float[Tensor, "rows dim"],
    teacher: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    bias: Float[Tensor, "vocab"] | None = None,
) -> Float[Tensor, "rows"]:
    """Return KL(p || q) of each row, where p is the next-token distribution after `hidden`, and q that after `teacher`.

    Both are over tokens alone, renormalised. There is no gradient through q.

    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.4, L_kl.
    """
    if not len(hidden):
        return (hidden.sum(dim=-1) + teacher.sum(dim=-1)).float()
    return _in_chunks(_chunk_kl, len(weight), (hidden, teacher), weight, bias)
