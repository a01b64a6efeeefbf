"""How embeddings lie around the origin: in a narrow cone, or in all directions."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hf_targets.backbones.output_matrix import output_embedding
from hf_targets.backbones.weight_access import call_inside

NUM_BINS = 100
_MOST_EXACT_PAIRS = 5_000_000
_LEAST_COSINE = 1e-12  # below it is rounding


@dataclass(frozen=True)
class EmbeddingGeometry:
    """What `embedding_geometry` finds of V embeddings of size d. Rows of zeros have no direction, and are left out.

    Attributes:
        num_rows: V, without rows of zeros.
        num_zero_rows: Rows of zeros.
        mean_cosine: The mean cosine of all pairs, in [-1 / (V - 1), 1]: near 0 in all directions, near 1 in a cone.
        cosine_counts: (100,), pairs by their cosine, in bins of width 0.02 from -1 to 1; of all pairs, or of some.
        share_of_positive_cosines: Of these pairs, in [0, 1]; of orthogonal rows none are.
        aperture: Degrees, at most 360: of the cone around the mean direction that holds 99% of the embeddings.
        isotropy: The least of Z(c) over the largest, in [0, 1]; 1 is the same in all directions. Z(c) is the sum of
            exp(c . w) over all embeddings w, and c any principal direction or its opposite, of length 1.
        singular_values: (min(V, d),), over the largest, falling.
        effective_rank: exp of the entropy of the singular values over their sum, from 1 to min(V, d).
        plane: (2, d), the first two right singular vectors; a row of zeros for d = 1.
        projection: (V, 2), on this plane, without centering, as in the paper's figures.
        norms: (V,).
        is_row: (rows given,), false where a row is zero.
        norm_frequency_correlation: Spearman's, of norms and frequencies; None without frequencies.
    """

    num_rows: int
    num_zero_rows: int
    mean_cosine: float
    cosine_counts: Int[Tensor, "bins"]
    share_of_positive_cosines: float
    aperture: float
    isotropy: float
    singular_values: Float[Tensor, "values"]
    effective_rank: float
    plane: Float[Tensor, "2 dim"]
    projection: Float[Tensor, "rows 2"]
    norms: Float[Tensor, "rows"]
    is_row: Bool[Tensor, "given"]
    norm_frequency_correlation: float | None = None


def embedding_geometry(
    model_or_weight: Any,
    frequencies: Tensor | Sequence[float] | None = None,
    *,
    num_pairs: int = 1_000_000,
    seed: int = 0,
) -> EmbeddingGeometry:
    """Return how embeddings lie around the origin; all figures are of float64.

    Args:
        model_or_weight: A Transformers model, whose output embeddings are looked at, or a matrix (V, d).
        frequencies: How often each word occurs, (V,).
        num_pairs: So many pairs, drawn at random, make the histogram where V has more than 5,000,000 pairs.
        seed: Of these draws.
    Raises: ValueError if the model has no output embeddings of floats, a value is NaN or infinite, fewer than two rows
        are not zero, or there is not one frequency a row.
    Source: Gao et al. 2019, sections 3 and 6.3. Isotropy: Mu and Viswanath 2018, "All-but-the-Top", equation (1).
        Effective rank: Roy and Vetterli 2007.
    Departs: The paper's aperture is the widest angle of the cone that holds all embeddings. One odd row decides that,
        so the cone here is around the mean direction and holds 99% of the rows.
    """
    weight = _output_embeddings(model_or_weight)
    counts = None if frequencies is None else torch.as_tensor(frequencies, dtype=torch.float64)
    if counts is not None and counts.shape != weight.shape[:1]:
        raise ValueError(f"there must be a frequency for each of {len(weight)} rows, got shape {tuple(counts.shape)}")
    norms = torch.linalg.vector_norm(weight, dim=1)
    kept = norms > 0
    rows, norms = weight[kept], norms[kept]
    if len(rows) < 2:
        raise ValueError(f"at least two embeddings must differ from zero, got {len(rows)} of {len(weight)}")
    directions = rows / norms[:, None]
    total = directions.sum(dim=0)
    cosines = _cosines(directions, num_pairs, seed)
    bins = ((cosines + 1) * (NUM_BINS / 2)).long().clamp(0, NUM_BINS - 1)
    _, values, right = torch.linalg.svd(torch.linalg.qr(rows, mode="r").R, full_matrices=False)
    share = values / values.sum()
    plane = torch.zeros(2, rows.shape[1], dtype=rows.dtype)
    plane[: len(right)] = right[:2] * torch.where(right[:2].sum(dim=1) < 0, -1.0, 1.0)[:, None]  # signs are arbitrary
    return EmbeddingGeometry(
        num_rows=len(rows),
        num_zero_rows=len(weight) - len(rows),
        mean_cosine=((total @ total - len(rows)) / (len(rows) * (len(rows) - 1))).item(),
        cosine_counts=torch.bincount(bins, minlength=NUM_BINS),
        share_of_positive_cosines=(cosines > _LEAST_COSINE).double().mean().item(),
        aperture=_aperture(directions, total),
        isotropy=_isotropy(rows, right),
        singular_values=values / values[0],
        effective_rank=torch.special.entr(share).sum().exp().item(),
        plane=plane,
        projection=rows @ plane.T,
        norms=norms,
        is_row=kept,
        norm_frequency_correlation=None if counts is None else _rank_correlation(norms, counts[kept]),
    )


def _output_embeddings(model_or_weight: Any) -> Float[Tensor, "vocab dim"]:
    """Return the output embeddings of a model, or a matrix of torch or NumPy, in float64 on the CPU."""
    if isinstance(model_or_weight, torch.nn.Module):
        if getattr(model_or_weight, "get_output_embeddings", lambda: None)() is None:
            raise ValueError(f"{type(model_or_weight).__name__} has no output embeddings; give a matrix of embeddings")
        layer = output_embedding(cast(Any, model_or_weight))
        model_or_weight = call_inside(layer, lambda weight, _: weight.detach().clone())
    weight = torch.as_tensor(model_or_weight).detach().to("cpu", torch.float64)
    if weight.dim() != 2:
        raise ValueError(f"embeddings must be a matrix (vocab, dim), got the shape {tuple(weight.shape)}")
    if not torch.isfinite(weight).all():
        raise ValueError("embeddings must be finite, got NaN or infinity")
    return weight


def _cosines(directions: Tensor, num_pairs: int, seed: int) -> Tensor:
    """Return the cosines of all pairs if they are few, or of some."""
    count = len(directions)
    if count * (count - 1) // 2 <= _MOST_EXACT_PAIRS:
        first, second = torch.triu_indices(count, count, 1)
        return (directions @ directions.T)[first, second]
    generator = torch.Generator().manual_seed(seed)
    first = torch.randint(count, (num_pairs,), generator=generator)
    second = (first + torch.randint(1, count, (num_pairs,), generator=generator)) % count
    pairs = zip(first.split(50_000), second.split(50_000), strict=True)
    return torch.cat([(directions[one] * directions[other]).sum(dim=1) for one, other in pairs])


def _aperture(directions: Tensor, total: Tensor, share: float = 0.99) -> float:
    """Return the degrees of the cone around the sum of directions that holds a share of them."""
    length = torch.linalg.vector_norm(total)
    if length <= 1e-9 * len(directions):
        return 360.0  # they have no mean direction
    angles = torch.acos((directions @ (total / length)).clamp(-1, 1)).sort().values
    return 2 * math.degrees(angles[math.ceil(share * len(angles)) - 1].item())


def _isotropy(rows: Tensor, principal: Tensor) -> float:
    """Return the least over the largest partition function of the principal directions (directions, d), both ways."""
    products = rows @ principal.T
    logs = torch.cat([torch.logsumexp(products, dim=0), torch.logsumexp(-products, dim=0)])
    return math.exp((logs.min() - logs.max()).item())


def _rank_correlation(first: Tensor, second: Tensor) -> float:
    """Return Spearman's rank correlation, NaN if one list does not vary."""
    if first.unique().numel() < 2 or second.unique().numel() < 2:
        return math.nan
    from scipy.stats import spearmanr  # takes a second to import

    found: Any = spearmanr(first.numpy(), second.numpy())
    return float(found.statistic)
