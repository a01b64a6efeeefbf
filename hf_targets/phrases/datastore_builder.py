"""Building a collection of passages and a datastore of phrases from documents, shard by shard."""

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import xxhash
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from hf_targets.backbones.output_reading import output_inputs
from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.data.atomic_write import written_together
from hf_targets.data.shard_files import ShardFiles
from hf_targets.data.shards import run_shards
from hf_targets.data.tokenization import tokenizer_fingerprint
from hf_targets.maths.dynamic_losses import with_ones
from hf_targets.phrases import datastore as store
from hf_targets.phrases.datastore_shards import (
    CountRuns,
    CutPassages,
    EncodePassages,
    EncodePhrases,
    FillIndex,
    MergeCounts,
    MinePhrases,
    Timed,
    matrix_of,
    tokenized,
)
from hf_targets.phrases.mining import MINERS
from hf_targets.phrases.mining.forward_maximum_matching import ForwardMaximumMatching
from hf_targets.phrases.mining.miner import MiningTask
from hf_targets.phrases.mining.run_counts import Counts
from hf_targets.phrases.vocabulary.vocabulary import PhraseVocabulary
from hf_targets.retrieval.collection import DocumentCollection
from hf_targets.retrieval.disk_index_builder import TOLD as WHOLE_INDEX
from hf_targets.retrieval.disk_index_builder import DiskIndexBuilder
from hf_targets.retrieval.encoders import Encoder

_LEAST_PARTS, _SHARDS_A_PART, _SAMPLE = 16, 4, 1 << 20


class Step(NamedTuple):
    """What a step did: passages or phrases, the time that passed, and the CPU time of all work in shards."""

    name: str
    items: int
    seconds: float
    cpu_seconds: float


class PhraseDatastoreBuilder:
    """Builds what a folder holds of some documents: `collection` and `phrases`, from files in `shards`.

    Each step is cut into shards, which do not depend on the number of workers, and goes on with those that are missing:
    a shard is a file, written whole. The files in `shards` are not needed once all steps are done.

    >>> builder = PhraseDatastoreBuilder("runs/store", documents, tokenizer, workers=2)  # doctest: +SKIP
    >>> builder.cut(), builder.mine(["words"])  # doctest: +SKIP
    >>> builder.encode_passages(lambda: SentenceTransformer("all-MiniLM-L6-v2"))  # doctest: +SKIP
    >>> builder.encode_phrases(lambda: DynamicVocabForCausalLM.from_pretrained(name).eval())  # doctest: +SKIP

    Attributes:
        steps: What was done so far.

    Args:
        folder: On a disk that all workers share.
        documents: Rows with a `text`, and with an `id` or not; mapped from a file, only a shard is in memory.
        tokenizer: Of the phrases.
        is_one_text: Whether the rows are lines of one text, so that a passage may have several.
        passage_words: As for `passages_of`.
        rows_per_shard: Documents in a shard.
        workers, gpus: As for `run_shards`.
    Raises:
        ValueError: In each step, if the folder has shards of other settings.
        OSError: In each step, if the disk is full; shards that were finished stay.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        documents: Dataset,
        tokenizer: PreTrainedTokenizerBase,
        *,
        is_one_text: bool = False,
        passage_words: int = 100,
        rows_per_shard: int = 10_000,
        workers: int | None = None,
        gpus: float = 0.0,
    ) -> None:
        if passage_words < 1 or rows_per_shard < 1 or not len(documents):
            raise ValueError(
                f"there must be a document, and passage_words and rows_per_shard be 1 or more, got {len(documents)}, "
                f"{passage_words} and {rows_per_shard}"
            )
        self.folder, self.documents, self.tokenizer = Path(folder), documents, tokenizer
        self.sizes = _sizes(len(documents), rows_per_shard)
        if "id" in documents.column_names and (names := len(documents.unique("id"))) < len(documents):
            raise ValueError(
                f"each document must have an id of its own, got {names} ids of {len(documents)} documents; rename "
                "them, or leave out the column"
            )
        self.steps: list[Step] = []
        self._ways = {"workers": workers, "gpus": gpus}
        cut = {"is_one_text": is_one_text, "passage_words": passage_words, "rows_per_shard": rows_per_shard}
        self._passages = self._files("passages", {"text": _text_digest(documents), **cut})
        self._cut = CutPassages(documents, rows_per_shard, is_one_text, passage_words, self._passages)

    def cut(self) -> int:
        """Clean the documents and cut them into passages, and return how many passages are new."""
        return self._run(self._cut, self._passages, self.sizes, "cutting passages", "document")

    def mine(
        self,
        miners: Sequence[str],
        *,
        min_count: int = 10,
        max_tokens: int = 8,
        max_phrases: int | None = None,
        vocab_size: int | None = None,
        parser: str | None = None,
    ) -> PhraseVocabulary:
        """Mine the phrases of all passages, and write and return those that are frequent.

        Args:
            miners: Names in `MINERS`; a phrase that several find in one place counts once.
            min_count: How often a phrase must be found in all passages together.
            max_tokens: Of a phrase, at most.
            max_phrases: How many to keep, of those that save the most steps; None: all.
            vocab_size: Rows of the model's embedding, as for `PhraseVocabulary`.
            parser: Folder of a stanza pipeline's models, for "parsing".
        Raises:
            ValueError: If a miner is unknown, or no phrase is that frequent.
        """
        told = {"miners": sorted(miners), "max_tokens": max_tokens, "tokenizer": tokenizer_fingerprint(self.tokenizer)}
        told |= self._passages.told
        kinds, table = [MINERS[name] for name in told["miners"]], None
        if any(issubclass(kind, ForwardMaximumMatching) for kind in kinds):
            told["min_count"] = min_count
            table = self._frequent_runs(told, min_count, max_tokens)
        task = MiningTask(list, max_tokens=max_tokens, min_count=min_count, parser=parser)
        parts = dict.fromkeys(range(max(_LEAST_PARTS, len(self.sizes) // _SHARDS_A_PART)), 1)
        counts, merged = self._files("counts", told), self._files("merged", {**told, "min_count": min_count})
        mine = MinePhrases(self._passages, kinds, task, table, self.tokenizer, len(parts), counts)
        self._run(mine, counts, self.sizes, "mining phrases", "document")
        merge = MergeCounts(counts, len(self.sizes), min_count, merged)
        self._run(merge, merged, parts, "merging counts", "part")
        phrases, found = _best(merged.read(part) for part in parts)
        if not phrases:
            raise ValueError(f"no phrase was found {min_count} times; lower min_count, or give more text")
        vocabulary = PhraseVocabulary.from_token_ids(phrases[:max_phrases], self.tokenizer, vocab_size=vocab_size)
        with written_together(self.folder / "phrases", store.COUNTS) as unfinished:
            np.save(unfinished / store.COUNTS, found[:max_phrases])
        vocabulary.save(self.folder / "phrases")
        return vocabulary

    def encode_passages(self, make_encoder: Callable[[], Encoder], about: Any = None) -> DocumentCollection:
        """Encode all passages, write them to a collection, and return it.

        Args:
            make_encoder: Returns the sentence encoder, in each worker; can be pickled.
            about: What tells the encoder from others, such as its name; vectors of another one are refused.
        """
        vectors = self._files("vectors", {**self._passages.told, "encoder": about})
        encode = EncodePassages(self._passages, make_encoder, vectors)
        self._run(encode, vectors, self.sizes, "encoding passages", "document", keeps_state=True)
        folder, encoder = self.folder / "collection", make_encoder()
        is_new = not folder.is_dir() or not any(folder.iterdir())
        collection = (DocumentCollection.create if is_new else DocumentCollection.open)(folder, encoder)
        for shard in self.sizes:
            passages = self._passages.read(shard)
            if len(passages) and passages["id"][0].as_py() not in collection:
                columns = [passages["id"], passages["text"], vectors.read(shard)["vector"]]
                collection.table.add(pa.table(columns, schema=collection.table.schema))  # one transaction
        collection.table.optimize()
        return collection

    def encode_phrases(
        self,
        make_model: Callable[[], Any],
        *,
        factory: str | None = None,
        num_probes: int | None = None,
        num_fitted: int = 0,
        phrases_per_shard: int = 16_384,
    ) -> dict[str, str]:
        """Embed the phrases that `mine` wrote, index them, and return the fingerprint of encoder and phrases.

        Args:
            make_model: Returns a `DynamicVocabForCausalLM` in evaluation mode, in each worker; can be pickled.
            factory: FAISS's description of an IVF index, as for `DiskIndexBuilder.train`; None: no index.
            num_probes: Lists of the index that a step looks through; None: a 32nd of them.
            num_fitted: About how many states of the model at passages the index is fitted to, as far more of the best
                phrases are then found; 0: it is not.
        Raises:
            ValueError: If the model has another tokenizer, or the index has too few phrases to learn from.
        """
        folder, model = self.folder / "phrases", make_model()
        vocabulary = PhraseVocabulary.load(folder, self.tokenizer)
        fingerprint, sizes = model.phrase_fingerprint(vocabulary), _sizes(len(vocabulary), phrases_per_shard)
        files = self._files("embeddings", {**fingerprint, "phrases_per_shard": phrases_per_shard})
        work = EncodePhrases(folder, self.tokenizer, phrases_per_shard, make_model, files)
        self._run(work, files, sizes, "encoding phrases", "phrase", keeps_state=True)
        tables = [store.INPUTS] if factory else [store.INPUTS, store.OUTPUTS]
        if factory is not None:
            step = -(-len(vocabulary) // _SAMPLE)
            sample = [torch.tensor(matrix_of(files, shard, "outputs")[::step]) for shard in sizes]
            queries = self._states(model, num_fitted, torch.cat(sample)) if num_fitted else None
            how = {"num_probes": num_probes, "fingerprint": fingerprint, "queries": queries}
            index = DiskIndexBuilder.train(folder / store.INDEX, torch.cat(sample), factory, **how)
            if not (index.folder / WHOLE_INDEX).exists():
                left = {shard: sizes[shard] for shard in sizes.keys() - index.filled}
                fill = FillIndex(index.folder, files)
                list(run_shards(fill, left, description="indexing phrases", unit="phrase", **self._ways))
            index.merge(len(sizes))
        told = {"fingerprint": fingerprint, "factory": factory}
        with written_together(folder, *tables, store.TOLD) as unfinished:
            for name in tables:
                parts = (matrix_of(files, shard, Path(name).stem) for shard in sizes)
                _write_rows(unfinished / name, parts, len(vocabulary))
            (unfinished / store.TOLD).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
        return fingerprint

    @torch.no_grad()
    def _states(self, model: Any, num_states: int, outputs: Tensor) -> Tensor:
        """Return what steps search for late in passages from all shards: states, with a 1 where phrases have a bias."""
        each, limit, found = -(-num_states // len(self.sizes)), position_limit(model.backbone), []
        for shard in self.sizes:
            left = each
            for text in tokenized(self._passages, shard, self.tokenizer):
                with output_inputs(model.backbone, with_logits=False) as read:
                    model.backbone(torch.tensor([text.ids[:limit]], device=execution_device(model.backbone)))
                found.append(read[0][0, -left:].float().cpu())
                left -= len(found[-1])
                if left <= 0:
                    break
        return with_ones(torch.cat(found), outputs)

    def _frequent_runs(self, told: Mapping[str, Any], min_count: int, max_tokens: int) -> list[tuple[int, ...]]:
        """Return the phrases of a table of forward maximum matching, counted in shards."""
        levels: list[ShardFiles] = []

        def count(table: np.ndarray | None) -> Iterator[Counts]:
            levels.append(self._files(f"runs{len(levels) + 1}", told))
            before = None if table is None else levels[-2]
            work = CountRuns(self._passages, self.tokenizer, levels[-1], before, len(levels), table)
            return run_shards(work, self.sizes, description="counting runs", unit="document", **self._ways)

        given = {"min_count": min_count, "max_tokens": max_tokens, "width": len(self.tokenizer)}
        return ForwardMaximumMatching.from_counts(count, **given).phrases

    def _files(self, kind: str, told: Mapping[str, Any]) -> ShardFiles:
        return ShardFiles(self.folder / "shards", kind, told)

    def _run(self, work: Any, files: ShardFiles, sizes: dict[int, int], what: str, unit: str, **how: Any) -> int:
        """Make the shards that are missing, and return what they sum up to."""
        start, given = time.perf_counter(), {"description": what, "unit": unit, **self._ways, **how}
        done = list(run_shards(Timed(work), files.missing(sizes), **given))
        found, cpu_seconds = sum(count for count, _ in done), sum(seconds for _, seconds in done)
        self.steps.append(Step(what, found, time.perf_counter() - start, cpu_seconds))
        return found


def _sizes(total: int, per_shard: int) -> dict[int, int]:
    """Return the size of each shard."""
    return {shard: min(per_shard, total - start) for shard, start in enumerate(range(0, total, per_shard))}


def _text_digest(documents: Dataset) -> str:
    digest = xxhash.xxh3_128()
    for batch in documents.select_columns("text").iter(batch_size=1000):
        for text in batch["text"]:  # pyright: ignore[reportArgumentType, reportCallIssue]
            digest.update(f"{len(text or '')} {text or ''}".encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _best(tables: Iterable[pa.Table]) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the tokens and counts of phrases: first those that save the most steps, of equals the shorter ones."""
    phrases, counts = [], [np.zeros(0, np.int64)]
    for table in tables:
        phrases += [np.frombuffer(phrase, np.int64) for phrase in table["phrase"].to_pylist()]
        counts.append(table["count"].to_numpy())
    found = np.concatenate(counts)
    saved = [-int(count) * (len(phrase) - 1) for phrase, count in zip(phrases, found, strict=True)]
    order = sorted(range(len(phrases)), key=lambda at: (saved[at], len(phrases[at]), phrases[at].tolist()))
    return [phrases[at] for at in order], found[order]


def _write_rows(path: Path, parts: Iterable[np.ndarray], num_rows: int) -> None:
    """Write matrices one below the other as one file of NumPy's, without holding them; a full disk is an OSError."""
    with path.open("wb") as file:
        for number, part in enumerate(parts):
            if not number:
                told = {"descr": "<f2", "fortran_order": False, "shape": (num_rows, part.shape[1])}
                np.lib.format.write_array_header_1_0(file, told)
            file.write(np.ascontiguousarray(part).data)
