"""The samplers and pruners that a spec may name: Optuna's own, with the spec's options and a derived seed."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial

from tempopt.errors import SpecError, unknown
from tempopt.spec.study_spec import PRUNERS, SAMPLERS, Strategy

# Optuna 5's defaults, written down so that another version of it does not change a study.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "tpe": {"multivariate": True, "constant_liar": True},
    "median": {"n_startup_trials": 5},
}


class Tpe(optuna.samplers.TPESampler):
    """Optuna's TPE, that can be told what it would else gather from every trial at every draw.

    At 10,000 trials the gathering is most of what a draw costs. Nothing else is changed, so that it draws
    what Optuna's draws.

    Attributes:
        shared: Distributions that all trials have, of which at least one is finished; None: not known.
        rows: Internal values of ``shared``'s names, in its order, one row a trial, by trial number.
    """

    shared: Mapping[str, BaseDistribution] | None = None
    rows: np.ndarray[Any, np.dtype[np.float64]] = np.empty((0, 0))

    def infer_relative_search_space(
        self, study: optuna.Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """Return the distributions that are sampled together, by name in alphabetical order."""
        if self.shared is None or self._group or not self._is_multivariate(study):
            return super().infer_relative_search_space(study, trial)
        return {name: each for name, each in sorted(self.shared.items()) if not each.single()}

    def _get_internal_repr(
        self, trials: list[FrozenTrial], search_space: dict[str, BaseDistribution], study: optuna.Study
    ) -> dict[str, np.ndarray[Any, Any]]:
        if self.shared is None or not trials:
            return super()._get_internal_repr(trials, search_space, study)
        rows = self.rows[[trial.number for trial in trials]]
        return {name: rows[:, place] for place, name in enumerate(self.shared) if name in search_space}


def _made(what: str, kind: type[Any], strategy: Strategy, **forced: Any) -> Any:
    allowed = [name for name in inspect.signature(kind).parameters if name != "seed"]
    for option in strategy.options:
        if option not in allowed:
            raise SpecError(f"study.{what}: " + unknown(f"option of {strategy.name}", option, allowed))
    try:
        return kind(**_DEFAULTS.get(strategy.name, {}) | strategy.options | forced)
    except (TypeError, ValueError) as error:
        raise SpecError(f"study.{what}: {strategy.name} does not take {strategy.options}: {error}") from error


def make_sampler(strategy: Strategy, *, seed: int) -> optuna.samplers.BaseSampler | None:
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
    kind = Tpe if strategy.name == "tpe" else getattr(optuna.samplers, name)
    sampler: optuna.samplers.BaseSampler = _made("sampler", kind, strategy, seed=seed & 0xFFFFFFFF)
    return sampler


def make_pruner(strategy: Strategy) -> optuna.pruners.BasePruner | None:
    """Return the pruner of Optuna that the spec names; None: it is tempopt's own, in knowledge_gradient.py.

    Raises:
        SpecError: The pruner does not take an option.
    """
    name = PRUNERS[strategy.name]
    if name is None:
        return None
    kind = getattr(optuna.pruners, name)
    pruner: optuna.pruners.BasePruner = _made("pruner", kind, strategy)
    return pruner
