"""Embeddings of one model as a page shows them: how they lie, and what they are compared with."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hf_targets.cosine.geometry import EmbeddingGeometry, embedding_geometry
from hf_targets.cosine.negative_direction import DirectionCertificate, direction_certificate


@dataclass(frozen=True)
class Inspection:
    """What is known of one model's embeddings.

    Attributes:
        frequencies: (V,), how often each word occurs; None: not known.
        certificate: Whether a direction is negative with all hidden states; None: not asked.
        hidden_states, labels: (states, 2) on the plane of the embeddings, and the class of each; None: not shown.
    """

    geometry: EmbeddingGeometry
    frequencies: Tensor | None = None
    certificate: DirectionCertificate | None = None
    hidden_states: Tensor | None = None
    labels: Tensor | None = None


def inspect_embeddings(
    model_or_weight: Any,
    *,
    frequencies: Tensor | Sequence[float] | None = None,
    hidden_states: Tensor | None = None,
    labels: Tensor | None = None,
) -> Inspection:
    """Return what there is to know of embeddings, and of the hidden states that they are compared with.

    Args:
        model_or_weight, frequencies: As for `embedding_geometry`.
        hidden_states: (states, d), what the embeddings are multiplied by; None: not known.
        labels: (states,), the class of each state, which a figure then shows; None: the states are not shown.
    Raises:
        ValueError: As `embedding_geometry` and `direction_certificate` do, or if shapes do not go together.
    """
    geometry = embedding_geometry(model_or_weight, frequencies)
    counts = None if frequencies is None else torch.as_tensor(frequencies).detach().cpu()[geometry.is_row]
    if hidden_states is None:
        return Inspection(geometry, counts)
    states, width = hidden_states.detach().cpu(), geometry.plane.shape[1]
    if states.dim() != 2 or states.shape[1] != width:
        raise ValueError(f"hidden states must be (states, {width}) as the embeddings are, got {tuple(states.shape)}")
    certificate = direction_certificate(states)
    if labels is None:
        return Inspection(geometry, counts, certificate)
    if labels.shape != states.shape[:1]:
        raise ValueError(f"there must be a label for each of {len(states)} states, got shape {tuple(labels.shape)}")
    return Inspection(geometry, counts, certificate, states.double() @ geometry.plane.T, labels.detach().cpu())


def inspection_columns(inspections: Mapping[str, Inspection]) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heads and rows of a table with a column for each model."""
    rows: list[list[str]] = []
    for name, shown in _FIGURES:
        cells = [shown(one) for one in inspections.values()]
        if any(cells):
            rows.append([name, *cells])
    return ("", *inspections), rows


def inspection_numbers(one: Inspection) -> dict[str, float | int | bool | None]:
    """Return the numbers of an inspection, as JSON can hold them; what is not known or no number is None."""
    numbers = {name: value for name, value in vars(one.geometry).items() if isinstance(value, int | float | None)}
    numbers = {name: None if value is None or not math.isfinite(value) else value for name, value in numbers.items()}
    found = one.certificate
    exists = None if found is None else found.direction is not None
    return {**numbers, "has_negative_direction": exists, "margin": None if found is None else found.margin}


def _certificate(one: Inspection) -> str:
    found = one.certificate
    if found is None:
        return ""
    return "no" if found.direction is None else f"yes, margin {found.margin:.3f}"


def _correlation(one: Inspection) -> str:
    found = one.geometry.norm_frequency_correlation
    return "" if found is None or math.isnan(found) else f"{found:.3f}"


_FIGURES = (
    ("embeddings", lambda one: f"{one.geometry.num_rows:,}"),
    ("size", lambda one: f"{one.geometry.plane.shape[1]:,}"),
    ("rows of zeros", lambda one: f"{one.geometry.num_zero_rows:,}" if one.geometry.num_zero_rows else ""),
    ("mean cosine of all pairs", lambda one: f"{one.geometry.mean_cosine:.4f}"),
    ("pairs with a positive cosine", lambda one: f"{one.geometry.share_of_positive_cosines:.1%}"),
    ("aperture of the cone with 99%", lambda one: f"{one.geometry.aperture:.1f}°"),
    ("isotropy", lambda one: f"{one.geometry.isotropy:.3g}"),
    ("second singular value / first", lambda one: f"{one.geometry.singular_values[1:2].sum():.3f}"),
    ("effective rank", lambda one: f"{one.geometry.effective_rank:.1f}"),
    ("rank correlation of norm and frequency", _correlation),
    ("a uniformly negative direction", _certificate),
)
