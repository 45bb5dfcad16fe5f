"""What tests of verdicts share: parameters by arm, worlds, gains with noise, and SciPy's paired test."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy import stats

from tempopt.storage.rows import TicketRow
from tempopt.temperature import active_groups
from tempopt.verdict.statistics.paired_tests import PairedTest

ALPHA = 0.05
"""Level of the first verdict of a study."""

PARAMETERS: dict[str, dict[str, Any]] = {
    "search": {"temperature_init": 4.0, "temperature_final": 2.0, "schedule": "linear", "lr": 0.1},
    "baseline": {"temperature_init": 1.0, "lr": 0.3},
    "twin": {"temperature_init": 1.0, "lr": 0.1},
    "constant": {"temperature_init": 2.0, "lr": 0.2},
    "constant_twin": {"temperature_init": 3.0, "lr": 0.1},
}

LR_SPACE = {"temperature_init": {"low": 0.5, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}}
SCHEDULED_SPACE = {
    "temperature_init": {"low": 2.0, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 0.5},
    "schedule": ["linear"],
    "lr": {"low": 0.1, "high": 1.0},
}


def noisy_gains(mean: float, spread: float = 0.1) -> list[float]:
    """Return eight gains with exactly that mean and standard deviation."""
    draws = np.random.default_rng(0).normal(size=8)
    return [float(value) for value in mean + spread * (draws - draws.mean()) / draws.std(ddof=1)]


def worth_by_part(**parts: float) -> Callable[[TicketRow], float]:
    """Return a world in which each part of a plan is worth something of its own, and a seed a little."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        rng = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))])
        return float(sum(parts.get(part, 0.0) for part in active_groups(t.parameters)) + rng.normal(0, 0.01))

    return worth


NOTHING = (0, -math.inf, math.inf, 1)
"""Estimate, interval and p of a test that shows nothing and bounds nothing."""


def numbers_of(test: PairedTest) -> tuple[float, float, float, float]:
    """Return estimate, interval and p."""
    return test.gain, test.ci_low, test.ci_high, test.p_value


def scipys_numbers(differences: ArrayLike, alpha: float = ALPHA) -> Any:
    """Return what SciPy's paired t test says of gains: estimate, interval and p, to compare with."""
    test = stats.ttest_1samp(differences, 0)
    interval = test.confidence_interval(1 - alpha)
    return pytest.approx((np.mean(differences), interval.low, interval.high, test.pvalue), rel=1e-6, abs=1e-9)
