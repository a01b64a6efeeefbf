"""The whole time of a text with phrases, part by part, against the base model with its key-value cache.

    python recipes/benchmarks/latency.py recipes/settings/benchmarks/latency/measured.yaml

The documents nearest to the prompt are found by TF-IDF, phrases are mined from them, encoded, put into a table, and
used in each step. Cold: nothing is cached. Warm: the embeddings are on disk, as in a second process with the same
documents. Kept: the process has had these documents before (`PhrasePool`). A model of your own (`smollm2.yaml`), or a
GPT-2 with random weights. The number of steps of a text is a setting. CPU seconds; measured: recipes/phrases.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, set_seed

from hf_targets import (
    DocumentRetriever,
    DynamicVocabForCausalLM,
    PhrasePool,
    PhraseVocabulary,
    TokenNgrams,
    WordNgrams,
    documents_of,
    train_bpe_tokenizer,
)
from lab.settings import parse_settings
from lab.text import TextSettings

MINERS: dict[str, Callable[[], Any]] = {"tokens": lambda: TokenNgrams(2, 8), "words": lambda: WordNgrams(2, 5)}
ENCODERS: dict[str, dict[str, Any]] = {
    "whole": {"phrase_start": "encoder"},
    "2 layers": {"phrase_encoder_layers": 2},
    "mean": {"phrase_encoder_kind": "mean"},
}
PARTS = ("retrieve", "mine", "encode", "table", "steps")


@dataclass
class Setup(TextSettings):
    """What is measured."""

    dataset: str = field(default="documentation:topics", metadata={"help": "Corpus."})
    units: list[str] = field(default_factory=lambda: [*MINERS], metadata={"help": f"Of phrases: {', '.join(MINERS)}."})
    dtypes: list[str] = field(default_factory=lambda: ["float32", "bfloat16"], metadata={"help": "Of the weights."})
    encoders: list[str] = field(default_factory=lambda: ["whole"], metadata={"help": f"Of {', '.join(ENCODERS)}."})
    model: str | None = field(default=None, metadata={"help": "A causal model. None: a GPT-2 with random weights."})
    num_layers: int = field(default=4, metadata={"help": "Of the model and the encoder."})
    hidden_size: int = field(default=256, metadata={"help": "Of the model and the encoder."})
    vocab_size: int = field(default=4096, metadata={"help": "V."})
    num_documents: int = field(default=32, metadata={"help": "Documents that phrases are mined from."})
    document_words: int = field(default=100, metadata={"help": "Words of a document."})
    prompt_tokens: int = field(default=32, metadata={"help": "Tokens of the prompt."})
    new_tokens: int = field(default=128, metadata={"help": "Tokens of the text."})
    num_steps: int = field(default=37, metadata={"help": "Steps that a text takes with phrases."})
    rounds: int = field(default=3, metadata={"help": "Turns of each way, one after the other; the median counts."})


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives, and its CPU seconds."""
    start = time.process_time()
    return run(), time.process_time() - start


def make_base(setup: Setup, dtype: str) -> Any:
    """Return the model, or one of GPT-2's shape."""
    if setup.model is not None:
        model: Any = AutoModelForCausalLM.from_pretrained(setup.model, dtype=getattr(torch, dtype))
        model.generation_config.eos_token_id = None  # a text ends after the steps that are given
        return model
    heads = max(1, setup.hidden_size // 64)
    shape: Any = {"n_layer": setup.num_layers, "n_embd": setup.hidden_size, "n_head": heads}
    config = GPT2Config(vocab_size=setup.vocab_size, bos_token_id=None, eos_token_id=None, **shape)
    return AutoModelForCausalLM.from_config(config).to(getattr(torch, dtype))


def text_time(
    model: DynamicVocabForCausalLM, pool: PhrasePool, prompt: Tensor, setup: Setup
) -> tuple[int, dict[str, float]]:
    """Return the number of phrases of a text, and the seconds of each of its parts."""
    text, seconds = [str(pool.tokenizer.decode(prompt[0]))], {}
    _, seconds["retrieve"] = timed(lambda: pool.retriever.retrieve(text, setup.num_documents))
    [phrases], both = timed(lambda: pool.phrases_for(text))
    seconds["mine"] = max(0.0, both - seconds["retrieve"])
    table, both = timed(lambda: model.phrase_table(phrases))
    same = PhraseVocabulary.from_token_ids(
        map(phrases.token_ids, phrases), phrases.tokenizer, vocab_size=phrases.vocab_size
    )
    _, seconds["table"] = timed(lambda: model.phrase_table(same))  # the embeddings are in memory now
    seconds["encode"] = max(0.0, both - seconds["table"])
    settings = {"max_new_tokens": setup.num_steps, "do_sample": False, "pad_token_id": 0}
    _, seconds["steps"] = timed(lambda: model.generate(prompt, phrases=table, **settings))
    return len(phrases), seconds


@torch.no_grad()
def main(setup: Setup) -> None:
    """Print one table for all types and units."""
    rows = list(setup.load()["train"]["text"])
    named = setup.model and AutoTokenizer.from_pretrained(setup.model)
    tokenizer: Any = named or train_bpe_tokenizer(rows, setup.vocab_size)
    documents = documents_of(rows, setup.document_words)
    retriever = DocumentRetriever.lexical(documents)
    text = documents[str(len(documents) // 2)] * setup.prompt_tokens
    prompt = torch.tensor(tokenizer(text)["input_ids"])[None, : setup.prompt_tokens]

    def pool_of(unit: str, vocab_size: int) -> PhrasePool:
        settings: Any = {"num_documents": setup.num_documents, "vocab_size": vocab_size}
        return PhrasePool(documents, tokenizer, MINERS[unit](), retriever=retriever, **settings)

    sizes = f"{setup.new_tokens} tokens in {setup.num_steps} steps with phrases of {setup.num_documents} documents"
    print(f"\n{sizes} of {len(documents):,}; ms, and x the base model's time\n")
    columns = ["retrieve", "mine", "encode or read", "table", "steps", "all", "x", "steps at x = 1"]
    print("| weights | encoder | phrases of | phrases | way | " + " | ".join(columns) + " |")
    print("| --- | --- | --- | ---: | --- |" + " ---: |" * len(columns))
    for dtype in setup.dtypes:
        model = make_base(setup, dtype).eval()
        base: list[float] = []
        found: dict[tuple[str, str, str], list[dict[str, float]]] = {}
        counts: dict[str, int] = {}
        for turn in range(setup.rounds + 1):
            settings = {"max_new_tokens": setup.new_tokens, "do_sample": False, "pad_token_id": 0}
            _, seconds = timed(lambda model=model, settings=settings: model.generate(prompt, **settings))
            base += [seconds] * (turn > 0)  # the first turn warms up
            for encoder, unit in product(setup.encoders, setup.units):
                with TemporaryDirectory() as folder:
                    for way in ("cold", "warm", "kept"):
                        if way != "kept":  # as a new process has them, with nothing in memory
                            set_seed(0)  # the same encoder
                            service = DynamicVocabForCausalLM.from_base(model, **ENCODERS[encoder]).eval()
                            service.keep_phrase_embeddings(folder)
                            pool = pool_of(unit, model.get_output_embeddings().out_features)
                        counts[unit], parts = text_time(service, pool, prompt, setup)
                        found.setdefault((encoder, unit, way), []).extend([parts] * (turn > 0))
        print(f"| {dtype} | | | 0 | base | | | | | {1000 * median(base):.0f} | {1000 * median(base):.0f} | 1.00 | |")
        for (encoder, unit, way), turns in found.items():
            parts = {part: median(turn[part] for turn in turns) for part in PARTS}
            total = sum(parts.values())
            even = (median(base) - total + parts["steps"]) / (parts["steps"] / setup.num_steps)
            cells = " | ".join(f"{1000 * parts[part]:.0f}" for part in PARTS)
            ends = f"{1000 * total:.0f} | {total / median(base):.2f} | {max(0, even):.0f}"
            print(f"| {dtype} | {encoder} | {unit} | {counts[unit]:,} | {way} | {cells} | {ends} |")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
