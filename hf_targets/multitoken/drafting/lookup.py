"""What followed the last tokens of a text where they stood before: in the text itself, or in other texts."""

import sys
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch.nn import functional as F

from hf_targets.multitoken.drafting.drafts import Draft, Found

MOST = 16
"""Tokens that are compared."""
_CANDIDATES = 32  # places that a text compares, the latest ones
_FARTHER = 2  # tokens that a match in another text must have more than one in the text itself
_FREE = 3  # drafted tokens of a pass, over all rows, that cost hardly anything on a CPU


class TokenSource(Protocol):
    """Tokens in which the last ones of a text may stand."""

    def find(self, last: Sequence[int]) -> tuple[int, int]:
        """Return how many of the last tokens, at most `MOST`, stand here together, and the place after them."""
        ...

    def following(self, place: int, count: int) -> list[int]:
        """Return up to `count` tokens from a place on."""
        ...


class TextIndex:
    """A text that grows, with an index of where each token and each two tokens stood."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self.tokens: list[int] = []
        self._places: dict[tuple[int, ...], list[int]] = {}
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        """Take in the next tokens; a negative one parts two texts."""
        for token in tokens:
            for size in range(1, min(len(self.tokens), 2) + 1):
                self._places.setdefault(tuple(self.tokens[-size:]), []).append(len(self.tokens))
            self.tokens.append(token)

    def find(self, last: Sequence[int]) -> tuple[int, int]:
        """Return the longest match and, of several, the latest; see `TokenSource`."""
        best = 0, 0
        places = self._places.get(tuple(last[-2:])) or self._places.get(tuple(last[-1:]), [])
        for place in reversed(places[-_CANDIDATES:]):
            length, most = 1, min(len(last), place, MOST)
            while length < most and self.tokens[place - length - 1] == last[-length - 1]:
                length += 1
            if length > best[0]:
                best = length, place
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Return what followed; a match that reaches the end of the text goes on as a repetition does."""
        tokens = self.tokens[place : place + count]
        while 0 < len(tokens) < count:
            tokens += tokens[: count - len(tokens)]
        return tokens[: next((at for at, token in enumerate(tokens) if token < 0), count)]


class SortedTexts:
    """Texts that stay as they are, found by their places in the order of the tokens before each: a suffix array.

    Making it takes a second and 50 MB for a million tokens; a search takes 20 comparisons.

    Args:
        texts: Token ids of each.

    >>> texts = SortedTexts([[1, 2, 3, 4], [5, 2, 3, 6]])
    >>> texts.find([9, 5, 2, 3])
    (3, 24)
    >>> texts.following(24, 8)
    [6]
    """

    def __init__(self, texts: Sequence[Sequence[int]]) -> None:
        gap = np.full(MOST, -1)
        self.tokens = np.concatenate([gap, *(part for text in texts for part in (np.array(text, np.int64), gap[:1]))])
        # `order` of all places by up to MOST tokens before them, the nearest first; each round doubles their number
        rank = np.unique(np.append(-1, self.tokens), return_inverse=True)[1]
        for size in (1, 2, 4, 8):
            before = np.append(np.zeros(size, np.int64), rank[:-size])
            rank = np.unique(rank * len(rank) + before, return_inverse=True)[1]
        order = np.argsort(rank, kind="stable")
        self._order = order[order >= MOST]

    def find(self, last: Sequence[int]) -> tuple[int, int]:
        """Return a longest match; see `TokenSource`."""
        wanted = list(last[: -MOST - 1 : -1])
        at = bisect_left(self._order, wanted, key=lambda place: self._before(place, len(wanted)))
        best = 0, 0
        for place in self._order[max(at - 1, 0) : at + 1].tolist():
            pairs = enumerate(zip(wanted, self._before(place, len(wanted)), strict=True))
            best = max(best, (next((n for n, (ours, theirs) in pairs if ours != theirs), len(wanted)), place))
        return best

    def following(self, place: int, count: int) -> list[int]:
        """Return what followed, up to the end of the text there."""
        tokens = self.tokens[place : place + count].tolist()
        return tokens[: tokens.index(-1)] if -1 in tokens else tokens

    def _before(self, place: int, count: int) -> list[int]:
        return self.tokens[place - count : place][::-1].tolist()


@dataclass
class Lookup:
    """Looks up the last tokens of each row of a batch; of several sources, the one with the longest match is taken.

    A draft is as long as its match, as a longer match is more often right, or as the row's share of `_FREE` tokens.

    Attributes:
        num_tokens: The most tokens of a draft.
        texts: Each row's tokens so far.
        others: Sources for all rows, by name.
        in_text: Whether a row is looked up in itself too.
        least: Tokens that must be the same.
        most: Tokens to compare, at most `MOST`.
        size: Tokens of the model; a draft ends before one that it has not.
    """

    num_tokens: int
    texts: Sequence[TextIndex]
    others: Mapping[str, TokenSource]
    in_text: bool = True
    least: int = 1
    most: int = MOST
    size: int = sys.maxsize

    def find(self, row: int, most: int, sure: Sequence[int] = ()) -> Found:
        """Return up to `most` tokens to draft after those of a row and some that are `sure`."""
        text = self.texts[row]
        last = [*text.tokens[-self.most :], *sure][-self.most :]
        sources = {"text": text, **self.others} if self.in_text else self.others
        best, worth = (0, 0, ""), -sys.maxsize
        for name, source in sources.items():
            length, place = source.find(last)
            if length >= self.least and length - _FARTHER * (name != "text") > worth:
                best, worth = (length, place, name), length - _FARTHER * (name != "text")
        length, place, name = best
        most = min(most, self.num_tokens, max(length, _FREE // len(self.texts)))
        tokens = sources[name].following(place, most) if length and most > 0 else []
        tokens = tokens[: next((at for at, token in enumerate(tokens) if token >= self.size), most)]
        return Found(tokens, name if tokens else "")


def for_half(found: Sequence[Found], kept: Sequence[int], width: int) -> list[Found]:
    """Return what was found, cut so that half of the rows need the longest draft: a pass costs all rows its length.

    Args:
        kept: Tokens of each row's draft before those that were found.
        width: Tokens of drafts where nothing was found.
    """
    needs = sorted(sure + len(one.tokens) for sure, one in zip(kept, found, strict=True))
    longest = max(width, needs[len(needs) // 2])
    cut = (one.tokens[: max(longest - sure, 0)] for sure, one in zip(kept, found, strict=True))
    return [Found(tokens, one.source if tokens else "") for tokens, one in zip(cut, found, strict=True)]


def extended(draft: Draft, found: Sequence[Found], kept: Sequence[int]) -> Draft:
    """Return a draft with its tokens replaced by those that were found, in rows that have any, after the first `kept`.

    Rows may then differ in length. In a sampled draft, a token that was found counts as drawn with probability 1.
    """
    device, width = draft.tokens.device, draft.tokens.shape[1]
    kept = [sure if one.tokens else width for sure, one in zip(kept, found, strict=True)]
    lengths = [sure + len(one.tokens) for sure, one in zip(kept, found, strict=True)]
    longest = max(lengths)
    padded = ([0] * sure + one.tokens + [0] * longest for sure, one in zip(kept, found, strict=True))
    ends = zip(kept, lengths, padded, strict=True)
    given = torch.tensor([[first, end, *row[:longest]] for first, end, row in ends], device=device)  # one transfer
    first, end, given = given[:, :1], given[:, 1:2], given[:, 2:]
    positions = torch.arange(longest, device=device).expand_as(given)
    from_heads = positions < first
    tokens = torch.where(from_heads, F.pad(draft.tokens, (0, max(longest - width, 0)))[:, :longest], given)
    logits = draft.logits
    if logits is not None:
        certain = torch.full((*tokens.shape, logits.shape[-1]), -torch.inf, device=device)
        certain = certain.scatter(2, tokens[..., None], 0.0)
        drawn = F.pad(logits, (0, 0, 0, max(longest - width, 0)))[:, :longest]
        logits = torch.where(from_heads[..., None], drawn, certain)
    return replace(
        draft,
        tokens=tokens,
        parents=positions,
        depths=list(range(1, longest + 1)),
        exists=positions < end,
        logits=logits,
        found=list(zip(kept, found, strict=True)),
    )


def beside(draft: Draft, found: Sequence[Found]) -> Draft:
    """Return a tree with what was found as one more path; the part of it that the tree has is not drafted twice."""
    device, nodes, longest = draft.tokens.device, draft.tokens.shape[1], max(len(one.tokens) for one in found)
    given = [[len(one.tokens), *one.tokens, *[0] * (longest - len(one.tokens))] for one in found]
    lengths, tokens = torch.tensor(given, device=device).split([1, longest], dim=1)  # one transfer
    at, parents, exists = torch.zeros_like(lengths), [], []
    for step in range(longest):
        same = draft.exists & (draft.parents == at) & (draft.tokens == tokens[:, step : step + 1])
        is_known = same.any(dim=1, keepdim=True)
        parents.append(at)
        exists.append(~is_known & (step < lengths))
        at = torch.where(is_known, same.int().argmax(dim=1, keepdim=True) + 1, nodes + 1 + step)
    return Draft(
        tokens=torch.cat([draft.tokens, tokens], dim=1),
        parents=torch.cat([draft.parents, *parents], dim=1),
        depths=[*draft.depths, *range(1, longest + 1)],
        exists=torch.cat([draft.exists, *exists], dim=1),
        found=[(0, one) for one in found],
    )
