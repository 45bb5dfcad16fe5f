"""The chance to keep guards: what it is where it is known, and what a search makes of it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from optuna.trial import FrozenTrial
from scipy import stats

from benchmarks.simulated.whole import StudySimulation, with_study
from benchmarks.simulated.worlds import Cost, Gain, ModelWorld
from tempopt.sampling.frozen_history import make_frozen_trial
from tempopt.sampling.guard_constraints import GuardConstraints, GuardLimit, build_guard_constraints
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.sampling.surrogate import Surrogate, knowledge_gradient
from tests.sampling.test_gaussian_process import observe
from tests.sampling.test_knowledge_gradient import SPACE, describe, start

WORLD = ModelWorld(name="g", gain=Gain(of="level", size=6.0), cost=Cost(at_best=0.1, margin=0.02))


def make_guarding(threshold: float = 0.5, **options: Any) -> GuardConstraints:
    limit = GuardLimit(name="cost", sign=1.0, at=threshold, variance=0.0)
    return GuardConstraints(**{"limits": (limit,), "base": -1.0, "pairs": 8, "quantile": 0.0, **options})


def with_cost(trials: list[FrozenTrial], cost: Any) -> list[FrozenTrial]:
    """Return trials that have measured, as the guarded metric, a function of their features."""
    return [
        make_frozen_trial(
            trial.number,
            state=trial.state,
            distributions=SPACE,
            params=trial.params,
            value=trial.value,
            reports=trial.intermediate_values,
            guards={"cost": cost(describe(trial.params))},
        )
        for trial in trials
    ]


def weigh(guard: GuardConstraints, trials: list[FrozenTrial]) -> Any:
    return guard.feasibility_probability(trials, describe, lambda number: number % 2)


def test_what_is_far_on_either_side_of_the_limit_is_told_apart() -> None:
    trials = with_cost(start(20, noise=0.0), lambda features: float(features[0]))
    chance = weigh(make_guarding(), trials)(np.array([[0.1, 0.5], [0.9, 0.5]]))
    assert chance[0] < 0.01 and chance[1] > 0.99


def test_a_larger_margin_is_asked_where_more_has_to_be_shown() -> None:
    rng = np.random.default_rng(0)
    trials = with_cost(start(20), lambda features: float(features[0] + rng.normal(0, 0.1)))
    queries = np.array([[0.6, 0.5]])
    chances = [weigh(make_guarding(quantile=q), trials)(queries)[0] for q in (0.0, 1.0, 2.4)]
    assert chances == sorted(chances, reverse=True) and chances[0] > chances[2] + 0.05


def test_two_guards_are_kept_together_with_the_product_of_their_chances() -> None:
    trials = with_cost(start(12), lambda features: float(features[0]))
    limits = [GuardLimit(name="cost", sign=1.0, at=threshold, variance=0.01) for threshold in (0.4, 0.6)]
    queries = np.array([[0.5, 0.2], [0.6, 0.9]])
    single_chances = [weigh(make_guarding(limits=(limit,)), trials)(queries) for limit in limits]
    assert weigh(make_guarding(limits=tuple(limits)), trials)(queries) == pytest.approx(
        single_chances[0] * single_chances[1]
    )


def test_a_run_without_a_number_is_as_bad_as_the_worst() -> None:
    trials = with_cost(start(12), lambda features: math.nan if features[0] < 0.3 else 1.0)
    chance = weigh(make_guarding(threshold=0.5), trials)
    low, high = (chance(np.array([[x, 0.5]]))[0] for x in (0.1, 0.9))
    assert low < high


def test_means_count_from_the_base_and_by_their_weights() -> None:
    positions, queries = np.linspace(0, 1, 9), np.array([[0.2], [0.5], [0.9]])
    surrogate = Surrogate(observe(positions[:, None], np.arange(9) % 2, np.sin(3 * positions)))
    weights = np.array([0.0, 0.5, 1.0])
    plain = surrogate.posterior(queries)
    weighted_posterior = surrogate.posterior(
        queries, lambda features: np.interp(features[:, 0], [0.2, 0.5, 0.9], weights), 0.3
    )
    assert weighted_posterior.mean_M == pytest.approx(weights * (plain.mean_M - 0.3))
    assert weighted_posterior.covariance() == pytest.approx(plain.covariance() * np.outer(weights, weights))
    assert weighted_posterior.variance() == pytest.approx(np.diag(weighted_posterior.covariance()), abs=1e-9)
    _, variance, covariances = weighted_posterior.predict_runs(queries, 0)
    _, variance_before, plainly = plain.predict_runs(queries, 0)
    assert variance == pytest.approx(variance_before)
    assert covariances == pytest.approx(weights[:, None] * plainly)
    joined_posterior = weighted_posterior.with_candidate(np.array([0.5]))
    assert joined_posterior.mean_M[-1] == pytest.approx(weighted_posterior.mean_M[1])
    # what certainly breaks a guard cannot be what is named, whatever is learned of it
    worth = knowledge_gradient(weighted_posterior.mean_M[:1], variance, covariances[:1])
    assert worth == pytest.approx(0.0)


def test_what_is_named_is_the_best_of_what_is_likely_to_keep_the_guards() -> None:
    # the best x is 0.7; the guard asks for less than 0.5
    trials = with_cost(start(24, noise=0.01), lambda features: -float(features[0]))
    options: dict[str, Any] = {"maximize": True, "num_seeds": 2, "seed": 1}
    free = KnowledgeGradient(SPACE, describe, **options)
    bound = KnowledgeGradient(SPACE, describe, **options, guarding=make_guarding(threshold=-0.5, base=-2.0))
    best_places = [describe(sampler.recommend(trials, count=1, seed=0)[0])[0] for sampler in (free, bound)]
    assert best_places[0] == pytest.approx(0.7, abs=0.1) and 0.35 < best_places[1] <= 0.52
    sets = [bound.ask(trials, [], number=24 + n, seed=n, fixed={}) for n in range(6)]
    assert all(params is not None and describe(params)[0] < 0.65 for params in sets)


@pytest.mark.parametrize("text", ["<= +10%", "<= +0.2"])
def test_limits_are_the_mean_of_the_runs_at_one_and_the_margin(make_spec: Any, text: str) -> None:
    runs = [(0.5, {"val_loss": 2.0}), (0.6, {"val_loss": 2.2}), (0.4, {"val_loss": 1.8})]
    spec = make_spec(guards={"val_loss": text}, seeds={"confirm": 8})
    guarding_rule = build_guard_constraints(spec, runs)
    assert guarding_rule is not None
    (limit,) = guarding_rule.limits
    assert (limit.sign, limit.at) == (-1.0, pytest.approx(-2.2))
    assert limit.variance == pytest.approx(np.var([2.0, 2.2, 1.8], ddof=1) / 3)
    assert guarding_rule.base == pytest.approx(0.5)
    assert guarding_rule.quantile == pytest.approx(stats.t.ppf(0.975, 7))


def test_where_the_runs_at_one_tune_something_the_best_of_them_are_compared_with(make_spec: Any) -> None:
    space = {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}}
    spec = make_spec({"search": space}, guards={"val_loss": "<= +0"})
    runs = [(0.1 * n, {"val_loss": 1.0 - 0.1 * n}) for n in range(8)]
    guarding_rule = build_guard_constraints(spec, runs)
    assert guarding_rule is not None and guarding_rule.base == pytest.approx(0.65)
    assert guarding_rule.limits[0].at == pytest.approx(-0.35)


def test_nothing_is_asked_where_nothing_is_guarded_or_known(make_spec: Any) -> None:
    assert build_guard_constraints(make_spec(), [(0.5, {})]) is None
    guarded_spec = make_spec(guards={"val_loss": "<= +2%"})
    assert build_guard_constraints(guarded_spec, []) is None
    assert build_guard_constraints(guarded_spec, [(0.5, {"val_loss": math.nan})]) is None


def test_a_search_that_weighs_names_what_keeps_the_guard_where_another_breaks_it() -> None:
    spec = with_study(WORLD.spec, trials=16, seed=4)
    weighed, plain = (StudySimulation(WORLD, spec, weighs=weighs).run() for weighs in (True, False))
    assert weighed is not None and plain is not None
    assert WORLD.keeps(weighed.params) and weighed.primary.significant
    assert not WORLD.keeps(plain.params)
    assert plain.guards[0].state == "broken" and not plain.guards_kept
