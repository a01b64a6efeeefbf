"""Distance correlation: how much vectors depend on each other, from samples that were drawn together."""

import torch
from jaxtyping import Float
from torch import Tensor


def distance_correlations(
    vectors: Float[Tensor, "*batch vectors samples size"], *, unbiased: bool = False
) -> Float[Tensor, "*batch vectors vectors"]:
    """Return the distance correlation of each two of several random vectors.

    For two distributions it is 0 if and only if they are independent, unlike an ordinary correlation. Computed from
    samples it lies in [0, 1] and is too high: the more dimensions the vectors have for their number of samples, the
    closer to 1 it is, even if they are independent. Compare it for equal sizes and numbers of samples only.

    Args:
        vectors: The n-th samples of all belong together. The leading axes, if any, count separate problems.
        unbiased: Return the bias-corrected one of Székely and Rizzo, whose mean is 0 for independent vectors. It is on
            the scale of a square, at most 1, and may be below 0.
    Returns: In float64. 0 where a vector does not vary, or with `unbiased` where all its samples are equally far apart;
        NaN where a sample has NaN or infinity.
    Raises:
        ValueError: If there are fewer than 2 samples (with `unbiased`, 4).
    Source: Székely, Rizzo and Bakirov 2007, definitions 4 and 5; Székely and Rizzo 2013, "The distance correlation
        t-test of independence in high dimension".
    """
    centred = _centred_distances(vectors, unbiased=unbiased)
    ratio = (centred @ centred.mT).clamp(max=1)
    return ratio if unbiased else ratio.clamp(min=0).sqrt()


def _centred_distances(vectors: Tensor, *, unbiased: bool) -> Tensor:
    """Return distances between samples whose rows and columns have the sum 0, as unit vectors (..., samples^2)."""
    count, least = vectors.shape[-2], 4 if unbiased else 2
    if count < least:
        raise ValueError(f"a distance correlation needs {least} samples or more, got {count}")
    vectors = vectors.double()
    vectors = vectors - vectors[..., :1, :]  # so that samples that do not vary are 0, and their distances exactly so
    # not by a product of matrices, in which small distances beside a large one are lost
    distances = torch.cdist(vectors, vectors, compute_mode="donot_use_mm_for_euclid_dist")
    per_row, in_all = (count - 2, (count - 1) * (count - 2)) if unbiased else (count, count**2)
    rows = distances.sum(dim=-1, keepdim=True) / per_row
    centred = distances - rows - rows.mT + distances.sum(dim=(-2, -1), keepdim=True) / in_all
    if unbiased:
        centred = centred - torch.diag_embed(centred.diagonal(dim1=-2, dim2=-1))
    centred = centred.flatten(-2)
    norm = centred.norm(dim=-1, keepdim=True)
    rounding = count * torch.finfo(distances.dtype).eps * distances.flatten(-2).norm(dim=-1, keepdim=True)
    return torch.where(norm <= rounding, torch.zeros_like(centred), centred / norm)
