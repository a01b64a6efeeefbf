"""How fast the continuous cache reads a text, against loops over its positions.

    python recipes/benchmarks/neural_cache.py recipes/settings/benchmarks/neural_cache/measured.yaml

Random hidden states of AWD-LSTM's size, and random words. *loop* is one product of the window with a state, a softmax
and a sum over the words that match, at each position. *published loop* does it as the program awd-lstm-lm does: it
sums rows of one-hot words over the whole vocabulary. Both are of the same numbers as ours, which is checked. Measured:
recipes/cosine.md.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import lab.start  # noqa: F401

from dataclasses import dataclass, field
from functools import partial
from typing import cast

import torch
from accelerate import PartialState
from torch import Tensor
from torch.nn import functional as F

from hf_targets import NeuralCache
from hf_targets.evaluation.timing import median_seconds
from lab.settings import parse_settings
from lab.tables import markdown_table


@dataclass
class Setup:
    """What is measured."""

    windows: list[int] = field(default_factory=lambda: [500, 3785], metadata={"help": "W."})
    size: int = field(default=400, metadata={"help": "Of a hidden state."})
    vocab_size: int = field(default=33278, metadata={"help": "V."})
    num_positions: int = field(default=2048, metadata={"help": "Positions that are timed, after a full window."})
    loop_positions: int = field(default=2048, metadata={"help": "Of these, so many are timed of the loop."})
    published_positions: int = field(default=8, metadata={"help": "And so many of the published loop."})
    rounds: int = field(default=3, metadata={"help": "Timed turns of each, after one that is not."})


def vectorized(cache: NeuralCache, states: Tensor, words: Tensor, own: Tensor) -> Tensor:
    """Return p of the words after the window, as the cache gives it."""
    memory = cache.memory(1, states)
    memory.append(states[None, : cache.window], words[None, : cache.window])
    own, states, words = (one[None, cache.window :] for one in (own, states, words))
    return cache.target_probabilities(own, states, words, memory)[0]


def loop(
    cache: NeuralCache, states: Tensor, words: Tensor, own: Tensor, count: int, one_hot: Tensor | None = None
) -> Tensor:
    """Return p of the first words after the window, position after position; by one-hot words if they are given."""
    found = []
    for place in range(cache.window, cache.window + count):
        window = slice(place - cache.window, place)
        weights = torch.softmax(cache.theta * (states[window] @ states[place]), dim=0)
        if one_hot is None:
            cached = weights[words[window] == words[place]].sum()
        else:
            cached = (weights[:, None].expand_as(one_hot[window]) * one_hot[window]).sum(dim=0)[words[place]]
        found.append(cache.weight * cached + (1 - cache.weight) * own[place])
    return torch.stack(found)


def main() -> None:
    """Print a row for each window."""
    (setup,) = parse_settings(Setup, description=__doc__)
    torch.manual_seed(0)
    device, table = cast(torch.device, PartialState().device), []
    for window in setup.windows:
        cache = NeuralCache(window=window, theta=0.662, weight=0.1279)
        total = window + setup.num_positions
        states = torch.randn(total, setup.size, device=device) / setup.size**0.5
        words, own = torch.randint(100, (total,), device=device), torch.rand(total, device=device)
        expected = loop(cache, states, words, own, setup.loop_positions)
        found = vectorized(cache, states, words, own)
        worst = (found[: len(expected)] - expected).abs().max().item()
        short = window + setup.published_positions
        one_hot = F.one_hot(words[:short], setup.vocab_size).to(states.dtype)
        seconds = median_seconds(
            {
                "ours": partial(vectorized, cache, states, words, own),
                "loop": partial(loop, cache, states, words, own, setup.loop_positions),
                "published": partial(loop, cache, states, words, own, setup.published_positions, one_hot),
            },
            setup.rounds,
            device,
        )
        counts = {"ours": setup.num_positions, "loop": setup.loop_positions, "published": setup.published_positions}
        rates = {name: counts[name] / seconds[name] for name in seconds}
        ratios = (f"{rates['ours'] / rates[name]:.1f}" for name in ("loop", "published"))
        table.append([f"{window:,}", *(f"{rate:,.0f}" for rate in rates.values()), *ratios, f"{worst:.0e}"])
    heads = ("W", "words / s", "loop", "published loop", "x loop", "x published loop", "largest difference")
    print(markdown_table(heads, table))


if __name__ == "__main__":
    main()
