"""What a tokenizer says of a phrase: its tokens inside a running text, its characters there, and whose ids they are."""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import Literal, cast, get_args
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

LeadingSpace = Literal["add", "keep", "both"]
Normalization = Literal["NFC"] | None
_ANCHORS = ("\n", ".", "a", "0", "(")  # what may stand before a phrase; the first that no token shares with it is taken
_NEIGHBOURS = 8  # tokens to either side; a character has at most 4
_PROBE = "The  tokenizer's own\n\tspaces, (digits: 3.14159) and signs: naïve café, Straße, 東京, 🙂 ▁Ġ.\r\n"


def phrase_forms(text: str, leading_space: LeadingSpace, normalization: Normalization) -> list[str]:
    """Return the one or two forms in which a phrase stands within a text; `PhraseVocabulary.add` tells the settings.

    Raises:
        ValueError: If a setting is unknown, or the text has nothing but white space.
    """
    if leading_space not in get_args(LeadingSpace):
        raise ValueError(f"leading_space must be one of {get_args(LeadingSpace)}, got {leading_space!r}")
    if normalization not in ("NFC", None):
        raise ValueError(f"normalization must be 'NFC', or None for texts as they are, got {normalization!r}")
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"a phrase must be a text with more than white space, got {text!r}; leave it out")
    text = text if normalization is None else unicodedata.normalize(normalization, text)
    if text[0].isspace():
        return [text]
    return {"add": [f" {text}"], "keep": [text], "both": [f" {text}", text]}[leading_space]


def tokenize_mid_text(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    """Return the ids that each text has inside a longer one, where it gets no space and no begin token in front.

    Something short is put before the text, and its ids are taken away again; where a token reaches across, something
    else is tried.

    Raises:
        ValueError: If the ids of a text cannot be told from those of any text before it.
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
            f"the tokens of a phrase must be its own, and those of {texts[left[0]]!r} reach into every text before it; "
            f"give its token ids instead"
        )
    return ids


def text_mid_text(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase) -> str:
    """Return the characters that `ids` add to a text before them, a leading space included; halves are U+FFFD."""
    before = next((found for anchor in _ANCHORS if (found := _ids([anchor], tokenizer)[0])), [])
    whole = _decode([*before, *ids], tokenizer)
    return whole[len_common_prefix(_decode(before, tokenizer), whole) :]


def character_ends(
    ids: Sequence[int], num_tokens: Iterable[int], tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool
) -> list[int]:
    """Return how many characters of the text of `ids` are complete after its first n tokens, for each n, ascending.

    They are those on which the text of the first n tokens and the whole text agree, so that a character of several
    tokens counts with the last of them, and a tokenizer that writes a text's beginning in another way is no trouble.
    It takes time linear in the text, since only the neighbours of the n tokens are looked at, unless what they write
    is not in the whole text.
    """

    def text(first: int, stop: int | None) -> str:
        return _decode(ids[first:stop], tokenizer, skip_special_tokens=skip_special_tokens)

    whole, ends = text(0, None), []
    known, end = 0, 0  # tokens, and their characters
    for n in num_tokens:
        first, stop = max(0, known - _NEIGHBOURS), n + _NEIGHBOURS
        while (nearby := text(first, stop)).endswith("\ufffd") and stop < len(ids):
            stop += stop - first  # half a character may spoil all that is written in bytes before it
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
    """Return how many characters two texts have in common from their beginning."""
    if second.startswith(first):
        return len(first)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


_FINGERPRINTS: WeakKeyDictionary[PreTrainedTokenizerBase, tuple[int, str]] = WeakKeyDictionary()
"""Known ones, with the number of pieces at the time: tokens may be added to a tokenizer."""


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a SHA-256 of a tokenizer's pieces, their ids, and how it cuts a probe text: the same ids mean the same.

    Special tokens and their use count only as far as they are pieces.
    """
    size, fingerprint = _FINGERPRINTS.get(tokenizer, (None, ""))
    if size != len(tokenizer):
        pieces = sorted(tokenizer.get_vocab().items())
        fingerprint = sha256(json.dumps([pieces, _ids([_PROBE], tokenizer)[0]]).encode()).hexdigest()
        _FINGERPRINTS[tokenizer] = (len(tokenizer), fingerprint)
    return fingerprint


def _ids(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> list[list[int]]:
    encoded = tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
    return cast(list[list[int]], encoded["input_ids"])


def _decode(ids: Sequence[int], tokenizer: PreTrainedTokenizerBase, *, skip_special_tokens: bool = False) -> str:
    return cast(str, tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens))
