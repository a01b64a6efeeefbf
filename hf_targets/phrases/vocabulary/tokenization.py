"""The tokens and characters of a phrase in the middle of a text."""

import unicodedata
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Literal, cast, get_args

from transformers import PreTrainedTokenizerBase

LeadingSpace = Literal["add", "keep", "both"]
_ANCHORS = ("\n", ".", "a", "0", "(")  # texts before a phrase; the first that shares no token with it is used
_NEIGHBOURS = 8  # tokens on either side; a character has at most 4 bytes, so at most 4 tokens


def phrase_forms(text: str, leading_space: LeadingSpace) -> list[str]:
    """Return the one or two forms of a phrase within a text; `PhraseVocabulary.add` explains `leading_space`."""
    if leading_space not in get_args(LeadingSpace):
        raise ValueError(f"leading_space must be one of {get_args(LeadingSpace)}, got {leading_space!r}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a phrase must be a text with more than white space, got {text!r}; leave it out")
    text = unicodedata.normalize("NFC", text)
    if text[0].isspace():
        return [text]
    return {"add": [f" {text}"], "keep": [text], "both": [f" {text}", text]}[leading_space]


def tokenize_mid_text(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids that each text has inside a longer text, where no space and no begin token is put before it.

    A short text, the anchor, is put before the text, and the anchor's ids are removed. If a token covers parts of both,
    another anchor is used.
    """
    ids: list[list[int]] = [[] for _ in texts]
    left = list(range(len(texts)))
    for anchor in _ANCHORS:
        before = _ids([anchor], tokenizer)[0]
        if not left or not before:
            continue
        found = _ids([anchor + texts[index] for index in left], tokenizer)
        for index, whole in zip(left, found, strict=True):
            ids[index] = whole[len(before) :]
        left = [index for index, whole in zip(left, found, strict=True) if whole[: len(before)] != before]
    if left:
        raise ValueError(
            f"a phrase must not share a token with the text before it, and {texts[left[0]]!r} shares one with every "
            "text that was tried; give its token ids instead"
        )
    return ids


def text_mid_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the characters that `ids` add to a text, a leading space included; incomplete ones are U+FFFD."""
    before = next((found for anchor in _ANCHORS if (found := _ids([anchor], tokenizer)[0])), [])
    whole = _decode([*before, *ids], tokenizer)
    return whole[len_common_prefix(_decode(before, tokenizer), whole) :]


def character_ends(
    ids: Sequence[int], num_tokens: Iterable[int], tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool
) -> list[int]:
    """Return how many characters of the text of `ids` are complete after its first n tokens, for each n.

    A character is complete if the text of the first n tokens and the whole text agree on it and on all before it. The
    time is linear in the text, since only tokens near the n-th are decoded; the first n tokens are all decoded only
    where the text of the nearby tokens is not found in the whole text.

    Args:
        num_tokens: The values of n, in ascending order.
    """

    def text(first: int, stop: int | None) -> str:
        return _decode(ids[first:stop], tokenizer, skip_special_tokens=skip_special_tokens)

    whole, ends = text(0, None), []
    known, end = 0, 0  # the previous n, and its number of characters
    for n in num_tokens:
        first, stop = max(0, known - _NEIGHBOURS), n + _NEIGHBOURS
        while (nearby := text(first, stop)).endswith("\ufffd") and stop < len(ids):
            stop += stop - first  # an incomplete character may change how all byte tokens before it decode
        before = len_common_prefix(text(first, known), nearby)
        written = nearby[before : len_common_prefix(text(first, n), nearby)]
        if whole.startswith(written, end):
            end += len(written)
        else:
            end = max(end, len_common_prefix(text(0, n), whole))
        ends.append(end)
        known = n
    return ends


def len_common_prefix(first: str, second: str) -> int:
    """Return the number of characters that two texts share at their beginning."""
    if second.startswith(first):
        return len(first)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return cast(list[list[int]], encoded["input_ids"])


def _decode(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = False) -> str:
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
