"""Drafts: the tokens that heads guess, or that were found in a text, after the next token; a chain or a tree."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.multitoken.model import MultiTokenModel


@dataclass(frozen=True)
class DraftSettings:
    """The drafting settings that `generate` was called with.

    Attributes:
        num_tokens: k, the most tokens that heads 1 to k, or an assistant, draft.
        num_branches: Guesses kept at each step of a tree; 1 drafts a chain.
        num_nodes: The most tokens of a tree.
        auto: Whether a pass may draft less, or tokens looked up in the text, as `AutoDrafts` decides.
        or_chain: Whether it also decides between the tree and a chain.
    """

    num_tokens: int
    num_branches: int = 1
    num_nodes: int = sys.maxsize
    auto: bool = False
    or_chain: bool = False


class Found(NamedTuple):
    """What a lookup found for a row: tokens to draft, and the name of their source; no tokens if there is no match."""

    tokens: list[int]
    source: str


@dataclass
class Draft:
    """Drafted tokens of each row, the nodes of a tree; a chain is a tree with one path.

    The model verifies a chunk: position 0 is the last known token of a row, and position j + 1 is node j. The nodes of
    a chain are in order.

    Attributes:
        tokens: The drafted tokens.
        parents: The position in the chunk of the token before each node; 0 is the last known token.
        depths: Steps from the last known token to each node, the same in all rows.
        exists: False where a row has fewer tokens than the others.
        logits: The logits that the tokens of a chain were sampled from; None if they were not sampled.
        num_sure: How many of the first tokens of each row the heads are sure of; None: not told.
        found: For each row what was looked up, and how many tokens of its path come before; none: nothing.
        by: What drafted the other tokens.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    depths: list[int]
    exists: Bool[Tensor, "rows nodes"]
    logits: Float[Tensor, "rows nodes vocab"] | None = None
    num_sure: list[int] | None = None
    found: Sequence[tuple[int, Found]] = ()
    by: str = "heads"

    @property
    def is_tree(self) -> bool:
        """Whether it has more than one token at a depth."""
        return len(self.depths) > max(self.depths, default=0)

    def ancestors(self) -> Bool[Tensor, "rows positions positions"]:
        """Return which positions of the chunk each position sees: itself and its path from the last known token."""
        rows, nodes = self.tokens.shape
        visible = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).repeat(rows, 1, 1)
        for _ in range(max(self.depths, default=0)):
            visible[:, 1:] |= visible.take_along_dim(self.parents[..., None], dim=1)
        return visible


Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""Takes logits (rows, choices) and the earlier drafted tokens (rows, n - 1); returns a token a row, and the logits
(rows, vocab) that it was drawn from."""


def empty_draft(num_rows: int, device: torch.device) -> Draft:
    """Return a draft of no tokens."""
    none = torch.zeros(num_rows, 0, dtype=torch.long, device=device)
    return Draft(tokens=none, parents=none, depths=[], exists=none.bool())


def draft_chain(
    model: MultiTokenModel,
    hidden: Float[Tensor, "rows dim"],
    next_tokens: Int[Tensor, "rows"],
    count: int,
    choose: Choose,
    *,
    keep_logits: bool,
    read: Callable[[Tensor], Tensor] | None = None,
) -> Draft:
    """Draft `count` tokens after `next_tokens`; `sequential` heads also read the tokens drafted before.

    Args:
        hidden: The hidden states that predicted `next_tokens`.
        keep_logits: Whether to store in the draft the logits that its tokens were sampled from.
        read: Takes the next tokens and those drafted after them (rows, n), and returns head n's logits; None: heads
            read nothing but `hidden` and these tokens.
    """
    rows = next_tokens.shape[0]
    if count < 1:
        return empty_draft(rows, next_tokens.device)
    if read is None:
        states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    drafted, drawn_from = next_tokens[:, None], []
    for n in range(1, count + 1):
        if read is not None:
            logits = read(drafted)
        else:
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
        logits=torch.stack(drawn_from, dim=1) if drawn_from else None,
    )


def draft_chain_as_text(
    model: MultiTokenModel,
    hidden: Float[Tensor, "rows dim"],
    next_tokens: Int[Tensor, "rows"],
    count: int,
    process: Callable[[Tensor, Tensor], Tensor],
    *,
    sample: bool,
    processed: bool,
    threshold: float | None = None,
    read: Callable[[Tensor], Tensor] | None = None,
) -> Draft:
    """Draft `count` tokens after `next_tokens` with the processors of the text.

    Args:
        process: Takes the tokens drafted so far (rows, n) and the logits after them (rows, vocab), and returns the
            logits to draft from.
        sample: Whether to draw the tokens; else they are the most probable ones.
        processed: Whether there are processors, which need the logits of all tokens.
        threshold: Of the probability from which on a head is sure of its token; None: how many are sure is not told.
        read: As for `draft_chain`.
    """
    confidence: list[Tensor] = []

    def choose(logits: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        if processed or sample:
            logits = process(drafted, model.whole_logits(logits))
        if threshold is not None:
            # the highest probability, not the drawn token's: the draw must not decide which drafts are kept
            confidence.append(logits.softmax(dim=-1).amax(dim=-1, keepdim=True))
        if sample:
            return torch.multinomial(logits.softmax(dim=-1), num_samples=1)[:, 0], logits
        token = logits.argmax(dim=-1)
        return token if processed else model.drafted_ids(token), logits

    draft = draft_chain(model, hidden, next_tokens, count, choose, keep_logits=sample, read=read)
    if threshold is not None and confidence:
        draft.num_sure = (torch.cat(confidence, dim=1) >= threshold).cumprod(dim=1).sum(dim=1).tolist()
    return draft


def draft_tree(
    model: MultiTokenModel,
    hidden: Float[Tensor, "rows dim"],
    next_tokens: Int[Tensor, "rows"],
    count: int,
    branches: int,
    nodes: int = sys.maxsize,
) -> Draft:
    """Draft a tree: the `branches` most probable continuations of each length up to `count`.

    Level n extends every continuation of level n - 1 by one token, and keeps the `branches` results with the highest
    product of the heads' probabilities.

    Args:
        hidden: The hidden states that predicted `next_tokens`.
        nodes: The most tokens of the tree; those of all levels are kept that are most probable.
    """
    rows = next_tokens.shape[0]
    if count < 1:
        return empty_draft(rows, next_tokens.device)
    states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    drafted = next_tokens[:, None, None]  # (rows, paths, n): the tokens on each path, the next token first
    scores = torch.zeros(rows, 1, device=hidden.device)
    parents, tokens, depths, probabilities = [], [], [], []
    first_position = 0  # of the previous level
    for n in range(1, count + 1):
        paths = drafted.shape[1]
        if at_once is None:
            of_head = states[:, n - 1 : n].expand(-1, paths, -1).flatten(0, 1)
            logits = model.future_logits(of_head, drafted.flatten(0, 1)).unflatten(0, (rows, paths))
        else:
            logits = at_once[:, n - 1 : n]
        best, token = logits.float().log_softmax(dim=-1).topk(min(branches, logits.shape[-1]), dim=-1)
        joint = (scores[..., None] + best).flatten(1)
        scores, chosen = joint.topk(min(branches, joint.shape[1]), dim=1)
        parent = chosen // best.shape[-1]
        token = model.drafted_ids(token.expand(-1, paths, -1).flatten(1).gather(1, chosen))
        before = drafted.gather(1, parent[..., None].expand(-1, -1, n))
        drafted = torch.cat([before, token[..., None]], dim=2)
        parents.append(first_position + parent)
        tokens.append(token)
        probabilities.append(scores.exp())
        depths += [n] * token.shape[1]
        first_position = 1 + len(depths) - token.shape[1]
    drafted = torch.cat(tokens, dim=1)
    draft = Draft(drafted, torch.cat(parents, dim=1), depths, torch.ones_like(drafted, dtype=torch.bool))
    return draft if nodes >= len(depths) else _pruned(draft, torch.cat(probabilities, dim=1), nodes)


def _pruned(draft: Draft, probabilities: Float[Tensor, "rows nodes"], count: int) -> Draft:
    """Return a tree of `count` nodes: those that are most probable, on average over the rows.

    A node is no more probable than its parent. In a row that differs from the average it may lose its parent
    nevertheless; it then exists there no longer, nor do nodes after it.
    """
    kept = probabilities.mean(dim=0).argsort(descending=True, stable=True)[:count].sort().values
    places = torch.full((1 + len(draft.depths),), -1, device=kept.device)
    places[0] = 0
    places[1 + kept] = torch.arange(1, 1 + count, device=kept.device)
    parents, depths = places[draft.parents[:, kept]], [draft.depths[node] for node in kept.tolist()]
    exists, parents = parents >= 0, parents.clamp(min=0)
    for _ in range(max(depths)):
        exists = exists & F.pad(exists, (1, 0), value=True).gather(1, parents)
    return Draft(draft.tokens[:, kept], parents, depths, exists)
