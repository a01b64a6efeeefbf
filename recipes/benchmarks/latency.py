"""The whole time of a text with phrases, part by part, against the base model with its key-value cache.

    python recipes/benchmarks/latency.py recipes/settings/benchmarks/latency/measured.yaml

Phrases are mined from documents, encoded, put into a table, and used in each step. Cold: nothing is cached. Warm: the
embeddings are on disk, as in a second process with the same documents. A GPT-2 with random weights: the time of a step
does not depend on their values, but the number of steps does, so it is a setting. Measured: recipes/phrases.md.
"""

import copy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

from hf_targets import (
    DynamicVocabForCausalLM,
    PhraseVocabulary,
    TextSettings,
    TokenNgrams,
    WordNgrams,
    field_of,
    parse_settings,
    train_bpe_tokenizer,
)

MINERS: dict[str, Callable[[], Any]] = {"tokens": lambda: TokenNgrams(2, 8), "words": lambda: WordNgrams(2, 5)}
PARTS = ("mine", "encode", "table", "steps")


@dataclass
class Setup(TextSettings):
    """What is measured."""

    dataset: str = field_of(TextSettings, "dataset", "documentation:topics")
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
    model = DynamicVocabForCausalLM.from_base(AutoModelForCausalLM.from_config(config)).eval()
    return model.to(getattr(torch, dtype))


def text_time(
    model: DynamicVocabForCausalLM, mine: Callable[[], PhraseVocabulary], prompt: Tensor, setup: Setup, folder: str
) -> tuple[int, dict[str, float]]:
    """Return the number of phrases, and the seconds of each part of a text, by a model that has nothing in memory."""
    model = copy.deepcopy(model)  # has cached nothing
    model.keep_phrase_embeddings(folder)
    seconds = {}
    phrases, seconds["mine"] = timed(mine)
    table, both = timed(lambda: model.phrase_table(phrases))
    same = PhraseVocabulary.from_token_ids(
        map(phrases.token_ids, phrases), phrases.tokenizer, vocab_size=phrases.vocab_size
    )
    _, seconds["table"] = timed(lambda: model.phrase_table(same))  # the embeddings are in memory now
    seconds["encode"] = both - seconds["table"]
    settings = {"max_new_tokens": setup.num_steps, "do_sample": False, "pad_token_id": 0}
    _, seconds["steps"] = timed(lambda: model.generate(prompt, phrases=table, **settings))
    return len(phrases), seconds


@torch.no_grad()
def main() -> None:
    """Print one table for all types and units."""
    (setup,) = parse_settings(Setup)
    rows = list(setup.load()["train"]["text"])
    tokenizer = train_bpe_tokenizer(rows, setup.vocab_size)
    words, size = "".join(rows).split(" "), setup.document_words
    starts = range(0, setup.num_documents * size, size)
    documents = [" ".join(words[start : start + size]) for start in starts]
    prompt = torch.tensor(tokenizer(documents[0] * setup.prompt_tokens)["input_ids"])[None, : setup.prompt_tokens]

    def mine(unit: str) -> PhraseVocabulary:
        return PhraseVocabulary.from_documents(documents, tokenizer, MINERS[unit](), vocab_size=setup.vocab_size)

    print(f"\n{setup.new_tokens} tokens in {setup.num_steps} steps with phrases; ms, and x the base model's time\n")
    print("| weights | phrases of | phrases | way | mine | encode or read | table | steps | all | x | steps at x = 1 |")
    print("| --- | --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
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
                    for way in ("cold", "warm"):
                        counts[unit], parts = text_time(model, lambda unit=unit: mine(unit), prompt, setup, folder)
                        found.setdefault((unit, way), []).extend([parts] * (turn > 0))
        print(f"| {dtype} | | 0 | base | | | | {1000 * median(base):.0f} | {1000 * median(base):.0f} | 1.00 | |")
        for (unit, way), turns in found.items():
            parts = {part: median(turn[part] for turn in turns) for part in PARTS}
            total = sum(parts.values())
            even = (median(base) - total + parts["steps"]) / (parts["steps"] / setup.num_steps)
            cells = " | ".join(f"{1000 * parts[part]:.0f}" for part in PARTS)
            ends = f"{1000 * total:.0f} | {total / median(base):.2f} | {max(0, even):.0f}"
            print(f"| {dtype} | {unit} | {counts[unit]:,} | {way} | {cells} | {ends} |")


if __name__ == "__main__":
    main()
