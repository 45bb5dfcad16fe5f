"""Ray Tune and Syne Tune behind a tuner's methods: their own schedulers, called as their own loops call them.

Neither Ray's cluster nor Syne Tune's backends are started. Ray Tune's population based training is left out:
it changes the hyperparameters of a run in the middle and gives it the weights of another one, and what such a
mixture is worth cannot be answered by a world that knows whole trainings with one parameter set each.

Syne Tune 0.16 has neither MOBSTER nor DyHPO, nor has 0.15; both are tried in 0.14.2, the last to have them.
BOHB and ASHACQR are what 0.16 itself offers where the configurations of ASHA are to be chosen by a model.
"""

from __future__ import annotations

import logging
import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution

from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.clock import Job, Parameters, Tuner, Wish

_METRIC, _RESOURCE = "value", "resource"


@dataclass(slots=True)
class _Run:
    """A trial of either tool.

    Args:
        trial: What the tool's scheduler is given.
        parameters: The whole parameter set.
        seed: Seed of the training.
        last: The last result that the tool was told.
        best: The best so far, more being better.
        trained: Rungs of which the tool was told.
    """

    trial: Any
    parameters: Parameters
    seed: int
    last: float = math.nan
    best: float = -math.inf
    trained: int = 0


@dataclass(frozen=True, slots=True)
class _RayTrial:
    """What :class:`ray.tune.schedulers.AsyncHyperBandScheduler` asks of a trial."""

    trial_id: str


class RayTune:
    """Ray Tune's asynchronous successive halving, with the searcher that Ray Tune has if none is named.

    Args:
        world: What is searched.
        seed: Seed of searcher and trainings; every training has a seed of its own.
    """

    def __init__(self, world: RecordedWorld, seed: int) -> None:
        from ray.tune.schedulers import AsyncHyperBandScheduler

        self._spec = world.spec
        self._seed = seed
        self._rungs = world.rungs
        self._sign = 1.0 if world.spec.study.direction == "maximize" else -1.0
        self._space = _convert_space(world, "ray.tune")
        # what BasicVariantGenerator(random_state=seed) makes of its seed (tune/search/sample.py)
        self._rng = np.random.default_rng(seed)
        # The resource is steps; rungs come at the first validation and at 4, 16, … times as many.
        self._scheduler: Any = AsyncHyperBandScheduler(
            time_attr=_RESOURCE,
            metric=_METRIC,
            mode="max" if self._sign > 0 else "min",
            grace_period=world.rungs[0],
            max_t=world.rungs[-1],
        )
        self._runs: list[_Run] = []

    def ask(self) -> Job | None:
        from ray.tune.search.variant_generator import generate_variants

        # BasicVariantGenerator draws each of its samples so (tune/search/basic_variant.py); it would itself
        # ask for an experiment with a trainable.
        _, sampled_params = next(generate_variants(self._space, random_state=self._rng))
        number = len(self._runs)
        trial = _RayTrial(f"{number:05d}")
        run = _Run(trial, self._spec.parameters("search", sampled_params), seed=1000 * self._seed + number)
        self._runs.append(run)
        self._scheduler.on_trial_add(None, trial)
        return Job(run, run.parameters, run.seed)

    def report(self, job: Job, step: int, value: float) -> Wish:
        run: _Run = job.handle
        run.last = value
        decision = self._scheduler.on_trial_result(None, run.trial, {_RESOURCE: step, _METRIC: value})
        run.trained += 1
        return "go on" if decision == self._scheduler.CONTINUE else "end"

    def end(self, job: Job, value: float | None) -> None:
        run: _Run = job.handle
        if value is not None:
            self.report(job, self._rungs[-1], value)
        # A trial that the scheduler stopped is complete, too (stop_trial, tune/execution/tune_controller.py).
        result = {_RESOURCE: self._rungs[run.trained - 1], _METRIC: run.last}
        self._scheduler.on_trial_complete(None, run.trial, result)

    def best_set(self) -> Parameters | None:
        # ResultGrid.get_best_result (tune/result_grid.py) has scope="last": the last result of every trial,
        # running ones and those stopped early included. Of equals it takes the first (get_best_trial,
        # tune/analysis/experiment_analysis.py).
        reported_runs = [run for run in self._runs if not math.isnan(run.last)]
        return max(reported_runs, key=lambda run: self._sign * run.last).parameters if reported_runs else None


class SyneTune:
    """One of Syne Tune's schedulers, called as its ``Tuner`` does (syne_tune/tuner.py).

    Args:
        world: What is searched.
        make: Makes the scheduler.
        seed: Seed of scheduler and trainings; every training has a seed of its own.
    """

    def __init__(self, world: RecordedWorld, make: Callable[[RecordedWorld, int], Any], seed: int) -> None:
        from syne_tune.optimizer.scheduler import TrialScheduler

        logging.getLogger("syne_tune").setLevel(logging.ERROR)
        self._spec = world.spec
        self._names = tuple(world.spec.space())
        self._seed = seed
        self._rungs = world.rungs
        self._sign = 1.0 if world.spec.study.direction == "maximize" else -1.0
        self._chance = np.random.RandomState(seed).get_state()
        with self._theirs():
            self._scheduler = make(world, seed)
        # MOBSTER and DyHPO are of the generation of schedulers that are told the number of the next trial.
        self._told_number = not isinstance(self._scheduler, TrialScheduler)
        self._runs: list[_Run] = []

    @contextmanager
    def _theirs(self) -> Iterator[None]:
        """Quietly lend Syne Tune a state of numpy's global generator that is this search's own.

        The random searcher of 0.16 draws from there whatever seed it is given
        (syne_tune/optimizer/schedulers/searchers/random_searcher.py), and so does the one of BOHB.
        """
        random_state = np.random.get_state()
        np.random.set_state(self._chance)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield
        finally:
            self._chance = np.random.get_state()
            np.random.set_state(random_state)

    def ask(self) -> Job | None:
        from syne_tune.backend.trial_status import Trial

        number = len(self._runs)
        with self._theirs():
            suggestion = self._scheduler.suggest(number) if self._told_number else self._scheduler.suggest()
        if suggestion is None:
            return None
        if not suggestion.spawn_new_trial_id:
            assert suggestion.config is None, "without max_resource_attr a trial goes on as it is"
            run = self._runs[suggestion.checkpoint_trial_id]
            return Job(run, run.parameters, run.seed, trained_rungs=run.trained)
        # when a trial was made is read by nothing that is called here
        trial = Trial(number, suggestion.config.copy(), datetime.fromtimestamp(0, UTC))
        sampled_params = {name: suggestion.config[name] for name in self._names}
        run = _Run(trial, self._spec.parameters("search", sampled_params), seed=1000 * self._seed + number)
        self._runs.append(run)
        with self._theirs():
            self._scheduler.on_trial_add(trial)
        return Job(run, run.parameters, run.seed)

    def report(self, job: Job, step: int, value: float) -> Wish:
        from syne_tune.optimizer.scheduler import SchedulerDecision

        run: _Run = job.handle
        # The resource is a rung's number, 1, 2, …, as epochs are: grace_period=1, the default, is the first
        # validation, and MOBSTER and DyHPO place their rungs at whole numbers of it.
        resource = self._rungs.index(step) + 1
        if resource <= run.trained:
            return "go on"  # a resumed trial reports anew only what it had not reached
        run.trained, run.last, run.best = resource, value, max(run.best, self._sign * value)
        with self._theirs():
            decision = self._scheduler.on_trial_result(run.trial, {_RESOURCE: resource, _METRIC: value})
        return "go on" if decision == SchedulerDecision.CONTINUE else "end"

    def end(self, job: Job, value: float | None) -> None:
        if value is not None:
            wish = self.report(job, self._rungs[-1], value)
            assert wish == "end", "schedulers stop trials at max_t themselves"
        # After a decision to stop or to pause, Tuner._update_running_trials calls on_trial_remove, and
        # on_trial_complete no longer; at max_t that decision is always taken.
        self._scheduler.on_trial_remove(job.handle.trial)

    def best_set(self) -> Parameters | None:
        # Tuner.best_config (syne_tune/tuner.py) takes the best of all results, those on the way included; the
        # first of equals (print_best_metric_found, syne_tune/tuning_status.py).
        trained_runs = [run for run in self._runs if run.trained]
        return max(trained_runs, key=lambda run: run.best).parameters if trained_runs else None


def _convert_space(world: RecordedWorld, module: str) -> dict[str, Any]:
    """Return the search space in the domains of a module; both tools give them the same three names."""
    from importlib import import_module

    domains = import_module(module)

    def domain(distribution: BaseDistribution) -> Any:
        if isinstance(distribution, CategoricalDistribution):
            return domains.choice(list(distribution.choices))
        assert isinstance(distribution, FloatDistribution) and distribution.step is None
        draw = domains.loguniform if distribution.log else domains.uniform
        return draw(distribution.low, distribution.high)

    return {name: domain(distribution) for name, distribution in world.spec.space().items()}


def _scheduler_maker(name: str) -> Callable[[RecordedWorld, int], Tuner]:
    """Return what makes a scheduler of Syne Tune 0.16 by its name among the baselines."""

    def scheduler(world: RecordedWorld, seed: int) -> Any:
        from syne_tune.optimizer import baselines

        return getattr(baselines, name)(
            _convert_space(world, "syne_tune.config_space"),
            metric=_METRIC,
            time_attr=_RESOURCE,
            max_t=len(world.rungs),
            do_minimize=world.spec.study.direction == "minimize",
            random_seed=seed,
        )

    return lambda world, seed: SyneTune(world, scheduler, seed)


def _legacy(name: str) -> Callable[[RecordedWorld, int], Tuner]:
    """Return what makes a scheduler of Syne Tune 0.14.2 by its name among the legacy baselines."""

    def scheduler(world: RecordedWorld, seed: int) -> Any:
        try:
            from syne_tune.optimizer import legacy_baselines
        except ImportError as error:
            raise ImportError(f"{name} needs syne-tune[gpsearchers]==0.14.2, the last with it") from error
        return getattr(legacy_baselines, name)(
            _convert_space(world, "syne_tune.config_space"),
            metric=_METRIC,
            resource_attr=_RESOURCE,
            max_t=len(world.rungs),
            mode="min" if world.spec.study.direction == "minimize" else "max",
            random_seed=seed,
        )

    return lambda world, seed: SyneTune(world, scheduler, seed)


OTHERS: dict[str, Callable[[RecordedWorld, int], Tuner]] = {
    "Ray Tune ASHA": RayTune,
    "Syne Tune ASHA": _scheduler_maker("ASHA"),
    "Syne Tune BOHB": _scheduler_maker("BOHB"),
    "Syne Tune ASHACQR": _scheduler_maker("ASHACQR"),
    "Syne Tune MOBSTER": _legacy("MOBSTER"),
    "Syne Tune DyHPO": _legacy("DyHPO"),
}
