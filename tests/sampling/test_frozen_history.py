"""What a ticket may know is a function of its number, never of who finished first."""

from __future__ import annotations

import math
import random
from datetime import datetime
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from tempopt.sampling.frozen_history import History
from tempopt.sampling.optuna_factories import make_pruner, make_sampler
from tempopt.spec.study_spec import SAMPLERS, SamplerOrPrunerConfig

SPACE = {
    "temperature_init": FloatDistribution(0.25, 4.0, log=True),
    "schedule": CategoricalDistribution(["constant", "linear"]),
}
TPE = SamplerOrPrunerConfig(name="tpe")
MEDIAN = SamplerOrPrunerConfig(name="median")


def history(parallel: int = 4, direction: str = "maximize") -> History:
    return History(name="s/search", direction=direction, distributions=SPACE, parallel=parallel)


def value_of(params: dict[str, Any]) -> float:
    return -abs(math.log(params["temperature_init"]) - 0.5) + (params["schedule"] == "linear")


def search(count: int, *, parallel: int, seed: int, sampler: str) -> list[Any]:
    """Carry out a search in which the runs in flight finish in an order that luck decides."""
    search_history, strategy, luck = history(), SamplerOrPrunerConfig(name=sampler), random.Random(seed)
    trial_states: list[Any] = []
    running_numbers: list[int] = []
    while len(trial_states) < count or running_numbers:
        while (number := len(trial_states)) < count and len(running_numbers) < parallel:
            if not search_history.ready(number):
                break
            params = search_history.ask(number, make_sampler(strategy, seed=number))
            search_history.register_asked(number, params)
            running_numbers.append(number)
            trial_states.append([params, None])
        number = running_numbers.pop(luck.randrange(len(running_numbers)))
        value = value_of(trial_states[number][0])
        is_pruned = search_history.prune(number, {1: value}, make_pruner(MEDIAN))
        trial_states[number][1] = is_pruned
        state = TrialState.PRUNED if is_pruned else TrialState.COMPLETE
        search_history.tell(number, state, value, {1: value})
    return trial_states


@pytest.mark.parametrize("sampler", ["tpe", "random"])
def test_a_search_is_the_same_in_whatever_order_its_runs_finish(sampler: str) -> None:
    one_by_one = search(30, parallel=1, seed=0, sampler=sampler)
    for seed in range(5):
        assert search(30, parallel=4, seed=seed, sampler=sampler) == one_by_one
    assert any(is_pruned for _, is_pruned in one_by_one)


def test_a_ticket_waits_until_all_that_it_may_know_is_known() -> None:
    search_history = history(parallel=2)
    for number in range(2):
        assert search_history.ready(number)
        search_history.register_asked(number, {"temperature_init": 1.0, "schedule": "linear"})
    assert not search_history.ready(2)
    search_history.tell(1, TrialState.COMPLETE, 1.0, {})
    assert not search_history.ready(2)
    search_history.tell(0, TrialState.FAIL, None, {})
    assert search_history.ready(2)
    assert search_history.ready(3)
    assert not search_history.ready(4)


def test_a_diverged_run_ranks_below_the_worst_that_did_not() -> None:
    def ask_sets(has_diverged: bool) -> list[float]:
        search_history = history(parallel=1)
        for number in range(30):
            hot = number % 2 == 0
            params = {"temperature_init": 3.0 if hot else 0.4, "schedule": "linear"}
            search_history.register_asked(number, params)
            if hot and has_diverged:
                search_history.tell(number, TrialState.PRUNED, None, {})
            else:
                search_history.tell(number, TrialState.COMPLETE, 1.0 if hot else 0.0, {1: 0.0})
        return [
            search_history.ask(30, make_sampler(TPE, seed=seed))["temperature_init"] for seed in range(20)
        ]

    assert sum(t > 1.5 for t in ask_sets(has_diverged=False)) > 15
    assert sum(t > 1.5 for t in ask_sets(has_diverged=True)) < 5


NUMBERS = {"temperature_final": FloatDistribution(0.5, 2.0, step=0.1), "n0": IntDistribution(1, 64)}


def optunas_draw(space: dict[str, Any], trials: list[Any], seed: int, **options: Any) -> Any:
    """Return what Optuna's own TPE suggests after these trials: (params, state, value, reports) or params."""
    sampler = optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed, **options)
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for params, *end in trials:
        state, value, reports = end or (TrialState.RUNNING, None, {})
        study._storage.create_new_trial(
            study._study_id,
            template_trial=FrozenTrial(
                number=-1,
                trial_id=-1,
                state=state,
                value=value if state == TrialState.COMPLETE else None,
                datetime_start=datetime(2026, 1, 1),
                datetime_complete=datetime(2026, 1, 1) if state.is_finished() else None,
                params=params,
                distributions={name: space[name] for name in params},
                user_attrs={},
                system_attrs={},
                intermediate_values=reports,
            ),
        )
    return study.ask(fixed_distributions=space).params


@pytest.mark.parametrize("count", [0, 5, 60])
@pytest.mark.parametrize("options", [{}, {"n_startup_trials": 0}, {"group": True}], ids=str)
@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_tpe_draws_to_the_bit_what_optunas_own_draws_on_the_same_trials(
    count: int, options: dict[str, Any]
) -> None:
    space: dict[str, Any] = SPACE | NUMBERS
    luck, parallel = random.Random(count), 4
    search_history = History(name="s/search", direction="maximize", distributions=space, parallel=parallel)
    trials: list[Any] = []
    for number in range(count + parallel - 1):
        params = {
            "temperature_init": luck.uniform(0.25, 4.0),
            "schedule": luck.choice(["constant", "linear"]),
            "temperature_final": luck.randint(5, 20) / 10,
            "n0": luck.randint(1, 64),
        }
        search_history.register_asked(number, params)
        if number >= count:
            trials.append((params,))
            continue
        state = luck.choice([TrialState.COMPLETE, TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL])
        reports = {} if luck.random() < 0.2 else {step: luck.random() for step in (1, 2, 3)}
        trials.append((params, state, luck.random(), reports))
        search_history.tell(number, *trials[-1][1:])
    for seed in range(5):
        sampler = make_sampler(SamplerOrPrunerConfig.model_validate({"name": "tpe", **options}), seed=seed)
        sampled_params = search_history.ask(count + parallel - 1, sampler)
        assert sampled_params == optunas_draw(space, trials, seed, **options)


@pytest.mark.parametrize("name", sorted(name for name, optunas in SAMPLERS.items() if optunas))
def test_every_sampler_that_a_spec_may_name_works_on_a_history(name: str) -> None:
    assert len(search(13, parallel=2, seed=0, sampler=name)) == 13
