"""Choices in a search: any two are as far from each other, and how they are listed changes nothing."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial

from tempopt.sampling.features import Features
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.spec.study_spec import StudySpec
from tests.sampling.test_knowledge_gradient import complete_trial
from tests.specs import make

NORMS = ("layer", "rms", "none", "batch")


def spec(norms: Any) -> StudySpec:
    lr = {"low": 1e-4, "high": 1e-2, "log": True}
    tau = {"low": 0.25, "high": 4.0, "log": True}
    return make(search={"temperature_init": tau, "lr": lr, "norm": list(norms)})


def strategy(spec: StudySpec) -> KnowledgeGradient:
    features = Features(spec)
    return KnowledgeGradient(
        spec.space(),
        lambda params: features(spec.parameters("search", params)),
        maximize=True,
        num_seeds=2,
        seed=3,
    )


def train(spec: StudySpec, number: int, params: Any) -> FrozenTrial:
    best = {"layer": 0.0, "rms": 0.6, "none": -0.5, "batch": 0.2}[params["norm"]]
    value = best + random.Random(f"{number % 2} {sorted(params.items())}").gauss(0.0, 0.1)
    return complete_trial(number, params, value, spec.space(), {10: value})


@given(st.integers(2, 7))
@settings(max_examples=6, deadline=None)
def test_any_two_choices_are_as_far_from_each_other_as_two_alone(count: int) -> None:
    many_spec = spec([f"n{index}" for index in range(count)])
    features = Features(many_spec)
    rows = [
        features(many_spec.parameters("search", {"temperature_init": 1.0, "lr": 1e-3, "norm": f"n{index}"}))
        for index in range(count)
    ]
    for row, other_row in itertools.combinations(rows, 2):
        assert ((row - other_row) ** 2).sum() == pytest.approx(0.5)


@pytest.mark.parametrize("count", [2, 3])
def test_a_choice_that_is_not_read_is_as_near_to_each(count: int) -> None:
    short_spec = spec(NORMS[:count])
    features = Features(short_spec)
    bare = {"temperature_init": 1.0, "lr": 1e-3}
    unread = features(bare)
    distances = {
        round(float(((features({**bare, "norm": n}) - unread) ** 2).sum()), 9) for n in NORMS[:count]
    }
    assert len(distances) == 1 and distances.pop() < 0.5


@pytest.mark.parametrize("order", [NORMS[::-1], ("rms", "batch", "layer", "none")])
def test_the_order_of_the_choices_changes_no_prediction_and_no_decision(order: tuple[str, ...]) -> None:
    searched_sets, posteriors, recommended_sets = [], [], []
    for ordered_spec in (spec(NORMS), spec(order)):
        sampler, trials = strategy(ordered_spec), list[FrozenTrial]()
        for number in range(10):
            params = sampler.ask(trials, [], number=number, seed=number, fixed={})
            params = params or initial_params(ordered_spec, "search", number, seed=3)
            trials.append(train(ordered_spec, number, params))
        searched_sets.append([t.params for t in trials])
        model, features = strategy(ordered_spec).model(trials), Features(ordered_spec)
        assert model is not None
        queries = [features(ordered_spec.parameters("search", t.params | {"lr": 2e-3})) for t in trials]
        posteriors.append(model.posterior(np.array(queries)))
        recommended_sets.append(strategy(ordered_spec).recommend(trials, count=3, seed=0))
    assert searched_sets[0] == searched_sets[1]
    np.testing.assert_allclose(posteriors[0].covariance(), posteriors[1].covariance(), atol=1e-12)
    np.testing.assert_allclose(posteriors[0].mean_M, posteriors[1].mean_M, atol=1e-12)
    assert recommended_sets[0] == recommended_sets[1]
