"""Student's t interval of a mean, by its standard error."""

from __future__ import annotations

from scipy.stats import t

CONFIDENCE = 0.95


def half_width(standard_error: float, samples: int) -> float:
    """Return half the width of the 95 % t interval.

    Args:
        standard_error: Standard error of the mean, >= 0.
        samples: Number of samples that it is of, >= 2.
    """
    return float(t.ppf(0.5 + CONFIDENCE / 2.0, samples - 1)) * standard_error
