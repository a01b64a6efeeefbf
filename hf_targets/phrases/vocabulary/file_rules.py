"""Checks of the content of phrase vocabulary files: a file with a correct checksum may still be invalid."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_ARRAYS = {"is_alive": (np.bool_, 1), "offsets": (np.int64, 1), "sources": (np.int64, 2), "tokens": (np.int64, 1)}


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Check the settings of a saved vocabulary.

    Raises:
        ValueError: If a setting is missing or has the wrong type, or if a document has no name or the name of another.
    """
    for name, kind in (("vocab_size", int), ("tokenizer", str), ("documents", list)):
        _require(type(settings.get(name)) is kind, file, f"{name} must be of type {kind.__name__}")
    documents = settings["documents"]
    names = {name for name in documents if isinstance(name, str)}
    _require(len(names) == len(documents), file, "documents must be distinct names")


def check_arrays(
    file: Path, arrays: Mapping[str, np.ndarray], *, vocab_size: int, num_documents: int, special_ids: Iterable[int]
) -> None:
    """Check the types of a saved vocabulary's arrays, and that each index in them points to something that exists.

    Args:
        arrays: `tokens`, `offsets` and `is_alive` as `PhraseStore.arrays` returns them, and `sources` (sources, 4):
            phrase id, index of the document, and its characters [start, end).
        num_documents: The number of documents in the settings file.
        special_ids: Tokens that a phrase must not contain.
    Raises:
        ValueError: If the arrays break a rule. The message names the rule.
    """
    _require(arrays.keys() == _ARRAYS.keys(), file, f"it must have the arrays {', '.join(_ARRAYS)}")
    for name, (kind, dims) in _ARRAYS.items():
        right = arrays[name].dtype == kind and arrays[name].ndim == dims
        _require(right, file, f"{name} must be of {np.dtype(kind)} and have {dims} dimension(s)")
    alive, offsets, sources, tokens = (arrays[name] for name in _ARRAYS)

    _require(len(offsets) == len(alive) + 1, file, "offsets must have one more entry than is_alive")
    last = len(tokens)
    _require(not _outside(offsets, last + 1).any(), file, f"offsets must be in [0, {last}], the number of tokens")
    _require(offsets[0] == 0 and offsets[-1] == last, file, f"offsets must begin with 0 and end with {last}")
    _require((np.diff(offsets) >= 2).all(), file, "offsets must rise by at least 2, as phrases have two tokens or more")
    _require(not _outside(tokens, vocab_size).any(), file, f"tokens must be in [0, {vocab_size})")
    _require(not np.isin(tokens, list(special_ids)).any(), file, "a phrase must have no special token")

    _require(sources.shape[1] == 4, file, "sources must have 4 columns")
    phrases, documents, starts, ends = sources.T
    slots = phrases - vocab_size
    right = not _outside(slots, len(alive)).any() and alive[slots].all()
    _require(bool(right), file, "each source must name a phrase that exists")
    _require(not _outside(documents, num_documents).any(), file, f"sources must have documents in [0, {num_documents})")
    _require(((starts >= 0) & (starts <= ends)).all(), file, "sources must have characters 0 <= start <= end")
    in_order = (np.diff(phrases) >= 0).all() and len(np.unique(sources, axis=0)) == len(sources)
    _require(bool(in_order), file, "sources must be distinct and sorted by phrase")


def _outside(values: np.ndarray, stop: int) -> np.ndarray:
    return (values < 0) | (values >= stop)


def _require(holds: bool | np.bool_, file: Path, rule: str) -> None:
    if not holds:
        raise ValueError(f"{file} is damaged: {rule}; build the phrase vocabulary again")
