"""Decoding side by side: plain, prompt lookup, and drafts by every kind of heads, as chains and as trees.

    python recipes/benchmarks/decode.py --heads runs/train_draft_heads/stories

The heads are those that `recipes/train_draft_heads.py` has left in that folder, a subfolder for each kind and seed, all
trained on the same text for as long. Same prompts, greedy, one process; the ways take turns. Measured:
recipes/README.md.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import AutoTokenizer

from hf_targets import HEADS, MultiTokenForCausalLM
from hf_targets.evaluation.speed import Way, compare_speeds, format_speeds
from hf_targets.multitoken.draft_heads import KINDS, draft_text
from hf_targets.training.seeds import row_folder
from hf_targets.training.settings import parse


@dataclass
class Setup:
    """What decodes which prompts."""

    heads: str = field(
        default="runs/train_draft_heads/documentation",
        metadata={"help": "Folder with a subfolder of heads for each kind and seed."},
    )
    dataset: str | None = field(
        default=None, metadata={"help": "Whose validation text gives the prompts; None: the model's own text."}
    )
    max_train_words: int | None = field(default=None, metadata={"help": "As it was for the heads."})
    block_size: int = field(default=128, metadata={"help": "Tokens of a text, of which the first are the prompt."})
    num_prompts: int = field(default=16, metadata={"help": "Prompts."})
    prompt_tokens: int = field(default=16, metadata={"help": "Tokens of each."})
    max_new_tokens: int = field(default=96, metadata={"help": "Tokens to generate for each."})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Prompts at once."})
    branches: int = field(default=3, metadata={"help": "Branches of the draft trees."})
    lookup_tokens: int = field(default=5, metadata={"help": "Most tokens that prompt lookup adds."})
    ensemble_weight: float = field(default=0.2, metadata={"help": "Lambda of the ensemble that is timed."})
    rounds: int = field(default=3, metadata={"help": "Timed turns of each way."})


def ways_of(setup: Setup, device: torch.device) -> dict[str, Way]:
    """Return what is compared; prompt lookup comes with single rows only, as in Transformers."""
    folders = [
        (kind, folder)
        for kind in {**KINDS, **HEADS}
        for folder in sorted(Path(setup.heads).glob(row_folder(kind, "*")))
    ]
    if not folders:
        raise ValueError(f"no heads in {setup.heads}; recipes/train_draft_heads.py leaves them there, a folder a kind")
    lookup = {"prompt_lookup_num_tokens": setup.lookup_tokens}
    ways: dict[str, Way] = {}
    for kind, folder in folders:
        model = MultiTokenForCausalLM.from_pretrained(folder).eval()
        model.to(device)  # pyright: ignore[reportArgumentType]
        if not ways:
            ways = {"plain": Way(model.backbone, {}), "prompt lookup": Way(model.backbone, lookup)}
        draft = {"draft_tokens": model.config.ngram_size - 1}
        kinds = {"chain": draft, "tree": {**draft, "draft_branches": setup.branches}}
        if kind == "wdr":
            kinds["chain and lookup"] = {**draft, **lookup}
            kinds["ensemble, no drafts"] = {"ensemble_weight": setup.ensemble_weight}
        for how, arguments in kinds.items():
            ways[f"{folder.name}, {how}"] = Way(model, arguments, f"{kind}, {how}")
    return ways


def main() -> None:
    """Print a table for each batch size, and what ran."""
    (setup,) = parse(Setup)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    ways = ways_of(setup, device)
    base = ways["plain"].model
    tokenizer = AutoTokenizer.from_pretrained(setup.heads)
    _, held_out = draft_text(
        base,
        tokenizer,
        dataset=setup.dataset,
        max_train_words=setup.max_train_words,
        block_size=setup.block_size,
        num_generated=1,
        num_held_out=setup.num_prompts,
    )
    prompts = torch.tensor(held_out["input_ids"][: setup.num_prompts])[:, : setup.prompt_tokens]
    shape = {"parameters": base.num_parameters(), "device": str(device), "threads": torch.get_num_threads()}
    print(json.dumps(shape | vars(setup)))
    for size in setup.batch_sizes:
        able = {name: way for name, way in ways.items() if size == 1 or name != "prompt lookup"}
        speeds = compare_speeds(able, prompts.split(size), max_new_tokens=setup.max_new_tokens, rounds=setup.rounds)
        print(f"\n{size} row(s) at once\n\n{format_speeds(speeds)}", flush=True)


if __name__ == "__main__":
    main()
