"""Build a collection of passages and a datastore of phrases from documents of any number, with Ray.

In seconds, with the model that `train_dynamic_vocab.py` leaves at its smoke settings:
    python recipes/build_phrase_datastore.py recipes/settings/build_phrase_datastore/smoke.yaml
With your documents, on this machine with two workers, or on the cluster that RAY_ADDRESS names:
    python recipes/build_phrase_datastore.py --dataset documents.parquet --model MODEL \
        --encoder sentence-transformers/all-MiniLM-L6-v2 --factory Pad640,IVF4096,PQ160np --output_dir runs/store

Documents are cleaned and cut into passages; phrases are mined, and their counts merged; passages and phrases are
encoded, and indexed. Each step writes a file a shard: started again, it goes on with the shards that are missing, and a
worker that dies is replaced. Results do not depend on the number of workers. Machines of a cluster need this package
and a disk that all share. Read the results with `DocumentCollection.open(OUTPUT_DIR/collection, encoder)` and
`PhraseDatastore.from_folder(OUTPUT_DIR/phrases, tokenizer)`. Measured: recipes/scale.md.
"""

import lab.start  # noqa: F401

from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from transformers import AutoConfig, AutoTokenizer

from hf_targets import DynamicVocabForCausalLM, PhraseDatastoreBuilder, load_corpus
from hf_targets.data.corpora import load_parts
from hf_targets.retrieval.encoders import load_encoder
from lab.results import write_results
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """Documents, their phrases, what encodes them, and the workers."""

    dataset: str = field(
        default="documentation",
        metadata={
            "help": "A name of `load_corpus`, a file or folder of Parquet or JSON lines, or OWNER/NAME on the Hub."
        },
    )
    dataset_config: str | None = field(default=None, metadata={"help": "Configuration of a data set on the Hub."})
    split: str = field(default="train", metadata={"help": "Split of the data set."})
    text_column: str = field(default="text", metadata={"help": "Column that holds the text."})
    id_column: str | None = field(default=None, metadata={"help": "Column of distinct names. None: the row's number."})
    is_one_text: bool = field(default=False, metadata={"help": "Rows are lines of one text, not documents."})
    max_documents: int | None = field(default=None, metadata={"help": "Read the first so many rows only."})
    passage_words: int = field(default=100, metadata={"help": "Words of a passage, about."})
    rows_per_shard: int = field(default=10_000, metadata={"help": "Rows in a shard; a kill loses as many a worker."})
    tokenizer: str | None = field(default=None, metadata={"help": "Of the phrases. None: the model's."})
    miners: list[str] = field(
        default_factory=lambda: ["words"], metadata={"help": "words, tokens, fmm, parsing, chunks, or your own."}
    )
    parser: str | None = field(default=None, metadata={"help": "Folder of a stanza pipeline's models, for parsing."})
    min_count: int = field(default=10, metadata={"help": "How often a phrase must be found."})
    max_tokens: int = field(default=8, metadata={"help": "Tokens of a phrase, at most."})
    max_phrases: int | None = field(default=None, metadata={"help": "Keep those that save the most steps. None: all."})
    encoder: list[str] = field(
        default_factory=list, metadata={"help": "A sentence encoder, or DPR's two. Empty: no collection is made."}
    )
    encoder_dtype: Literal["auto", "float32", "bfloat16"] = field(
        default="auto", metadata={"help": "Type of its weights. bfloat16: 3 x as fast on a CPU with AMX."}
    )
    model: str | None = field(
        default=None, metadata={"help": "Model with a dynamic vocabulary. None: phrases are not encoded."}
    )
    factory: str | None = field(
        default=None, metadata={"help": "FAISS's index, as Pad640,IVF4096,PQ160np; recipes/scale.md. None: none."}
    )
    num_probes: int | None = field(default=None, metadata={"help": "Lists that a step looks through. None: a 32nd."})
    num_fitted: int = field(
        default=3200, metadata={"help": "States of the model that the index is fitted to. 0: none."}
    )
    phrases_per_shard: int = field(default=16_384, metadata={"help": "Phrases in a shard."})
    workers: int | None = field(
        default=2, metadata={"help": "Ray's processes. null, in a file of settings: without Ray."}
    )
    gpus_per_worker: float = field(default=0.0, metadata={"help": "GPUs of a worker, or a part of one."})
    output_dir: str = field(default="runs/build_phrase_datastore", metadata={"help": "Folder of all results."})

    def __post_init__(self) -> None:
        if self.model is None and self.tokenizer is None:
            raise ValueError("phrases are of a tokenizer's tokens; give --model or --tokenizer")

    def documents(self) -> Dataset:
        """Return the documents, mapped from a file unless they are of a known corpus."""
        if Path(self.dataset).exists() or "/" in self.dataset:
            parts = load_parts(self.dataset, self.dataset_config)
            if self.split not in parts or self.text_column not in (rows := parts[self.split]).column_names:
                raise ValueError(f"{self.dataset} has no {self.split!r} with {self.text_column!r}, but {parts}")
        else:
            rows = load_corpus(self.dataset, config_name=self.dataset_config, text_column=self.text_column)[self.split]
        names = {self.text_column: "text"} | ({} if self.id_column is None else {self.id_column: "id"})
        rows = rows.select_columns(list(names)).rename_columns(names)
        return rows if self.max_documents is None else rows.take(min(self.max_documents, len(rows)))


def load_model(name: str) -> Any:
    """Return a model with a dynamic vocabulary, in each worker."""
    return DynamicVocabForCausalLM.from_pretrained(name).eval()


def main(setup: Setup) -> dict[str, Any]:
    """Build, print the rate of each step, and return what the results hold."""
    tokenizer = AutoTokenizer.from_pretrained(setup.tokenizer or setup.model)
    builder = PhraseDatastoreBuilder(
        setup.output_dir,
        setup.documents(),
        tokenizer,
        is_one_text=setup.is_one_text,
        passage_words=setup.passage_words,
        rows_per_shard=setup.rows_per_shard,
        workers=setup.workers,
        gpus=setup.gpus_per_worker,
    )
    builder.cut()
    vocab_size = None
    if setup.model is not None:
        vocab_size = AutoConfig.from_pretrained(setup.model).get_text_config().vocab_size
    limits: Any = {name: getattr(setup, name) for name in ("min_count", "max_tokens", "max_phrases", "parser")}
    vocabulary = builder.mine(setup.miners, vocab_size=vocab_size, **limits)
    results: dict[str, Any] = {"phrases": len(vocabulary)}
    if setup.encoder:
        make_encoder = partial(load_encoder, *setup.encoder, dtype=setup.encoder_dtype)
        collection = builder.encode_passages(make_encoder, [*setup.encoder, setup.encoder_dtype])
        results["passages"] = len(collection)
    if setup.model is not None:
        given: Any = {
            name: getattr(setup, name) for name in ("factory", "num_probes", "num_fitted", "phrases_per_shard")
        }
        results["fingerprint"] = builder.encode_phrases(partial(load_model, setup.model), **given)
    rows = [
        [one.name, f"{one.items:,}", f"{one.seconds:.1f}", f"{one.items / one.seconds:,.0f}", f"{one.cpu_seconds:.1f}"]
        for one in builder.steps
    ]
    columns = ["step, of what was missing", "items", "seconds", "items a second", "CPU seconds"]
    print(markdown_table(columns, rows))
    results["steps"] = {step.name: step._asdict() for step in builder.steps}
    write_results(setup.output_dir, results)
    print(f"\nDatastore: {setup.output_dir}. A second call adds what is missing, such as new documents.")
    return results


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
