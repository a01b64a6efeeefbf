"""The rules for the files of a phrase vocabulary: a right checksum does not show that a file keeps them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

_ARRAYS = {"is_alive": (np.bool_, 1), "offsets": (np.int64, 1), "sources": (np.int64, 2), "tokens": (np.int64, 1)}


def check_settings(file: Path, settings: Mapping[str, Any]) -> None:
    """Check the settings that a vocabulary is made of.

    Raises:
        ValueError: If one is missing or of another type.
    """
    for name, kind in (("vocab_size", int), ("tokenizer", str), ("documents", list)):
        _require(type(settings.get(name)) is kind, file, f"{name} must be of type {kind.__name__}")
    documents = settings["documents"]
    names = {name for name in documents if isinstance(name, str)}
    _require(len(names) == len(documents), file, "documents must be names, each there once")


def check_arrays(
    file: Path, arrays: Mapping[str, np.ndarray], *, vocab_size: int, num_documents: int, special_ids: Iterable[int]
) -> None:
    """Check that arrays are those of phrases: their types, and that whatever they point to is there.

    Args:
        arrays: `tokens`, `offsets` and `is_alive` as `PhraseStore.arrays` returns them, and `sources` (sources, 4):
            phrase, document, start and end.
        special_ids: Tokens that no phrase may hold.
    Raises:
        ValueError: If they are not, with the rule that is broken.
    """
    _require(arrays.keys() == _ARRAYS.keys(), file, f"it must have the arrays {', '.join(_ARRAYS)}")
    for name, (kind, dims) in _ARRAYS.items():
        right = arrays[name].dtype == kind and arrays[name].ndim == dims
        _require(right, file, f"{name} must be of {np.dtype(kind)} with {dims} dimension(s)")
    alive, offsets, sources, tokens = (arrays[name] for name in _ARRAYS)

    _require(len(offsets) == len(alive) + 1, file, "offsets must be one more than is_alive")
    last = len(tokens)
    _require(not _outside(offsets, last + 1).any(), file, f"offsets must be in [0, {last}], the number of tokens")
    _require(offsets[0] == 0 and offsets[-1] == last, file, f"offsets must begin with 0 and end with {last}")
    _require((np.diff(offsets) >= 2).all(), file, "offsets must rise, as each phrase is two tokens or more")
    _require(not _outside(tokens, vocab_size).any(), file, f"tokens must be in [0, {vocab_size})")
    _require(not np.isin(tokens, list(special_ids)).any(), file, "a phrase must have no special token")

    _require(sources.shape[1] == 4, file, "sources must be of int64 with 4 columns")
    phrases, documents, starts, ends = sources.T
    slots = phrases - vocab_size
    right = not _outside(slots, len(alive)).any() and alive[slots].all()
    _require(bool(right), file, "each source must be of a phrase that is there")
    _require(not _outside(documents, num_documents).any(), file, f"sources must have documents in [0, {num_documents})")
    _require(((starts >= 0) & (starts <= ends)).all(), file, "sources must have characters 0 <= start <= end")
    in_order = (np.diff(phrases) >= 0).all() and len(np.unique(sources, axis=0)) == len(sources)
    _require(bool(in_order), file, "sources must be in the order of their phrases, each once")


def _outside(values: np.ndarray, stop: int) -> np.ndarray:
    return (values < 0) | (values >= stop)


def _require(holds: bool | np.bool_, file: Path, rule: str) -> None:
    if not holds:
        raise ValueError(f"{file} is altered: {rule}; build the phrases again")
