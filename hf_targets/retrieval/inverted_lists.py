"""Vectors in lists by direction, so that a search looks through a few lists instead of the whole table."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hf_targets.data.progress import progress
from hf_targets.extras import require

_ROWS = 16384  # of a block
_POINTS_PER_LIST, _ROUNDS = 64, 10  # of k-means


def default_num_lists(count: int) -> int:
    """Return twice the square root of the number of vectors, at most as many lists as vectors."""
    return min(count, round(2 * count**0.5))


def build_lists(vectors: Tensor, num_lists: int, seed: int) -> Any:
    """Return a FAISS inverted file of float32 `vectors` (vectors, dim), lists by direction from the mean of all.

    The mean of all vectors adds the same number to all scores of a query: without it the order is the same, and the
    directions spread. Lists are by direction alone, because distances would put all short vectors together and scatter
    the long ones, which queries find most often. A list's centroid is the mean of its vectors, lengths included, so
    that a search probes the lists with the highest mean inner product.
    """
    faiss = require("faiss", extra="phrases")
    count, dim = vectors.shape
    total = torch.stack([block.sum(dim=0, dtype=torch.float64) for block in vectors.split(_ROWS)]).sum(dim=0)
    mean = (total / count).float()
    generator = torch.Generator().manual_seed(seed)
    sample = torch.randperm(count, generator=generator)[: _POINTS_PER_LIST * num_lists]
    with progress(_ROUNDS * len(sample) + count, "building the index", unit="vector") as bar:
        points = torch.nn.functional.normalize(vectors[sample] - mean, dim=1)
        directions = _directions(points, num_lists, generator, bar)
        lists = _nearest(vectors, directions, directions @ mean, bar)
    totals = torch.zeros(num_lists, dim).index_add_(0, lists, vectors)
    sizes = torch.bincount(lists, minlength=num_lists)[:, None]
    quantizer = faiss.IndexFlatIP(dim)
    quantizer.add(torch.where(sizes > 0, totals / sizes.clamp(min=1) - mean, 0.0).numpy())
    index = faiss.IndexIVFFlat(quantizer, dim, num_lists, faiss.METRIC_INNER_PRODUCT)
    index.is_trained = True
    arrays = (vectors.numpy(), np.arange(count), lists.numpy())
    index.add_core(count, *map(faiss.swig_ptr, arrays))
    return index


def _directions(points: Tensor, num_lists: int, generator: torch.Generator, bar: Any) -> Tensor:
    """Return the centroids of a spherical k-means of unit vectors; one that loses its points moves to a random one."""
    # in torch rather than by `faiss.Kmeans`, which takes four times as long: its wheels bring a slower matrix product
    centroids = points[torch.randperm(len(points), generator=generator)[:num_lists]]
    for _ in range(_ROUNDS):
        nearest = _nearest(points, centroids, torch.zeros(num_lists), bar)
        sums = torch.zeros_like(centroids).index_add_(0, nearest, points)
        empty = torch.bincount(nearest, minlength=num_lists) == 0
        others = torch.randint(len(points), (int(empty.sum()),), generator=generator)
        sums[empty] = points[others]
        centroids = torch.nn.functional.normalize(sums, dim=1)
    return centroids


def _nearest(vectors: Tensor, directions: Tensor, offsets: Tensor, bar: Any) -> Tensor:
    """Return for each vector the direction of the highest inner product less the direction's offset."""
    nearest = []
    for block in vectors.split(_ROWS):
        nearest.append((block @ directions.T - offsets).max(dim=1).indices)
        bar.update(len(block))
    return torch.cat(nearest)
