"""The surrogate over sizes: its formulas, what it learns from, and that any agent names the same."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from tempopt.records.rows import AT_PROXY, TicketRow
from tempopt.sampling.arms import Arms
from tempopt.sampling.over_sizes import APART, OverSizes
from tempopt.sampling.surrogate import Runs, Surrogate
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import is_neutral, training_key
from tests.simulated import Simulated
from tests.specs import make

PROXY = {"set": {"model.d_model": 8}, "temperature": 0.4}


def runs(count: int, *, size: int, best: float, level: float = 0.0, seed: int = 0) -> Runs:
    """Return runs of two features, the last one a trend, which are best where the first one is so."""
    rng = np.random.default_rng([seed, size])
    features_ND = rng.uniform(size=(count, 2))
    values_N = level - (features_ND[:, 0] - best) ** 2 + 0.1 * features_ND[:, 1]
    return Runs(
        features_ND=features_ND,
        seeds_N=100 * size + np.arange(count) % 3,
        values_N=values_N + 0.01 * rng.standard_normal(count),
        excess_N=np.full(count, 0.001),
    )


def test_means_and_variances_are_those_of_the_formulas() -> None:
    sizes = [runs(12, size=0, best=0.3), runs(4, size=1, best=0.4), runs(5, size=2, best=0.6, level=2.0)]
    model, asked = OverSizes(sizes, trends=1), np.random.default_rng(5).uniform(size=(6, 2))
    found = model.posterior(asked)
    at = model.surrogate.found
    lengths, (deviation, signal, own, noise, shared) = np.exp(at[:-5]), np.exp(2 * at[-5:])

    def placed(part: np.ndarray, size: int) -> np.ndarray:
        return np.column_stack([part[:, :1], np.full(len(part), APART * size / 2)])

    def trends(part: np.ndarray, size: int) -> np.ndarray:
        return np.column_stack([part[:, 1], np.full(len(part), size == 1), np.full(len(part), size == 2)])

    def shape(one: np.ndarray, other: np.ndarray) -> np.ndarray:
        root = math.sqrt(5.0) * cdist(one / lengths, other / lengths)
        result: np.ndarray = (1.0 + root + root**2 / 3.0) * np.exp(-root)
        return result

    x = np.vstack([placed(each.features_ND, size) for size, each in enumerate(sizes)])
    follows = np.vstack([trends(each.features_ND, size) for size, each in enumerate(sizes)])
    new, new_follows = placed(asked, 2), trends(asked, 2)
    smallest = Surrogate(sizes[0], trends=1)
    levels = [float((each.values_N - smallest.mean(each.features_ND)).mean()) for each in sizes]
    values = np.concatenate(
        [
            each.values_N - (level if size else 0.0)
            for size, (each, level) in enumerate(zip(sizes, levels, strict=True))
        ]
    )
    seeds = np.concatenate([each.seeds_N for each in sizes])
    excess = np.concatenate([each.excess_N for each in sizes]) / values.var()
    same = (seeds[:, None] == seeds) * 1.0
    matrix = signal * shape(x, x) + deviation * follows @ follows.T
    matrix += same * (own * shape(x, x) + shared) + np.sqrt(np.outer(excess, excess)) * shape(x, x)
    matrix += (noise + 1e-8) * np.eye(len(x))
    cross = signal * shape(new, x) + deviation * new_follows @ follows.T
    alone = signal * shape(new, new) + deviation * new_follows @ new_follows.T
    middle = np.average(values, weights=1.0 / (1.0 + excess))
    means = middle + cross @ np.linalg.solve(matrix, values - middle)
    covariance = values.var() * (alone - cross @ np.linalg.solve(matrix, cross.T))
    np.testing.assert_allclose(found.mean_M, means, rtol=1e-6)
    np.testing.assert_allclose(found.covariance(), covariance, rtol=1e-4, atol=1e-7)


_GRID = np.column_stack([np.linspace(0.0, 1.0, 101), np.zeros(101)])


def mean_of(*sizes: Runs) -> np.ndarray:
    result: np.ndarray = OverSizes(sizes, trends=1).posterior(_GRID).mean_M
    return result


def best_of(*sizes: Runs) -> float:
    return float(_GRID[np.argmax(mean_of(*sizes)), 0])


def test_runs_at_full_size_move_the_best() -> None:
    small = runs(20, size=0, best=0.3)
    none = Runs(
        features_ND=small.features_ND[:0],
        seeds_N=small.seeds_N[:0],
        values_N=small.values_N[:0],
        excess_N=small.excess_N[:0],
    )
    assert best_of(small, none) == pytest.approx(0.3, abs=0.06)
    assert best_of(small, runs(2, size=1, best=0.3)) == pytest.approx(0.3, abs=0.1)
    assert best_of(small, runs(8, size=1, best=0.7)) == pytest.approx(0.7, abs=0.1)


def test_what_all_runs_of_a_size_have_in_common_says_nothing() -> None:
    small = runs(20, size=0, best=0.3)
    one, other = (mean_of(small, runs(4, size=1, best=0.5, level=level)) for level in (0.0, 30.0))
    np.testing.assert_allclose(one, other, atol=1e-6)


def spec_of(**settings: Any) -> StudySpec:
    return make(**{"study__trials": 8, "study__proxy": PROXY, **settings})


def worth(ticket: TicketRow) -> float:
    """Return a run whose best ln τ is 1 on the proxy and -1 at full size."""
    tau = float((ticket.parameters or {}).get("temperature_init", 1.0))
    best = 1.0 if ticket.kind in AT_PROXY else -1.0
    chance = random.Random(f"{ticket.kind} {ticket.seed} {ticket.parameters}").gauss(0, 0.05)
    return -abs(math.log(tau) - best) + chance


@pytest.fixture(scope="module")
def study() -> Simulated:
    """A study whose first race at full size is over; what follows is not begun."""
    found = Simulated(spec_of(), worth)
    found.search()
    while batch := found.step():
        if batch[0].kind == "confirm":
            return found
    return found


def before_confirming(study: Simulated) -> list[TicketRow]:
    return [each for each in study.rows if each.kind != "confirm"]


def comparing(rows: list[TicketRow], named: dict[str, Any]) -> list[TicketRow]:
    """Return tickets whose last finalist trains a named set, as it is at full size."""
    moved = {**named, "temperature_init": named["temperature_init"] * math.exp(0.4)}
    return [
        dataclasses.replace(each, parameters=moved)
        if (each.kind, each.candidate) == ("transfer", 2)
        else each
        for each in rows
    ]


def test_full_size_is_named_another_set_than_the_proxy_would_name(study: Simulated) -> None:
    arms = Arms(study.spec, before_confirming(study), [])
    (small,), (full,) = arms.recommend("search", 1), arms.recommend("transfer", 1)
    assert small["temperature_init"] > 1.0 > full["temperature_init"]


def test_what_is_compared_already_is_not_named(study: Simulated) -> None:
    rows = before_confirming(study)
    (named,) = Arms(study.spec, rows, []).recommend("transfer", 1)
    rows = comparing(rows, named)
    (other,) = Arms(study.spec, rows, []).recommend("transfer", 1)
    assert training_key(other) != training_key(named) and not is_neutral(other)


def test_whoever_has_seen_tickets_in_whatever_order_names_the_same(study: Simulated) -> None:
    rows = before_confirming(study)
    expected = Arms(study.spec, rows, []).recommend("transfer", 2)
    waiting = [dataclasses.replace(each, state="waiting", outcome=None, value=None) for each in rows]
    for seed in range(3):
        arms, order = Arms(study.spec, waiting, []), rows[:]
        random.Random(seed).shuffle(order)
        for each in order:
            arms.told(each, {})
        assert arms.recommend("transfer", 2) == expected


def test_candidates_of_a_round_follow_from_the_rounds_before_it_alone(study: Simulated) -> None:
    first = before_confirming(study)

    def named(rows: list[TicketRow]) -> list[dict[str, Any]]:
        return Arms(study.spec, rows, []).recommend("search", 3)

    # in the first round by the proxy alone
    assert named(first) == named([each for each in first if each.kind != "transfer"])
    later = Simulated(study.spec, worth)
    later.rows = first[:]
    later.more(4)
    searched = [each for each in later.rows if each.round == 0 or each.kind == "search"]
    assert {each.round for each in searched} == {0, 1}
    assert named(searched) != named([each for each in searched if each.kind != "transfer"])
    assert named(searched) == named(later.rows)
    assert named(searched)[0]["temperature_init"] < 1.0


def test_a_shift_that_was_measured_tells_the_search_what_a_given_number_does() -> None:
    measures, given, same = (
        make(study__proxy={**PROXY, "temperature": rule}, study__trials=8)
        for rule in ("measured", 0.4, "same")
    )

    def moved(ticket: TicketRow) -> float:
        best = 2.0 if ticket.kind in AT_PROXY else 2.0 * math.exp(0.4)
        value = math.log((ticket.parameters or {}).get("temperature_init", 1.0) / best)
        return -abs(value) + 0.001 * (ticket.seed % 7)

    study = Simulated(measures, moved)
    study.run()
    study.more(4)
    assert {each.round for each in study.rows} == {0, 1}
    named, expected, unmoved = (
        Arms(spec, study.rows, []).recommend("search", 3) for spec in (measures, given, same)
    )
    assert named == expected != unmoved


def test_what_a_round_before_has_compared_may_be_named_again(study: Simulated) -> None:
    rows = before_confirming(study)
    (named,) = Arms(study.spec, rows, []).recommend("transfer", 1)
    rows = comparing(rows, named)
    chosen = next(each for each in rows if each.kind == "choose")
    later = dataclasses.replace(chosen, id=len(study.rows), round=1)
    taken, free = (Arms(study.spec, known, []).recommend("transfer", 999) for known in (rows, [*rows, later]))
    assert named not in taken and named in free


def test_test_data_teach_nothing(study: Simulated) -> None:
    worse = [
        dataclasses.replace(each, value=-99.0) if each.kind == "confirm" else each for each in study.rows
    ]
    one, other = (Arms(study.spec, rows, []).recommend("transfer", 2) for rows in (study.rows, worse))
    assert one == other


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.with_overrides(["study.sampler=tpe"]),
        lambda spec: spec.with_overrides(["study.proxy=null"]),
    ],
)
def test_nothing_is_named_by_other_samplers_and_without_a_proxy(
    study: Simulated, change: Callable[[StudySpec], StudySpec]
) -> None:
    assert Arms(change(study.spec), before_confirming(study), []).recommend("transfer", 1) == []
