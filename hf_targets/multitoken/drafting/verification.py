"""Verification of drafts: follow each row's draft as long as it agrees with the tokens that the model chooses."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.multitoken.drafting.drafts import Draft

Process = Callable[[Tensor, Tensor], Tensor]
"""Takes the tokens accepted so far (rows, steps) and the logits after them (rows, vocab); returns processed logits."""


@dataclass
class Verified:
    """The new tokens of a forward pass.

    Attributes:
        tokens: The first `counts` entries of a row are its new tokens; the last of these is the bonus token.
        counts: Number of new tokens in each row, at least 1.
        positions: The positions of the chunk whose logits gave those tokens; the cache must keep these.
        num_drafted: Number of drafted tokens in each row.
        scores, logits: For each step, processed and raw logits, (rows, vocab) each.
    """

    tokens: Int[Tensor, "rows steps"]
    counts: Int[Tensor, "rows"]
    positions: Int[Tensor, "rows steps"]
    num_drafted: Int[Tensor, "rows"]
    scores: list[Tensor]
    logits: list[Tensor]


def verify(
    draft: Draft,
    logits: Float[Tensor, "rows positions vocab"],
    process: Process,
    *,
    sample: bool,
    end_tokens: Int[Tensor, "_"] | None = None,
    to_the_end: bool = False,
) -> Verified:
    """Return the new tokens: walk from the last known token to drafted children while they are the model's own choice.

    Without `sample` the model's choice is its most probable token, and the result equals plain greedy decoding. With
    `sample` it is a random token, and the result has the distribution of plain sampling: a draft with `logits` is
    accepted by speculative sampling; any other draft, such as a tree, is accepted where it equals the sampled token.
    After one of `end_tokens` a row goes no further, so that one row draws as many numbers as in plain sampling.

    Without `to_the_end` it stops where no row goes on; `process` is then called once for each token of the longest row.
    To ask a GPU whether a row goes on costs more than to go on.
    """
    if not draft.depths:  # the common case where drafting does not pay
        current = logits[:, 0].float()
        none = torch.zeros(len(current), 0, dtype=torch.long, device=current.device)
        processed = process(none, current)
        start = torch.zeros_like(processed[:, 0], dtype=torch.long)
        return Verified(_choose(processed, sample)[:, None], start + 1, start[:, None], start, [processed], [current])
    rows = torch.arange(logits.shape[0], device=logits.device)
    position = torch.zeros_like(rows)
    alive = torch.ones_like(rows, dtype=torch.bool)
    counts = torch.zeros_like(rows)
    tokens, positions, scores, raw = logits.new_zeros(len(rows), 0, dtype=torch.long), [], [], []
    for step in range(max(draft.depths) + 1):
        current = logits[rows, position].float()
        processed = process(tokens, current)
        positions.append(position)
        scores.append(processed)
        raw.append(current)
        counts = counts + alive.long()
        children = draft.exists & (draft.parents == position[:, None])
        token = _choose(processed, sample)
        if sample and draft.logits is not None and step < draft.tokens.shape[1]:
            kept, accepted = accept_or_resample(draft.tokens[:, step], draft.logits[:, step], processed)
            token = torch.where(children.any(dim=1), kept, token)  # a row without a draft at this step keeps its sample
            children = children & accepted[:, None]
        tokens = torch.cat([tokens, token[:, None]], dim=1)
        fits = children & (draft.tokens == token[:, None])
        alive = alive & fits.any(dim=1)
        if end_tokens is not None:
            alive = alive & ~torch.isin(token, end_tokens)
        if not (to_the_end or alive.any()):
            break
        position = torch.where(alive, fits.int().argmax(dim=1) + 1, position)
    return Verified(tokens, counts, torch.stack(positions, dim=1), draft.exists.sum(dim=1), scores, raw)


def _choose(processed: Float[Tensor, "rows vocab"], sample: bool) -> Int[Tensor, "rows"]:
    if sample:
        return torch.multinomial(processed.softmax(dim=-1), num_samples=1)[:, 0]
    return processed.max(dim=-1).indices  # as argmax, in less than half of its time on a CPU


def accept_or_resample(
    drafted: Int[Tensor, "rows"],
    draft_logits: Float[Tensor, "rows vocab"],
    logits: Float[Tensor, "rows vocab"],
) -> tuple[Int[Tensor, "rows"], Bool[Tensor, "rows"]]:
    """Return a sample of softmax(logits) for each row, and whether it is the drafted token, accepted.

    Let q = softmax(draft_logits), p = softmax(logits), and x the drafted token, a sample of q. x is accepted with
    probability min(1, p(x) / q(x)); otherwise a token is drawn from max(p - q, 0) / sum(max(p - q, 0)). The returned
    token has distribution p for any q.

    Args:
        drafted: Samples of softmax(draft_logits).
        draft_logits: -inf where a token cannot be drafted.
        logits: -inf where a token cannot be generated.
    Source: Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1.
    """
    p, q = logits.float().softmax(dim=-1), draft_logits.float().softmax(dim=-1)
    index = drafted[:, None]
    accepted = torch.rand_like(p[:, 0]) * q.gather(1, index)[:, 0] < p.gather(1, index)[:, 0]
    residual = (p - q).clamp(min=0.0)
    # a residual of 0 means p = q up to rounding; a token is then rejected only because the ratio was rounded
    residual = torch.where(residual.sum(dim=-1, keepdim=True) > 0, residual, p)
    drawn = torch.multinomial(residual, num_samples=1)[:, 0]
    return torch.where(accepted, drafted, drawn), accepted
