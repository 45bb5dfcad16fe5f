"""Choices in a search: any two are as far from each other, and how they are listed changes nothing."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import FrozenTrial, TrialState

from tempopt.sampling.features import Features
from tempopt.sampling.frozen_history import make_frozen_trial
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.spec.study_spec import StudySpec
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


def complete_trial(spec: StudySpec, number: int, params: Any) -> FrozenTrial:
    best = {"layer": 0.0, "rms": 0.6, "none": -0.5, "batch": 0.2}[params["norm"]]
    value = best + random.Random(f"{number % 2} {sorted(params.items())}").gauss(0.0, 0.1)
    return make_frozen_trial(
        number,
        state=TrialState.COMPLETE,
        distributions=spec.space(),
        params=params,
        value=value,
        reports={10: value},
    )


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
    ways = [spec(NORMS), spec(order)]
    searches: list[list[FrozenTrial]] = []
    for ordered_spec in ways:
        sampler, trials = strategy(ordered_spec), []
        for number in range(10):
            params = sampler.ask(trials, [], number=number, seed=number, fixed={})
            trials.append(
                complete_trial(
                    ordered_spec, number, params or initial_params(ordered_spec, "search", number, seed=3)
                )
            )
        searches.append(trials)
    assert [t.params for t in searches[0]] == [t.params for t in searches[1]]
    models = [
        strategy(ordered_spec).model(trials) for ordered_spec, trials in zip(ways, searches, strict=True)
    ]
    posteriors = []
    for ordered_spec, model in zip(ways, models, strict=True):
        assert model is not None
        features = Features(ordered_spec)
        posteriors.append(
            model.posterior(
                np.array(
                    [
                        features(ordered_spec.parameters("search", t.params | {"lr": 2e-3}))
                        for t in searches[0]
                    ]
                )
            )
        )
    np.testing.assert_allclose(posteriors[0].covariance(), posteriors[1].covariance(), atol=1e-12)
    np.testing.assert_allclose(posteriors[0].mean_M, posteriors[1].mean_M, atol=1e-12)
    recommended_sets = [
        strategy(ordered_spec).recommend(trials, count=3, seed=0)
        for ordered_spec, trials in zip(ways, searches, strict=True)
    ]
    assert recommended_sets[0] == recommended_sets[1]
