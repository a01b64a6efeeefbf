"""The datastore of kNN-LM: a text's hidden states and the words that follow them, in files, searched by distance."""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import xxhash
from accelerate import PartialState
from torch import Tensor
from transformers import PreTrainedModel

from hf_targets.backbones.new_parts import unwrapped
from hf_targets.backbones.weight_hash import adapters_in_use, weight_hash
from hf_targets.data.atomic_write import written_together
from hf_targets.data.shards import run_shards
from hf_targets.evaluation.perplexity import row_of_block
from hf_targets.maths.losses import IGNORED
from hf_targets.neural_cache.perplexity import read_blocks
from hf_targets.retrieval.disk_index import DiskIndex
from hf_targets.retrieval.vector_index import VectorIndex, empty_index
from hf_targets.retrieval.vector_search import VectorSearch

_TOLD, _KEYS, _WORDS, _NO_WORD = "datastore.json", "keys.npy", "words.npy", -1
_RUN, _OWN_SHARE, _BASE = 16, 0.5, np.uint64(0x9E3779B97F4A7C15)  # an odd number: hashes differ as runs do

Rows = Sequence[tuple[Tensor, Tensor]]


class KnnDatastore:
    """Keys, the states that the output matrix reads in a text, and the word that follows each.

    >>> store = KnnDatastore.build(model, blocks, "store")  # doctest: +SKIP

    Attributes:
        keys: (N, d), float16, mapped from a file: only what a search reads is in memory.
        words: (N,), token ids.
        index: What proposes neighbours; None: all keys are compared.
        told: What the datastore was made of.
    Source: Khandelwal et al. 2020, "Generalization through Memorization: Nearest Neighbor Language Models".
        Departs: their keys are the input of the last feed-forward layer; any causal model has ours.
    """

    def __init__(self, keys: np.ndarray, words: Tensor, index: VectorSearch | None, told: Mapping[str, Any]) -> None:
        self.keys, self.words, self.index, self.told = keys, words, index, dict(told)
        self._nearest = DiskIndex(keys, index, metric="distance", num_candidates=1)

    @classmethod
    def build(
        cls,
        model: PreTrainedModel,
        dataset: Iterable[Mapping[str, Any]],
        folder: str | os.PathLike[str],
        *,
        factory: str | None = None,
        num_probes: int | None = None,
        batch_size: int = 8,
        shard_size: int = 16_384,
        workers: int | None = None,
    ) -> Self:
        """Make the datastore of a text in `folder`, or go on with one that was broken off, and return it.

        Each process of `accelerate launch` reads shards of its own, with a copy of the model, on a disk that all share.

        Args:
            model: Any causal language model; its dropout is off meanwhile.
            dataset: Blocks, as `pack_blocks` makes them or for `perplexity_of_blocks`; each target is a key.
            factory: FAISS's description of an index, as for `VectorIndex.build`, such as "IVF4096,PQ64": it proposes
                neighbours, whose distances are then taken from the keys. None: exact. With another factory the keys of
                a whole datastore stay.
            num_probes: Lists of an IVF index that a search looks through; None: a 32nd of them.
            batch_size: Blocks in one forward pass.
            shard_size: About how many keys a process reads before it writes them; a kill loses as many.
            workers: Processes of Ray, as for `run_shards`, each with a copy of the model; None: this process.
        Raises:
            ValueError: If there is no target, FAISS does not know the factory, the folder has another model or text, or
                keys are not finite in float16: a datastore that this call began is then removed, keys of an earlier one
                stay. If FAISS has too few keys for the factory, they stay; call again with another one.
            OSError: If there is no room for the keys.
        """
        rows, folder = [row_of_block(one, at) for at, one in enumerate(dataset)], Path(folder)
        state = PartialState(cpu=not torch.accelerator.is_available())
        told = {**_of_model(model), **_of_text(rows)}
        told["dim"] = _keys_of(model, [next(row for row in rows if _num_targets(row))], 1)[0].shape[1]
        found, index = _read_told(folder), {"factory": factory, "num_probes": num_probes}
        if found and (names := [name for name, value in told.items() if found.get(name) != value]):
            raise ValueError(f"{folder} is of another {' and '.join(names)}; give another folder, or remove it")
        state.wait_for_everyone()
        if found == {**told, "index": index, "complete": True}:
            return cls.from_folder(folder)
        if factory is not None:
            empty_index(told["dim"], factory, "distance")  # raises an error before the keys are read
        if state.is_main_process:
            if not found:
                _make_room(folder, told["keys"], told["dim"])
            _write_told(folder, {**told, "index": index, "complete": False})
        state.wait_for_everyone()
        words, shards = np.load(folder / _WORDS, mmap_mode="r"), list(_shards(rows, shard_size))
        missing = {
            number: len(part)
            for number, (part, start, end) in enumerate(shards)
            if number % state.num_processes == state.process_index and (words[start:end] == _NO_WORD).any()
        }
        how: Any = {"description": "building the datastore", "unit": "block"}
        try:
            list(run_shards(partial(_fill, model, shards, folder, batch_size), missing, workers=workers, **how))
        except ValueError:
            if not found:
                _remove(folder)
            raise
        state.wait_for_everyone()
        if state.is_main_process:
            if factory is not None:
                keys = torch.from_numpy(np.load(folder / _KEYS, mmap_mode="c"))
                found = VectorIndex.build(keys, factory, metric="distance", num_probes=num_probes)
                found.save(folder)
            _write_told(folder, {**told, "index": index, "complete": True})
        state.wait_for_everyone()
        return cls.from_folder(folder)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> Self:
        """Open a datastore, whose keys stay in their file.

        Raises:
            ValueError: If it was not built to its end, or its files are damaged.
        """
        folder = Path(folder)
        told = _read_told(folder)
        if not told or not told["complete"]:
            what = "a datastore whose building was broken off" if told else "no datastore"
            raise ValueError(f"{folder} has {what}; call KnnDatastore.build with its model and text")
        try:
            keys, words = np.load(folder / _KEYS, mmap_mode="r"), np.load(folder / _WORDS, mmap_mode="c")
            if (*keys.shape, len(words)) != (told["keys"], told["dim"], told["keys"]):
                raise ValueError(f"keys of shape {keys.shape} and {len(words)} words, not {told['keys']}")
        except (OSError, ValueError) as error:
            raise ValueError(f"{folder} has damaged files ({error}); remove it, and build it again") from error
        return cls(keys, torch.from_numpy(words), told["index"]["factory"] and VectorIndex.load(folder), told)

    def __len__(self) -> int:
        return len(self.keys)

    def check_model(self, model: PreTrainedModel) -> None:
        """Raise a ValueError if the keys are of a model with other weights or adapters; the float type may differ.

        But for float16, which rounds weights of float32 otherwise than bfloat16 does.
        """
        if self.told["model"] != _of_model(model)["model"]:
            raise ValueError(
                "the model has other weights or adapters than that of the datastore, or float16 has rounded them; "
                "build one with it, or load it in another dtype"
            )

    def check_k(self, k: int) -> None:
        """Raise a ValueError if there are not as many keys."""
        if not 1 <= k <= len(self):
            raise ValueError(f"k must be in [1, {len(self)}], the size of the datastore, got {k}")

    def check_is_another_text(self, words: Tensor) -> None:
        """Raise a ValueError if most runs of 16 words of a text (n,) are in the datastore's: it is its own neighbour.

        A shorter text may be any.
        """
        runs = _runs(words[words >= 0].cpu().numpy())
        at = np.searchsorted(self._runs, runs).clip(max=max(0, len(self._runs) - 1))
        if len(runs) and len(self._runs) and (found := (self._runs[at] == runs).mean()) > _OWN_SHARE:
            raise ValueError(
                f"{found:.0%} of the runs of {_RUN} words are in the datastore, so a text would be its own neighbour; "
                "score another text, or allow it with KnnProcessor(..., own_text=True)"
            )

    @cached_property
    def _runs(self) -> np.ndarray:
        return np.unique(_runs(self.words.numpy()))

    def search(self, states: Tensor, k: int) -> tuple[Tensor, Tensor]:
        """Return the square distances of the `k` nearest keys, in float32, and the words that follow, both (rows, k).

        Where an index proposes fewer, distances are infinite and words -1. States are (rows, d), and finite; `k` is at
        most the size of the datastore.
        """
        self.check_k(k)
        if states.shape[1:] != self.keys.shape[1:] or not states.isfinite().all():
            raise ValueError(f"states must be finite, of width {self.keys.shape[1]}, got shape {tuple(states.shape)}")
        distances, numbers = self._nearest.search(states, k)
        if distances.isnan().any():
            raise ValueError(f"keys must be finite, and {_KEYS} has NaN; remove the datastore, and build it again")
        words = self.words[numbers.clamp(min=0).cpu()].long().to(states.device)
        return distances, words.masked_fill_(numbers < 0, _NO_WORD)


def _runs(words: np.ndarray) -> np.ndarray:
    """Return hashes of all runs of `_RUN` words (n,)."""
    count = max(0, len(words) - _RUN + 1)
    found = np.zeros(count, np.uint64)
    for start in range(_RUN):
        found = found * _BASE + words[start : start + count].astype(np.uint64)
    return found


def _of_model(model: PreTrainedModel) -> dict[str, Any]:
    adapters = xxhash.xxh3_64(repr(adapters_in_use(model)).encode()).hexdigest()
    return {"model": f"{weight_hash(unwrapped(model), settings=False, rounded_to=torch.bfloat16)}-{adapters}"}


def _of_text(rows: Rows) -> dict[str, Any]:
    digest, num_keys = xxhash.xxh3_128(), sum(map(_num_targets, rows))
    for row in rows:
        digest.update(torch.stack(row).long().numpy().tobytes() + b"|")
    if not num_keys:
        raise ValueError(f"a datastore needs a target, and {len(rows)} blocks have none; give longer blocks")
    return {"text": digest.hexdigest(), "keys": num_keys}


def _num_targets(row: tuple[Tensor, Tensor]) -> int:
    return int((row[1][1:] != IGNORED).sum())


def _shards(rows: Rows, size: int) -> Iterator[tuple[Rows, int, int]]:
    """Yield rows of about `size` targets, and the numbers of their keys: from which, to which."""
    part, start, end = [], 0, 0
    for number, row in enumerate(rows, 1):
        part.append(row)
        end += _num_targets(row)
        if end - start >= size or number == len(rows):
            yield part, start, end
            part, start = [], end


def _keys_of(model: PreTrainedModel, rows: Rows, batch_size: int) -> tuple[Tensor, Tensor]:
    """Return keys (targets, d) in float16 and their words in int32."""
    found = []
    for states, words, _ in read_blocks(model, rows, batch_size, with_losses=False):
        kept = words != IGNORED
        found.append((states[kept].cpu().half(), words[kept].cpu().int()))
    keys, words = (torch.cat(parts) for parts in zip(*found, strict=True))
    if not keys.isfinite().all():
        raise ValueError("keys must be finite in float16 (at most 65504); look for NaN in the weights of the model")
    return keys, words


def _fill(
    model: PreTrainedModel, shards: Sequence[tuple[Rows, int, int]], folder: Path, batch_size: int, number: int
) -> None:
    """Write the keys and words of a shard to their files."""
    part, start, end = shards[number]
    states, following = _keys_of(model, part, batch_size)
    keys, words = (np.load(folder / name, mmap_mode="r+") for name in (_KEYS, _WORDS))
    keys[start:end] = states.numpy()
    keys.flush()  # before the words, which tell that keys were written
    words[start:end] = following.numpy()
    words.flush()


def _make_room(folder: Path, num_keys: int, dim: int) -> None:
    """Make the files of keys and words, with nothing in them yet."""
    with written_together(folder, _KEYS, _WORDS) as unfinished:
        needed, free = num_keys * (2 * dim + 4), shutil.disk_usage(unfinished).free
        if free < needed:  # what is mapped ends the program when the disk is full
            raise OSError(f"{num_keys} keys need {needed} bytes, and {folder} has {free}; free space on its disk")
        np.lib.format.open_memmap(unfinished / _KEYS, "w+", np.float16, (num_keys, dim)).flush()
        np.save(unfinished / _WORDS, np.full(num_keys, _NO_WORD, np.int32))


def _remove(folder: Path) -> None:
    """Remove the files of a datastore, and the folder if nothing else is in it."""
    for name in (_TOLD, _KEYS, _WORDS):
        (folder / name).unlink(missing_ok=True)
    with suppress(OSError):
        folder.rmdir()


def _read_told(folder: Path) -> dict[str, Any]:
    """Return what a folder tells of its datastore; nothing where it has none."""
    path = folder / _TOLD
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _write_told(folder: Path, told: Mapping[str, Any]) -> None:
    with written_together(folder, _TOLD) as unfinished:
        (unfinished / _TOLD).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
