"""An option of a sampler or pruner that cannot be worked with is found before anything is trained."""

from __future__ import annotations

from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.sampling.optuna_factories import try_strategies
from tempopt.spec.sections import SamplerOrPrunerConfig

NONE = {"name": "none"}


@pytest.mark.parametrize(
    ("sampler", "pruner", "message"),
    [
        (
            {"name": "tpe", "n_startup_trials": "x"},
            NONE,
            r"sampler\.n_startup_trials: given 'x'\. tpe takes int\.",
        ),
        ({"name": "tpe", "n_startup_trials": True}, NONE, r"sampler\.n_startup_trials: given True"),
        ({"name": "tpe", "multivariate": 1}, NONE, r"sampler\.multivariate: given 1\. tpe takes bool"),
        ({"name": "tpe", "gamma": 5}, NONE, r'Unknown option of tpe "gamma"'),
        ({"name": "tpe", "n_ei_candidates": 0}, NONE, r"tpe cannot draw with .*must be positive"),
        ({"name": "gp", "independent_sampler": 5}, NONE, r'Unknown option of gp "independent_sampler"'),
        ({"name": "gp", "n_startup_trials": 1.5}, NONE, r"sampler\.n_startup_trials: given 1\.5"),
        (
            NONE | {"name": "random"},
            {"name": "median", "n_warmup_steps": [1]},
            r"pruner\.n_warmup_steps: given \[1\]",
        ),
        ({"name": "random"}, {"name": "hyperband", "min_resource": "x"}, r"pruner\.min_resource: given 'x'"),
    ],
)
def test_an_option_that_cannot_be_worked_with_is_refused(
    sampler: dict[str, Any], pruner: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        try_strategies(
            SamplerOrPrunerConfig.model_validate(sampler), SamplerOrPrunerConfig.model_validate(pruner)
        )


@pytest.mark.parametrize(
    ("sampler", "pruner"),
    [
        (
            {"name": "tpe", "n_startup_trials": 0, "n_ei_candidates": 3},
            {"name": "median", "n_startup_trials": 2},
        ),
        ({"name": "tpe", "n_startup_trials": -1}, {"name": "threshold", "upper": 1}),
        ({"name": "gp", "n_startup_trials": 5}, {"name": "successive_halving", "min_resource": "auto"}),
        ({"name": "random"}, {"name": "percentile", "percentile": 25.0}),
        ({"name": "knowledge_gradient"}, {"name": "knowledge_gradient"}),
    ],
)
def test_options_of_the_right_type_pass(sampler: dict[str, Any], pruner: dict[str, Any]) -> None:
    try_strategies(
        SamplerOrPrunerConfig.model_validate(sampler), SamplerOrPrunerConfig.model_validate(pruner)
    )
