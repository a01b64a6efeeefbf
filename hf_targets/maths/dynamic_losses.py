"""Losses over a vocabulary of tokens and phrases, computed without holding the logits of all rows at once."""

from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from hf_targets.maths.losses import IGNORED, LOGITS_PER_CHUNK

Direction = Literal["forward", "reverse"]


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


def _in_chunks(function, width: int, rows: tuple[Tensor | None, ...], *shared) -> Tensor:
    """Apply `function` to chunks of rows with at most `LOGITS_PER_CHUNK` logits each, and concatenate the results.

    The backward pass recomputes each chunk. If all rows fit into one chunk, nothing is recomputed.

    Args:
        width: Logits in a row.
        rows: Arguments that are split by rows; None is passed on.
        shared: Arguments that are passed whole.
    """
    size = max(1, LOGITS_PER_CHUNK // width)
    count = next(len(part) for part in rows if part is not None)
    if count <= size:
        return function(*rows, *shared)
    results = []
    for start in range(0, count, size):
        chunk = [None if part is None else part[start : start + size] for part in rows]
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


def _chunk_kl(
    hidden: Tensor,
    teacher: Tensor,
    excluded: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    phrases: Tensor | None,
    first_tokens: Tensor | None,
    direction: Direction,
    detach_teacher: bool,
) -> Tensor:
    log_q = _logits(teacher, weight, bias).log_softmax(dim=-1)
    if detach_teacher:  # also from the output matrix, which teacher and student share
        log_q = log_q.detach()
    logits = _logits(hidden, weight, bias)
    if phrases is None or first_tokens is None or not len(phrases):
        log_p = logits.log_softmax(dim=-1)
    else:
        of_phrases = _logits(with_ones(hidden, phrases), phrases, None)
        if excluded is not None:
            of_phrases = of_phrases.masked_fill(excluded, -torch.inf)
        shares = torch.cat([logits, of_phrases], dim=-1).softmax(dim=-1)
        folded = shares[:, : len(weight)].index_add(1, first_tokens, shares[:, len(weight) :])
        log_p = folded.clamp(min=torch.finfo(folded.dtype).tiny).log()
    if direction == "forward":
        return (log_p.exp() * (log_p - log_q)).sum(dim=-1)
    return (log_q.exp() * (log_q - log_p)).sum(dim=-1)


def token_kl_divergence(
    hidden: Float[Tensor, "rows dim"],
    teacher: Float[Tensor, "rows dim"],
    weight: Float[Tensor, "vocab dim"],
    bias: Float[Tensor, "vocab"] | None = None,
    *,
    direction: Direction = "forward",
    detach_teacher: bool = False,
    phrases: Float[Tensor, "phrases width"] | None = None,
    first_tokens: Int[Tensor, "phrases"] | None = None,
    excluded: Bool[Tensor, "rows phrases"] | None = None,
) -> Float[Tensor, "rows"]:
    """Return KL(p || q) of each row, where p is the next-token distribution after `hidden`, and q that after `teacher`.

    Without `phrases`, p is the softmax over the tokens only. With them, the probability of each phrase is added to that
    of its first token.

    Args:
        direction: "forward" is KL(p || q) as in the paper's L_kl, "reverse" is KL(q || p).
        detach_teacher: Whether to cut the gradient through q.
        first_tokens: The id of each phrase's first token.
        excluded: True for a phrase that a row does not have.
    Source: Liu et al., "Generation with Dynamic Vocabulary", section 2.4, L_kl.
    """
    if not len(hidden):
        return (hidden.sum(dim=-1) + teacher.sum(dim=-1)).float()
    width = len(weight) + (0 if phrases is None else len(phrases))
    rows = (hidden, teacher, excluded)
    return _in_chunks(_chunk_kl, width, rows, weight, bias, phrases, first_tokens, direction, detach_teacher)
