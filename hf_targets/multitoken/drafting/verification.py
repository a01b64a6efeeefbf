"""Which drafted words stay: a walk through each row's draft along the words that the model itself would give."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from hf_targets.maths.acceptance import accept_or_resample
from hf_targets.multitoken.drafting.drafts import Draft

Process = Callable[[Tensor, Tensor], Tensor]
"""From the words taken so far (rows, steps) and the logits after them (rows, vocab), the processed logits."""


@dataclass
class Verified:
    """The words a pass brings.

    Attributes:
        words: Each row's first `counts` entries are its words; the last of them is the bonus word.
        places: The places of the chunk whose logits gave those words: what the cache is to keep.
        scores, logits: A step's processed and raw logits, (rows, vocab) each.
    """

    words: Int[Tensor, "rows steps"]
    counts: Int[Tensor, "rows"]
    places: Int[Tensor, "rows steps"]
    scores: list[Tensor]
    logits: list[Tensor]


def verify(draft: Draft, logits: Float[Tensor, "rows places vocab"], process: Process, *, sample: bool) -> Verified:
    """Walk from the last known word to a drafted child as long as that is the word that the model gives.

    Greedy rows take the most probable word at each place. Sampled rows draw it: a draft whose words were themselves
    sampled is accepted by speculative sampling; a draft of chosen words, a tree, by being what was drawn. Either way
    the words are those of the model without drafts: the same ones, or the same distribution.
    """
    rows = torch.arange(logits.shape[0], device=logits.device)
    place = torch.zeros_like(rows)
    alive = torch.ones_like(rows, dtype=torch.bool)
    counts = torch.zeros_like(rows)
    words, places, scores, raw = logits.new_zeros(len(rows), 0, dtype=torch.long), [], [], []
    for step in range(max(draft.depths, default=0) + 1):
        here = logits[rows, place].float()
        given = process(words, here)
        places.append(place)
        scores.append(given)
        raw.append(here)
        counts = counts + alive.long()
        children = draft.exists & (draft.parents == place[:, None]) if draft.depths else draft.exists
        word = torch.multinomial(given.softmax(dim=-1), num_samples=1)[:, 0] if sample else given.argmax(dim=-1)
        if sample and draft.logits is not None and step < draft.tokens.shape[1]:
            kept, accepted = accept_or_resample(draft.tokens[:, step], draft.logits[:, step], given)
            word = torch.where(children.any(dim=1), kept, word)  # where a row has no draft here, nothing was drawn
            children = children & accepted[:, None]
        words = torch.cat([words, word[:, None]], dim=1)
        if not draft.depths:
            break
        fits = children & (draft.tokens == word[:, None])
        alive = alive & fits.any(dim=1)
        if not alive.any():
            break
        place = torch.where(alive, fits.int().argmax(dim=1) + 1, place)
    return Verified(words, counts, torch.stack(places, dim=1), scores, raw)
