"""Documents on disk, as many as it holds, which are found by their vectors and may change while they are read."""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from hf_targets.data.progress import progress
from hf_targets.data.words import check_letters
from hf_targets.retrieval.collection_manifest import MANIFEST_FILE, Manifest
from hf_targets.retrieval.collection_shards import Shard, write_shard
from hf_targets.retrieval.collection_state import CollectionState, locked, only_writer
from hf_targets.retrieval.exact_search import higher, top_products
from hf_targets.retrieval.text_checks import check_queries, check_text, query_vectors, vectors_of

_TEXTS_AT_ONCE = 1024


class CollectionEncoder(Protocol):
    """What gives texts their vectors, such as a `SentenceEncoder`."""

    @property
    def fingerprint(self) -> str:
        """A text that differs between encoders whose vectors differ, and is the same in every process."""
        ...

    def __call__(self, texts: list[str], /) -> Tensor:
        """Return the vectors of documents, (texts, dim), each independent of the others."""
        ...

    def encode_queries(self, texts: list[str], /) -> Tensor:
        """Return the vectors of queries, (texts, dim)."""
        ...


class DocumentCollection(Mapping[str, str]):
    """A folder of documents and their vectors: a mapping of ids to texts, and a retriever by inner product.

    Documents lie in shards, files that are written once and mapped into memory, so that opening a collection reads
    next to nothing. A search is exact and goes shard by shard. Texts are read when they are asked for.

    Each call of `add`, `delete` and `compact` takes effect as a whole: if it fails, or its process is killed, the
    documents stay as they were. There is one writer at a time. Readers, in threads and other processes, go on with the
    state that they opened, and see the next one after `refresh`. Windows and network drives may not let a writer remove
    files that a reader has open, or may take them from the reader: keep the folder on a local disk.

    Made by `create` or `open`.

    >>> collection = DocumentCollection.create("shelf", encoder)  # doctest: +SKIP
    >>> collection.add({"pets": "The cat sat on the mat.", "sky": "Stars and planets shine."})  # doctest: +SKIP
    >>> [name for name, score in collection.retrieve(["a planet"], k=1)[0]]  # doctest: +SKIP
    ['sky']
    """

    def __init__(
        self, folder: Path, encoder: CollectionEncoder, state: CollectionState, writer_timeout: float = 60.0
    ) -> None:
        self.folder, self.encoder, self.writer_timeout = folder, encoder, writer_timeout
        self._state = state

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        encoder: CollectionEncoder,
        *,
        shard_size: int = 65_536,
        writer_timeout: float = 60.0,
    ) -> "DocumentCollection":
        """Return a new collection without documents, in a folder that is made if it is missing.

        Args:
            encoder: Of documents and queries.
            shard_size: The most documents of a shard. A write takes the memory of a few shards.
            writer_timeout: The seconds that a write waits for another writer.
        Raises:
            ValueError: If the folder has a collection, is a file, `shard_size` is no integer or below 1, or another
                writer does not end in time.
            OSError: If the disk is full or cannot be written to.
        """
        folder = Path(folder)
        _check_encoder(encoder)
        if isinstance(shard_size, bool) or not isinstance(shard_size, int) or shard_size < 1:
            raise ValueError(f"shard_size must be an integer, at least 1, got {shard_size!r}")
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"a collection is a folder, and {folder} is a file; give another name")
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, writer_timeout):
            if (folder / MANIFEST_FILE).exists():
                raise ValueError(f"{folder} has a collection already; open it, or give another folder")
            Manifest(encoder.fingerprint, shard_size).write(folder)
        return cls.open(folder, encoder, writer_timeout=writer_timeout)

    @classmethod
    def open(
        cls, folder: str | os.PathLike[str], encoder: CollectionEncoder, *, writer_timeout: float = 60.0
    ) -> "DocumentCollection":
        """Return the collection in a folder.

        Args:
            encoder: The one that the collection was made with.
            writer_timeout: As for `create`.
        Raises:
            ValueError: If the folder is not a collection, it was made with another encoder, or a file is missing,
                truncated or of another version. Texts and vectors that were altered in a file are not noticed: opening
                does not read them.
        """
        folder = Path(folder)
        return cls(folder, encoder, _state_of(folder, encoder), writer_timeout)

    def refresh(self) -> None:
        """Go on to the state that the folder has now.

        Raises:
            ValueError: As `open`.
        """
        self._state = _state_of(self.folder, self.encoder, self._state.shards)

    def add(self, documents: Mapping[str, str], *, replace: bool = False) -> None:
        """Add documents. Small shards at the end are merged, so that there are few: no vector is computed again.

        Args:
            documents: Texts by id.
            replace: Whether to replace documents that exist. Those whose text is the same are left as they are.
        Raises:
            ValueError: If a document has no text, an id exists and `replace` is false, the vectors are not finite rows,
                one a text, as wide as the others, or another writer does not end in time.
            OSError: If the disk is full or cannot be written to.
        """
        names = _checked_names(documents)
        with self._writing():
            state = self._state
            old = state.find(names)
            if old and not replace:
                raise ValueError(
                    f"an id must be new, and {len(old)} exist, such as {next(iter(old))!r}; leave them out, or give "
                    f"replace=True for their texts to be replaced"
                )
            same = {name for name, (shard, row) in old.items() if state.shards[shard].text(row) == documents[name]}
            shards = self._without([place for name, place in old.items() if name not in same])
            new = [name for name in names if name not in same]
            with progress(len(new), "adding documents", unit="document") as bar:
                for start in range(0, len(new), state.manifest.shard_size):
                    some = new[start : start + state.manifest.shard_size]
                    texts, vectors = [documents[name] for name in some], []
                    for first in range(0, len(texts), _TEXTS_AT_ONCE):
                        vectors.append(self._vectors_of(texts[first : first + _TEXTS_AT_ONCE], shards))
                        bar.update(len(vectors[-1]))
                    self._append(shards, some, texts, torch.cat(vectors))
            self._commit(shards)

    def delete(self, ids: Iterable[str]) -> None:
        """Delete documents: they are marked, and `compact` frees their space.

        Raises:
            ValueError: If `ids` is a single id, an id is not there, or another writer does not end in time. Nothing is
                deleted in this case.
            OSError: If the disk is full or cannot be written to.
        """
        if isinstance(ids, str):
            raise ValueError(f"ids must be a list of ids, got the text {ids[:40]!r}; put it in a list")
        names = list(dict.fromkeys(ids))
        if others := [name for name in names if not isinstance(name, str)]:
            raise ValueError(f"the id of a document is a text, got {others[0]!r}; give str({others[0]!r})")
        with self._writing():
            found = self._state.find(names)
            missing = [name for name in names if name not in found]
            if missing:
                raise ValueError(
                    f"an id to delete must be there, and {len(missing)} of {len(names)} are not, such as "
                    f"{missing[0]!r}; leave out those that are not `in` the collection"
                )
            self._commit(self._without(found.values()))

    def compact(self, deleted_share: float = 0.2) -> None:
        """Write shards again without their deleted documents.

        Args:
            deleted_share: The share of deleted documents, above 0, from which on a shard is written again.
        Raises:
            ValueError: If the share is not in (0, 1], or another writer does not end in time.
            OSError: If the disk is full or cannot be written to.
        """
        if not 0 < deleted_share <= 1:
            raise ValueError(f"deleted_share must be above 0 and at most 1, got {deleted_share}")
        with self._writing():
            shards: list[Shard] = []
            with progress(len(self._state.shards), "compacting documents", unit="shard") as bar:
                for shard in self._state.shards:
                    if len(shard) <= (1 - deleted_share) * shard.entry.count:
                        self._append(shards, *shard.content())
                    else:
                        shards.append(shard)
                    bar.update()
            self._commit(shards)

    def retrieve(self, queries: list[str], k: int) -> list[list[tuple[str, float]]]:
        """Return for each query the ids and scores of its `k` nearest documents, nearest first; all if there are fewer.

        Raises:
            ValueError: If `queries` is a single text or holds one without text, `k` is below 1, there is no document,
                the queries' vectors are not as wide as the documents', or an inner product is not finite.
        """
        check_queries(queries, k)
        state = self._state
        if state.manifest.dim is None or not state.shards:
            raise ValueError(f"there must be a document to retrieve, and {self.folder} has none; add some, or refresh")
        if not queries:
            return []
        vectors = query_vectors(list(queries), self.encoder.encode_queries, state.manifest.dim)
        firsts = [0, *accumulate(shard.entry.count for shard in state.shards)]
        best = (vectors.new_empty(len(vectors), 0), torch.empty(len(vectors), 0, dtype=torch.int64))
        with progress(len(state.shards), "matching documents", unit="shard") as bar:
            for first, shard in zip(firsts, state.shards, strict=False):
                keep = None if shard.entry.deleted is None else shard.keep
                scores, rows = top_products(vectors, shard.vectors, min(k, len(shard)), keep)
                best = higher(best, (scores, rows + first), k)
                bar.update()
        found = []
        for scores, rows in zip(best[0].tolist(), best[1].tolist(), strict=True):
            numbers = (np.searchsorted(firsts, rows, side="right") - 1).tolist()
            names = [state.shards[at].id(row - firsts[at]) for at, row in zip(numbers, rows, strict=True)]
            found.append(list(zip(names, scores, strict=True)))
        return found

    def __getitem__(self, name: str) -> str:
        state = self._state
        for shard, row in state.find([name] if isinstance(name, str) else []).values():
            return state.shards[shard].text(row)
        raise KeyError(
            f"document {name!r} was deleted, or was never there; ask with `in` first, or refresh() after another "
            f"process has added it to {self.folder}"
        )

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and bool(self._state.find([name]))

    def __iter__(self) -> Iterator[str]:
        return (name for shard in self._state.shards for name in shard.names())

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r}, {len(self)} documents in {len(self._state.shards)} shards)"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with only_writer(self.folder, self.writer_timeout):
            self.refresh()
            yield

    def _without(self, places: Iterable[tuple[int, int]]) -> list[Shard]:
        """Return the shards without some rows, each given by the number of its shard and the row."""
        rows, shards = defaultdict(list), list(self._state.shards)
        for number, row in places:
            rows[number].append(row)
        for number, deleted in rows.items():
            shards[number] = shards[number].without(self.folder, deleted)
        return [shard for shard in shards if len(shard)]

    def _append(self, shards: list[Shard], names: list[str], texts: list[str], vectors: Tensor) -> None:
        """Write documents to a new shard at the end, together with those before it that are less than twice as large.

        So a document is written again log2(shard_size) times at most, and shards that are not about full halve in size.
        """
        while shards and len(shards[-1]) < 2 * len(names):
            if len(shards[-1]) + len(names) > self._state.manifest.shard_size:
                break
            old_names, old_texts, old_vectors = shards.pop().content()
            names, texts, vectors = old_names + names, old_texts + texts, torch.cat([old_vectors, vectors])
        if names:
            shards.append(write_shard(self.folder, names, texts, vectors))

    def _vectors_of(self, texts: list[str], shards: Sequence[Shard]) -> Tensor:
        vectors = vectors_of(texts, self.encoder)
        dim = self._state.manifest.dim or (shards[0].index.d if shards else vectors.shape[1])
        if vectors.shape[1] != dim:
            raise ValueError(
                f"an encoder must give the vectors of {self.folder} the width that they have, {dim}, got "
                f"{vectors.shape[1]}; give the encoder that the collection was made with"
            )
        return vectors

    def _commit(self, shards: Sequence[Shard]) -> None:
        manifest = self._state.manifest
        dim = shards[0].index.d if shards else manifest.dim
        entries = tuple(shard.entry for shard in shards)
        manifest = Manifest(manifest.fingerprint, manifest.shard_size, dim, entries)
        manifest.write(self.folder)
        self._state = CollectionState(manifest, tuple(shards))


def _state_of(folder: Path, encoder: CollectionEncoder, opened: Iterable[Shard] = ()) -> CollectionState:
    """Return the state of a folder, if it was made with this encoder."""
    _check_encoder(encoder)
    if folder.is_file():
        raise ValueError(f"a collection is a folder, and {folder} is a file; give the folder")
    state = CollectionState.read(folder, opened)
    if encoder.fingerprint != state.manifest.fingerprint:
        raise ValueError(
            f"a collection must be opened with the encoder that it was made with, and {folder} was made with "
            f"{state.manifest.fingerprint}, not {encoder.fingerprint}; load that encoder with the same settings, or "
            f"add the documents to a new collection"
        )
    return state


def _check_encoder(encoder: Any) -> None:
    if not hasattr(encoder, "fingerprint") or not hasattr(encoder, "encode_queries"):
        raise ValueError(
            f"an encoder must have fingerprint and encode_queries, as a SentenceEncoder has, and a "
            f"{type(encoder).__name__} does not; give SentenceEncoder(model, tokenizer), or a class with both"
        )


def _checked_names(documents: Mapping[str, str]) -> list[str]:
    if not isinstance(documents, Mapping):
        raise ValueError(f"documents must be a mapping of ids to texts, got {type(documents).__name__}; name the texts")
    for name, text in documents.items():
        if not isinstance(name, str):
            raise ValueError(f"the id of a document must be a text, got {name!r}; give str({name!r})")
        check_letters(name, f"the id {name!r}")
        check_text(name, text)
    return list(documents)
