"""The samplers and pruners that a spec may name: Optuna's own, with the spec's options and a derived seed.

Names and types of options were checked with the spec (spec/strategy_options.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from tempopt.errors import SpecError
from tempopt.spec.study_spec import PRUNERS, SAMPLERS, SamplerOrPrunerConfig

# Optuna 5's defaults, written down so that another version of it does not change a study.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "median": {"n_startup_trials": 5},
}
# Trials at most that a sampler is tried with.
_MAX_TEST_TRIALS = 100


def _create_strategy(
    section: str, classes: Mapping[str, str | None], strategy: SamplerOrPrunerConfig, **forced: Any
) -> Any:
    """Return Optuna's sampler or pruner that the spec names; None: it is tempopt's own."""
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
    """Return the sampler of Optuna that the spec names; None: it is tempopt's own, in knowledge_gradient.py.

    Args:
        strategy: Name and options.
        seed: Only its lower 32 bits count.

    Raises:
        SpecError: The sampler does not take an option.
    """
    sampler: optuna.samplers.BaseSampler | None = _create_strategy(
        "sampler", SAMPLERS, strategy, seed=seed & 0xFFFFFFFF
    )
    return sampler


def make_pruner(strategy: SamplerOrPrunerConfig) -> optuna.pruners.BasePruner | None:
    """Return the pruner of Optuna that the spec names; None: it is tempopt's own, in knowledge_gradient.py.

    Raises:
        SpecError: The pruner does not take an option.
    """
    pruner: optuna.pruners.BasePruner | None = _create_strategy("pruner", PRUNERS, strategy)
    return pruner


def try_strategies(sampler: SamplerOrPrunerConfig, pruner: SamplerOrPrunerConfig) -> None:
    """Refuse a sampler or pruner that cannot be made, or that fails once it has learned from some trials.

    Raises:
        SpecError: What an option says cannot be worked with.
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
