"""The samplers and pruners that a spec may name: Optuna's own, with the spec's options and a derived seed."""

from __future__ import annotations

from typing import Any

import optuna
from optuna.distributions import BaseDistribution

from tempopt.errors import SpecError
from tempopt.spec.strategy_options import option_problems
from tempopt.spec.study_spec import PRUNERS, SAMPLERS, SamplerOrPrunerConfig

# Optuna 5's defaults, written down so that another version of it does not change a study.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "median": {"n_startup_trials": 5},
}
# Trials at most that a sampler is tried with.
_MAX_TEST_TRIALS = 100


def _create_strategy(
    section: str, strategy_class: type[Any], strategy: SamplerOrPrunerConfig, **forced: Any
) -> Any:
    for path, message in option_problems(section, strategy):
        raise SpecError(f"{path}: {message}")
    try:
        return strategy_class(**_DEFAULTS.get(strategy.name, {}) | strategy.options | forced)
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
    name = SAMPLERS[strategy.name]
    if name is None:
        return None
    kind = getattr(optuna.samplers, name)
    sampler: optuna.samplers.BaseSampler = _create_strategy("sampler", kind, strategy, seed=seed & 0xFFFFFFFF)
    return sampler


def try_strategies(sampler: SamplerOrPrunerConfig, pruner: SamplerOrPrunerConfig) -> None:
    """Refuse a sampler or pruner that cannot be made, or that fails once it has learned from some trials.

    Raises:
        SpecError: An option is unknown or not of its type, or what it says cannot be worked with.
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


def make_pruner(strategy: SamplerOrPrunerConfig) -> optuna.pruners.BasePruner | None:
    """Return the pruner of Optuna that the spec names; None: it is tempopt's own, in knowledge_gradient.py.

    Raises:
        SpecError: The pruner does not take an option.
    """
    name = PRUNERS[strategy.name]
    if name is None:
        return None
    kind = getattr(optuna.pruners, name)
    pruner: optuna.pruners.BasePruner = _create_strategy("pruner", kind, strategy)
    return pruner
