"""The samplers and pruners that a spec may name: Optuna's own, with the spec's options and a derived seed."""

from __future__ import annotations

import inspect
from typing import Any

import optuna

from tempopt.errors import SpecError, unknown
from tempopt.study.spec import PRUNERS, SAMPLERS, Strategy

# Optuna 5's defaults, written down so that another version of it does not change a study.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "median": {"n_startup_trials": 5},
}


def _made(what: str, kind: type[Any], strategy: Strategy, **forced: Any) -> Any:
    allowed = [name for name in inspect.signature(kind).parameters if name != "seed"]
    for option in strategy.options:
        if option not in allowed:
            raise SpecError(f"study.{what}: " + unknown(f"option of {strategy.name}", option, allowed))
    try:
        return kind(**_DEFAULTS.get(strategy.name, {}) | strategy.options | forced)
    except (TypeError, ValueError) as error:
        raise SpecError(f"study.{what}: {strategy.name} does not take {strategy.options}: {error}") from error


def make_sampler(strategy: Strategy, *, seed: int) -> optuna.samplers.BaseSampler:
    """Return the sampler that the spec names.

    Args:
        strategy: Name and options.
        seed: Only its lower 32 bits count.

    Raises:
        SpecError: The sampler does not take an option.
    """
    kind = getattr(optuna.samplers, SAMPLERS[strategy.name])
    sampler: optuna.samplers.BaseSampler = _made("sampler", kind, strategy, seed=seed & 0xFFFFFFFF)
    return sampler


def make_pruner(strategy: Strategy) -> optuna.pruners.BasePruner:
    """Return the pruner that the spec names.

    Raises:
        SpecError: The pruner does not take an option.
    """
    kind = getattr(optuna.pruners, PRUNERS[strategy.name])
    pruner: optuna.pruners.BasePruner = _made("pruner", kind, strategy)
    return pruner
