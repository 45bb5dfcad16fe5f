"""Optuna's pruners on the trials that a ticket may know, against Optuna's own study of the same trials."""

from __future__ import annotations

from typing import Any

import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState

from tempopt.sampling.frozen_history import History
from tempopt.sampling.optuna_factories import make_pruner
from tempopt.spec.study_spec import SamplerOrPrunerConfig

STEPS = (1, 3, 9, 10, 40, 100, 250, 900)
PRUNERS: list[dict[str, Any]] = [
    {"name": "successive_halving"},
    {"name": "successive_halving", "min_resource": 2, "reduction_factor": 2, "bootstrap_count": 2},
    {"name": "successive_halving", "min_resource": 1, "min_early_stopping_rate": 1},
    {"name": "hyperband"},
    {"name": "hyperband", "min_resource": 2, "max_resource": 300, "reduction_factor": 4},
    {"name": "median", "n_startup_trials": 2, "n_warmup_steps": 20, "interval_steps": 20},
    {"name": "percentile", "percentile": 25.0, "n_startup_trials": 1},
    {"name": "threshold", "upper": 5.0},
]
# Few values, so that there are ties. Not every trial validates at the same steps.
curve = st.lists(st.integers(0, 9).map(float), min_size=1, max_size=len(STEPS))
trials = st.lists(
    st.tuples(curve, st.integers(0, len(STEPS) - 1), st.sampled_from(["run", "run", "run", "lost"])),
    min_size=1,
    max_size=25,
)


def history(*, direction: str = "minimize", parallel: int = 1) -> History:
    return History(name="s/search", direction=direction, distributions={}, parallel=parallel)


@pytest.mark.parametrize("options", PRUNERS, ids=str)
@pytest.mark.parametrize("direction", ["minimize", "maximize"])
@given(trials=trials)
@settings(max_examples=30)
def test_a_history_decides_as_optuna_does_on_the_same_trials(
    options: dict[str, Any], direction: str, trials: list[tuple[list[float], int, str]]
) -> None:
    strategy = SamplerOrPrunerConfig.model_validate(options)
    study = optuna.create_study(study_name="s/search", direction=direction)
    search_history = history(direction=direction)
    for number, (values, num_skipped, end) in enumerate(trials):
        search_history.register_asked(number, {})
        trial, reports = study.ask(), {}
        state = TrialState.FAIL if end == "lost" else TrialState.COMPLETE
        for step, value in zip(STEPS[num_skipped:], values, strict=False):
            reports[step] = value
            trial.report(value, step)
            # a new pruner for each decision, since some settle their options by what they see first
            study.pruner = make_pruner(strategy)
            expected = trial.should_prune()
            assert search_history.prune(number, reports, make_pruner(strategy)) == expected
            if expected:
                state = TrialState.PRUNED
                break
        study.tell(trial, 0.0 if state == TrialState.COMPLETE else None, state=state)
        search_history.tell(number, state, 0.0, reports)


@pytest.mark.parametrize("name", ["successive_halving", "hyperband"])
def test_an_agent_that_starts_late_decides_as_one_that_saw_everything(name: str) -> None:
    strategy = SamplerOrPrunerConfig(name=name)
    full_history, ends, decisions = history(parallel=3), [], []
    for number in range(60):
        reports: dict[int, float] = {}
        state = TrialState.COMPLETE
        for step in STEPS:
            reports[step] = float((number * 37 + step) % 23)
            decisions.append(full_history.prune(number, reports, make_pruner(strategy)))
            if decisions[-1]:
                state = TrialState.PRUNED
                break
        full_history.tell(number, state, 0.0, reports)
        ends.append((state, reports))
    late = history(parallel=3)
    for number, (state, reports) in reversed(list(enumerate(ends))):
        late.tell(number, state, 0.0, reports)
    for number in range(60, 63):
        for value in range(23):
            reports = {1: 0.0, 3: 1.0, 9: float(value)}
            decisions.append(full_history.prune(number, reports, make_pruner(strategy)))
            assert late.prune(number, reports, make_pruner(strategy)) == decisions[-1]
    assert {True, False} <= set(decisions)


def test_only_what_a_ticket_may_know_counts() -> None:
    pruner = make_pruner(SamplerOrPrunerConfig.model_validate({"name": "median", "n_startup_trials": 1}))
    search_history = history(parallel=3)
    # ticket 4 knows the first three, whose median is 1; ticket 9 knows all seven, of which four are better
    for number in range(7):
        search_history.tell(number, TrialState.COMPLETE, 0.0, {1: 1.0 if number < 3 else 0.0})
    for number, expected in ((4, False), (9, True), (4, False)):
        assert search_history.prune(number, {1: 0.5}, pruner) == expected
