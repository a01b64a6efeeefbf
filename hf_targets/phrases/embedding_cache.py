"""A cache of phrase embeddings, by the tokens of the phrases, for the current state of the phrase encoder."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import numpy as np
import psutil
import torch
from torch import Tensor

from hf_targets.backbones.weight_access import execution_device, is_readable, whole_state_dict
from hf_targets.moved import moved_name
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.embedding_store import PhraseEmbeddingStore, embedding_fingerprint
from hf_targets.phrases.encoder import PhraseEncoder
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.phrases.windows import ACCELERATOR_TOKENS, CPU_TOKENS, plan_windows
from hf_targets.progress import progress


class PhraseEmbeddingCache:
    """A cache of phrase embeddings. Each phrase is encoded once, until the encoder changes or the cache is full.

    Several threads may use it at once. The cache is cleared when the encoder's parameters change or move, and when
    another peft adapter or autocast type becomes active.

    Args:
        max_phrases: The largest number of embeddings that are kept between calls. If a single call has more phrases,
            all of its embeddings are kept.
        store: Embeddings on disk, which are read instead of encoding phrases again, and to which new ones are added.
            None: only those in memory.
    """

    def __init__(self, max_phrases: int = 2**17, store: PhraseEmbeddingStore | None = None) -> None:
        self.max_phrases, self.store = max_phrases, store
        self._lock = Lock()
        self._clear(None)

    def _clear(self, version: "EncoderVersion | None") -> None:
        self._version, self._fingerprint = version, None
        self._indices: dict[bytes, int] = {}
        self._kept: list[Tensor] = []

    def __deepcopy__(self, memo: dict) -> "PhraseEmbeddingCache":
        return PhraseEmbeddingCache(self.max_phrases, copy.copy(self.store))

    def __getstate__(self) -> dict:
        return {"max_phrases": self.max_phrases, "store": self.store}

    def __setstate__(self, state: dict) -> None:
        self.__init__(**state)

    def table(
        self,
        encoder: PhraseEncoder,
        vocabularies: Sequence[PhraseVocabulary],
        counts: Sequence[int] | None = None,
    ) -> PhraseTable:
        """Return the phrase table of vocabularies, one for all rows or one for each row.

        A phrase in several vocabularies is encoded once. Embeddings are not cached if gradients are enabled, the
        encoder is in training mode, or its weights are offloaded or sharded.

        Args:
            encoder: The phrase encoder.
            vocabularies: The vocabularies of the table.
            counts: The number of available slots of each vocabulary, from the first on; None: all.
        Raises:
            ValueError: If a phrase is longer than the encoder's positions, or the embeddings do not fit into memory.
        """
        arrays = [vocabulary.arrays() for vocabulary in vocabularies]
        num_slots = max(len(alive) for _, _, alive in arrays)
        exists = np.zeros((len(arrays), num_slots), bool)
        keys: dict[bytes, int] = {}
        slots = np.zeros((len(arrays), num_slots), np.int64)
        longest = encoder.max_tokens
        for row, (ids, offsets, alive) in enumerate(arrays):
            if longest is not None and len(alive) and (lengths := np.diff(offsets) * alive).max() > longest:
                slot = int(lengths.argmax())
                raise ValueError(
                    f"a phrase must have at most {longest} tokens, the number of the phrase encoder's positions, got "
                    f"{lengths[slot]} in phrase {vocabularies[row].vocab_size + slot}; remove it, or mine shorter ones"
                )
            count = len(alive) if counts is None else counts[row]
            exists[row, :count] = alive[:count]
            data, ends = np.ascontiguousarray(ids, np.int64).tobytes(), (offsets * 8).tolist()
            for slot in np.flatnonzero(exists[row]).tolist():
                slots[row, slot] = keys.setdefault(data[ends[slot] : ends[slot + 1]], len(keys))
        keep = not torch.is_grad_enabled() and not encoder.training and is_readable(encoder)
        pair = self._embed(encoder, list(keys), keep=keep)
        if not keys:  # no phrase is available yet, or all were removed: their slots point to a row of zeros
            pair = _zero_rows(encoder, 1)
        device = execution_device(encoder)
        return PhraseTable(vocabularies, *pair, torch.from_numpy(slots).to(device), torch.from_numpy(exists).to(device))

    def _embed(self, encoder: PhraseEncoder, keys: list[bytes], *, keep: bool) -> tuple[Tensor, Tensor]:
        check_memory(len(keys), encoder)
        if not keep or not keys:
            return encode(encoder, keys)
        with self._lock:
            version = EncoderVersion.of(encoder)
            if self._version is None or not version.equals(self._version):
                self._clear(version)
            missing = [key for key in keys if key not in self._indices]
            if missing and len(self._indices) + len(missing) > self.max_phrases:
                self._clear(version)
                missing = keys
            if missing:
                new = self._stored_or_encoded(encoder, missing)
                start = len(self._kept[0]) if self._kept else 0
                if start:
                    new = tuple(torch.cat(pair) for pair in zip(self._kept, new, strict=True))
                tied = encoder.output_projection is None
                self._kept = [new[0], new[0] if tied else new[1]]
                self._indices |= {key: start + number for number, key in enumerate(missing)}
            inputs, outputs = self._kept
            if len(missing) == len(keys) == len(inputs):
                return inputs, outputs
            indices = torch.tensor([self._indices[key] for key in keys], device=inputs.device)
            chosen = inputs[indices]
            return chosen, chosen if outputs is inputs else outputs[indices]

    def _stored_or_encoded(self, encoder: PhraseEncoder, keys: list[bytes]) -> tuple[Tensor, Tensor]:
        """Return the embeddings of phrases as `encode` does, from the store if they are there; add the others to it."""
        if self.store is None:
            return encode(encoder, keys)
        if self._fingerprint is None:
            self._fingerprint = embedding_fingerprint(encoder)
        widths = encoder.widths if encoder.output_projection is not None else encoder.widths[:1]
        stored = self.store.read(self._fingerprint, keys, widths)
        is_stored = np.zeros(len(keys), bool)
        if stored is not None:
            is_stored[stored[0]] = True
        left = np.flatnonzero(~is_stored)
        parts = []
        if len(left):
            keys_left = [keys[index] for index in left.tolist()]
            encoded = encode(encoder, keys_left)[: len(widths)]
            self.store.write(self._fingerprint, keys_left, encoded)
            parts.append((left, encoded))
        if stored is not None:
            parts.append((stored[0], [table.to(execution_device(encoder)) for table in stored[1]]))
        back = torch.from_numpy(np.argsort(np.concatenate([indices for indices, _ in parts])))
        tables = [
            torch.cat([tables[n] for _, tables in parts])[back.to(parts[0][1][n].device)] for n in range(len(widths))
        ]
        return tables[0], tables[-1]


def encode(encoder: PhraseEncoder, keys: Sequence[bytes]) -> tuple[Tensor, Tensor]:
    """Return the input and output embeddings of phrases, (phrases, width) each.

    Args:
        encoder: The phrase encoder.
        keys: For each phrase, the bytes of its int64 token ids.
    """
    if not keys:
        return _zero_rows(encoder, 0)
    device = execution_device(encoder)
    offsets = np.cumsum([0] + [len(key) // 8 for key in keys])
    ids = np.frombuffer(b"".join(keys), np.int64)
    parts, order = [], []
    max_tokens = CPU_TOKENS if device.type == "cpu" else ACCELERATOR_TOKENS
    with progress(len(keys), "encoding phrases", unit="phrase") as bar:
        for batch in plan_windows(ids, offsets, max_tokens=max_tokens):
            windows = torch.from_numpy(batch.windows).to(device)
            parts.append(encoder(windows, torch.from_numpy(batch.phrase_windows).to(device)))
            order.append(batch.phrases)
            bar.update(len(batch.phrases))
    back = torch.from_numpy(np.argsort(np.concatenate(order))).to(device)
    inputs = torch.cat([part[0] for part in parts])[back]
    if parts[0][0] is parts[0][1]:
        return inputs, inputs
    return inputs, torch.cat([part[1] for part in parts])[back]


def _zero_rows(encoder: PhraseEncoder, count: int) -> tuple[Tensor, Tensor]:
    parameter, device = next(encoder.parameters()), execution_device(encoder)
    inputs, outputs = (torch.zeros(count, width, dtype=parameter.dtype, device=device) for width in encoder.widths)
    return inputs, outputs


@dataclass(frozen=True)
class EncoderVersion:
    """A summary of an encoder's state that differs after the encoder has changed, and is cheap to compute.

    Fused optimizers and writes to `parameter.data` do not increase torch's version counters. A few values of each
    parameter are compared to notice these changes, too.

    Attributes:
        state: The tensors, their version counters, the active peft adapter, and the autocast type.
        samples: A few values of each parameter.
    """

    state: tuple
    samples: Tensor

    @classmethod
    @torch.no_grad()
    def of(cls, encoder: PhraseEncoder) -> "EncoderVersion":
        """Return the current version of an encoder."""
        parameters = list(encoder.parameters())
        device = parameters[0].device.type
        autocast = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
        written = [(id(p), p.data_ptr(), 0 if p.is_inference() else p._version) for p in parameters]
        samples = torch.cat([p.detach().flatten()[:: max(1, p.numel() // 16)] for p in parameters])
        return cls((autocast, id(encoder.input_projection), *written), samples)  # with peft, it is the active adapter's

    def equals(self, other: "EncoderVersion") -> bool:
        """Return whether both versions give the same embeddings."""
        return self.state == other.state and torch.equal(self.samples, other.samples)


def encoder_fingerprint(encoder: PhraseEncoder) -> str:
    """Return a SHA-256 of the encoder's parameters, which is the same in every process that loads them."""
    digest = hashlib.sha256()
    for name, tensor in sorted(whole_state_dict(encoder).items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def check_memory(num_phrases: int, encoder: PhraseEncoder) -> None:
    """Check that the embeddings of `num_phrases` phrases fit into the free memory of the encoder's device.

    Raises:
        ValueError: If they do not fit. The message gives the number of phrases that would fit.
    """
    parameter, device = next(encoder.parameters()), execution_device(encoder)
    width = encoder.widths[0] if encoder.output_projection is None else sum(encoder.widths)
    each = 2 * width * parameter.element_size()  # twice, as joining batches and adding to the cache copies embeddings
    if device.type == "cuda":
        free = torch.cuda.mem_get_info(device)[0]
    elif device.type == "cpu":
        free = psutil.virtual_memory().available
    else:
        return
    if num_phrases * each > free:
        raise ValueError(
            f"embedding {num_phrases:,} phrases needs {num_phrases * each / 2**30:.1f} GiB, and {device} has "
            f"{free / 2**30:.1f} GiB free; {free // each:,} would fit. Remove phrases, or use half precision"
        )


def __getattr__(name: str) -> Any:
    return moved_name(__name__, name)
