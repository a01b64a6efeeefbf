"""Which drafted tokens stay: a walk through each row's draft along the tokens that the model itself would give."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hf_targets.maths.speculative_sampling import accept_or_resample
from hf_targets.multitoken.drafting.drafts import Draft

Process = Callable[[Tensor, Tensor], Tensor]
"""From the tokens taken so far (rows, steps) and the logits after them (rows, vocab), the processed logits."""


@dataclass
class Verified:
    """The tokens a pass brings.

    Attributes:
        tokens: Each row's first `counts` entries are its tokens; the last of them is the bonus token.
        positions: The positions of the chunk whose logits gave those tokens: what the cache is to keep.
        scores, logits: A step's processed and raw logits, (rows, vocab) each.
    """

    tokens: Int[Tensor, "rows steps"]
    counts: Int[Tensor, "rows"]
    positions: Int[Tensor, "rows steps"]
    scores: list[Tensor]
    logits: list[Tensor]


def verify(draft: Draft, logits: Float[Tensor, "rows positions vocab"], process: Process, *, sample: bool) -> Verified:
    """Walk from the last known token to a drafted child as long as that is the token that the model gives.

    Greedy rows take the most probable token at each position. Sampled rows draw it: a draft whose tokens were
    themselves sampled is accepted by speculative sampling; a draft of chosen tokens, a tree, by being what was drawn.
    Either way
    the tokens are those of the model without drafts: the same ones, or the same distribution.
    """
    rows = torch.arange(logits.shape[0], device=logits.device)
    position = torch.zeros_like(rows)
    alive = torch.ones_like(rows, dtype=torch.bool)
    counts = torch.zeros_like(rows)
    tokens, positions, scores, raw = logits.new_zeros(len(rows), 0, dtype=torch.long), [], [], []
    for step in range(max(draft.depths, default=0) + 1):
        here = logits[rows, position].float()
        given = process(tokens, here)
        positions.append(position)
        scores.append(given)
        raw.append(here)
        counts = counts + alive.long()
        children = draft.exists & (draft.parents == position[:, None]) if draft.depths else draft.exists
        token = torch.multinomial(given.softmax(dim=-1), num_samples=1)[:, 0] if sample else given.argmax(dim=-1)
        if sample and draft.logits is not None and step < draft.tokens.shape[1]:
            kept, accepted = accept_or_resample(draft.tokens[:, step], draft.logits[:, step], given)
            token = torch.where(children.any(dim=1), kept, token)  # where a row has no draft here, nothing was drawn
            children = children & accepted[:, None]
        tokens = torch.cat([tokens, token[:, None]], dim=1)
        if not draft.depths:
            break
        fits = children & (draft.tokens == token[:, None])
        alive = alive & fits.any(dim=1)
        if not alive.any():
            break
        position = torch.where(alive, fits.int().argmax(dim=1) + 1, position)
    return Verified(tokens, counts, torch.stack(positions, dim=1), scores, raw)
