"""The options of samplers and pruners are those of the installed Optuna that a spec can write."""

from __future__ import annotations

import pytest

from tempopt.spec.sections import SamplerOrPrunerConfig
from tempopt.spec.strategy_options import option_problems


@pytest.mark.parametrize(
    ("key", "strategy", "path"),
    [
        ("sampler", {"name": "tpe", "n_startup_trials": 3, "constant_liar": True}, None),
        ("sampler", {"name": "tpe", "gamma": 5}, "study.sampler"),
        ("sampler", {"name": "tpe", "constraints_func": None}, "study.sampler"),
        ("sampler", {"name": "tpe", "n_startup_trials": True}, "study.sampler.n_startup_trials"),
        ("sampler", {"name": "gp", "independent_sampler": 5}, "study.sampler"),
        ("sampler", {"name": "knowledge_gradient"}, None),
        ("pruner", {"name": "threshold", "upper": 1}, None),
        ("pruner", {"name": "hyperband", "max_resource": "auto"}, None),
        ("pruner", {"name": "successive_halving", "reduction_factor": 2.5}, "study.pruner.reduction_factor"),
        ("pruner", {"name": "percentile", "percentile": "25"}, "study.pruner.percentile"),
    ],
)
def test_an_option_has_a_name_and_a_type_of_optunas(
    key: str, strategy: dict[str, object], path: str | None
) -> None:
    problems = option_problems(key, SamplerOrPrunerConfig.model_validate(strategy))
    assert [problem_path for problem_path, _ in problems] == ([path] if path else [])
