"""The whole time of a text with phrases, part by part, against the base model with its key-value cache.

    python recipes/benchmarks/latency.py recipes/settings/benchmarks/latency/measured.yaml

The documents nearest to the prompt are found by TF-IDF, phrases are mined from them, encoded, put into a table, and
used in each step. Cold: nothing is cached. Warm: the embeddings are on disk, as in a second process with the same
documents. Kept: the process has had these documents before (`PhrasePool`). A GPT-2 with random weights: the time of a
step does not depend on their values, but the number of steps does, so it is a setting. Measured: recipes/phrases.md.
"""

import copy
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

sys.path.insert(0, str(Path(__file__).parents[1]))

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
PARTS = ("retrieve", "mine", "encode", "table", "steps")


@dataclass
class Setup(TextSettings):
    """What is measured."""

    dataset: str = field(default="documentation:topics", metadata={"help": "Corpus."})
    units: list[str] = field(default_factory=lambda: ["tokens", "words"], metadata={"help": "Of phrases."})
    dtypes: list[str] = field(default_factory=lambda: ["float32", "bfloat16"], metadata={"help": "Of the weights."})
    num_layers: int = field(default=4, metadata={"help": "Of the model and the encoder."})
    hidden_size: int = field(default=256, metadata={"help": "Of the model and the encoder."})
    vocab_size: int = field(default=4096, metadata={"help": "V."})
    num_documents: int = field(default=32, metadata={"help": "Documents that phrases are mined from."})
    document_words: int = field(default=100, metadata={"help": "Words of a document."})
    prompt_tokens: int = field(default=32, metadata={"help": "Tokens of the prompt."})
    new_tokens: int = field(default=128, metadata={"help": "Tokens of the text."})
    num_steps: int = field(default=37, metadata={"help": "Steps that a text takes with phrases."})
    rounds: int = field(default=3, metadata={"help": "Turns of each way, one after the other; the median counts."})

    def __post_init__(self) -> None:
        if unknown := set(self.units) - set(MINERS):
            raise ValueError(f"units must be of {', '.join(MINERS)}, got {', '.join(unknown)}")


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives, and its seconds."""
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def make_model(setup: Setup, dtype: str) -> DynamicVocabForCausalLM:
    """Return a model of GPT-2's shape."""
    heads = max(1, setup.hidden_size // 64)
    shape: Any = {"n_layer": setup.num_layers, "n_embd": setup.hidden_size, "n_head": heads}
    config = GPT2Config(vocab_size=setup.vocab_size, bos_token_id=None, eos_token_id=None, **shape)
    base = AutoModelForCausalLM.from_config(config)
    model = DynamicVocabForCausalLM.from_base(base, phrase_start="encoder").eval()
    return model.to(getattr(torch, dtype))


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
    tokenizer = train_bpe_tokenizer(rows, setup.vocab_size)
    documents = documents_of(rows, setup.document_words)
    retriever = DocumentRetriever.lexical(documents)
    text = documents[str(len(documents) // 2)] * setup.prompt_tokens
    prompt = torch.tensor(tokenizer(text)["input_ids"])[None, : setup.prompt_tokens]

    def pool_of(unit: str) -> PhrasePool:
        settings: Any = {"num_documents": setup.num_documents, "vocab_size": setup.vocab_size}
        return PhrasePool(documents, tokenizer, MINERS[unit](), retriever=retriever, **settings)

    sizes = f"{setup.new_tokens} tokens in {setup.num_steps} steps with phrases of {setup.num_documents} documents"
    print(f"\n{sizes} of {len(documents):,}; ms, and x the base model's time\n")
    columns = ["retrieve", "mine", "encode or read", "table", "steps", "all", "x", "steps at x = 1"]
    print("| weights | phrases of | phrases | way | " + " | ".join(columns) + " |")
    print("| --- | --- | ---: | --- |" + " ---: |" * len(columns))
    for dtype in setup.dtypes:
        model = make_model(setup, dtype)
        base: list[float] = []
        found: dict[tuple[str, str], list[dict[str, float]]] = {}
        counts: dict[str, int] = {}
        for turn in range(setup.rounds + 1):
            settings = {"max_new_tokens": setup.new_tokens, "do_sample": False, "pad_token_id": 0}
            _, seconds = timed(lambda model=model, settings=settings: model.generate(prompt, **settings))
            base += [seconds] * (turn > 0)  # the first turn warms up
            for unit in setup.units:
                with TemporaryDirectory() as folder:
                    for way in ("cold", "warm", "kept"):
                        if way != "kept":  # as a new process has them, with nothing in memory
                            service, pool = copy.deepcopy(model), pool_of(unit)
                            service.keep_phrase_embeddings(folder)
                        counts[unit], parts = text_time(service, pool, prompt, setup)
                        found.setdefault((unit, way), []).extend([parts] * (turn > 0))
        print(f"| {dtype} | | 0 | base | | | | | {1000 * median(base):.0f} | {1000 * median(base):.0f} | 1.00 | |")
        for (unit, way), turns in found.items():
            parts = {part: median(turn[part] for turn in turns) for part in PARTS}
            total = sum(parts.values())
            even = (median(base) - total + parts["steps"]) / (parts["steps"] / setup.num_steps)
            cells = " | ".join(f"{1000 * parts[part]:.0f}" for part in PARTS)
            ends = f"{1000 * total:.0f} | {total / median(base):.2f} | {max(0, even):.0f}"
            print(f"| {dtype} | {unit} | {counts[unit]:,} | {way} | {cells} | {ends} |")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
