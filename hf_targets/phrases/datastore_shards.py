"""What `PhraseDatastoreBuilder` does with one shard, in any process: each object is called with the shard's number."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from pyarrow import compute
from transformers import PreTrainedTokenizerBase

from hf_targets.data.passages import clean_text, passages_of
from hf_targets.data.shard_files import ShardFiles
from hf_targets.data.tokenization import encode as tokenize
from hf_targets.data.tokenization import special_token_ids
from hf_targets.phrases.encoder import encode
from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching, joined_tokens
from hf_targets.phrases.mining.miner import MiningTask, PhraseMiner
from hf_targets.phrases.mining.run_counts import Counts, TokenRuns
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.disk_index_builder import DiskIndexBuilder
from hf_targets.retrieval.encoders import Encoder, encoder_of, vectors_of

_TEXTS_AT_ONCE = 1024
_Phrases = pa.schema([("phrase", pa.binary()), ("count", pa.int64())])


@dataclass(frozen=True)
class Timed:
    """Does a shard of some work, and returns its result and the CPU seconds of this process."""

    work: Callable[[int], Any]

    def __call__(self, shard: int) -> tuple[Any, float]:
        """Do one shard."""
        start = time.process_time()
        return self.work(shard), time.process_time() - start


@dataclass(frozen=True)
class CutPassages:
    """Cleans documents, cuts them into passages with ids, writes these, and returns how many there are."""

    documents: Dataset
    rows_per_shard: int
    is_one_text: bool
    passage_words: int
    passages: ShardFiles

    def __call__(self, shard: int) -> int:
        """Do one shard."""
        start = shard * self.rows_per_shard
        rows = self.documents[start : start + self.rows_per_shard]
        texts = [text or "" for text in rows["text"]]
        names = list(map(str, rows.get("id") or range(start, start + len(texts))))
        if self.is_one_text:
            texts, names = ["\n".join(text.rstrip("\n") for text in texts)], names[:1]
        found = {
            f"{name}-{number}": passage
            for name, text in zip(names, texts, strict=True)
            for number, passage in enumerate(passages_of(clean_text(text), self.passage_words))
        }
        columns = [pa.array(list(part), pa.string()) for part in (found.keys(), found.values())]
        self.passages.write(shard, [pa.record_batch(columns, ["id", "text"])])
        return len(found)


@dataclass(frozen=True)
class MinePhrases:
    """Counts the phrases of passages, writes them in parts by a hash of the phrase, and returns the passages.

    Attributes:
        frequent: The table of forward maximum matching, as it was mined from all shards; None: there is none.
    """

    passages: ShardFiles
    miner_kinds: Sequence[Any]
    task: MiningTask
    frequent: Any
    tokenizer: PreTrainedTokenizerBase
    num_parts: int
    counts: ShardFiles

    @cached_property
    def _miners(self) -> list[PhraseMiner]:
        def miner(kind: Any) -> PhraseMiner:
            if self.frequent is not None and issubclass(kind, ForwardMaximumMatching):
                return kind(self.frequent)
            return kind.for_task(self.task)

        return [miner(kind) for kind in self.miner_kinds]

    def __call__(self, shard: int) -> int:
        """Do one shard."""
        counts, num_texts = Counter[bytes](), 0
        for text in tokenized(self.passages, shard, self.tokenizer):
            num_texts += 1
            found = [np.asarray(miner.spans(text), np.int64).reshape(-1, 2) for miner in self._miners]
            spans = found[0] if len(found) == 1 else np.unique(np.concatenate(found), axis=0)
            spans = spans[spans[:, 1] - spans[:, 0] <= self.task.max_tokens]
            data = np.array(text.ids, np.int64).tobytes()
            counts.update(data[first:stop] for first, stop in (spans * 8).tolist())
        parts: list[list[bytes]] = [[] for _ in range(self.num_parts)]
        for phrase in counts:
            parts[crc32(phrase) % self.num_parts].append(phrase)
        self.counts.write(
            shard,
            [pa.record_batch([pa.array(some, pa.binary()), [counts[one] for one in some]], _Phrases) for some in parts],
        )
        return num_texts


@dataclass(frozen=True)
class MergeCounts:
    """Adds up one part of the counts of all shards, writes the frequent phrases, and returns how many there are."""

    counts: ShardFiles
    num_shards: int
    min_count: int
    merged: ShardFiles

    def __call__(self, part: int) -> int:
        """Do one part."""
        whole = pa.Table.from_batches([self.counts.read_part(shard, part) for shard in range(self.num_shards)])
        total = whole.replace_schema_metadata().group_by("phrase").aggregate([("count", "sum")])
        kept = total.filter(compute.field("count_sum") >= self.min_count).combine_chunks()
        columns = [kept[name].combine_chunks() for name in ("phrase", "count_sum")]
        self.merged.write(part, [pa.record_batch(columns, _Phrases)])
        return len(kept)


@dataclass(frozen=True)
class CountRuns:
    """Counts the runs of tokens of one length, for `frequent_runs`, and writes where they are.

    Attributes:
        before: Where the runs of one token less are; None: this is the first length.
        table: The frequent ones among these.
    """

    passages: ShardFiles
    tokenizer: PreTrainedTokenizerBase
    runs: ShardFiles
    before: ShardFiles | None = None
    size: int = 1
    table: np.ndarray | None = None

    def __call__(self, shard: int) -> Counts:
        """Do one shard."""
        if self.before is None or self.table is None:
            tokens = joined_tokens(tokenized(self.passages, shard, self.tokenizer))
            runs = TokenRuns(tokens, len(self.tokenizer))
        else:
            tokens, *state = (self.before.read_part(shard, part)["values"].to_numpy() for part in range(3))
            runs = TokenRuns.at(tokens, len(self.tokenizer), self.size - 1, *state)
            runs.extend(self.table)
        state = (runs.tokens, runs.positions, runs.keys)
        self.runs.write(shard, [pa.record_batch([pa.array(one, pa.int64())], ["values"]) for one in state])
        return runs.counts()


@dataclass(frozen=True)
class EncodePassages:
    """Writes the vectors of passages, and returns how many there are."""

    passages: ShardFiles
    make_encoder: Callable[[], Encoder]
    vectors: ShardFiles

    @cached_property
    def _encoder(self) -> Encoder:
        return encoder_of(self.make_encoder())

    def __call__(self, shard: int) -> int:
        """Do one shard."""
        texts = self.passages.read(shard)["text"].to_pylist()
        parts = [texts[start : start + _TEXTS_AT_ONCE] for start in range(0, len(texts), _TEXTS_AT_ONCE)]
        vectors = [vectors_of(part, self._encoder.encode_document) for part in parts]
        found = np.concatenate(vectors) if vectors else np.zeros((0, 1), np.float32)
        self.vectors.write(shard, [_batch(vector=found)])
        return len(texts)


@dataclass(frozen=True)
class EncodePhrases:
    """Writes the embeddings of phrases, and returns how many there are."""

    folder: Path
    tokenizer: PreTrainedTokenizerBase
    phrases_per_shard: int
    make_model: Callable[[], Any]
    embeddings: ShardFiles

    @cached_property
    def _keys(self) -> list[bytes]:
        return PhraseVocabulary.load(self.folder, self.tokenizer).keys()

    @cached_property
    def _model(self) -> Any:
        return self.make_model()

    @torch.no_grad()
    def __call__(self, shard: int) -> int:
        """Do one shard."""
        start = shard * self.phrases_per_shard
        keys = self._keys[start : start + self.phrases_per_shard]
        inputs, outputs = (table.detach().half().cpu().numpy() for table in encode(self._model, keys))
        if not np.isfinite(inputs).all() or not np.isfinite(outputs).all():
            raise ValueError("embeddings must be finite in float16 (at most 65504); look for NaN in the encoder")
        self.embeddings.write(shard, [_batch(inputs=inputs, outputs=outputs)])
        return len(keys)


@dataclass(frozen=True)
class FillIndex:
    """Adds the embeddings of a shard to a shard of the index."""

    index_folder: Path
    embeddings: ShardFiles

    def __call__(self, shard: int) -> None:
        """Do one shard."""
        DiskIndexBuilder(self.index_folder).fill(shard, torch.tensor(matrix_of(self.embeddings, shard, "outputs")))


def tokenized(passages: ShardFiles, shard: int, tokenizer: PreTrainedTokenizerBase) -> Iterator[TokenizedText]:
    """Yield the passages of a shard as `TokenizedText.from_text` makes them."""
    special = special_token_ids(tokenizer)
    texts = passages.read(shard)["text"].to_pylist()
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[start : start + _TEXTS_AT_ONCE]
        for text, ids, offsets in zip(some, *tokenize(some, tokenizer), strict=True):
            yield TokenizedText(text, ids, np.array(offsets, np.int64).reshape(-1, 2), special)


def matrix_of(files: ShardFiles, shard: int, name: str) -> np.ndarray:
    """Return a matrix of a shard, whose memory is the file's."""
    column = files.read(shard)[name].combine_chunks()
    return column.values.to_numpy(zero_copy_only=True).reshape(len(column), -1)


def _batch(**matrices: np.ndarray) -> pa.RecordBatch:
    columns = [
        pa.FixedSizeListArray.from_arrays(pa.array(matrix.reshape(-1)), matrix.shape[1]) for matrix in matrices.values()
    ]
    return pa.record_batch(columns, list(matrices))
