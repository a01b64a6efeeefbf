"""Embeddings of one model as a page shows them: how they lie, and what they are compared with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
    frequencies: Tensor | None = None,
    hidden_states: Tensor | None = None,
    labels: Tensor | None = None,
) -> Inspection:
    """Return what there is to know of embeddings, and of the hidden states that they are compared with.

    Args:
        model_or_weight, frequencies: As for `embedding_geometry`.
        hidden_states: (states, d), what the embeddings are multiplied by; None: not known.
        labels: (states,), the class of each state, which a figure then shows; None: the states are not shown.
    Raises:
        ValueError: As `embedding_geometry` and `direction_certificate` do.
    """
    geometry = embedding_geometry(model_or_weight, frequencies)
    return Inspection(
        geometry,
        None if frequencies is None else frequencies[geometry.is_row],
        None if hidden_states is None else direction_certificate(hidden_states),
        None if hidden_states is None or labels is None else hidden_states.double() @ geometry.plane.T,
        labels,
    )


def inspection_columns(inspections: Mapping[str, Inspection]) -> tuple[Sequence[str], list[list[str]]]:
    """Return the heads and rows of a table with a column for each model."""
    rows: list[list[str]] = []
    for name, shown in _FIGURES:
        cells = [shown(one) for one in inspections.values()]
        if any(cells):
            rows.append([name, *cells])
    return ("", *inspections), rows


def inspection_numbers(one: Inspection) -> dict[str, float | int | bool | None]:
    """Return the numbers of an inspection, as JSON can hold them; what is not known is None."""
    numbers = {name: value for name, value in vars(one.geometry).items() if isinstance(value, int | float | None)}
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
    return "" if found is None else f"{found:.3f}"


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
