"""What is said of small trainings whose worth at full size is planted, and what was recorded of real ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import binomtest
from scipy.stats import t as student

from benchmarks.transfer import MOST_SEEDS, TABLE, TASKS, recorded, runs_of
from benchmarks.transfer_shares import (
    ALPHA,
    FEWEST,
    LOOKS,
    TOLERATED,
    WORLDS,
    Floats,
    Runs,
    optimum_shift,
    planted,
    transfer,
    until_decided,
)
from tempopt.statistics.fieller import fieller

_LN_TAU = np.log([1.0, 0.125, 0.25, 0.5, 2.0, 4.0])


def world(name: str, noise: float, seed: int = 0) -> tuple[Runs, Runs]:
    """Return a planted world's trainings."""
    return planted(*WORLDS[name], noise, np.random.default_rng(seed))


@pytest.mark.parametrize("name", [name for name in WORLDS if name != "no plan gains"])
def test_the_planted_share_is_found(name: str) -> None:
    chosen, means = WORLDS[name]
    small, full = world(name, 0.02)
    found = transfer(small, full)
    truth = (max(means) - means[chosen]) / (max(means) - means[0])
    assert found.chosen == chosen and means[found.best] == max(means)
    order = sorted(range(8), key=lambda plan: -small.validate_SP[:, plan].sum())
    assert found.place == 1 + order.index(found.best)
    assert found.lost.value == pytest.approx(truth, abs=0.03)
    assert found.possible.value == pytest.approx(max(means), abs=0.03)
    assert found.gain.holds(means[chosen])
    if abs(truth - TOLERATED) > 0.1:
        assert found.verdict == ("transfers" if truth < TOLERATED else "does not transfer")


def test_a_planted_reversal_is_called_reversed() -> None:
    found = until_decided(*world("the order is reversed", 0.15))
    assert (found.order, found.verdict) == ("reversed", "does not transfer")
    assert found.small_gain.low > 0 > found.gain.high
    assert until_decided(*world("nothing is lost", 0.15)).order == "held"


def test_where_no_plan_gains_nothing_is_said() -> None:
    said = [until_decided(*world("no plan gains", 0.5, seed)) for seed in range(40)]
    wrong = sum(each.verdict != "not decided" for each in said)
    assert binomtest(wrong, len(said), 0.05, alternative="greater").pvalue > 0.001
    assert all(each.seeds == max(LOOKS) for each in said if each.verdict == "not decided")


@pytest.mark.parametrize("name", ["0.25 is lost", "0.25 is lost to each of six"])
def test_a_share_at_the_bound_is_seldom_decided(name: str) -> None:
    said = [until_decided(*world(name, 0.4, seed)).verdict for seed in range(60)]
    for verdict in ("transfers", "does not transfer"):
        assert binomtest(said.count(verdict), len(said), 0.05, alternative="greater").pvalue > 0.001


def test_share_and_gains_are_those_of_loops_and_of_fieller() -> None:
    small, full = (runs.first(16) for runs in world("0.6 is lost", 0.3, seed=5))
    chosen = max(range(8), key=lambda plan: sum(small.validate_SP[:, plan]))
    possible, lost = [], []
    for left_out in range(16):
        others = [seed for seed in range(16) if seed != left_out]
        best = max(range(8), key=lambda plan: sum(full.validate_SP[seed, plan] for seed in others))
        tested = full.test_SP[left_out]
        possible.append(tested[best] - tested[0])
        lost.append(tested[best] - tested[chosen])
    found = transfer(small, full)
    assert found.possible.value == pytest.approx(np.mean(possible))
    assert found.lost.value == pytest.approx(sum(lost) / sum(possible))
    # another way to an interval of a ratio of paired means; the bootstrap has no normal law in it
    oracle = fieller(lost, possible, alpha=ALPHA)
    assert found.lost.low == pytest.approx(oracle.low, abs=0.12)
    gains = full.test_SP[:, chosen] - full.test_SP[:, 0]
    low, high = student.interval(1 - ALPHA, 15, gains.mean(), gains.std(ddof=1) / 4)
    assert (found.gain.low, found.gain.high) == (pytest.approx(low), pytest.approx(high))


def test_no_plan_has_a_share_above_the_upper_limit() -> None:
    small, full = (runs.first(16) for runs in world("0.25 is lost to each of six", 0.2, seed=2))
    found = transfer(small, full)
    for plan in (1, 2, 3, 5, 6, 7):
        each = full.test_SP[:, plan]
        oracle = fieller(each - full.test_SP[:, found.chosen], each - full.test_SP[:, 0], alpha=ALPHA)
        assert found.lost.high > oracle.high - 0.1


def curves(best: float, noise: float = 0.0, seed: int = 0) -> Runs:
    """Return trainings whose best constant ln τ is planted, of 8 seeds; the last two plans are schedules."""
    draw = np.random.default_rng(seed)
    mean_P = np.r_[-((_LN_TAU - best) ** 2), 5.0, 5.0]
    test_SP: Floats = mean_P + draw.standard_normal((8, 1)) + noise * draw.standard_normal((8, 8))
    return Runs(test_SP, test_SP)


@pytest.mark.parametrize("moved", [-0.69, 0.0, 0.3])
def test_the_planted_shift_is_found(moved: float) -> None:
    exact = optimum_shift(curves(-0.4), curves(-0.4 + moved), _LN_TAU).moved
    assert (exact.value, exact.low, exact.high) == pytest.approx((moved, moved, moved), abs=1e-6)
    held = [
        optimum_shift(curves(-0.4, 0.3, seed), curves(-0.4 + moved, 0.3, seed + 100), _LN_TAU).moved
        for seed in range(10)
    ]
    assert sum(each.holds(moved) for each in held) >= 9
    assert all(each.high - each.low < 1.5 for each in held)


def test_a_best_place_beyond_the_grid_is_not_given_a_number() -> None:
    found = optimum_shift(curves(0.0), curves(-3.0), _LN_TAU)
    assert math.isnan(found.full.value) and found.full.low == -math.inf
    assert found.full.high == pytest.approx(math.log(0.125))
    assert math.isnan(found.moved.value) and found.moved.high == pytest.approx(math.log(0.125), abs=1e-6)
    assert found.moved.low == -math.inf


def test_the_plans_are_eight_and_the_first_is_the_plain_one() -> None:
    for task in TASKS.values():
        plans = list(task.plans.values())
        assert len(plans) == 8
        assert [plan[f"{task.prefix}temperature_init"] for plan in plans[:6]] == [task.plain, *task.constants]
        steps = [task.spec(size).trainer["max_steps"] for size in task.sizes]
        programs = [task.spec(size).program() for size in task.sizes]
        assert all(each != programs[0] for each in programs[1:])
        assert set(steps) <= {steps[0], steps[0] // 4}


def test_what_was_recorded_is_the_design() -> None:
    assert TABLE.exists()
    known = recorded()
    assert not known.duplicated(["task", "size", "seed", "plan"]).any()
    assert set(known.outcome) == {"complete"}
    assert known.seed.between(0, MOST_SEEDS - 1).all()
    for (name, size), own in known.groupby(["task", "size"]):
        assert set(own.plan) <= set(TASKS[name].plans)
        assert set(own.steps) == {TASKS[name].spec(size).trainer["max_steps"]}
    for task in TASKS.values():
        for size in task.sizes:
            seeds, plans = runs_of(task, size, known).test_SP.shape
            assert seeds >= FEWEST and plans == 8
