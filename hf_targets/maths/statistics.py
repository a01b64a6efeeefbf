"""Statistics of repeated measurements: the mean, its standard error and margin, and the difference of two means."""

import math
from collections.abc import Sequence

from scipy.special import stdtrit  # quantiles of Student's t; scipy.stats takes a second to import

_ERRORS_OF_A_DIFFERENCE = 2


def mean_and_standard_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Return the mean of n values and its standard error, sqrt(var / n) with the unbiased variance.

    The error is None if there is only one value or the mean is not finite.

    Raises:
        ValueError: If there are no values.

    >>> mean_and_standard_error([1.0, 3.0])
    (2.0, 1.0)
    >>> mean_and_standard_error([1.0])
    (1.0, None)
    """
    count = len(values)
    if not count:
        raise ValueError("a mean needs at least one value, got none")
    mean = sum(values) / count  # not fsum, which raises an error if a sum overflows
    if count == 1 or not math.isfinite(mean):
        return mean, None
    variance = math.fsum((value - mean) * (value - mean) for value in values) / (count - 1)
    return mean, math.sqrt(variance / count)


def student_margin(standard_error: float, count: int, confidence: float = 0.95) -> float:
    """Return the half width of a confidence interval for the mean of `count` values.

    It is `standard_error` times a quantile of Student's t with count - 1 degrees of freedom: at 95 %, 12.7 for two
    values, 2.36 for eight, 1.96 for very many. It is exact if the values are normally distributed.

    Args:
        standard_error: As `mean_and_standard_error` returns it.
        count: Number of values, at least 2.
        confidence: Probability that the interval contains the true mean, in (0, 1).
    Raises:
        ValueError: If `count` or `confidence` is out of range.
    """
    if count < 2:
        raise ValueError(f"an interval needs at least 2 values, got {count}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be in (0, 1), got {confidence}")
    return standard_error * float(stdtrit(count - 1, (1 + confidence) / 2))


def format_mean(values: Sequence[float | None], digits: int = 2) -> str:
    """Return "mean ± standard error" of the values that are not None; the error only if there are two or more.

    >>> format_mean([1.0, 3.0]), format_mean([1.0]), format_mean([None])
    ('2.00 ± 1.00', '1.00', '')
    """
    known = [value for value in values if value is not None]
    if not known:
        return ""
    mean, error = mean_and_standard_error(known)
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def format_difference(values: Sequence[float], reference: Sequence[float], digits: int = 2) -> str:
    """Return the difference of two means with its standard error, marked "none" if it is below two standard errors.

    The error is sqrt(e1^2 + e2^2), where e1 and e2 are the standard errors of the two means. A single value has no
    standard error; the result then says "one seed" and does not tell whether the means differ.

    >>> format_difference([1.0, 1.2], [2.0, 2.2])
    '-1.00 ± 0.14'
    >>> format_difference([1.0, 3.0], [2.0, 2.2])
    'none (-0.10 ± 1.00)'
    >>> format_difference([1.0], [2.0])
    '-1.00 (one seed)'
    """
    (mean, error), (base, base_error) = mean_and_standard_error(values), mean_and_standard_error(reference)
    difference = mean - base
    if error is None or base_error is None:
        return f"{difference:+.{digits}f} (one seed)"
    both = math.hypot(error, base_error)
    shown = f"{difference:+.{digits}f} ± {both:.{digits}f}"
    return shown if abs(difference) >= _ERRORS_OF_A_DIFFERENCE * both and difference else f"none ({shown})"
