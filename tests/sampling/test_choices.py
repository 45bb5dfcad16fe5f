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
from tempopt.sampling.history import frozen
from tempopt.sampling.initial_design import first_trial
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.spec.study_spec import StudySpec
from tests.specs import make

NORMS = ("layer", "rms", "none", "batch")


def spec(norms: Any) -> StudySpec:
    lr = {"low": 1e-4, "high": 1e-2, "log": True}
    tau = {"low": 0.25, "high": 4.0, "log": True}
    return make(search={"temperature_init": tau, "lr": lr, "norm": list(norms)})


def strategy(of: StudySpec) -> KnowledgeGradient:
    features = Features(of)
    return KnowledgeGradient(
        of.space(),
        lambda sampled: features(of.parameters("search", sampled)),
        maximize=True,
        streams=2,
        seed=3,
    )


def trained(of: StudySpec, number: int, params: Any) -> FrozenTrial:
    best = {"layer": 0.0, "rms": 0.6, "none": -0.5, "batch": 0.2}[params["norm"]]
    value = best + random.Random(f"{number % 2} {sorted(params.items())}").gauss(0.0, 0.1)
    return frozen(
        number,
        state=TrialState.COMPLETE,
        distributions=of.space(),
        params=params,
        value=value,
        reports={10: value},
    )


@given(st.integers(2, 7))
@settings(max_examples=6, deadline=None)
def test_any_two_choices_are_as_far_from_each_other_as_two_alone(count: int) -> None:
    of = spec([f"n{place}" for place in range(count)])
    features = Features(of)
    rows = [
        features(of.parameters("search", {"temperature_init": 1.0, "lr": 1e-3, "norm": f"n{place}"}))
        for place in range(count)
    ]
    for one, other in itertools.combinations(rows, 2):
        assert ((one - other) ** 2).sum() == pytest.approx(0.5)


@pytest.mark.parametrize("count", [2, 3])
def test_a_choice_that_is_not_read_is_as_near_to_each(count: int) -> None:
    of = spec(NORMS[:count])
    features = Features(of)
    bare = {"temperature_init": 1.0, "lr": 1e-3}
    unread = features(bare)
    apart = {round(float(((features({**bare, "norm": n}) - unread) ** 2).sum()), 9) for n in NORMS[:count]}
    assert len(apart) == 1 and apart.pop() < 0.5


@pytest.mark.parametrize("order", [NORMS[::-1], ("rms", "batch", "layer", "none")])
def test_the_order_of_the_choices_changes_no_prediction_and_no_decision(order: tuple[str, ...]) -> None:
    ways = [spec(NORMS), spec(order)]
    searches: list[list[FrozenTrial]] = []
    for of in ways:
        one, known = strategy(of), []
        for number in range(10):
            asked = one.ask(known, [], number=number, seed=number, fixed={})
            known.append(trained(of, number, asked or first_trial(of, "search", number, seed=3)))
        searches.append(known)
    assert [t.params for t in searches[0]] == [t.params for t in searches[1]]
    models = [strategy(of).model(known) for of, known in zip(ways, searches, strict=True)]
    posteriors = []
    for of, model in zip(ways, models, strict=True):
        assert model is not None
        features = Features(of)
        posteriors.append(
            model.posterior(
                np.array([features(of.parameters("search", t.params | {"lr": 2e-3})) for t in searches[0]])
            )
        )
    np.testing.assert_allclose(posteriors[0].covariance(), posteriors[1].covariance(), atol=1e-12)
    np.testing.assert_allclose(posteriors[0].mean_M, posteriors[1].mean_M, atol=1e-12)
    named = [strategy(of).recommend(known, count=3, seed=0) for of, known in zip(ways, searches, strict=True)]
    assert named[0] == named[1]
