"""An option of a sampler or pruner that cannot be worked with is found before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.sampling.optuna_factories import try_strategies
from tempopt.spec.sections import SamplerOrPrunerConfig


def check(*options: dict[str, Any]) -> None:
    try_strategies(*map(SamplerOrPrunerConfig.model_validate, options))


@pytest.mark.parametrize(
    ("sampler", "pruner", "section"),
    [
        ({"name": "tpe", "n_ei_candidates": 0}, {"name": "none"}, "sampler"),
        ({"name": "random"}, {"name": "successive_halving", "min_resource": "x"}, "pruner"),
    ],
)
def test_an_option_that_cannot_be_worked_with_is_refused(
    sampler: dict[str, Any], pruner: dict[str, Any], section: str
) -> None:
    with pytest.raises(SpecError, match=f"study.{section}: "):
        check(sampler, pruner)


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        ({"name": "tpe", "n_startup_trials": 0, "n_ei_candidates": 3}, {"name": "median"}),
        ({"name": "tpe", "n_startup_trials": -1}, {"name": "threshold", "upper": 1}),
        ({"name": "gp", "n_startup_trials": 5}, {"name": "successive_halving", "min_resource": "auto"}),
        ({"name": "random"}, {"name": "percentile", "percentile": 25.0}),
        ({"name": "knowledge_gradient"}, {"name": "knowledge_gradient"}),
    ],
)
def test_options_of_the_right_type_pass(sampler: dict[str, Any], pruner: dict[str, Any]) -> None:
    check(sampler, pruner)
