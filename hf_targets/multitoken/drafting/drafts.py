"""Drafts: what the heads guess after the next token, as a chain or as a tree."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class DraftSettings:
    """What is asked of `generate`.

    Attributes:
        num_tokens: Tokens drafted one after another, k; heads 1 to k make them.
        num_branches: Guesses kept for each of those tokens, in a tree; 1 drafts a chain.
    """

    num_tokens: int
    num_branches: int = 1


class FuturePredictor(Protocol):
    """A model whose head n predicts, from the hidden state that gave the next token, the token n steps after that."""

    @property
    def sequential(self) -> bool:
        """Whether a head's guess depends on the tokens between: drafts are then made one after another."""
        ...

    def future_states(self, hidden: Tensor, count: int) -> Tensor:
        """Map hidden states (rows, dim) to what heads 1 to `count` say of them, (rows, count, dim)."""
        ...

    def future_logits(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return head n's logits (rows, vocab), given its states (rows, dim) and the n tokens (rows, n) between."""
        ...

    def parallel_logits(self, states: Tensor) -> Tensor:
        """Return the logits (rows, count, vocab) of all heads' states at once, where no guess needs another."""
        ...


@dataclass
class Draft:
    """Tokens to be verified after the last token of each row; node j of the tree is at position j + 1 of that chunk.

    Attributes:
        tokens: The tokens.
        parents: The position of the token before each, 0 for the last known token.
        depths: Steps from the last known token to each node, the same in all rows.
        exists: False where a row has fewer tokens than the others.
        logits: The distribution that the tokens of a chain were drawn from; None if they were chosen.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    depths: list[int]
    exists: Bool[Tensor, "rows nodes"]
    logits: Float[Tensor, "rows nodes vocab"] | None = None

    def ancestors(self) -> Bool[Tensor, "rows positions positions"]:
        """Return what each position of the chunk may see: itself and its path to the last known token."""
        rows, nodes = self.tokens.shape
        visible = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).repeat(rows, 1, 1)
        at = torch.arange(rows, device=self.tokens.device)
        for node in range(nodes):
            visible[:, node + 1] |= visible[at, self.parents[:, node]]
        return visible


Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits (rows, vocab) and the tokens drafted before (rows, n - 1), a token and the logits it was drawn from."""


def empty_draft(num_rows: int, device: torch.device) -> Draft:
    """Return a draft without tokens."""
    none = torch.zeros(num_rows, 0, dtype=torch.long, device=device)
    return Draft(tokens=none, parents=none, depths=[], exists=none.bool())


def draft_chain(
    model: FuturePredictor,
    hidden: Float[Tensor, "rows dim"],
    next_tokens: Int[Tensor, "rows"],
    count: int,
    choose: Choose,
    *,
    keep_logits: bool,
) -> Draft:
    """Draft `count` tokens after `next_tokens`, each given those before it where the heads' guesses depend on them.

    Args:
        hidden: The hidden states that predicted `next_tokens`.
        keep_logits: Whether the draft is to tell what its tokens were drawn from.
    """
    rows = next_tokens.shape[0]
    if count < 1:
        return empty_draft(rows, next_tokens.device)
    states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    drafted, drawn_from = next_tokens[:, None], []
    for n in range(1, count + 1):
        logits = model.future_logits(states[:, n - 1], drafted) if at_once is None else at_once[:, n - 1]
        token, logits = choose(logits.float(), drafted[:, 1:])
        drafted = torch.cat([drafted, token[:, None]], dim=1)
        if keep_logits:
            drawn_from.append(logits)
    positions = torch.arange(count, device=drafted.device).expand(rows, count)
    return Draft(
        tokens=drafted[:, 1:],
        parents=positions,
        depths=list(range(1, count + 1)),
        exists=torch.ones_like(positions, dtype=torch.bool),
        logits=torch.stack(drawn_from, dim=1) if keep_logits else None,
    )


def draft_tree(
    model: FuturePredictor,
    hidden: Float[Tensor, "rows dim"],
    next_tokens: Int[Tensor, "rows"],
    count: int,
    branches: int,
) -> Draft:
    """Draft the `branches` most probable continuations of every length up to `count`, grown from each other.

    Level n holds the `branches` best of all continuations of level n - 1 by one token, by the product of the heads'
    probabilities.
    """
    rows = next_tokens.shape[0]
    if count < 1:
        return empty_draft(rows, next_tokens.device)
    states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    drafted = next_tokens[:, None, None]  # (rows, paths, n): the tokens on each path, the next token first
    scores = torch.zeros(rows, 1, device=hidden.device)
    parents, tokens, depths = [], [], []
    first_position = 0  # of the level before
    for n in range(1, count + 1):
        paths = drafted.shape[1]
        if at_once is None:
            said = states[:, n - 1 : n].expand(-1, paths, -1).flatten(0, 1)
            logits = model.future_logits(said, drafted.flatten(0, 1)).unflatten(0, (rows, paths))
        else:
            logits = at_once[:, n - 1 : n]
        best, token = logits.float().log_softmax(dim=-1).topk(min(branches, logits.shape[-1]), dim=-1)
        joint = (scores[..., None] + best).flatten(1)
        scores, chosen = joint.topk(min(branches, joint.shape[1]), dim=1)
        parent = chosen // best.shape[-1]
        token = token.expand(-1, paths, -1).flatten(1).gather(1, chosen)
        before = drafted.gather(1, parent[..., None].expand(-1, -1, n))
        drafted = torch.cat([before, token[..., None]], dim=2)
        parents.append(first_position + parent)
        tokens.append(token)
        depths += [n] * token.shape[1]
        first_position = 1 + len(depths) - token.shape[1]
    drafted = torch.cat(tokens, dim=1)
    return Draft(drafted, torch.cat(parents, dim=1), depths, torch.ones_like(drafted, dtype=torch.bool))
