"""How fast a translation model with heads decodes: plainly, with drafts, and with drafts copied from the source.

    HF_TARGETS_DATA=data python recipes/benchmarks/translate.py recipes/settings/benchmarks/translate/measured.yaml \
        --model runs/tables/train_translation/multi30k-de-en/wdr-seed0

Greedily, on sources of the test text, of similar length within a batch. The ways take turns in one process.
Measured: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field

import torch
from transformers import AutoTokenizer

from hf_targets import MultiTokenForSeq2SeqLM
from lab.settings import parse_settings
from lab.speed import DecodingMethod, compare_speeds, format_speeds
from lab.text import PairSettings


@dataclass
class Setup(PairSettings):
    """Which model translates what."""

    model: str = field(default="", metadata={"help": "Model with heads, as recipes/train_translation.py leaves it."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the weights."})
    num_pairs: int = field(default=64, metadata={"help": "Sources that are translated."})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Sources at once."})
    max_new_tokens: int = field(default=64, metadata={"help": "Most tokens of a translation."})
    branches: int = field(default=2, metadata={"help": "Branches of the trees."})
    lookup_tokens: int = field(default=3, metadata={"help": "Most tokens that are copied from the source at once."})
    ensemble_weight: float = field(default=0.2, metadata={"help": "Lambda of the row with the ensemble."})
    rounds: int = field(default=3, metadata={"help": "Turns of each way; the median counts."})


def main(setup: Setup) -> None:
    """Print a table for each batch size."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = MultiTokenForSeq2SeqLM.from_pretrained(setup.model, dtype=setup.dtype).eval()
    model.to(device)  # pyright: ignore[reportArgumentType]
    tokenizer = AutoTokenizer.from_pretrained(setup.model)
    encoded = setup.encoded(setup.load(), tokenizer)["test"]
    rows = sorted(encoded.take(min(setup.num_pairs, len(encoded)))["input_ids"], key=len)
    draft = {"draft_tokens": model.config.ngram_size - 1}
    lookup = {"prompt_lookup_num_tokens": setup.lookup_tokens, "max_matching_ngram_size": 2}
    ways = {
        "chain": draft,
        "tree": {**draft, "draft_branches": setup.branches},
        "chain and source": {**draft, **lookup},
        "auto": {"draft_tokens": "auto"},
        "ensemble, no drafts": {"ensemble_weight": setup.ensemble_weight},
        "ensemble, chain": {"ensemble_weight": setup.ensemble_weight, **draft},
    }
    methods = {"plain": DecodingMethod(model.backbone, {})}
    methods |= {name: DecodingMethod(model, arguments) for name, arguments in ways.items()}
    print(f"{model.num_parameters():,} parameters, {setup.dtype}, {device}, {torch.get_num_threads()} threads")
    for size in setup.batch_sizes:
        parts = [rows[start : start + size] for start in range(0, len(rows), size)]
        batches = [tokenizer.pad({"input_ids": part}, return_tensors="pt") for part in parts]
        speeds = compare_speeds(methods, batches, max_new_tokens=setup.max_new_tokens, rounds=setup.rounds)
        print(f"\n{size} source(s) at once\n\n{format_speeds(speeds)}", flush=True)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
