"""Phrase embeddings that were computed before: in memory by the tokens of the phrases, and in files on disk."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from weakref import ref

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from xxhash import xxh3_128_hexdigest

from hf_targets.backbones.quantization import plain_tensors
from hf_targets.backbones.weight_access import execution_device, is_readable
from hf_targets.backbones.weight_hash import adapters_in_use, weight_hash
from hf_targets.data.atomic_write import written_together
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.encoder import PhraseEncoder, encode
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary

_ENDING = ".embeddings.safetensors"

logger = logging.getLogger(__name__)


class PhraseEmbeddingFiles:
    """A folder of phrase embeddings, a file for each document, which several processes may read and write at once.

    A file appears when it is complete, and is never changed. A file that cannot be read, and a folder that cannot be
    written to, cost a log line, and the phrases are encoded again.

    Args:
        folder: It may hold the embeddings of several encoders.
        max_bytes: The largest size of all files; the oldest are removed.
    """

    def __init__(self, folder: str | os.PathLike[str], max_bytes: int = 4 * 2**30) -> None:
        self.folder, self.max_bytes = Path(folder), max_bytes

    def read(self, name: str, shapes: Sequence[tuple[int, int]]) -> list[Tensor] | None:
        """Return the tables that were written under a name, on the CPU; None if there are none of these shapes."""
        file = self.folder / f"{name}{_ENDING}"
        if not file.exists():
            return None
        try:
            tables = [table for _, table in sorted(load_file(file).items())]
        except (OSError, SafetensorError) as error:
            logger.warning("%s cannot be read (%s); its phrases are encoded again", file, error)
            return None
        return tables if [tuple(table.shape) for table in tables] == list(shapes) else None

    def write(self, contents: Mapping[str, Sequence[Tensor]]) -> None:
        """Write tables of embeddings under their names, and remove the oldest files if all are too large."""
        try:
            with written_together(self.folder, *(f"{name}{_ENDING}" for name in contents)) as unfinished:
                for name, tables in contents.items():
                    content = {f"table_{number}": table.cpu().contiguous() for number, table in enumerate(tables)}
                    save_file(content, unfinished / f"{name}{_ENDING}")
            self._remove_oldest()
        except (OSError, SafetensorError) as error:  # safetensors raises its own on a full disk
            logger.warning("phrase embeddings cannot be written to %s (%s); they stay in memory", self.folder, error)

    def _remove_oldest(self) -> None:
        files = [(file.stat(), file) for file in self.folder.glob(f"*{_ENDING}")]
        total = 0
        for about, file in sorted(files, key=lambda one: one[0].st_mtime_ns, reverse=True):
            total += about.st_size
            if total > self.max_bytes:
                file.unlink(missing_ok=True)


class PhraseEmbeddingCache:
    """A cache of phrase embeddings. Each phrase is encoded once, until the encoder changes or the cache is full.

    Several threads may use it at once. The cache is cleared when the encoder's parameters change or move, and when
    another peft adapter or autocast type becomes active. A copy of a cache is empty.

    Args:
        max_phrases: The largest number of embeddings that are kept between calls. If a single call has more phrases,
            all of its embeddings are kept.
        files: Embeddings on disk; None: those in the `embeddings_folder` of each vocabulary.
    """

    def __init__(self, max_phrases: int = 2**17, files: PhraseEmbeddingFiles | None = None) -> None:
        self.max_phrases, self.files = max_phrases, files
        self._lock = Lock()
        self._version: tuple | None = None
        self.clear()

    def __reduce__(self) -> tuple:
        return PhraseEmbeddingCache, (self.max_phrases, self.files)

    def clear(self) -> None:
        """Forget all embeddings in memory."""
        self._last: tuple = (lambda: None, *[None] * 4)  # the vocabulary of the last table, and what that was made of
        self._indices: dict[bytes, int] = {}
        self._kept: tuple[Tensor, ...] = ()

    def table(
        self,
        model: Any,
        vocabularies: Sequence[PhraseVocabulary],
        counts: Sequence[int] | None = None,
    ) -> PhraseTable:
        """Return the phrase table of vocabularies, one for all rows or one for each row.

        A phrase in several vocabularies is encoded once. The table of the last vocabulary is kept until that changes.
        Nothing is cached if gradients are enabled, the encoder is in training mode, or its weights are offloaded or
        sharded.

        Args:
            model: A `DynamicVocabForCausalLM`.
            counts: The number of available slots of each vocabulary, from the first on; None: all.
        Raises:
            ValueError: If a phrase is longer than the encoder's positions.
        """
        encoder: PhraseEncoder = model.phrase_encoder
        if torch.is_grad_enabled() or encoder.training or not is_readable(model.phrase_parts()):
            return _make_table(encoder, vocabularies, counts, lambda keys: encode(model, keys))
        with self._lock, torch.inference_mode(False), torch.no_grad():  # autograd can read such tensors later
            version = _version_of(model)
            if version != self._version:
                self._version, self._encoder_hash = version, None
                self.clear()
            (first, *others), counts = vocabularies, None if counts is None else list(counts)
            known, arrays, kept_counts, parts, output_rows = self._last
            if known() is first and not others and arrays is first.arrays() and kept_counts == counts:
                table = PhraseTable([first], *parts)
                table.output_rows = output_rows
                return table
            arrays = first.arrays()
            whole = vocabularies if counts is None else ()
            table = _make_table(encoder, vocabularies, counts, lambda keys: self._embed(model, keys, whole))
            if not others:
                parts = (table.inputs, table.outputs, table.slots, table.exists)
                self._last = (ref(first), arrays, counts, parts, table.output_rows)
            return table

    def _embed(self, model: Any, keys: list[bytes], vocabularies: Sequence[PhraseVocabulary]) -> tuple[Tensor, Tensor]:
        """Return the embeddings of phrases, from memory, from the files of documents of vocabularies, or encoded."""
        num_missing = sum(key not in self._indices for key in keys)
        if num_missing and len(self._indices) + num_missing > self.max_phrases:
            self.clear()
        elif not num_missing:
            return self._rows(keys)
        encoder: PhraseEncoder = model.phrase_encoder
        widths = encoder.widths[:1] if encoder.has_one_table else encoder.widths
        indices, tables = dict(self._indices), [self._kept] if self._kept else []
        unwritten: list[tuple[PhraseEmbeddingFiles, dict[str, list[bytes]]]] = []

        def keep(some: list[bytes], new: Sequence[Tensor]) -> None:
            missing, start = [number for number, key in enumerate(some) if key not in indices], len(indices)
            tables.append(tuple(table[missing].to(execution_device(encoder)) for table in new))
            indices.update((some[number], start + index) for index, number in enumerate(missing))

        for vocabulary in vocabularies:
            folder = vocabulary.embeddings_folder
            if files := self.files or (folder and PhraseEmbeddingFiles(folder)):
                unwritten.append((files, {}))
                for group in vocabulary.keys_by_document():
                    name = self._file_name(model, group)
                    if stored := files.read(name, [(len(group), width) for width in widths]):
                        keep(group, stored)
                    else:
                        unwritten[-1][1][name] = group
        if missing := [key for key in keys if key not in indices]:
            keep(missing, encode(model, missing)[: len(widths)])
        self._kept, self._indices = tuple(map(torch.cat, zip(*tables, strict=True))), indices
        for files, groups in unwritten:  # another thread may have added phrases since
            if known := {name: group for name, group in groups.items() if indices.keys() >= {*group}}:
                files.write({name: self._rows(group)[: len(widths)] for name, group in known.items()})
        return self._rows(keys)

    def _rows(self, keys: list[bytes]) -> tuple[Tensor, Tensor]:
        indices = [self._indices[key] for key in keys]
        if indices == list(range(len(self._indices))):
            return self._kept[0], self._kept[-1]
        chosen = [table[torch.tensor(indices, device=table.device)] for table in self._kept]
        return chosen[0], chosen[-1]

    def _file_name(self, model: Any, keys: list[bytes]) -> str:
        self._encoder_hash, encoder = self._encoder_hash or encoder_hash(model), model.phrase_encoder
        about = [f"{execution_device(encoder).type} {_autocast_of(encoder)}".encode(), *keys]
        return f"{self._encoder_hash}-{xxh3_128_hexdigest(b''.join(len(key).to_bytes(4) + key for key in about))}"


def encoder_hash(model: Any) -> str:
    """Return a hash of the weights, settings and adapters in use that embed phrases, the same in every process."""
    return weight_hash(model.phrase_parts())


def _autocast_of(encoder: PhraseEncoder) -> torch.dtype | None:
    device = next(encoder.parameters()).device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


@torch.no_grad()
def _version_of(model: Any) -> tuple:
    """Return a summary of what embeds phrases that differs after it has changed, and is cheap to compute.

    Fused optimizers and writes to `parameter.data` do not increase torch's version counters. A few values of each
    parameter are compared to notice an optimizer's step; a write to a few rows of `.data` may pass unnoticed.
    """
    encoder = model.phrase_encoder
    parameters = [p for held in model.phrase_parts().parameters() for p in plain_tensors(held)]
    written = [(id(p), p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
    samples = torch.cat([p.detach().flatten()[:: max(1, p.numel() // 16)] for p in parameters])
    # with peft, the projection is the active adapter's
    state = (_autocast_of(encoder), id(encoder.input_projection), str(adapters_in_use(model.phrase_parts())))
    return (*state, *written, samples.cpu().double().numpy().tobytes())


def _make_table(
    encoder: PhraseEncoder,
    vocabularies: Sequence[PhraseVocabulary],
    counts: Sequence[int] | None,
    embed: Callable[[list[bytes]], tuple[Tensor, Tensor]],
) -> PhraseTable:
    arrays = [vocabulary.arrays() for vocabulary in vocabularies]
    num_slots = max(len(alive) for _, _, alive in arrays)
    exists = np.zeros((len(arrays), num_slots), bool)
    slots = np.zeros((len(arrays), num_slots), np.int64)
    keys: dict[bytes, int] = {}
    for row, (_, offsets, alive) in enumerate(arrays):
        lengths = np.diff(offsets) * alive
        if encoder.max_tokens is not None and lengths.max(initial=0) > encoder.max_tokens:
            raise ValueError(
                f"a phrase must have at most {encoder.max_tokens} tokens, the phrase encoder's positions, got "
                f"{lengths.max()} in phrase {vocabularies[row].vocab_size + lengths.argmax()}; remove it"
            )
        count = len(alive) if counts is None else counts[row]
        exists[row, :count] = alive[:count]
        there = np.flatnonzero(exists[row])
        of_row = vocabularies[row].keys()
        slots[row, there] = [keys.setdefault(of_row[slot], len(keys)) for slot in there]
    device = execution_device(encoder)
    if keys:
        inputs, outputs = embed(list(keys))
    else:  # all slots point to a row of zeros
        dtype = next(encoder.parameters()).dtype
        inputs, outputs = (torch.zeros(1, width, dtype=dtype, device=device) for width in encoder.widths)
    return PhraseTable(
        vocabularies, inputs, outputs, torch.from_numpy(slots).to(device), torch.from_numpy(exists).to(device)
    )
