"""The learning rate: warm-up, then half a cosine to nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightning_modules.optimisation import warmup_cosine


def rate(step: int, total_steps: int = 100, warmup_fraction: float = 0.1) -> float:
    return warmup_cosine(step, total_steps=total_steps, warmup_fraction=warmup_fraction)


def test_the_rate_peaks_at_the_end_of_the_warm_up_and_ends_at_nothing() -> None:
    assert rate(0) == pytest.approx(0.1)
    assert rate(9) == rate(10) == 1.0
    assert rate(55) == pytest.approx(0.5)
    assert rate(100) == pytest.approx(0.0, abs=1e-12)


def test_without_warm_up_the_rate_begins_at_its_peak() -> None:
    assert rate(0, warmup_fraction=0.0) == 1.0


@given(total=st.integers(1, 1000), fraction=st.floats(0.0, 0.99), step=st.integers(0, 1500))
def test_the_rate_is_a_share_at_any_step(total: int, fraction: float, step: int) -> None:
    share = rate(step, total, fraction)
    assert math.isfinite(share)
    assert 0.0 <= share <= 1.0
