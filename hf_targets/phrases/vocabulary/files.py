"""A phrase vocabulary on disk: one safetensors file, with the settings as JSON in its header."""

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from hf_targets.data.atomic_write import written_together

FILE = "phrase_vocabulary.safetensors"
_ARRAYS = {"is_alive": (np.bool_, 1), "offsets": (np.int64, 1), "tokens": (np.int64, 1), "sources": (np.int64, 2)}


def write_phrases(folder: str | os.PathLike, settings: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write the file to `folder`, which is made if it is missing; an earlier file stays until this one is complete."""
    content = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    with written_together(folder, FILE) as unfinished:
        save_file(content, unfinished / FILE, {"settings": json.dumps(settings)})


def read_phrases(
    folder: str | os.PathLike, special_ids: Iterable[int]
) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """Return the file, and the settings and arrays that `write_phrases` wrote to it.

    Arrays: `tokens`, `offsets` and `is_alive` as `PhraseStore.arrays` returns them, and `sources` (sources, 4): phrase
    id, index of the document, and its characters [start, end).

    Raises:
        ValueError: If the file is missing or truncated, or an index in it points to nothing.
    """
    file = Path(folder, FILE)
    try:
        with safe_open(file, "numpy") as content:
            settings = json.loads((content.metadata() or {}).get("settings", "{}"))
            arrays = {name: content.get_tensor(name) for name in _ARRAYS}
            _check(arrays, settings["vocab_size"], settings["documents"], [*special_ids])
    except (OSError, SafetensorError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{file} is no whole phrase vocabulary: {error}; build and save it again") from error
    return file, settings, arrays


def _check(arrays: dict[str, np.ndarray], vocab_size: int, documents: list[str], special_ids: list[int]) -> None:
    kinds = {name: (array.dtype, array.ndim) for name, array in arrays.items()}
    _require(kinds == {name: (np.dtype(kind), dims) for name, (kind, dims) in _ARRAYS.items()}, "arrays of other types")
    alive, offsets, tokens, sources = arrays.values()
    fits = len(offsets) == len(alive) + 1 and offsets[0] == 0 and offsets[-1] == len(tokens)
    _require(fits and (np.diff(offsets) >= 2).all(), "offsets must rise from 0 to the number of tokens, by 2 or more")
    _require(_within(tokens, vocab_size), f"tokens must be in [0, {vocab_size})")
    _require(not np.isin(tokens, special_ids).any(), "a phrase must have no special token")
    slots, numbers = sources[:, 0] - vocab_size, sources[:, 1]
    _require(_within(slots, len(alive)) and alive[slots].all(), "a source must name a phrase")
    _require(_within(numbers, len(documents)), "a source must name a document")


def _within(values: np.ndarray, stop: int) -> bool:
    return bool(((values >= 0) & (values < stop)).all())


def _require(holds: bool | np.bool_, rule: str) -> None:
    if not holds:
        raise ValueError(rule)
