"""How much the predicted words of a block depend on each other, when their hidden state is disturbed."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F

from hf_targets.backbones.dropout import without_dropout
from hf_targets.backbones.positions import position_limit
from hf_targets.backbones.weight_access import execution_device
from hf_targets.evaluation.distance_correlation import distance_correlations
from hf_targets.maths.torch_modes import without_autocast
from hf_targets.semi_autoregressive.model import SemiAutoregressiveForCausalLM


@dataclass(frozen=True)
class Dependence:
    """The distance correlation of the words of a block under one disturbance.

    Attributes:
        disturbance: "dropout" or "noise".
        strength: The rate of dropout, or the norm of the noise over that of the hidden state.
        correlation: The distance correlation of the logits of two words, in [0, 1]: mean over pairs and positions.
        unbiased: The same, bias-corrected; may be below 0.
    """

    disturbance: str
    strength: float
    correlation: float
    unbiased: float


@dataclass
class DependenceSettings:
    """The measurement of how much the words of a block depend on each other, as in figure 6."""

    settings_title: ClassVar[str] = "Dependence within blocks"

    dropout_rates: list[float] = field(
        default_factory=lambda: [0.1, 0.3, 0.5], metadata={"help": "Rates of dropout on the last hidden state."}
    )
    noise_scales: list[float] = field(
        default_factory=lambda: [0.1, 0.3, 0.5],
        metadata={"help": "Norms of Gaussian noise on the last hidden state, over the norm of the state."},
    )
    dependence_positions: int = field(default=32, metadata={"help": "Positions of the test text that are measured."})
    dependence_samples: int = field(default=64, metadata={"help": "Disturbed hidden states of each position."})

    def __post_init__(self) -> None:
        _check_strengths(self.dropout_rates, self.noise_scales)
        for name, least in (("dependence_positions", 1), ("dependence_samples", 4)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be {least} or more, got {getattr(self, name)}")

    def measured(self, model: SemiAutoregressiveForCausalLM, rows: Dataset, seed: int) -> list[Dependence]:
        """Return what `block_dependence` finds with these settings."""
        return block_dependence(
            model,
            rows,
            dropout_rates=self.dropout_rates,
            noise_scales=self.noise_scales,
            num_positions=self.dependence_positions,
            num_samples=self.dependence_samples,
            seed=seed,
        )


def block_dependence(
    model: SemiAutoregressiveForCausalLM,
    rows: Dataset,
    *,
    dropout_rates: Sequence[float] = (),
    noise_scales: Sequence[float] = (),
    num_positions: int = 32,
    num_samples: int = 64,
    seed: int = 0,
) -> list[Dependence]:
    """Return how much the words of a block depend on each other, for each disturbance of the last hidden state.

    The state of a position is disturbed `num_samples` times, and each time the logits of the N words are computed. The
    distance correlation of the logits of two words tells how much they move together. Autocast is switched off.

    Args:
        rows: Rows with `input_ids`, all of them text, as `pack_blocks` makes.
        dropout_rates: In (0, 1).
        noise_scales: The norm of Gaussian noise over that of the hidden state; positive.
        num_positions: Positions that are measured, drawn among all; all, if there are fewer.
        num_samples: 4 or more.
        seed: Of the positions and disturbances. Models with equal seeds and hidden states are disturbed alike.
    Raises:
        ValueError: If there is no text or a row is longer than the model's positions, a number is out of range, no
            disturbance is given, or weights have less than float32, which rounds small disturbances away.
    Source: Heo and Choi, "Sentence Curve Language Models", section 5.4 and figure 6, which do not give strengths.
    """
    _check_strengths(dropout_rates, noise_scales)
    if not any(rows["input_ids"]):
        raise ValueError("the dependence within blocks is measured on text, and the rows have none")
    for name, value, least in (("num_positions", num_positions, 1), ("num_samples", num_samples, 4)):
        if value < least:
            raise ValueError(f"{name} must be {least} or more, got {value}")
    if torch.finfo(model.dtype).bits < 32:
        raise ValueError(
            f"small disturbances are lost in half precision, and the model has {model.dtype}; call model.float()"
        )
    draws = torch.Generator().manual_seed(seed)
    limit, longest = position_limit(model.backbone), max(map(len, rows["input_ids"]))
    if limit is not None and longest > limit:
        raise ValueError(f"rows must fit into the model's {limit} positions, and one has {longest} tokens; cut them")
    with without_dropout(model), torch.no_grad(), without_autocast(execution_device(model)):
        states = _last_states(model, rows, num_positions, draws)
        found = []
        for disturbance, strengths in (("dropout", dropout_rates), ("noise", noise_scales)):
            for strength in strengths:
                pairs = [
                    _pair_correlations(model.block_logits(_disturbed(state, disturbance, strength, num_samples, draws)))
                    for state in states
                ]
                plain, unbiased = torch.stack(pairs).mean(dim=0).tolist()
                found.append(Dependence(disturbance, strength, plain, unbiased))
    return found


def _check_strengths(dropout_rates: Sequence[float], noise_scales: Sequence[float]) -> None:
    if not (dropout_rates or noise_scales):
        raise ValueError("hidden states are disturbed by dropout or noise; give dropout_rates or noise_scales")
    if any(not 0 < rate < 1 for rate in dropout_rates):
        raise ValueError(f"dropout_rates must be in (0, 1), got {list(dropout_rates)}")
    if any(not 0 < scale < float("inf") for scale in noise_scales):
        raise ValueError(f"noise_scales must be positive, got {list(noise_scales)}")


def _last_states(
    model: SemiAutoregressiveForCausalLM, rows: Dataset, num_positions: int, draws: torch.Generator
) -> list[Tensor]:
    """Return the last hidden states (d) of positions that are drawn among all."""
    lengths = [len(ids) for ids in rows["input_ids"]]
    places = [(row, position) for row, length in enumerate(lengths) for position in range(length)]
    chosen = torch.randperm(len(places), generator=draws)[:num_positions].tolist()
    states = []
    for row, position in sorted(places[place] for place in chosen):
        ids = torch.tensor(rows[row]["input_ids"][: position + 1], device=execution_device(model))[None]
        output = model(ids, logits_to_keep=1, output_last_hidden_state=True, return_dict=True)
        states.append(output.last_hidden_state[0, -1])
    return states


def _disturbed(state: Tensor, disturbance: str, strength: float, num_samples: int, draws: torch.Generator) -> Tensor:
    """Return the state (d), disturbed so many times (samples, d)."""
    states = state.expand(num_samples, -1)
    if disturbance == "dropout":
        kept = torch.rand(states.shape, generator=draws).to(states.device) >= strength
        return states * kept / (1 - strength)
    noise = F.normalize(torch.randn(states.shape, generator=draws), dim=-1).to(states)
    return states + strength * state.norm() * noise


def _pair_correlations(logits: Tensor) -> Tensor:
    """Return the mean over pairs of words of their distance correlation, and of the unbiased one, (2)."""
    one, other = torch.triu_indices(logits.shape[1], logits.shape[1], offset=1)
    words = logits.transpose(0, 1)
    return torch.stack([distance_correlations(words, unbiased=way)[one, other].mean() for way in (False, True)])
