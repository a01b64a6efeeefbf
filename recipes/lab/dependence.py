"""How much the predicted words of a block depend on each other when their hidden state is disturbed, and its figure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F

from hf_targets import SemiAutoregressiveForCausalLM
from hf_targets.evaluation.distance_correlation import distance_correlations
from hf_targets.figures import new_figure


@dataclass(frozen=True)
class Dependence:
    """The distance correlation of the logits of two words of a block under one disturbance, mean over pairs.

    The strength is the rate of dropout, or the norm of the noise over that of the hidden state; `unbiased` is the
    bias-corrected correlation, and may be below 0.
    """

    disturbance: str
    strength: float
    correlation: float
    unbiased: float


@torch.no_grad()
def block_dependence(
    model: SemiAutoregressiveForCausalLM,
    rows: Dataset,
    *,
    dropout_rates: Sequence[float] = (0.1, 0.3, 0.5),
    noise_scales: Sequence[float] = (0.1, 0.3, 0.5),
    num_positions: int = 32,
    num_samples: int = 64,
    seed: int = 0,
) -> list[Dependence]:
    """Return how much the words of a block depend on each other, for each disturbance of the last hidden state.

    The state of a position is disturbed many times, and each time the logits of the N words are computed. The distance
    correlation of the logits of two words tells how much they move together.

    Args:
        model: In float32; it is left in evaluation mode.
        num_samples: Disturbed hidden states of each position; 4 or more.
        seed: Of the positions and disturbances. Models with equal seeds and hidden states are disturbed alike.
    Source: Heo and Choi, "Sentence Curve Language Models", section 5.4 and figure 6, which do not give strengths.
    """
    model.eval()
    draws = torch.Generator().manual_seed(seed)
    states = _last_states(model, rows, num_positions, draws)
    found = []
    for disturbance, strengths in (("dropout", dropout_rates), ("noise", noise_scales)):
        for strength in strengths:
            pairs = []
            for state in states:
                disturbed = _disturbed(state, disturbance, strength, num_samples, draws)
                pairs.append(_pair_correlations(model.block_logits(disturbed)))
            plain, unbiased = torch.stack(pairs).mean(dim=0).tolist()
            found.append(Dependence(disturbance, strength, plain, unbiased))
    return found


def _last_states(
    model: SemiAutoregressiveForCausalLM, rows: Dataset, num_positions: int, draws: torch.Generator
) -> list[Tensor]:
    """Return the last hidden states (d,) of positions that are drawn among all."""
    places = [(row, position) for row, ids in enumerate(rows["input_ids"]) for position in range(len(ids))]
    chosen = torch.randperm(len(places), generator=draws)[:num_positions].tolist()
    states = []
    for row, position in sorted(places[place] for place in chosen):
        ids = torch.tensor(rows[row]["input_ids"][: position + 1], device=model.device)[None]
        output = model(ids, logits_to_keep=1, output_last_hidden_state=True, return_dict=True)
        states.append(output.last_hidden_state[0, -1])
    return states


def _disturbed(state: Tensor, disturbance: str, strength: float, num_samples: int, draws: torch.Generator) -> Tensor:
    """Return the state (d,), disturbed so many times (samples, d)."""
    states = state.expand(num_samples, -1)
    if disturbance == "dropout":
        kept = torch.rand(states.shape, generator=draws).to(states.device) >= strength
        return states * kept / (1 - strength)
    noise = F.normalize(torch.randn(states.shape, generator=draws), dim=-1).to(states)
    return states + strength * state.norm() * noise


def _pair_correlations(logits: Tensor) -> Tensor:
    """Return the mean over pairs of words of their distance correlation, and of the unbiased one, (2,)."""
    one, other = torch.triu_indices(logits.shape[1], logits.shape[1], offset=1)
    words = logits.transpose(0, 1)
    return torch.stack([distance_correlations(words, unbiased=way)[one, other].mean() for way in (False, True)])


def plot_dependence(models: Mapping[str, Sequence[Dependence]], path: Path | str) -> None:
    """Plot the distance correlation over the strength: a panel for each disturbance, two lines for each model.

    The dashed line is the bias-corrected correlation. Several seeds of a model are shown by their mean.

    Source: Heo and Choi, "Sentence Curve Language Models", figure 6.
    """
    figure, told = new_figure(9, 4), {"dropout": "dropout rate", "noise": "norm of noise / norm of state"}
    panels = figure.subplots(1, 2, sharey=True)
    for axes, disturbance in zip(panels, told, strict=True):
        for number, (name, found) in enumerate(models.items()):
            alike = [one for one in found if one.disturbance == disturbance]
            strengths = sorted({one.strength for one in alike})
            for value, style in (("correlation", "-"), ("unbiased", "--")):
                groups = [[getattr(one, value) for one in alike if one.strength == strength] for strength in strengths]
                label = name if value == "correlation" else f"{name}, bias-corrected"
                axes.plot(strengths, [*map(fmean, groups)], style, color=f"C{number}", marker=".", label=label)
        axes.set(xlabel=told[disturbance])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
    panels[0].set(ylabel="distance correlation of two words' logits")
    figure.savefig(path)
