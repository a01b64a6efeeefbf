"""The rows of a table with the highest inner products with queries, by the whole product in blocks."""

import torch
from torch import Tensor

ROWS_AT_ONCE = 65_536
NOT_FINITE = "inner products must be finite in float32, and some are not; scale the vectors down"
_QUERIES_AT_ONCE = 256  # with the rows of a block: at most 64 MiB of scores


def top_products(queries: Tensor, table: Tensor, k: int, keep: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the `k` highest inner products of each query and their rows, both (queries, k), highest first.

    It uses torch and not `IndexFlatIP.search`, which takes one core for one query, and ten times as long for 64.

    Args:
        queries: (queries, dim), float32.
        table: (rows, dim), float32; it may lie in a file that is mapped into memory.
        k: At most the number of rows that are searched.
        keep: (rows,) bool, true for the rows that are searched; None: all.
    Raises:
        ValueError: If a product is not finite.
    """
    results = []
    for some in queries.split(_QUERIES_AT_ONCE):
        best = (some.new_empty(len(some), 0), some.new_empty(len(some), 0, dtype=torch.int64))
        for start in range(0, len(table), ROWS_AT_ONCE):
            stop = start + ROWS_AT_ONCE
            with torch.autocast("cpu", enabled=False):
                scores = some @ table[start:stop].T
            check_products(scores)
            if keep is not None:
                scores.masked_fill_(~keep[start:stop], -torch.inf)
            scores, rows = scores.topk(min(k, scores.shape[1]), dim=1)
            best = higher(best, (scores, rows + start), k)
        results.append(best)
    scores, rows = zip(*results, strict=True)
    return torch.cat(scores), torch.cat(rows)


def check_products(scores: Tensor) -> None:
    """Check that no inner product has overflowed.

    Raises:
        ValueError: If one is not finite.
    """
    if not scores.isfinite().all():
        raise ValueError(NOT_FINITE)


def higher(first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor], k: int) -> tuple[Tensor, Tensor]:
    """Return the `k` highest of two sets of scores with their rows, (queries, at most k) each, highest first."""
    scores, rows = (torch.cat(pair, dim=1) for pair in zip(first, second, strict=True))
    order = scores.topk(min(k, scores.shape[1]), dim=1).indices
    return scores.gather(1, order), rows.gather(1, order)
