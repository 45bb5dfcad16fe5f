"""Decisions by percentile against Optuna's own, which reads every trial at every report."""

from __future__ import annotations

import math
import warnings
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tempopt.sampling.history import History
from tempopt.sampling.optuna_strategies import make_pruner
from tempopt.spec.study_spec import Strategy

PRUNERS: list[dict[str, Any]] = [
    {"name": "median"},
    {"name": "median", "n_startup_trials": 0, "n_min_trials": 3},
    {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 20, "interval_steps": 20},
    {"name": "percentile", "percentile": 25.0, "n_startup_trials": 1},
    {"name": "percentile", "percentile": 100.0, "n_startup_trials": 1, "interval_steps": 7},
]
value = st.one_of(st.integers(0, 9).map(lambda n: n / 7), st.just(float("nan")))
# Not every trial validates at the same steps.
curve = st.dictionaries(st.sampled_from([0, 5, 10, 20, 30, 45]), value, min_size=1, max_size=6)
states = st.sampled_from([TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])


def _agrees(bound: float | None, pruned: bool, reports: dict[int, float], direction: str) -> None:
    """See that whoever is pruned is worse than the bound, and that without one nobody is, unless by NaN."""
    known = [value for value in reports.values() if not math.isnan(value)]
    if pruned and known:
        assert bound is not None
        assert max(known) < bound if direction == "maximize" else min(known) > bound


@pytest.mark.parametrize("options", PRUNERS, ids=str)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@given(trials=st.lists(st.tuples(curve, states), min_size=1, max_size=20))
@settings(max_examples=40)
def test_percentiles_decide_as_optuna_does_on_the_same_trials(
    options: dict[str, Any], direction: str, trials: list[tuple[dict[int, float], TrialState]]
) -> None:
    pruner = make_pruner(Strategy.model_validate(options))
    study = optuna.create_study(direction=direction, pruner=pruner)
    one = History(name="s/search", direction=direction, distributions={}, parallel=1)
    for number, (values, state) in enumerate(trials):
        one.asked(number, {})
        trial, reports = study.ask(), {}
        for step in sorted(values):
            reports[step] = values[step]
            trial.report(values[step], step)
            with warnings.catch_warnings():
                # Optuna's, where there is nothing but NaN
                warnings.simplefilter("ignore", RuntimeWarning)
                expected = trial.should_prune()
            assert one.prune(number, reports, pruner) == expected
            _agrees(one.bound(number, reports, pruner), expected, reports, direction)
        study.tell(trial, 0.0 if state == TrialState.COMPLETE else None, state=state)
        one.told(number, state, 0.0, reports)


def test_only_what_a_ticket_may_know_counts() -> None:
    pruner = make_pruner(Strategy.model_validate({"name": "median", "n_startup_trials": 1}))
    one = History(name="s/search", direction="minimize", distributions={}, parallel=3)
    for number in range(5):
        one.told(number, TrialState.COMPLETE, 0.0, {1: 1.0 if number < 3 else 0.0})
    # ticket 4 knows the first three, whose median is 1; ticket 7 knows six, and the later ones are better
    one.told(5, TrialState.COMPLETE, 0.0, {1: 0.0})
    one.told(6, TrialState.COMPLETE, 0.0, {1: 0.0})
    for number, expected in ((4, False), (9, True), (4, False)):
        assert one.prune(number, {1: 0.5}, pruner) == expected


def test_the_bound_is_the_median_of_those_that_are_known_at_that_step() -> None:
    pruner = make_pruner(Strategy.model_validate({"name": "median", "n_startup_trials": 2}))
    one = History(name="s/search", direction="minimize", distributions={}, parallel=1)
    assert one.bound(0, {1: 0.5}, pruner) is None
    for number, value in enumerate((0.25, 0.5, 1.0)):
        one.told(number, TrialState.COMPLETE, 0.0, {1: value, 2: value / 4})
    assert one.bound(1, {1: 0.5}, pruner) is None  # fewer than two are known to the second trial
    assert one.bound(3, {1: 0.75}, pruner) == 0.5
    assert one.bound(3, {1: 0.75, 2: 0.75}, pruner) == 0.125
    assert one.bound(3, {3: 0.75}, pruner) is None
    assert one.bound(9, {1: 0.5}, pruner) is None  # what it may know has not ended here yet
