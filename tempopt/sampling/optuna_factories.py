"""Samplers and pruners of a spec: Optuna's, with the options of the spec and a derived seed.

Names and types of options are checked with the spec (spec/strategy_options.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from tempopt.errors import SpecError
from tempopt.spec.study_spec import PRUNERS, SAMPLERS, SamplerOrPrunerConfig

# Optuna 5's defaults, fixed here so that another version does not change a study.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "median": {"n_startup_trials": 5},
}
# largest number of trials in the test of a sampler
_MAX_TEST_TRIALS = 100


def _create_strategy(
    section: str, classes: Mapping[str, str | None], strategy: SamplerOrPrunerConfig, **forced: Any
) -> Any:
    """Return the sampler or pruner of Optuna in the spec; None for tempopt's own."""
    class_name = classes[strategy.name]
    if class_name is None:
        return None
    module = optuna.samplers if section == "sampler" else optuna.pruners
    try:
        return getattr(module, class_name)(**_DEFAULTS.get(strategy.name, {}) | strategy.options | forced)
    except (TypeError, ValueError) as error:
        raise SpecError(
            f"study.{section}: {strategy.name} does not take {strategy.options}: {error}"
        ) from error


def make_sampler(strategy: SamplerOrPrunerConfig, *, seed: int) -> optuna.samplers.BaseSampler | None:
    """Return the sampler of Optuna in the spec; None for tempopt's own, in knowledge_gradient.py.

    Args:
        strategy: Name and options.
        seed: Seed; only its lower 32 bits are used.

    Raises:
        SpecError: The sampler does not accept an option.
    """
    sampler: optuna.samplers.BaseSampler | None = _create_strategy(
        "sampler", SAMPLERS, strategy, seed=seed & 0xFFFFFFFF
    )
    return sampler


def make_pruner(strategy: SamplerOrPrunerConfig) -> optuna.pruners.BasePruner | None:
    """Return the pruner of Optuna in the spec; None for tempopt's own, in knowledge_gradient.py.

    Raises:
        SpecError: The pruner does not accept an option.
    """
    pruner: optuna.pruners.BasePruner | None = _create_strategy("pruner", PRUNERS, strategy)
    return pruner


def try_strategies(sampler: SamplerOrPrunerConfig, pruner: SamplerOrPrunerConfig) -> None:
    """Refuse a sampler or pruner that cannot be constructed, or that fails after learning from some trials.

    Raises:
        SpecError: The value of an option is not usable.
    """
    make_pruner(pruner)
    optuna_sampler = make_sampler(sampler, seed=0)
    # the Gaussian process takes seconds to load, and learns from any number of trials
    if optuna_sampler is None or sampler.name == "gp":
        return
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna_sampler)
    num_startup = max(sampler.options.get("n_startup_trials", 10), 0)
    space: dict[str, BaseDistribution] = {"x": optuna.distributions.FloatDistribution(0.0, 1.0)}
    try:
        for index in range(min(num_startup, _MAX_TEST_TRIALS) + 2):
            params = {"x": (index % 7 + 1) / 8}
            trial = optuna.trial.create_trial(params=params, distributions=space, value=float(index))
            study.add_trial(trial)
        study.ask(space)
    except (TypeError, ValueError, ArithmeticError, LookupError, AssertionError) as error:
        raise SpecError(
            f"study.sampler: {sampler.name} cannot draw with {sampler.options}: {error}. Give others."
        ) from error
