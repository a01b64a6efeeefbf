"""Drafts: what the heads guess after the next word, as a chain or as a tree."""

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
        num_tokens: Words drafted one after another, k; heads 1 to k make them.
        num_branches: Guesses kept for each of those words, in a tree; 1 drafts a chain.
    """

    num_tokens: int
    num_branches: int = 1


class FuturePredictor(Protocol):
    """A model whose head n predicts, from the hidden state that gave the next word, the word n steps after that."""

    @property
    def sequential(self) -> bool:
        """Whether a head's guess depends on the words between: drafts are then made one after another."""
        ...

    def future_states(self, hidden: Tensor, count: int) -> Tensor:
        """Map hidden states (rows, dim) to what heads 1 to `count` say of them, (rows, count, dim)."""
        ...

    def future_logits(self, states: Tensor, words: Tensor) -> Tensor:
        """Return head n's logits (rows, vocab), given its states (rows, dim) and the n words (rows, n) between."""
        ...

    def parallel_logits(self, states: Tensor) -> Tensor:
        """Return the logits (rows, count, vocab) of all heads' states at once, where no guess needs another."""
        ...


@dataclass
class Draft:
    """Words to be verified after the last word of each row; node j of the tree is at place j + 1 of that chunk.

    Attributes:
        tokens: The words.
        parents: The place of the word before each, 0 for the last known word.
        depths: Steps from the last known word to each node, the same in all rows.
        exists: False where a row has fewer words than the others.
        logits: The distribution that the words of a chain were drawn from; None if they were chosen.
    """

    tokens: Int[Tensor, "rows nodes"]
    parents: Int[Tensor, "rows nodes"]
    depths: list[int]
    exists: Bool[Tensor, "rows nodes"]
    logits: Float[Tensor, "rows nodes vocab"] | None = None

    def ancestors(self) -> Bool[Tensor, "rows places places"]:
        """Return which places of the chunk each place may see: itself and those on its path to the last known word."""
        rows, nodes = self.tokens.shape
        visible = torch.eye(nodes + 1, dtype=torch.bool, device=self.tokens.device).repeat(rows, 1, 1)
        at = torch.arange(rows, device=self.tokens.device)
        for node in range(nodes):
            visible[:, node + 1] |= visible[at, self.parents[:, node]]
        return visible


Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""From logits (rows, vocab) and the words drafted before (rows, n - 1), a word and the logits it was drawn from."""


def empty_draft(num_rows: int, device: torch.device) -> Draft:
    """Return a draft without words."""
    none = torch.zeros(num_rows, 0, dtype=torch.long, device=device)
    return Draft(tokens=none, parents=none, depths=[], exists=none.bool())


def draft_chain(
    model: FuturePredictor,
    hidden: Float[Tensor, "rows dim"],
    next_words: Int[Tensor, "rows"],
    count: int,
    choose: Choose,
    *,
    keep_logits: bool,
) -> Draft:
    """Draft `count` words after `next_words`, each given those before it where the heads' guesses depend on them.

    Args:
        hidden: The hidden states that predicted `next_words`.
        keep_logits: Whether the draft is to tell what its words were drawn from.
    """
    rows = next_words.shape[0]
    if count < 1:
        return empty_draft(rows, next_words.device)
    states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    words, drawn_from = next_words[:, None], []
    for n in range(1, count + 1):
        logits = model.future_logits(states[:, n - 1], words) if at_once is None else at_once[:, n - 1]
        word, logits = choose(logits.float(), words[:, 1:])
        words = torch.cat([words, word[:, None]], dim=1)
        if keep_logits:
            drawn_from.append(logits)
    places = torch.arange(count, device=words.device).expand(rows, count)
    return Draft(
        tokens=words[:, 1:],
        parents=places,
        depths=list(range(1, count + 1)),
        exists=torch.ones_like(places, dtype=torch.bool),
        logits=torch.stack(drawn_from, dim=1) if keep_logits else None,
    )


def draft_tree(
    model: FuturePredictor,
    hidden: Float[Tensor, "rows dim"],
    next_words: Int[Tensor, "rows"],
    count: int,
    branches: int,
) -> Draft:
    """Draft the `branches` most probable continuations of every length up to `count`, grown from each other.

    Level n holds the `branches` best of all continuations of level n - 1 by one word, by the product of the heads'
    probabilities.
    """
    rows = next_words.shape[0]
    if count < 1:
        return empty_draft(rows, next_words.device)
    states = model.future_states(hidden, count)
    at_once = None if model.sequential else model.parallel_logits(states)
    words = next_words[:, None, None]  # (rows, paths, n): the words on each path, the next word first
    scores = torch.zeros(rows, 1, device=hidden.device)
    parents, tokens, depths = [], [], []
    first_place = 0  # of the level before
    for n in range(1, count + 1):
        paths = words.shape[1]
        if at_once is None:
            said = states[:, n - 1 : n].expand(-1, paths, -1).flatten(0, 1)
            logits = model.future_logits(said, words.flatten(0, 1)).unflatten(0, (rows, paths))
        else:
            logits = at_once[:, n - 1 : n]
        best, word = logits.float().log_softmax(dim=-1).topk(min(branches, logits.shape[-1]), dim=-1)
        joint = (scores[..., None] + best).flatten(1)
        scores, chosen = joint.topk(min(branches, joint.shape[1]), dim=1)
        parent = chosen // best.shape[-1]
        word = word.expand(-1, paths, -1).flatten(1).gather(1, chosen)
        before = words.gather(1, parent[..., None].expand(-1, -1, n))
        words = torch.cat([before, word[..., None]], dim=2)
        parents.append(first_place + parent)
        tokens.append(word)
        depths += [n] * word.shape[1]
        first_place = 1 + len(depths) - word.shape[1]
    drafted = torch.cat(tokens, dim=1)
    return Draft(drafted, torch.cat(parents, dim=1), depths, torch.ones_like(drafted, dtype=torch.bool))
