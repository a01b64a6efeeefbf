"""Where the time of a pass goes: in Transformers' loop, in ours without drafts, and with drafts.

    OMP_NUM_THREADS=1 python recipes/benchmarks/draft_profile.py recipes/settings/benchmarks/draft_profile/measured.yaml

Random prompts, greedy. Drafts are looked up in the plain texts, in which each sixth token is another one. Milliseconds
of the CPU, medians over the passes of a text and over rounds in which the ways take turns; those between passes are
parted by the share of the wall clock that drafting takes. Four minutes on one core. Measured: recipes/multitoken.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from hf_targets import draft
from hf_targets.multitoken.draft import Drafts
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass(kw_only=True)
class Setup:
    """What is profiled."""

    model: str = field(metadata={"help": "A causal model."})
    dtype: str = field(default="bfloat16", metadata={"help": "Of the model."})
    num_rows: list[int] = field(default_factory=lambda: [1, 4, 8, 16], metadata={"help": "Texts at once."})
    draft_tokens: int = field(default=3, metadata={"help": "Of a draft, at most."})
    prompt_tokens: int = field(default=64, metadata={"help": "Of each prompt."})
    new_tokens: int = field(default=24, metadata={"help": "Of each text."})
    rounds: int = field(default=5, metadata={"help": "Timed turns of each way, after one that is not."})


def profile(model: Any, **told: Any) -> tuple[Tensor, list[float]]:
    """Return texts, and of a pass after the prompt's: ms in the model and between two of them, the share of drafting
    in the latter, and tokens a row. With drafts it is a pass of all rows that has some."""
    clock: list[float] = []
    shapes: list[Any] = []

    def before(_: Any, args: Any, given: dict[str, Any]) -> None:
        shapes.append(given["input_ids"].shape)
        clock.append(process_time())

    hooks = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.register_forward_hook(lambda *_: clock.append(process_time())),
    ]
    output = model.generate(do_sample=False, eos_token_id=None, pad_token_id=0, return_dict_in_generate=True, **told)
    for hook in hooks:
        hook.remove()
    count, drafted = len(told["inputs"]), any(length > 1 for _, length in shapes[1:])
    chosen = [at for at, (rows, length) in enumerate(shapes) if at and rows == count and drafted == (length > 1)]
    within = median(clock[2 * at + 1] - clock[2 * at] for at in chosen)
    between = median(clock[2 * at] - clock[2 * at - 1] for at in chosen)
    seconds = getattr(output, "seconds", {"drafts": 0.0, "passes": 0.0, "all": 1.0})
    share = seconds["drafts"] / (seconds["all"] - seconds["passes"])
    return output.sequences, [1e3 * within, 1e3 * between, share, getattr(output, "tokens_per_pass", 1.0)]


def drafts_of(texts: Tensor | None, num_tokens: int) -> Drafts:
    """Return drafts from texts in which each sixth token is another one; None: that find nothing."""
    drafts = draft(lookup=False, answers=True, num_tokens=num_tokens)
    if texts is not None:
        texts = texts.clone()
        texts[:, ::6] = 5
        drafts.others["answers"].extend(token for text in texts.tolist() for token in [*text, -1])
    return drafts


@torch.no_grad()
def main(setup: Setup) -> None:
    """Print a table."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(setup.model, dtype=setup.dtype).eval()
    model.generation_config.eos_token_id = None
    table = []
    for rows in setup.num_rows:
        ids = torch.randint(5, model.config.vocab_size, (rows, setup.prompt_tokens))
        told: Any = {"inputs": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": setup.new_tokens}
        texts, _ = profile(model, **told)
        ways: dict[str, Any] = {"Transformers": lambda: None}
        ways["ours, no drafts"] = lambda: drafts_of(None, setup.draft_tokens)
        ways["ours, drafts"] = lambda texts=texts: drafts_of(texts, setup.draft_tokens)
        taken: dict[str, list[list[float]]] = {way: [] for way in ways}
        for _ in range(1 + setup.rounds):
            for way, make in ways.items():
                taken[way].append(profile(model, custom_generate=make(), **told)[1])
        for way, rounds in taken.items():
            within, between, share, tokens = (median(values) for values in zip(*rounds[1:], strict=True))
            cells = [f"{within:.1f}", f"{between * share:.2f}", f"{between * (1 - share):.2f}", f"{tokens:.2f}"]
            table.append([str(rows), way, *cells])
    print(f"{model.num_parameters():,} parameters, {setup.dtype}, {torch.get_num_threads()} threads\n")
    print(markdown_table(["rows", "loop", "model, ms", "drafting, ms", "the rest, ms", "tokens a pass"], table))


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
