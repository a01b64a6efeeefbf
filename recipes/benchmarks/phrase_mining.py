"""How fast phrases are found in texts and become a vocabulary, single-threaded.

    HF_TARGETS_DATA=data python recipes/benchmarks/phrase_mining.py \
        recipes/settings/benchmarks/phrase_mining/measured.yaml

Forward maximum matching over a table mined from the text itself, n-grams of words and tokens, a vocabulary of 65,536
phrases from strings. Measured: recipes/phrases.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from transformers import AutoTokenizer

from hf_targets import ForwardMaximumMatching, PhraseVocabulary, TokenNgrams, WordNgrams, train_bpe_tokenizer
from hf_targets.phrases.mining.tokenized_text import TokenizedText
from lab.settings import parse_settings
from lab.text import TextSettings


@dataclass
class Setup(TextSettings):
    """What is read."""

    tokenizer: str | None = field(default=None, metadata={"help": "Name or folder; None: a BPE of 4,096, trained."})
    min_count: int = field(default=10, metadata={"help": "How often a phrase must stand in the text to be mined."})
    block_size: int = field(default=512, metadata={"help": "Tokens of a block that miners look through."})
    num_blocks: int = field(default=200, metadata={"help": "Blocks that are timed."})
    num_phrases: int = field(default=65536, metadata={"help": "Phrases of the vocabulary."})


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """Return what a call gives, and its seconds."""
    start = time.perf_counter()
    return run(), time.perf_counter() - start


def main(setup: Setup) -> None:
    """Print the rates."""
    rows = list(setup.load()["train"]["text"])
    tokenizer: Any = train_bpe_tokenizer(rows, 4096) if setup.tokenizer is None else None
    if setup.tokenizer is not None:
        tokenizer = AutoTokenizer.from_pretrained(setup.tokenizer)
    ids = [id_ for row in tokenizer(rows, add_special_tokens=False, verbose=False)["input_ids"] for id_ in row]
    table, seconds = timed(lambda: ForwardMaximumMatching.mine([ids], min_count=setup.min_count))
    print(f"\n{len(ids):,} tokens; {len(table):,} phrases of a count of {setup.min_count} or more\n")
    print("| what | tokens / s |\n| --- | ---: |")
    print(f"| mining the table of forward maximum matching | {len(ids) / seconds:,.0f} |")
    starts = range(0, min(len(ids), setup.num_blocks * setup.block_size), setup.block_size)
    blocks, seconds = timed(
        lambda: [TokenizedText.from_ids(ids[start : start + setup.block_size], tokenizer) for start in starts]
    )
    num_tokens = sum(map(len, blocks))
    print(f"| text and characters of blocks | {num_tokens / seconds:,.0f} |")
    for name, miner in (
        ("forward maximum matching", table),
        ("WordNgrams(2, 5)", WordNgrams(2, 5)),
        ("TokenNgrams(2, 8)", TokenNgrams(2, 8)),
    ):
        _, seconds = timed(lambda miner=miner: [miner.spans(block) for block in blocks])
        print(f"| {name} | {num_tokens / seconds:,.0f} |")

    words = " ".join(rows).replace("<unk>", "").split()
    strings = (" ".join(words[start : start + 2 + start % 4]) for start in range(len(words)))
    phrases = list(islice(dict.fromkeys(strings), setup.num_phrases))
    vocabulary, seconds = timed(lambda: PhraseVocabulary.from_phrases(phrases, tokenizer, single_tokens="skip"))
    print(f"\nA vocabulary of {len(vocabulary):,} phrases from strings: {seconds:.1f} s")


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
