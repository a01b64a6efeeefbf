"""A cache of phrase embeddings, by the tokens of the phrases, for the current state of the phrase encoder."""

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from weakref import WeakKeyDictionary

import numpy as np
import psutil
import torch
from torch import Tensor

from hf_targets.backbones.weight_access import execution_device, is_readable
from hf_targets.data.progress import progress
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.embedding_segments import joined
from hf_targets.phrases.embedding_store import PhraseEmbeddingStore
from hf_targets.phrases.encoder import PhraseEncoder
from hf_targets.phrases.encoder_version import EncoderVersion, embedding_fingerprint
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.phrases.windows import ACCELERATOR_TOKENS, CPU_TOKENS, plan_windows


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

    def _clear(self, version: EncoderVersion | None) -> None:
        self._version, self._fingerprint = version, None
        self._drop_embeddings()

    def _drop_embeddings(self) -> None:
        self._tables: WeakKeyDictionary[PhraseVocabulary, KeptTable] = WeakKeyDictionary()
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

        A phrase in several vocabularies is encoded once. The table of a vocabulary is cached until the vocabulary
        changes, with at most `max_phrases` phrases in all tables unless there is only one. Neither embeddings nor
        tables are cached if gradients are enabled, the encoder is in training mode, or its weights are offloaded or
        sharded.

        Args:
            encoder: The phrase encoder.
            vocabularies: The vocabularies of the table.
            counts: The number of available slots of each vocabulary, from the first on; None: all.
        Raises:
            ValueError: If a phrase is longer than the encoder's positions, or the embeddings do not fit into memory.
        """
        if torch.is_grad_enabled() or encoder.training or not is_readable(encoder):
            return self._make_table(encoder, vocabularies, counts, lambda keys: encode(encoder, keys))
        with self._lock, _for_all_modes():
            self._follow(encoder)
            (first, *others), counts = vocabularies, None if counts is None else list(counts)
            state = (first.arrays(), counts)
            if not others and (kept := self._tables.get(first)) is not None and kept.is_of(*state):
                return kept.table(first)
            table = self._make_table(encoder, vocabularies, counts, lambda keys: self._embed(encoder, keys))
            if not others:
                self._tables.pop(first, None)
                self._tables[first] = KeptTable.of(table, *state)
                while len(self._tables) > 1 and sum(len(one) for one in self._tables.values()) > self.max_phrases:
                    self._tables.pop(next(iter(self._tables)))
            return table

    def rows(
        self, encoder: PhraseEncoder, vocabulary: PhraseVocabulary, first: int, stop: int
    ) -> tuple[Tensor, Tensor]:
        """Return the embeddings of the slots [first, stop) of a vocabulary, cached under the same conditions as tables.

        Returns: The input and output embeddings, (stop - first, width) each; zeros at removed phrases.
        Raises:
            ValueError: As `table`.
        """
        ids, offsets, alive = vocabulary.arrays()
        _check_lengths(encoder, vocabulary, offsets[: stop + 1], alive[:stop], first)
        slots = first + np.flatnonzero(alive[first:stop])
        keys = [ids[offsets[slot] : offsets[slot + 1]].tobytes() for slot in slots]
        check_memory(len(keys), encoder)
        rows = _zero_rows(encoder, stop - first)
        if not keys:
            return rows
        if torch.is_grad_enabled() or encoder.training or not is_readable(encoder):
            found = encode(encoder, keys)
        else:
            with self._lock, _for_all_modes():
                self._follow(encoder)
                found = self._embed(encoder, keys)
        if len(keys) == stop - first:
            return found
        positions = torch.from_numpy(slots - first).to(found[0].device)
        inputs = rows[0].index_copy(0, positions, found[0])
        return inputs, inputs if found[0] is found[1] else rows[1].index_copy(0, positions, found[1])

    def _follow(self, encoder: PhraseEncoder) -> None:
        """Drop everything if the encoder has changed."""
        version = EncoderVersion.of(encoder)
        if self._version is None or not version.equals(self._version):
            self._clear(version)

    def _make_table(
        self,
        encoder: PhraseEncoder,
        vocabularies: Sequence[PhraseVocabulary],
        counts: Sequence[int] | None,
        embed: Callable[[list[bytes]], tuple[Tensor, Tensor]],
    ) -> PhraseTable:
        arrays = [vocabulary.arrays() for vocabulary in vocabularies]
        num_slots = max(len(alive) for _, _, alive in arrays)
        exists = np.zeros((len(arrays), num_slots), bool)
        keys: dict[bytes, int] = {}
        slots = np.zeros((len(arrays), num_slots), np.int64)
        for row, (ids, offsets, alive) in enumerate(arrays):
            _check_lengths(encoder, vocabularies[row], offsets, alive)
            count = len(alive) if counts is None else counts[row]
            exists[row, :count] = alive[:count]
            there, edges = np.flatnonzero(exists[row]), offsets * ids.itemsize
            data, edges = ids.tobytes(), zip(edges[there].tolist(), edges[there + 1].tolist(), strict=True)
            slots[row, there] = [keys.setdefault(data[begin:end], len(keys)) for begin, end in edges]
        check_memory(len(keys), encoder)
        # if no phrase is available yet, or all were removed, their slots point to a row of zeros
        pair = embed(list(keys)) if keys else _zero_rows(encoder, 1)
        device = execution_device(encoder)
        return PhraseTable(vocabularies, *pair, torch.from_numpy(slots).to(device), torch.from_numpy(exists).to(device))

    def _embed(self, encoder: PhraseEncoder, keys: list[bytes]) -> tuple[Tensor, Tensor]:
        missing = [key for key in keys if key not in self._indices]
        if missing and len(self._indices) + len(missing) > self.max_phrases:
            self._drop_embeddings()
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
        order = np.concatenate([indices for indices, _ in parts])
        tables = [joined(of_width) for of_width in zip(*(tables for _, tables in parts), strict=True)]
        if (np.diff(order) < 0).any():
            back = torch.from_numpy(np.argsort(order))
            tables = [table[back.to(table.device)] for table in tables]
        return tables[0], tables[-1]


@dataclass(frozen=True, eq=False)
class KeptTable:
    """The parts of a phrase table of one vocabulary, which do not keep the vocabulary itself in memory.

    Attributes:
        arrays: The arrays of the vocabulary, of which it makes new ones when it changes.
        counts: The number of available slots, if it was given.
        parts: The tensors of the table.
        output_rows: Its output embeddings by slot.
    """

    arrays: tuple[np.ndarray, ...]
    counts: list[int] | None
    parts: tuple[Tensor, Tensor, Tensor, Tensor]
    output_rows: Tensor

    @classmethod
    def of(cls, table: PhraseTable, arrays: tuple[np.ndarray, ...], counts: list[int] | None) -> "KeptTable":
        """Return the parts of a table."""
        return cls(arrays, counts, (table.inputs, table.outputs, table.slots, table.exists), table.output_rows)

    def is_of(self, arrays: tuple[np.ndarray, ...], counts: list[int] | None) -> bool:
        """Return whether the table is of these arrays and counts."""
        return self.arrays is arrays and self.counts == counts

    def table(self, vocabulary: PhraseVocabulary) -> PhraseTable:
        """Return the table."""
        table = PhraseTable([vocabulary], *self.parts)
        table.output_rows = self.output_rows
        return table

    def __len__(self) -> int:
        return len(self.output_rows)


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


@contextmanager
def _for_all_modes() -> Iterator[None]:
    """Make tensors that autograd can read later, in inference mode, too."""
    with torch.inference_mode(False), torch.no_grad():
        yield


def _zero_rows(encoder: PhraseEncoder, count: int) -> tuple[Tensor, Tensor]:
    parameter, device = next(encoder.parameters()), execution_device(encoder)
    inputs, outputs = (torch.zeros(count, width, dtype=parameter.dtype, device=device) for width in encoder.widths)
    return inputs, outputs


def _check_lengths(
    encoder: PhraseEncoder, vocabulary: PhraseVocabulary, offsets: np.ndarray, alive: np.ndarray, first: int = 0
) -> None:
    longest = encoder.max_tokens
    lengths = np.diff(offsets[first:]) * alive[first:]
    if longest is not None and len(lengths) and lengths.max() > longest:
        slot = first + int(lengths.argmax())
        raise ValueError(
            f"a phrase must have at most {longest} tokens, the number of the phrase encoder's positions, got "
            f"{lengths.max()} in phrase {vocabulary.vocab_size + slot}; remove it, or mine shorter ones"
        )


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
