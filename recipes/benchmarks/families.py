"""Drafts without heads, over tiny models of many architectures: whether their texts are the plain ones, and passes.

    OMP_NUM_THREADS=1 python recipes/benchmarks/families.py recipes/settings/benchmarks/families/measured.yaml

Random weights, made on the spot. Drafts are looked up in the text and in an earlier one that differs in every sixth
token. Then sampled tokens with drafts against plain ones by a chi-square test, and the speed of larger models that keep
a state. Four minutes on one core. Measured: recipes/transformers.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

import itertools
from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from time import process_time
from typing import Any, cast

import torch
from benchmarks.parts.architectures import ARCHITECTURES, LARGE, make_model
from scipy.stats import chi2_contingency
from torch import Tensor
from transformers import PreTrainedModel, set_seed
from transformers.utils import logging

from hf_targets import draft
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass(kw_only=True)
class Setup:
    """What is tried."""

    architectures: list[str] = field(
        default_factory=lambda: list(ARCHITECTURES), metadata={"help": "Of the table; by default all."}
    )
    num_rows: list[int] = field(default_factory=lambda: [1, 8], metadata={"help": "Texts at once."})
    new_tokens: int = field(default=24, metadata={"help": "Of each text."})
    sampled: list[str] = field(default_factory=list, metadata={"help": "Architectures of the chi-square test."})
    num_draws: int = field(default=20000, metadata={"help": "Texts of that test, of three tokens each."})
    timed: list[str] = field(
        default_factory=list, metadata={"help": "Architectures that are timed, about 26M weights."}
    )
    timed_tokens: int = field(default=128, metadata={"help": "Of the timed texts."})


def prompts(model: PreTrainedModel, rows: int) -> dict[str, Tensor]:
    """Return what a model is asked with."""
    if model.config.model_type == "whisper":
        return {"input_features": torch.randn(rows, 8, 40, dtype=model.dtype)}
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (rows, 8))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def write(model: PreTrainedModel, inputs: dict[str, Tensor], **told: Any) -> tuple[Tensor, int, float]:
    """Return texts, the passes of the model that they took, and seconds of the CPU; each call draws the same."""
    passes: list[bool] = []
    core: Any = model.get_decoder() if model.config.is_encoder_decoder else model
    hook = core.register_forward_hook(lambda *_: passes.append(True))
    set_seed(0)
    told = {"return_dict_in_generate": True, "pad_token_id": 0, "eos_token_id": None, **inputs, **told}
    began = process_time()
    output: Any = model.generate(**told)  # pyright: ignore[reportCallIssue]
    seconds = process_time() - began
    hook.remove()
    counted = getattr(output, "num_forward_passes", None)  # without trials; Whisper's `generate` does not return it
    return output["sequences"], counted or len(passes), seconds


def drafts_of(texts: Tensor, every: int) -> Any:
    """Return drafts from texts in which each `every`-th token is another one."""
    drafts, texts = draft(answers=True), texts.clone()
    texts[:, ::every] = 5
    drafts.others["answers"].extend(token for text in texts.tolist() for token in [*text, -1])
    return drafts


def matrix_row(name: str, setup: Setup) -> list[str]:
    """Return which texts of an architecture are the plain ones, and their tokens a pass."""
    same, rates = [], []
    for dtype, rows in itertools.product((torch.float32, torch.bfloat16), setup.num_rows):
        model = make_model(name, dtype)
        inputs = prompts(model, rows)
        for way in ({"do_sample": False}, {"do_sample": True, "temperature": 0.5}):
            told = {**way, "max_new_tokens": setup.new_tokens}
            plain, steps, _ = write(model, inputs, **told)
            found, passes, _ = write(model, inputs, custom_generate=drafts_of(plain, 6), **told)
            if rows == 1 or not way["do_sample"]:  # several sampled rows draw in another order
                same.append(f"{(plain == found).all(dim=1).float().mean():.0%}")
            if dtype == torch.float32:
                rates.append(f"{steps / passes:.1f}")
    return [name, *same, *rates]


def chi_square_row(name: str, num_draws: int) -> list[str]:
    """Return the test of three sampled tokens with drafts against plain ones, after one prompt.

    After each first token the most probable two are drafted. With a state rows remain in step: four share a call.
    """
    model = make_model(name, vocab=8)
    prompt = torch.randint(3, 8, (1, 8))
    firsts = torch.cat([prompt.repeat(8, 1), torch.arange(8)[:, None]], dim=1)
    best, _, _ = write(model, {"input_ids": firsts}, do_sample=False, max_new_tokens=2)
    drafts, tokens = draft(answers=True), [token for text in best.tolist() for token in [*text, -1]]
    drafts.others["answers"].extend(tokens)
    drafts.others = {"earlier": drafts.others["answers"]}  # which takes in no text of the test
    counts, accepted, generate = [], 0, cast(Any, model).generate
    for way, rows in (({}, min(500, num_draws)), ({"custom_generate": drafts}, 4 if name in LARGE else 100)):
        set_seed(1)
        found: Counter[tuple[int, ...]] = Counter()
        told = {"do_sample": True, "max_new_tokens": 3, "eos_token_id": None, "pad_token_id": 0, **way}
        for _ in range(0, num_draws, rows):
            output = generate(prompt.repeat(rows, 1), return_dict_in_generate=True, **told)
            found.update(map(tuple, output.sequences[:, 8:].tolist()))
            accepted += sum(output.draft_report["accepted"].values()) if way else 0
        counts.append(found)
    often = [text for text in counts[0] | counts[1] if counts[0][text] + counts[1][text] >= 10]
    table = [[*(one[text] for text in often), num_draws - sum(one[text] for text in often)] for one in counts]
    test: Any = chi2_contingency([row if table[0][-1] + table[1][-1] else row[:-1] for row in table])
    return [name, f"{num_draws:,}", f"{accepted:,}", f"{test.statistic:.0f}", f"{test.dof}", f"{test.pvalue:.2f}"]


def speed_row(name: str, setup: Setup) -> list[str]:
    """Return the seconds of a text that repeats an earlier one but for every twelfth token, plain and with drafts."""
    model = make_model(name, vocab=8192, initializer_range=0.02, **LARGE[name])
    told = {"do_sample": False, "max_new_tokens": setup.timed_tokens}
    inputs, ways = prompts(model, 1), {"plain": {}, "drafts": {}}
    texts, steps, _ = write(model, inputs, **told)
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(3):
        for way in ways:
            given = {} if way == "plain" else {"custom_generate": drafts_of(texts, 12)}
            found, passes, took = write(model, inputs, **given, **told)
            seconds[way].append(took)
            assert torch.equal(found, texts), f"{name}: another text"
    plain, drafted = (median(seconds[way]) for way in ways)
    size = f"{model.num_parameters() / 1e6:.0f}M"
    return [name, size, f"{plain:.2f}", f"{drafted:.2f}", f"{plain / drafted:.2f}", f"{steps / passes:.1f}"]


@torch.no_grad()
def main(setup: Setup) -> None:
    """Print the matrix, the tests and the speeds."""
    logging.set_verbosity_error()
    kinds = [f"{way}, {dtype}, {rows}" for dtype in ("float32", "bfloat16") for rows in setup.num_rows
             for way in ("greedy", "sampled") if rows == 1 or way == "greedy"]  # fmt: skip
    rates = [f"{way}, {rows}" for rows in setup.num_rows for way in ("greedy", "sampled")]
    columns = ["architecture", *(f"same: {kind}" for kind in kinds), *(f"tokens a pass: {rate}" for rate in rates)]
    print(markdown_table(columns, [matrix_row(name, setup) for name in setup.architectures]), flush=True)
    if setup.sampled:
        columns = ["architecture", "draws", "drafted tokens taken", "chi-square", "degrees of freedom", "p"]
        rows = [chi_square_row(name, setup.num_draws) for name in setup.sampled]
        print(f"\n{markdown_table(columns, rows)}", flush=True)
    if setup.timed:
        columns = ["architecture", "weights", "plain, s", "drafts, s", "x plain", "tokens a pass"]
        print(f"\n{markdown_table(columns, [speed_row(name, setup) for name in setup.timed])}", flush=True)


if __name__ == "__main__":
    main(*parse_settings(Setup, description=__doc__))
