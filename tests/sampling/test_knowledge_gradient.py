"""The knowledge gradient in a search: planted answers are found, and what may be known decides."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from tempopt.sampling.features import Features
from tempopt.sampling.frozen_history import make_frozen_trial
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.sampling.unit_cube import from_unit, to_unit
from tempopt.seeds import shared_seed
from tempopt.temperature import is_neutral

SPACE = {"x": FloatDistribution(0.25, 4.0, log=True), "y": FloatDistribution(0.0, 1.0)}
STEPS = (10, 20, 30, 40)
GOOD = {"x": from_unit(SPACE["x"], 0.7), "y": 0.3}


def describe(params: Any) -> np.ndarray:
    return np.array([to_unit(distribution, params[name]) for name, distribution in SPACE.items()])


def truth(params: Any) -> float:
    x, y = describe(params)
    return -4 * (x - 0.7) ** 2 - (y - 0.3) ** 2


def strategy(**options: Any) -> KnowledgeGradient:
    settings = {"maximize": True, "num_seeds": 2, "seed": 1, **options}
    return KnowledgeGradient(SPACE, describe, **settings)


def make_trial(
    number: int,
    params: Any,
    *,
    noise: float = 0.05,
    upto: int = 40,
    is_informative: bool = True,
    sign: float = 1.0,
) -> FrozenTrial:
    luck = random.Random(f"{number % 2} {sorted(params.items())}")
    end = sign * (truth(params) + luck.gauss(0, noise))
    early_values = {step: sign * luck.gauss(0, 1) for step in STEPS}
    if is_informative:
        early_values = {step: end - (40 - step) / 100 for step in STEPS}
    reports = {step: value for step, value in early_values.items() if step < upto}
    if upto == 40:
        return complete_trial(number, params, end, reports={**reports, 40: end})
    return make_frozen_trial(
        number, state=TrialState.PRUNED, distributions=SPACE, params=params, reports=reports
    )


def complete_trial(
    number: int, params: Any, end: float, space: Any = SPACE, reports: dict[int, float] | None = None
) -> FrozenTrial:
    return make_frozen_trial(
        number,
        state=TrialState.COMPLETE,
        distributions=space,
        params=params,
        value=end,
        reports=reports or dict.fromkeys(STEPS, end),
    )


def start(count: int, **options: Any) -> list[FrozenTrial]:
    rng = np.random.default_rng(3)
    points = [{n: from_unit(d, rng.random()) for n, d in SPACE.items()} for _ in range(count)]
    return [make_trial(number, params, **options) for number, params in enumerate(points)]


def ask(sampler: KnowledgeGradient, trials: list[FrozenTrial], **options: Any) -> Any:
    settings = {"number": len(trials), "seed": 7, "fixed": {}, **options}
    return sampler.ask(trials, settings.pop("pending", []), **settings)


def continue_search(
    sampler: KnowledgeGradient, trials: list[FrozenTrial], count: int, train: Callable[..., FrozenTrial]
) -> list[FrozenTrial]:
    """Return the trials of a search that goes on, one after the other, until there are so many."""
    trials = list(trials)
    for number in range(len(trials), count):
        params = sampler.ask(trials, [], number=number, seed=number, fixed={})
        assert params is not None
        trials.append(train(number, params))
    return trials


def mean_of(trials: list[FrozenTrial], *sets: Any, **options: Any) -> np.ndarray:
    """Return what the model of trials expects of parameter sets."""
    model = strategy(**options).model(trials)
    assert model is not None
    return model.posterior(np.array([describe(params) for params in sets])).mean_M


@pytest.mark.parametrize("maximize", [True, False])
def test_a_planted_best_is_found_and_named(maximize: bool) -> None:
    sign = 1.0 if maximize else -1.0
    sampler = strategy(maximize=maximize)
    trials = continue_search(sampler, start(6, sign=sign), 24, functools.partial(make_trial, sign=sign))
    best_params = sampler.recommend(trials, count=1, seed=0)[0]
    assert truth(best_params) > -0.03
    # random points seldom reach this
    assert np.mean([truth(t.params) > -0.03 for t in start(200)]) < 0.15


@pytest.mark.parametrize("count", [1, 3])
def test_no_set_that_was_tried_is_expected_to_be_better_than_the_one_named_first(count: int) -> None:
    # the value rises with x to a cliff, behind which it is far lower; there the mean is wrong
    trials = []
    for number, trial in enumerate(start(16)):
        x, y = describe(trial.params)
        trials.append(complete_trial(number, trial.params, x + 0.1 * y - 2.0 * (x > 0.7)))
    sets = strategy().recommend(trials, count=count, seed=0)
    assert len({repr(params) for params in sets}) == count
    means = mean_of(trials, *sets, *(trial.params for trial in trials))
    assert means[0] >= means.max() - 1e-9


def slope(*, advantage: float, noise: float = 0.0) -> tuple[KnowledgeGradient, list[FrozenTrial]]:
    """Return a search in which y = 1 is better than y = 0 by so much, whatever x is."""
    rng = np.random.default_rng(5)
    trials = []
    for number, y in enumerate([0.0, 1.0] * 8):
        params = {"x": from_unit(SPACE["x"], rng.random()), "y": y}
        trials.append(complete_trial(number, params, advantage * y + noise * rng.normal()))
    return strategy(num_seeds=None), trials


@pytest.mark.parametrize(("advantage", "is_clear"), [(2.0, True), (0.0, False), (-2.0, False)])
def test_a_constant_is_named_first_unless_another_set_is_expected_to_be_clearly_better(
    advantage: float, is_clear: bool
) -> None:
    sampler, trials = slope(advantage=advantage, noise=0.3)
    constant = {"x": 1.0, "y": 0.0}
    sets = sampler.recommend(trials, count=2, seed=0, constant=constant)
    assert (sets[0] == constant) == (not is_clear)
    model = sampler.model(trials)
    assert model is not None
    posterior = model.posterior(np.array([describe(sets[0]), describe(constant)]))
    covariance = posterior.covariance()
    if is_clear:
        gain = posterior.mean_M[0] - posterior.mean_M[1]
        deviation = math.sqrt(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
        assert gain >= 0.5 * deviation


def test_a_set_that_may_not_be_named_is_not_named() -> None:
    sampler, trials = slope(advantage=2.0)
    sets = sampler.recommend(trials, count=3, seed=0, accepts=lambda params: params["y"] < 0.5)
    assert len(sets) == 3 and all(params["y"] < 0.5 for params in sets)
    assert sampler.recommend(trials, count=3, seed=0, accepts=lambda params: False) == []


def test_the_model_learns_from_the_runs_of_the_design() -> None:
    rng = np.random.default_rng(9)
    # the trials of the search say nothing of y, which runs outside of it do
    trials = [complete_trial(n, {"x": from_unit(SPACE["x"], rng.random()), "y": 0.5}, 0.0) for n in range(6)]
    design = [
        complete_trial(-1 - n, {"x": 1.0, "y": y}, y + 0.01 * rng.normal())
        for n, y in enumerate([0.0, 0.25, 0.75, 1.0] * 2)
    ]
    with_design: dict[str, Any] = {"list_design": lambda num_baseline: design}
    low, high = {"x": 1.0, "y": 0.0}, {"x": 1.0, "y": 1.0}
    assert np.diff(mean_of(trials, low, high))[0] == pytest.approx(0.0, abs=1e-6)
    assert np.diff(mean_of(trials, low, high, **with_design))[0] > 0.5
    # a search of which too few runs are complete says nothing, however many runs its design has
    assert strategy(**with_design).model(trials[:2]) is None


def test_nothing_is_said_while_too_little_is_known() -> None:
    sampler, trials = strategy(), start(2)
    assert ask(sampler, trials) is None
    assert sampler.recommend(trials, count=2, seed=0) == []
    assert not sampler.prune(trials, make_trial(2, trials[0].params, upto=20))


def test_what_is_asked_follows_from_what_may_be_known_alone() -> None:
    trials = start(8)
    first = ask(strategy(), trials)
    busy = strategy()
    for number in range(3, 8):
        ask(busy, trials[:number])
        busy.prune(trials[:number], make_trial(number, trials[number].params, upto=20))
    assert ask(busy, trials) == first


def test_runs_in_work_are_not_asked_for_again() -> None:
    sampler, trials = strategy(), start(8, noise=0.001)
    first = ask(sampler, trials)
    waiting = make_frozen_trial(8, state=TrialState.RUNNING, distributions=SPACE, params=first)
    second = ask(sampler, trials, pending=[waiting], number=9)
    assert np.abs(describe(first) - describe(second)).max() > 0.02


def test_what_would_come_to_the_same_again_is_not_trained_again() -> None:
    # the best is in a corner, to which all that is tried around it is drawn
    corner = {"x": SPACE["x"].high, "y": 1.0}  # type: ignore[attr-defined]

    def train(number: int, params: Any) -> FrozenTrial:
        luck = random.Random(f"{number % 2} {sorted(params.items())}")
        return complete_trial(number, params, float(describe(params).sum()) + luck.gauss(0, 0.5))

    trials = continue_search(strategy(), start(4), 40, train)[4:]
    trained_sets = [(trial.number % 2, *sorted(trial.params.items())) for trial in trials]
    assert {trained_set[1:] for trained_set in trained_sets} >= {tuple(sorted(corner.items()))}
    assert len(set(trained_sets)) == len(trained_sets)


def test_where_nothing_is_left_to_be_learned_the_best_is_refined() -> None:
    trials = continue_search(
        strategy(), start(6, noise=0.0), 60, lambda n, params: complete_trial(n, params, truth(params))
    )
    # of evaluations that have no noise; differences of what they are worth were once those of rounding
    assert np.mean([truth(trial.params) > -0.01 for trial in trials[-20:]]) > 0.5
    assert max(truth(trial.params) for trial in trials) > -2e-4


def test_where_all_has_been_trained_something_is_still_asked_for() -> None:
    space: dict[str, Any] = {"x": FloatDistribution(0.25, 4.0, step=1.25)}
    sampler = KnowledgeGradient(space, lambda p: np.array([p["x"]]), maximize=True, num_seeds=2, seed=1)
    trials: list[FrozenTrial] = []
    for number in range(12):
        params = sampler.ask(trials, [], number=number, seed=number, fixed={}) or {
            "x": 0.25 + 1.25 * (number % 4)
        }
        trials.append(complete_trial(number, params, params["x"] + 0.1 * shared_seed(number, 2), space))
    assert len({(shared_seed(t.number, 2), t.params["x"]) for t in trials}) == 8


def test_where_early_values_tell_all_bad_runs_are_ended_and_good_ones_are_not() -> None:
    sampler, trials = strategy(), start(16, noise=0.001)
    best = max(trials, key=lambda t: t.value or 0.0).params
    assert sampler.prune(trials, make_trial(16, {"x": 0.25, "y": 1.0}, upto=20, noise=0.001))
    assert truth(GOOD) > truth(best)
    tells_nothing = start(16, noise=0.001, is_informative=False)
    for params in (GOOD, {"x": 0.25, "y": 1.0}):
        running_trial = make_trial(16, params, upto=20, noise=0.001, is_informative=False)
        assert not strategy().prune(tells_nothing, running_trial)


def test_a_run_that_diverged_is_a_reason_to_stay_away() -> None:
    trials = start(12, noise=0.001)
    fields: dict[str, Any] = {"state": TrialState.PRUNED, "distributions": SPACE}
    blown = [make_frozen_trial(n, params={**GOOD, "y": 0.3 + n / 1e4}, **fields) for n in range(12, 16)]
    assert mean_of([*trials, *blown], GOOD)[0] < mean_of(trials, GOOD)[0] - 0.01


def test_values_that_are_no_numbers_spoil_nothing() -> None:
    trials = start(12, noise=0.001)
    for trial in trials[:3]:
        trial.intermediate_values[20] = math.nan
    trials.append(make_trial(12, trials[0].params, upto=20))
    trials[-1].intermediate_values[10] = math.inf
    sampler = strategy()
    assert ask(sampler, trials) is not None
    running_trial = make_trial(13, {"x": 1.0, "y": 0.5}, upto=30)
    running_trial.intermediate_values[20] = math.nan
    assert sampler.prune(trials, running_trial)


def test_how_bad_the_worst_are_does_not_blur_the_best() -> None:
    trials = start(16, noise=0.001)
    worse_trials = start(16, noise=0.001)
    for trial in worse_trials:
        if trial.value is not None and trial.value < -1.0:
            trial.value *= 1e6
    assert mean_of(worse_trials, GOOD) == pytest.approx(mean_of(trials, GOOD), abs=0.5)


def test_of_thousands_of_runs_those_that_tell_most_are_looked_at() -> None:
    trials = start(2000)
    model = strategy().model(trials)
    assert model is not None and len(model.trials) <= 240
    assert {t.number for t in model.trials} >= {max(trials, key=lambda t: t.value or 0.0).number}


@given(
    st.sampled_from(
        [
            FloatDistribution(1e-3, 10.0, log=True),
            FloatDistribution(-2.0, 3.0),
            FloatDistribution(0.0, 1.0, step=0.25),
            IntDistribution(1, 64, log=True),
            IntDistribution(0, 12, step=3),
            CategoricalDistribution(("a", None, 3)),
        ]
    ),
    st.floats(0, 1),
)
def test_a_value_lies_where_it_was_taken_from(distribution: Any, position: float) -> None:
    value = from_unit(distribution, position)
    assert distribution._contains(distribution.to_internal_repr(value))
    read_position = to_unit(distribution, value)
    assert 0 <= read_position <= 1 and from_unit(distribution, read_position) == value


def test_schedules_that_make_nearly_the_same_curve_are_nearly_the_same(make_spec: Any) -> None:
    search = {
        "schedule": ["constant", "linear", "exponential"],
        "temperature_init": {"low": 0.25, "high": 4.0},
        "temperature_final": {"low": 0.25, "high": 4.0},
    }
    spec = make_spec({"search": search})
    features = Features(spec)

    def features_of(schedule: str, first: float, last: float) -> np.ndarray:
        params = {"schedule": schedule, "temperature_init": first, "temperature_final": last}
        return features(spec.parameters("search", params))

    flat = features_of("constant", 2.0, 0.3)
    np.testing.assert_array_equal(flat, features_of("constant", 2.0, 4.0))
    np.testing.assert_allclose(flat, features_of("linear", 2.0, 2.0), atol=1e-9)
    fast, slow = (features_of(schedule, 4.0, 0.25) for schedule in ("exponential", "linear"))
    assert 0 < np.abs(fast - slow).max() < np.abs(fast - flat).max()


COVERED = {
    "lr": {"low": 1e-4, "high": 1e-2, "log": True},
    "schedule": ["linear", "constant"],
    "temperature_init": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.5, "high": 2.0},
    "length_scaling": ["log_n", "none"],
}


def test_the_first_trials_of_a_search_cover_the_space(make_spec: Any) -> None:
    spec = make_spec({"search": COVERED})
    trials = [initial_params(spec, "search", number, seed=5) for number in range(9)]
    space = spec.space()
    for trial in trials:
        assert all(space[name]._contains(space[name].to_internal_repr(v)) for name, v in trial.items())
        assert 10**-3.5 <= trial["lr"] <= 10**-2.5
        # temperature 1 has its own arm: no trial of the search is spent on it
        assert not is_neutral(spec.parameters("search", trial))
    levels = sorted(math.log2(trial["temperature_init"]) for trial in trials)
    assert levels[0] < -1 and levels[-1] > 1
    assert {trial["length_scaling"] for trial in trials} == {"log_n", "none"}
    assert initial_params(spec, "search", 3, seed=6) != trials[3]
    # beyond the design it begins again, rather than not at all
    assert initial_params(spec, "search", 64 + 1, seed=5) == trials[1]


def test_the_first_run_of_the_other_arms_is_in_the_middle(make_spec: Any) -> None:
    spec = make_spec({"search": COVERED})
    assert initial_params(spec, "baseline", 0, seed=5) == {"lr": 0.001}
    assert initial_params(spec, "constant", 0, seed=5) == {"temperature_init": 1.0, "lr": 0.001}
    assert initial_params(spec, "baseline", 1, seed=5) != {"lr": 0.001}
    # of temperatures, where 1 is not in the range
    spec = make_spec({"search": {"temperature_init": {"low": 2.0, "high": 8.0}}})
    assert initial_params(spec, "constant", 0, seed=5) == {"temperature_init": 4.0}
