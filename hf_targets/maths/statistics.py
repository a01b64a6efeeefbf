"""Statistics of repeated measurements: the mean, its standard error, and its margin."""

import math
from collections.abc import Sequence

from scipy.special import stdtrit  # quantiles of Student's t; scipy.stats takes a second to import


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of n values and its standard error, sqrt(var / n) with the unbiased variance.

    The error is None if there is only one value or the mean is not finite.

    >>> mean_and_standard_error([1.0, 3.0])
    (2.0, 1.0)
    >>> mean_and_standard_error([1.0])
    (1.0, None)
    """
    count = len(values)
    mean = sum(values) / count  # not fsum, which raises an error if a sum overflows
    if count == 1 or not math.isfinite(mean):
        return mean, None
    variance = math.fsum((value - mean) * (value - mean) for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def student_margin(standard_error: float, count: int) -> float:
    """Return the half width of the 95 % confidence interval for the mean of `count` values, 2 or more.

    It is `standard_error`, which `mean_and_standard_error` returns, times a quantile of Student's t with count - 1
    degrees of freedom: 12.7 for two values, 2.36 for eight, 1.96 for very many. It is exact if the values are normally
    distributed.
    """
    return standard_error * float(stdtrit(count - 1, 0.975))
