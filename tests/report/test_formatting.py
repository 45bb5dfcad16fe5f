"""How numbers are worded."""

from __future__ import annotations

from decimal import ROUND_FLOOR

import pytest

from tempopt.report.formatting import limit
from tempopt.verdict.statistics.paired_tests import PairedTest


@pytest.mark.parametrize(
    ("value", "upper", "lower"),
    [
        (0.0094, "0.010", "0.009"),
        (0.007, "0.007", "0.007"),
        (-0.0034, "−0.003", "−0.004"),
        (0.0, "0.000", "0.000"),
    ],
)
def test_a_limit_is_rounded_away_from_what_it_allows(value: float, upper: str, lower: str) -> None:
    test = PairedTest(gain=-0.001, ci_low=-0.011, ci_high=0.0094, p_value=1.0, n_pairs=12, alpha=0.05)
    assert limit(value, test) == upper
    assert limit(value, test, ROUND_FLOOR) == lower


def test_without_a_comparison_a_limit_has_three_digits() -> None:
    assert (limit(0.012341), limit(123.4), limit(1.5)) == ("0.0124", "124", "1.50")
