"""Confidence intervals by resampling."""

from collections.abc import Callable

import numpy as np


def bootstrap_interval(
    statistic: Callable[[np.ndarray], np.ndarray],
    count: int,
    *,
    confidence: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return the percentile interval of a statistic of `count` items, by resampling them with replacement.

    Args:
        statistic: Takes numbers of items (resamples, count), and returns a value for each resample.
        confidence: Probability that such an interval has the true value, in (0, 1).
    Raises:
        ValueError: If there are fewer than 2 items, or `confidence` is out of range.

    >>> values = np.array([1.0, 2.0, 3.0, 4.0])
    >>> low, high = bootstrap_interval(lambda numbers: values[numbers].mean(axis=-1), 4)
    >>> 1.0 < low < 2.5 < high < 4.0
    True
    """
    if count < 2:
        raise ValueError(f"an interval needs at least 2 items to resample, got {count}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    from scipy.stats import bootstrap  # takes a second to import

    found = bootstrap(
        (np.arange(count),),
        lambda numbers, axis: statistic(np.moveaxis(numbers, axis, -1)),
        vectorized=True,
        confidence_level=confidence,
        n_resamples=num_resamples,
        method="percentile",
        rng=np.random.default_rng(seed),
    )
    return float(found.confidence_interval.low), float(found.confidence_interval.high)
