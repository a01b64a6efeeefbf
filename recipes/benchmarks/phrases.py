"""Phrases side by side: encoding by windows and one by one, a step of decoding, and operations and memory.

    python recipes/benchmarks/phrases.py recipes/settings/benchmarks/phrases/measured.yaml

A GPT-2 of the published size with random weights: time does not depend on their values. Measured: recipes/phrases.md.
`--parts encode step costs` chooses. What untrained phrases take from a trained model, for each kind of
phrase encoder, in a few minutes (after `make models`):
    python recipes/benchmarks/phrases.py recipes/settings/benchmarks/phrases/smollm2.yaml
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import math
import time
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config

from hf_targets import DynamicVocabForCausalLM, PhraseVocabulary, load_corpus, train_bpe_tokenizer
from hf_targets.evaluation.timing import settled_time
from hf_targets.phrases.decoding.table import PhraseTable
from hf_targets.phrases.encoder import plan_windows
from lab.phrase_costs import model_size, phrase_costs_table
from lab.settings import parse_settings


@dataclass
class Setup:
    """What is measured."""

    parts: list[str] = field(
        default_factory=lambda: ["encode", "step", "costs"], metadata={"help": "Of encode, step, costs and starts."}
    )
    num_layers: int = field(default=12, metadata={"help": "Of the model and the encoder."})
    hidden_size: int = field(default=768, metadata={"help": "Of the model and the encoder."})
    vocab_size: int = field(default=50257, metadata={"help": "V."})
    num_windows: int = field(default=64, metadata={"help": "Windows of 8 tokens, whose 7 prefixes are phrases."})
    table_sizes: list[int] = field(default_factory=lambda: [0, 1024, 8192, 65536], metadata={"help": "Phrases."})
    num_steps: int = field(default=16, metadata={"help": "Timed steps of a turn, after 32 tokens."})
    rounds: int = field(default=5, metadata={"help": "Turns of each."})
    batch_size: int = field(default=1, metadata={"help": "Rows of a step."})
    model: str = field(default="models/smollm2-135m", metadata={"help": "Trained model, for starts."})
    dataset: str = field(default="wikitext-2", metadata={"help": "Corpus, for starts."})
    num_texts: int = field(default=4, metadata={"help": "Windows of 256 tokens whose perplexity is taken, for starts."})
    num_phrases: int = field(default=1300, metadata={"help": "Of the text after these windows, for starts."})


STARTS: dict[str, dict[str, Any]] = {
    "mean of embeddings": {"phrase_encoder_kind": "mean"},
    "first 2 layers": {"phrase_encoder_layers": 2},
    "first 4 layers": {"phrase_encoder_layers": 4},
    "all layers": {},
    "all layers, the paper's start": {"phrase_start": "encoder"},
}


def make_model(setup: Setup) -> DynamicVocabForCausalLM:
    """Return a model of GPT-2's shape."""
    heads = max(1, setup.hidden_size // 64)
    shape: Any = {"n_layer": setup.num_layers, "n_embd": setup.hidden_size, "n_head": heads}
    config = GPT2Config(vocab_size=setup.vocab_size, bos_token_id=None, eos_token_id=None, **shape)
    base = AutoModelForCausalLM.from_config(config)
    return DynamicVocabForCausalLM.from_base(base, phrase_start="encoder").eval()


def print_encoding(model: DynamicVocabForCausalLM, setup: Setup) -> None:
    """Time encoding all prefixes of windows by windows, and phrase by phrase in padded batches."""
    windows = np.random.default_rng(0).integers(0, setup.vocab_size, (setup.num_windows, 8))
    phrases = [window[:length] for window in windows for length in range(2, 9)]
    keys = [phrase.tobytes() for phrase in phrases]
    padded = np.zeros((len(phrases), 8), np.int64)
    for row, phrase in zip(padded, phrases, strict=True):
        row[: len(phrase)] = phrase
    own = np.stack([np.arange(len(phrases)), [len(phrase) for phrase in phrases]], axis=1)

    def by_windows() -> None:
        for shared, places, _ in plan_windows(keys):
            model.phrase_encoder(shared, places)

    def one_by_one() -> None:
        for start in range(0, len(phrases), 256):
            rows = torch.from_numpy(own[start : start + 256]) - torch.tensor([start, 0])
            model.phrase_encoder(torch.from_numpy(padded[start : start + 256]), rows)

    seconds = {"windows": [], "padded phrases": []}
    for turn in range(setup.rounds + 1):
        for name, run in (("windows", by_windows), ("padded phrases", one_by_one)):
            start = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - start)
    rates = {name: len(phrases) / median(times) for name, times in seconds.items()}
    print("\n| encoding | phrases a second | x padded |\n| --- | ---: | ---: |")
    for name, rate in rates.items():
        print(f"| {name} | {rate:.0f} | {rate / rates['padded phrases']:.2f} |")


def seconds_of_steps(model: DynamicVocabForCausalLM, setup: Setup) -> dict[int, float]:
    """Return the seconds of a step with the cache, by the number of phrases; their embeddings are random."""
    tokenizer = train_bpe_tokenizer(["a few words to make a tokenizer of"], 300)
    prompt = torch.arange(32, device=model.device).expand(setup.batch_size, -1)
    tables: dict[int, PhraseTable | None] = {}
    for size in setup.table_sizes:
        ids = torch.arange(size, device=model.device)
        pairs = 2 + torch.stack([ids // 250, ids % 250], dim=1)  # none of them a special token
        vocabulary = PhraseVocabulary.from_token_ids(pairs.tolist(), tokenizer, vocab_size=setup.vocab_size)
        rows = 0.02 * torch.randn(size, setup.hidden_size, device=model.device, dtype=model.dtype)
        exists = torch.ones(1, size, dtype=torch.bool, device=model.device)
        tables[size] = PhraseTable([vocabulary], rows, rows, ids[None], exists) if size else None
    seconds = {size: [] for size in tables}
    for turn in range(setup.rounds + 1):
        for size, table in tables.items():
            times = []
            for count in (1, 1 + setup.num_steps):  # the difference is that of steps alone
                start = settled_time(model.device)
                model.generate(prompt, phrases=table, max_new_tokens=count, do_sample=False, pad_token_id=0)
                times.append(settled_time(model.device) - start)
            if turn:
                seconds[size].append((times[1] - times[0]) / setup.num_steps)
    return {size: median(times) for size, times in seconds.items()}


def print_steps(model: DynamicVocabForCausalLM, setup: Setup) -> None:
    """Print the time of a step, and the memory of each of the two matrices of a table."""
    seconds = seconds_of_steps(model, setup)
    first = seconds[setup.table_sizes[0]]
    print("\n| phrases | ms a step | x the first | table, MB |\n| ---: | ---: | ---: | ---: |")
    for size, value in seconds.items():
        megabytes = size * setup.hidden_size * model.dtype.itemsize / 1e6
        print(f"| {size:,} | {1000 * value:.1f} | {value / first:.2f} | {megabytes:.1f} |")


def print_costs(model: DynamicVocabForCausalLM) -> None:
    """Print table 13: operations and memory, with the paper's average steps for 128 tokens."""
    steps = {0: 128, 32: 88, 128: 98, 2048: 95, 8192: 96, 16384: 89, 65536: 73}  # Liu et al., table 13
    size = model_size(model.backbone)
    for cached in (True, False):
        print(f"\nWith{'' if cached else 'out'} a key-value cache, steps as in the paper's table 13:\n")
        print(phrase_costs_table(size, steps, prefix_length=32, encoder=size, use_cache=cached))


def print_starts(setup: Setup) -> None:
    """Print for each kind of encoder its size and rate, and what untrained phrases take from a trained model."""
    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    base: Any = AutoModelForCausalLM.from_pretrained(setup.model, dtype=torch.float32).eval()
    text, length = "".join(load_corpus(setup.dataset)["test"]["text"])[:100_000], 256 * setup.num_texts
    ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    texts = torch.tensor(ids[:length]).view(-1, 256)
    spans = [(start, start + size) for start in range(length, len(ids) - 8) for size in range(2, 9)]
    phrases = [ids[start:end] for start, end in spans[: setup.num_phrases]]
    size = base.get_output_embeddings().out_features
    vocabulary = PhraseVocabulary.from_token_ids(phrases, tokenizer, vocab_size=size)
    plain = float(base(texts, labels=texts).loss)
    print(f"\nPerplexity {math.exp(plain):.2f} of {length} tokens, in windows of 256; {len(vocabulary)} phrases\n")
    print("| phrase encoder | parameters, M | phrases a core second | perplexity | phrases, % |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for name, kind in STARTS.items():
        model = DynamicVocabForCausalLM.from_base(base, **kind).eval()
        start = time.process_time()
        table = model.phrase_table(vocabulary)
        rate = len(vocabulary) / (time.process_time() - start)
        loss = float(model(texts, labels=texts, phrases=table).loss)
        size = sum(parameter.numel() for parameter in model.phrase_encoder.parameters()) / 1e6
        share = 100 * (1 - math.exp(plain - loss))
        print(f"| {name} | {size:.1f} | {rate:,.0f} | {math.exp(loss):.2f} | {share:.1f} |", flush=True)


@torch.no_grad()
def main(setup: Setup) -> None:
    """Measure the parts asked for."""
    if "starts" in setup.parts:
        print_starts(setup)
    if setup.parts == ["starts"]:
        return
    model = make_model(setup)
    if "encode" in setup.parts:
        print_encoding(model, setup)
    if "step" in setup.parts:
        print_steps(model, setup)
    if "costs" in setup.parts:
        print_costs(model)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
