"""Documents to copy from: the pieces that an encoder reads, and all their windows of tokens with both ends in them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.phrases.mining.ngrams import TokenNgrams
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.sources import PhraseSource

_FIELDS = ("input_ids", "attention_mask", "special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping")
_MOST_TOKENS = 512  # of a piece, where the encoder's tokenizer names no limit


class Window(NamedTuple):
    """Where a window of tokens stands: the numbers of the encoder's tokens that start and end it, and its source."""

    start: int
    end: int
    source: PhraseSource


def read_pieces(
    texts: Sequence[TokenizedText], tokenizer: PreTrainedTokenizerBase
) -> tuple[dict[str, Tensor], list[np.ndarray]]:
    """Return documents as tokens of an encoder, a long one in several pieces, and where a model's tokens are in them.

    Args:
        texts: Documents, with the tokens of a language model.
        tokenizer: Of the encoder, a fast one.
    Returns: First `ids` and `mask`, (pieces, length); `places`, (N,), of all tokens but special ones in the flattened
        pieces, those of the first document first; and `owners`, (N,), the number of the document of each. Then for each
        document (tokens, 4): of each token of the model the numbers in [0, N) of the encoder's tokens that begin and
        end with the same character, white space aside, or -1; and its own first and last characters.
    """
    if not texts:
        none = torch.zeros(0, 1, dtype=torch.long)
        return {"ids": none, "mask": none, "places": none[:, 0], "owners": none[:, 0]}, []
    names = ("return_overflowing_tokens", "return_special_tokens_mask", "return_offsets_mapping")
    wanted: Any = dict.fromkeys(names, True)
    length = min(tokenizer.model_max_length, _MOST_TOKENS)
    strings = [text.text for text in texts]
    found = tokenizer(strings, truncation=True, max_length=length, padding=True, return_tensors="np", **wanted)
    ids, mask, special, offsets, owners = (np.asarray(found[name]) for name in _FIELDS)
    is_text = (mask == 1) & (special == 0)
    owners, offsets = np.broadcast_to(owners[:, None], is_text.shape)[is_text], offsets[is_text]
    edges = []
    for number, text in enumerate(texts):
        (numbers,) = np.nonzero(owners == number)
        of_encoder = list(zip(numbers.tolist(), _characters(text.text, offsets[numbers]), strict=True))
        begin, end = ({place[side]: at for at, place in of_encoder if place[side] >= 0} for side in (0, 1))
        own = _characters(text.text, text.offsets)
        edges.append(np.array([[begin.get(one, -1), end.get(two, -1), one, two] for one, two in own]).reshape(-1, 4))
    arrays = {"ids": ids, "mask": mask, "places": np.flatnonzero(is_text), "owners": owners}
    return {name: torch.tensor(array) for name, array in arrays.items()}, edges


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
        documents: Names, texts and what `read_pieces` says of them.
    """
    found: dict[tuple[int, ...], list[Window]] = {}
    for name, text, edges in documents:
        starts, ends, firsts, lasts = edges.T.tolist()
        for first, stop in TokenNgrams(2, max_tokens).spans(text).tolist():
            if starts[first] >= 0 and ends[stop - 1] >= 0:
                window = Window(starts[first], ends[stop - 1], PhraseSource(name, firsts[first], lasts[stop - 1]))
                found.setdefault(tuple(text.ids[first:stop]), []).append(window)
    return found
