"""The six readings of a temperature in docs/theory.md: each formula against a computation of its own."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate, optimize, special, stats

THEORY = (Path(__file__).parents[2] / "docs" / "theory.md").read_text(encoding="utf-8")
Array = NDArray[np.float64]


def page_says(text: str) -> bool:
    """Return whether the page says it, wherever its lines break."""
    return text in " ".join(THEORY.split())


def entropy(weights: Array) -> float:
    return float(special.entr(weights).sum())


def test_attention_is_a_kernel_smoother_of_bandwidth_tau_root_d() -> None:
    draw = np.random.default_rng(0)
    d, tau = 64, 0.7
    q, k, v = draw.normal(size=d), draw.normal(size=(50, d)), draw.normal(size=(50, 3))
    k *= 8.0 / np.linalg.norm(k, axis=1, keepdims=True)
    attended = special.softmax(k @ q / (math.sqrt(d) * tau)) @ v
    kernel = np.exp(-(np.linalg.norm(k - q, axis=1) ** 2) / (2 * tau * math.sqrt(d)))
    np.testing.assert_allclose(attended, kernel @ v / kernel.sum(), rtol=1e-10)
    # at d = 64 and τ = 1, beside the distance of a query and a key of unit variance
    assert math.sqrt(math.sqrt(64)) == pytest.approx(2.83, abs=0.005) and page_says("σ = 2.83")
    far = np.linalg.norm(draw.normal(size=(2000, 64)) - draw.normal(size=(2000, 64)), axis=1).mean()
    assert far == pytest.approx(11.3, abs=0.1) and page_says("11.3 apart")


def test_attention_condenses_where_the_spread_of_logits_passes_root_two_ln_n() -> None:
    critical = math.sqrt(2 * math.log(1024))
    assert critical == pytest.approx(3.72, abs=0.005) and page_says("s = 3.72 for 1,024 keys")
    draw = np.random.default_rng(3)

    def largest(sd: float) -> float:
        return float(np.median([special.softmax(sd * draw.normal(size=1024)).max() for _ in range(400)]))

    # a share that is of no key alone, and one that is most of all
    assert largest(critical / 2) < 0.1 and largest(2 * critical) > 0.6


def test_what_keeps_entropy_over_length_grows_as_the_root_of_ln_n() -> None:
    draw = np.random.default_rng(4)

    def share(n: int, sd: float) -> float:
        return float(
            np.mean([entropy(special.softmax(sd * draw.normal(size=n))) for _ in range(200)])
        ) / math.log(n)

    root = math.sqrt(math.log(1024) / math.log(64))
    linear = math.log(1024) / math.log(64)
    assert (round(root, 2), round(linear, 2)) == (1.29, 1.67) and page_says("1.29") and page_says("1.67")
    before = share(64, 1.0)
    assert share(1024, root) == pytest.approx(before, abs=0.01)
    assert share(1024, linear) < before - 0.05


def test_the_price_that_a_pac_bayes_bound_likes_best_grows_with_the_root_of_the_data() -> None:
    complexity = math.log(10) + math.log(1 / 0.05)

    def bound(price: float, m: int) -> float:
        return complexity / price + price / (8 * m)

    for m, price in ((1_000, 206), (100_000, 2059)):
        best = optimize.minimize_scalar(bound, bounds=(1, 1e5), args=(m,), method="bounded")
        assert best.x == pytest.approx(math.sqrt(8 * m * complexity), rel=1e-3)
        assert round(math.sqrt(8 * m * complexity)) == price
    assert page_says("206 for 1,000 items and 2,059 for 100,000")


@pytest.mark.parametrize(("count", "optimism"), [(5, 1.16), (10, 1.54), (40, 2.16)])
def test_the_best_of_several_looks_better_than_it_is(count: int, optimism: float) -> None:
    def density(x: float) -> float:
        return float(count * x * stats.norm.pdf(x) * stats.norm.cdf(x) ** (count - 1))

    expected, _ = integrate.quad(density, -10, 10)
    assert expected == pytest.approx(optimism, abs=0.005) and page_says(f"{optimism} for {count}")
    draw = np.random.default_rng(count)
    assert draw.normal(size=(20_000, count)).max(axis=1).mean() == pytest.approx(expected, abs=0.02)
