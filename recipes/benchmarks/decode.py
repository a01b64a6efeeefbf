"""Decoding side by side: plain, prompt lookup, and drafts by every kind of heads, as chains and as trees.

    python recipes/benchmarks/decode.py recipes/settings/benchmarks/decode/measured.yaml
    python recipes/benchmarks/decode.py --heads runs/train_draft_heads/stories

The heads are those that `recipes/train_draft_heads.py` has left in that folder, a subfolder for each kind and seed, all
trained on the same text for as long. Same prompts, greedy, one process; the methods take turns at each batch. Measured:
recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field, replace

import torch
from transformers import AutoTokenizer

from hf_targets import MultiTokenForCausalLM
from hf_targets.multitoken.heads import HEADS
from lab.draft_heads import KINDS, DraftText
from lab.settings import parse_settings
from lab.speed import DecodingMethod, compare_speeds, format_speeds


@dataclass(kw_only=True)
class Setup(DraftText):
    """What decodes which prompts."""

    heads: str = field(
        default="runs/tables/train_draft_heads/documentation",
        metadata={"help": "Folder with a subfolder of heads for each kind and seed."},
    )
    num_prompts: int = field(default=16, metadata={"help": "Prompts."})
    max_new_tokens: int = field(default=96, metadata={"help": "Tokens to generate for each."})
    batch_sizes: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Prompts at once."})
    ways: list[str] = field(
        default_factory=lambda: ["prompt lookup", "chain", "tree", "auto", "chain and lookup", "ensemble, no drafts"],
        metadata={"help": "Beside plain decoding; also: tree and lookup."},
    )
    branches: int = field(default=3, metadata={"help": "Branches of the draft trees."})
    nodes: int | None = field(default=None, metadata={"help": "The most tokens of a draft tree; None: all."})
    lookup_tokens: int = field(default=5, metadata={"help": "Most tokens that prompt lookup adds."})
    ensemble_weight: float = field(default=0.2, metadata={"help": "Lambda of the ensemble that is timed."})
    sampling_temperature: float | None = field(
        default=None, metadata={"help": "Sample at this temperature; None: greedy."}
    )
    rounds: int = field(default=3, metadata={"help": "Timed turns of each method."})


def methods_of(setup: Setup, device: torch.device) -> dict[str, DecodingMethod]:
    """Return what is compared; prompt lookup comes with single rows only, as in Transformers."""
    folders = [
        (kind, folder) for kind in {**KINDS, **HEADS} for folder in sorted(Path(setup.heads).glob(f"{kind}-seed*"))
    ]
    if not folders:
        raise ValueError(f"no heads in {setup.heads}; recipes/train_draft_heads.py leaves them there, a folder a kind")
    lookup = {"prompt_lookup_num_tokens": setup.lookup_tokens}
    methods: dict[str, DecodingMethod] = {}
    for kind, folder in folders:
        model = MultiTokenForCausalLM.from_pretrained(folder, dtype=setup.dtype).eval()
        model.to(device)  # pyright: ignore[reportArgumentType]
        if not methods:
            methods = {"plain": DecodingMethod(model.backbone, {})}
            if "prompt lookup" in setup.ways:
                methods["prompt lookup"] = DecodingMethod(model.backbone, lookup)
        draft = {"draft_tokens": model.config.ngram_size - 1}
        tree = {**draft, "draft_branches": setup.branches, "draft_nodes": setup.nodes}
        kinds = {"chain": draft, "tree": tree, "auto": {"draft_tokens": "auto"}}
        if kind == "wdr":
            kinds["chain and lookup"] = {**draft, **lookup}
            kinds["tree and lookup"] = {**tree, **lookup}
            kinds["ensemble, no drafts"] = {"ensemble_weight": setup.ensemble_weight}
        for how, arguments in ((how, arguments) for how, arguments in kinds.items() if how in setup.ways):
            methods[f"{folder.name}, {how}"] = DecodingMethod(model, arguments, f"{kind}, {how}")
    if setup.sampling_temperature is not None:
        sampled = {"do_sample": True, "temperature": setup.sampling_temperature, "top_k": 0}
        methods = {name: replace(method, arguments={**method.arguments, **sampled}) for name, method in methods.items()}
    return methods


def main(setup: Setup) -> None:
    """Print a table for each batch size, and what ran."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    methods = methods_of(setup, device)
    base = methods["plain"].model
    tokenizer = AutoTokenizer.from_pretrained(next(Path(setup.heads).glob("*-seed*")))
    print(f"{base.num_parameters():,} parameters, {setup.dtype}, {device}, {torch.get_num_threads()} threads")
    for size in setup.batch_sizes:
        able = {name: method for name, method in methods.items() if size == 1 or name != "prompt lookup"}
        prompts = setup.test_batches(base, tokenizer, size)
        speeds = compare_speeds(able, prompts, max_new_tokens=setup.max_new_tokens, rounds=setup.rounds)
        print(f"\n{size} row(s) at once\n\n{format_speeds(speeds)}", flush=True)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
