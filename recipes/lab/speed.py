"""How fast methods of decoding are, side by side: seconds, tokens and forward passes."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, set_seed

from hf_targets.data.progress import progress
from hf_targets.evaluation.timing import settled_time
from lab.tables import format_mean, markdown_table


@dataclass(frozen=True)
class DecodingMethod:
    """A model and the arguments of its `generate`.

    Methods of one name are one row of the table, such as heads trained with several seeds; None: the key that
    `compare_speeds` gets it by.
    """

    model: PreTrainedModel
    arguments: Mapping[str, Any]
    name: str | None = None


@dataclass(frozen=True)
class Speed:
    """What a method of decoding took.

    Attributes:
        tokens_per_second: Generated tokens over seconds, reading prompts included; of each batch the fastest round, as
            what other programs do only makes one slower.
        tokens_per_pass: Tokens that a forward pass after the prompt's brings a row, the bonus token included: 1 for
            plain decoding, less where it goes on reading rows that have ended.
        same: Share of the rows that equal those of the first method.
    """

    name: str
    tokens_per_second: float
    tokens_per_pass: float
    same: float


@contextmanager
def row_passes(model: PreTrainedModel) -> Iterator[list[int]]:
    """Collect the numbers of rows in all calls of a model's backbone."""
    core: Any = model.get_decoder() if model.config.is_encoder_decoder else model
    while core.base_model is not core:
        core = core.base_model
    rows: list[int] = []
    handle = core.register_forward_hook(lambda module, args, output: rows.append(len(output[0])))
    yield rows
    handle.remove()


@torch.no_grad()
def compare_speeds(
    methods: Mapping[str, DecodingMethod],
    batches: Sequence[Mapping[str, Tensor]],
    *,
    max_new_tokens: int,
    rounds: int = 3,
) -> list[Speed]:
    """Return the speed of each method on the same prompts, decoding greedily where it does not ask for sampling.

    The methods take turns at each batch, round by round, after a first round that is not timed. The first method is the
    one that the others are compared with. Texts and passes are of the last round. Prompts are as a tokenizer gives
    them, with their masks.
    """
    texts: dict[str, list[list[int]]] = {name: [] for name in methods}
    passes = dict.fromkeys(methods, 0)  # of rows, after the prompts'
    fastest: dict[tuple[str, int], tuple[float, int]] = {}  # seconds and tokens
    with progress((1 + rounds) * len(batches) * len(methods), "comparing speeds", unit="turn") as bar:
        for turn, (at, prompts), (name, method) in product(range(1 + rounds), enumerate(batches), methods.items()):
            set_seed(turn)
            with row_passes(method.model) as rows:
                start = settled_time(method.model.device)
                output = _generate(method, prompts, max_new_tokens)
                seconds = settled_time(method.model.device) - start
            ids = prompts["input_ids"]
            begin = 1 if method.model.config.is_encoder_decoder else ids.shape[1]
            new = _tokens(method, output.sequences[:, begin:])
            taken = seconds, sum(map(len, new))
            if turn:
                fastest[name, at] = min(fastest.get((name, at), taken), taken, key=lambda one: one[0] / one[1])
            if turn == rounds:
                texts[name] += new
                drafted = getattr(output, "num_verifications", None)  # trying tree masks out takes passes of its own
                passes[name] += sum(rows) - len(ids) if drafted is None else drafted
            bar.update(1)
    first, speeds = next(iter(texts.values())), []
    for name, rows in texts.items():
        num_tokens = sum(map(len, rows))
        later = num_tokens - len(rows)  # the prompt's pass brings each row its first
        per_pass = later / passes[name] if passes[name] else 1.0
        same = sum(ours == theirs for ours, theirs in zip(rows, first, strict=True)) / len(rows)
        seconds, tokens = map(sum, zip(*(fastest[name, at] for at in range(len(batches))), strict=True))
        speeds.append(Speed(methods[name].name or name, tokens / seconds, per_pass, same))
    return speeds


def _generate(method: DecodingMethod, prompts: Mapping[str, Tensor], max_new_tokens: int) -> Any:
    ids, mask = (prompts[name].to(method.model.device) for name in ("input_ids", "attention_mask"))
    arguments = {"do_sample": False, "max_new_tokens": max_new_tokens, **method.arguments}
    return method.model.generate(ids, attention_mask=mask, return_dict_in_generate=True, **arguments)  # pyright: ignore


def _tokens(method: DecodingMethod, new: Tensor) -> list[list[int]]:
    """Return each row's generated tokens, the end token included and padding behind it not."""
    ends: Any = method.arguments.get("eos_token_id", method.model.generation_config.eos_token_id)  # pyright: ignore
    ends = set() if ends is None else set(torch.as_tensor(ends).flatten().tolist())
    rows = []
    for row in new.tolist():
        length = next((index + 1 for index, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:length])
    return rows


def format_speeds(speeds: Sequence[Speed]) -> str:
    """Return a Markdown table; speeds of one name, such as of several seeds, are a mean with its standard error."""
    columns, lines = ["decoding", "tokens / s", "x plain", "tokens / pass", "accepted / pass", "same text"], []
    plain = speeds[0].tokens_per_second
    for name in dict.fromkeys(speed.name for speed in speeds):
        seeds = [speed for speed in speeds if speed.name == name]
        rate = format_mean([speed.tokens_per_second for speed in seeds], digits=0)
        numbers = [(one.tokens_per_second / plain, one.tokens_per_pass, one.tokens_per_pass - 1) for one in seeds]
        same = f"{min(speed.same for speed in seeds):.0%}"
        lines.append([name, rate, *map(format_mean, zip(*numbers, strict=True)), same])
    return markdown_table(columns, lines)
