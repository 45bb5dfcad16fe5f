"""Decisions on rungs against Optuna's own, which reads every trial at every report."""

from __future__ import annotations

import math
from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tempopt.sampling.history import History
from tempopt.sampling.optuna_strategies import make_pruner
from tempopt.spec.study_spec import Strategy

STEPS = (1, 3, 9, 10, 40, 100, 250, 900)
PRUNERS: list[dict[str, Any]] = [
    {"name": "successive_halving"},
    {"name": "successive_halving", "min_resource": 2, "reduction_factor": 2, "bootstrap_count": 2},
    {"name": "successive_halving", "min_resource": 1, "min_early_stopping_rate": 1},
    {"name": "hyperband"},
    {"name": "hyperband", "min_resource": 2, "max_resource": 300, "reduction_factor": 4},
]
# Few values, so that there are ties; NaN now and then.
curve = st.lists(
    st.one_of(st.integers(0, 9).map(float), st.just(float("nan"))), min_size=1, max_size=len(STEPS)
)
trials = st.lists(
    st.tuples(curve, st.integers(0, len(STEPS) - 1), st.sampled_from(["run", "run", "run", "lost"])),
    min_size=1,
    max_size=25,
)


@pytest.mark.parametrize("options", PRUNERS, ids=str)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@given(trials=trials)
@settings(max_examples=30)
def test_halving_decides_as_optuna_does_on_the_same_trials(
    options: dict[str, Any], direction: str, trials: list[tuple[list[float], int, str]]
) -> None:
    strategy = Strategy.model_validate(options)
    study = optuna.create_study(study_name="s/search", direction=direction)
    one = History(name="s/search", direction=direction, distributions={}, parallel=1)
    for number, (values, skipped, end) in enumerate(trials):
        one.asked(number, {})
        trial, reports = study.ask(), {}
        state = TrialState.FAIL if end == "lost" else TrialState.COMPLETE
        for step, value in zip(STEPS[skipped:], values, strict=False):
            reports[step] = value
            trial.report(value, step)
            # a new pruner for each decision, since some settle their options by what they see first
            study.pruner = make_pruner(strategy)
            expected = trial.should_prune()
            assert one.prune(number, reports, make_pruner(strategy)) == expected
            bound = one.bound(number, reports, make_pruner(strategy))
            if expected and not math.isnan(value):
                # whoever is pruned is worse than the bound; who is among the first at a rung has none
                assert bound is not None or "bootstrap_count" in options
                worse = bound is None or (value < bound if direction == "maximize" else value > bound)
                assert worse
            if expected:
                state = TrialState.PRUNED
                break
        study.tell(trial, 0.0 if state == TrialState.COMPLETE else None, state=state)
        one.told(number, state, 0.0, reports)


@pytest.mark.parametrize("name", ["successive_halving", "hyperband"])
def test_an_agent_that_starts_late_decides_as_one_that_saw_everything(name: str) -> None:
    def history() -> History:
        return History(name="s/search", direction="minimize", distributions={}, parallel=3)

    strategy = Strategy(name=name)
    seen, ends, decisions = history(), [], []
    for number in range(60):
        reports: dict[int, float] = {}
        state = TrialState.COMPLETE
        for step in STEPS:
            reports[step] = float((number * 37 + step) % 23)
            decisions.append(seen.prune(number, reports, make_pruner(strategy)))
            if decisions[-1]:
                state = TrialState.PRUNED
                break
        seen.told(number, state, 0.0, reports)
        ends.append((state, reports))
    late = history()
    for number, (state, reports) in reversed(list(enumerate(ends))):
        late.told(number, state, 0.0, reports)
    for number in range(60, 63):
        for value in range(23):
            reports = {1: 0.0, 3: 1.0, 9: float(value)}
            decisions.append(seen.prune(number, reports, make_pruner(strategy)))
            assert late.prune(number, reports, make_pruner(strategy)) == decisions[-1]
    assert {True, False} <= set(decisions)


def test_the_bound_is_the_worst_value_that_is_promoted() -> None:
    options = {"name": "successive_halving", "min_resource": 10, "reduction_factor": 2}
    strategy = Strategy.model_validate(options)
    one = History(name="s/search", direction="maximize", distributions={}, parallel=1)
    assert one.bound(0, {10: 0.5}, make_pruner(strategy)) is None
    for number, value in enumerate((0.1, 0.2, 0.3, 0.4, 0.5)):
        one.told(number, TrialState.COMPLETE, value, {10: value})
    # of six at the rung, itself included, the best three go on: two may be better
    for value in (0.2, 0.3, 0.4):
        assert one.bound(5, {10: value}, make_pruner(strategy)) == 0.3
        assert one.prune(5, {10: value}, make_pruner(strategy)) == (value < 0.3)
    assert one.bound(5, {9: 0.9}, make_pruner(strategy)) is None  # no rung is reached yet
    assert one.bound(5, {10: 0.4, 15: 0.1}, make_pruner(strategy)) == 0.3  # the last that was


@pytest.mark.parametrize("options", [{"name": "none"}, {"name": "threshold", "lower": 0.1}], ids=str)
def test_a_pruner_that_compares_with_nobody_has_no_bound(options: dict[str, Any]) -> None:
    one = History(name="s/search", direction="maximize", distributions={}, parallel=1)
    one.told(0, TrialState.COMPLETE, 0.5, {10: 0.5})
    assert one.bound(1, {10: 0.5}, make_pruner(Strategy.model_validate(options))) is None
