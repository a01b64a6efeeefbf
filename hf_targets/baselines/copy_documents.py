"""Documents to copy from: the pieces that an encoder reads, and all their windows of tokens with both ends in them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.data.tokenization import encode, special_token_ids
from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.sources import PhraseSource

_MOST_TOKENS = 512  # of a piece, where the encoder's tokenizer names no limit
_NO_TOKEN = -1


class Window(NamedTuple):
    """Where a window of tokens stands: the numbers of the encoder's tokens that start and end it, and its source."""

    start: int
    end: int
    source: PhraseSource


class EncodedDocument(NamedTuple):
    """A document as tokens of a model, and as tokens of an encoder, in several pieces if it is long.

    Attributes:
        text: With the model's tokens.
        pieces: Ids of the encoder and which of them are text, not special, both (length,).
        edges: (tokens, 4): of each token of the model the numbers of the encoder's tokens that begin and end with the
            same character, white space aside, or -1; and its own first and last characters. The encoder's tokens are
            counted from 0, without special ones.
    """

    text: TokenizedText
    pieces: list[tuple[np.ndarray, np.ndarray]]
    edges: np.ndarray


def encode_documents(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, encoder_tokenizer: PreTrainedTokenizerBase
) -> list[EncodedDocument]:
    """Return documents as tokens of a model and of an encoder, by their fast tokenizers."""
    if not texts:
        return []
    names = ("return_overflowing_tokens", "return_special_tokens_mask", "return_offsets_mapping")
    wanted: Any = dict.fromkeys(names, True)
    length = min(encoder_tokenizer.model_max_length, _MOST_TOKENS)
    found = encoder_tokenizer(list(texts), truncation=True, max_length=length, **wanted)
    pieces, spans = [[] for _ in texts], [[np.zeros((0, 2), np.int64)] for _ in texts]
    fields = ("overflow_to_sample_mapping", "input_ids", "special_tokens_mask", "offset_mapping")
    for number, ids, is_special, offsets in zip(*(found[name] for name in fields), strict=True):
        is_text = np.array(is_special) == 0
        pieces[number].append((np.array(ids), is_text))
        spans[number].append(np.array(offsets)[is_text])
    documents, special = [], special_token_ids(tokenizer)
    for number, (text, ids, offsets) in enumerate(zip(texts, *encode(list(texts), tokenizer), strict=True)):
        own = TokenizedText(text, ids, np.array(offsets, np.int64).reshape(-1, 2), special)
        edges = _edges(text, own.offsets, np.concatenate(spans[number]))
        documents.append(EncodedDocument(own, pieces[number], edges))
    return documents


def _edges(text: str, offsets: np.ndarray, of_encoder: np.ndarray) -> np.ndarray:
    """Return the `edges` of a document by the characters (tokens, 2) of the model's tokens and the encoder's."""
    places = list(enumerate(_characters(text, of_encoder)))
    begin, end = ({place[side]: at for at, place in places if place[side] >= 0} for side in (0, 1))
    edges = [[begin.get(one, _NO_TOKEN), end.get(two, _NO_TOKEN), one, two] for one, two in _characters(text, offsets)]
    return np.array(edges, np.int64).reshape(-1, 4)


def join_pieces(
    documents: Sequence[EncodedDocument], tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Tensor], list[np.ndarray]]:
    """Return the pieces of documents as arguments of an encoder, and the documents' edges with numbers among all.

    Args:
        documents: By the same tokenizers.
        tokenizer: Of the encoder, for its padding.
    Returns: First `ids` and `mask`, (pieces, length); `places`, (N,), of all tokens but special ones in the flattened
        pieces, those of the first document first; and `owners`, (N,), the number of the document of each. Then the
        `edges` of each document, whose numbers of the encoder's tokens are in [0, N), or -1.
    """
    pieces = [(number, *piece) for number, document in enumerate(documents) for piece in document.pieces]
    length, is_left = max((len(own) for _, own, _ in pieces), default=1), tokenizer.padding_side == "left"
    ids = np.full((len(pieces), length), tokenizer.pad_token_id or 0)
    mask, is_text = np.zeros((len(pieces), length), np.int64), np.zeros((len(pieces), length), bool)
    for row, (_, own, part) in enumerate(pieces):
        at = slice(length - len(own), None) if is_left else slice(len(own))
        ids[row, at], mask[row, at], is_text[row, at] = own, 1, part
    owners = np.repeat(np.array([number for number, *_ in pieces], np.int64), is_text.sum(axis=1))
    starts = np.searchsorted(owners, np.arange(len(documents)))
    edges = [one.edges.copy() for one in documents]
    for start, own in zip(starts, edges, strict=True):
        own[:, :2] += start * (own[:, :2] >= 0)
    arrays = {"ids": ids, "mask": mask, "places": np.flatnonzero(is_text), "owners": owners}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}, edges


def _characters(text: str, offsets: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield where each token begins and ends, white space aside; -1 where a character is another token's too."""
    spans = [(-1, -1), *offsets.tolist(), (len(text), -1)]
    for (_, before), (start, end), (after, _) in zip(spans, spans[1:], spans[2:], strict=False):
        first = end - len(text[start:end].lstrip())
        yield first if before <= first < end else -1, end if first < end <= after else -1


def windows_of(
    documents: Iterable[tuple[str, TokenizedText, np.ndarray]], max_tokens: int
) -> dict[tuple[int, ...], list[Window]]:
    """Return by its ids each window of 2 to `max_tokens` tokens between ends of the encoder's tokens, and its places.

    Args:
        documents: Names, texts and what `join_pieces` says of their edges.
    """
    found: dict[tuple[int, ...], list[Window]] = {}
    for name, text, edges in documents:
        starts, ends, firsts, lasts = edges.T.tolist()
        for first, stop in TokenNgrams(2, max_tokens).spans(text).tolist():
            if starts[first] >= 0 and ends[stop - 1] >= 0:
                window = Window(starts[first], ends[stop - 1], PhraseSource(name, firsts[first], lasts[stop - 1]))
                found.setdefault(tuple(text.ids[first:stop]), []).append(window)
    return found


def longest_windows(
    text: TokenizedText, documents: Sequence[tuple[TokenizedText, np.ndarray]], max_tokens: int
) -> Iterator[tuple[int, int, int, int]]:
    """Yield the longest windows of documents that a text has, from left to right, without overlap.

    These are the spans that `ForwardMaximumMatching` finds with all of `windows_of`, which is far slower where a few of
    many windows are in the text.

    Args:
        documents: Texts and edges, as for `windows_of`.
    Yields: The text's tokens [first, stop), and the encoder's tokens that start and end the first such window.
    """
    if not documents:
        return
    gap = [_NO_TOKEN]  # no window crosses from one document to the next
    joined = np.concatenate([[*one.ids, *gap] for one, _ in documents])
    starts, ends = np.concatenate([np.append(edges[:, :2], [gap * 2], axis=0) for _, edges in documents]).T
    ids = np.where(np.isin(text.ids, list(text.special_ids)), _NO_TOKEN - 1, text.ids)
    same = ids[:, None] == joined
    run, sizes, places = same & (starts >= 0), np.zeros_like(ids), np.zeros_like(ids)
    for size in range(2, min(max_tokens, len(joined)) + 1):
        run = run[:-1, :-1] & same[size - 1 :, size - 1 :]  # (tokens, tokens of documents) that begin `size` equal ones
        found = run & (ends[size - 1 :] >= 0)
        (at,) = np.nonzero(found.any(axis=1))
        sizes[at], places[at] = size, found[at].argmax(axis=1)
    first = 0
    while first < len(ids):
        size, place = int(sizes[first]), int(places[first])
        if size:
            yield first, first + size, int(starts[place]), int(ends[place + size - 1])
        first += max(size, 1)
