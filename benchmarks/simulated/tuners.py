"""The tuners that are compared, each behind the same four methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from benchmarks.recorded.world import RecordedWorld
from benchmarks.simulated.clock import Job, Parameters, Wish
from tempopt.sampling.features import Features
from tempopt.sampling.frozen_history import make_frozen_trial
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.knowledge_gradient import KnowledgeGradient
from tempopt.seeds import derive


class Optuna:
    """Plain Optuna by ask and tell, in memory.

    Args:
        world: What is searched.
        sampler: Optuna's.
        pruner: Optuna's.
        seed: Seed of the trainings; every one has a seed of its own.
    """

    def __init__(
        self,
        world: RecordedWorld,
        sampler: optuna.samplers.BaseSampler,
        pruner: optuna.pruners.BasePruner,
        seed: int,
    ) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._spec = world.spec
        self._space = world.spec.space()
        self._seed = seed
        self._study = optuna.create_study(
            direction=world.spec.study.direction, sampler=sampler, pruner=pruner, study_name=f"s{seed}"
        )

    def ask(self) -> Job | None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trial = self._study.ask(fixed_distributions=self._space)
        params = self._spec.parameters("search", trial.params)
        return Job(trial, params, seed=1000 * self._seed + trial.number)

    def report(self, job: Job, step: int, value: float) -> Wish:
        job.handle.report(value, step)
        return "end" if job.handle.should_prune() else "go on"

    def end(self, job: Job, value: float | None) -> None:
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(job.handle, value, state=state)

    def best_set(self) -> Parameters | None:
        sets = self.best_sets(1)
        return sets[0] if sets else None

    def best_sets(self, count: int) -> list[Parameters]:
        """Return the sets with the best values seen, the best one first."""
        sign = -1.0 if self._spec.study.direction == "maximize" else 1.0
        complete = sorted((t for t in self.trials() if t.value is not None), key=lambda t: sign * t.value)
        wholes = [self._spec.parameters("search", trial.params) for trial in complete]
        return [params for index, params in enumerate(wholes) if params not in wholes[:index]][:count]

    def trials(self) -> list[FrozenTrial]:
        """Return the trials that came to their end."""
        return self._study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))


class Tempopt:
    """tempopt's search arm, in memory: each ticket knows the tickets that it would know in a study.

    Args:
        world: What is searched.
        seed: Seed of the search and of the trainings.
        streams: As ``study.seeds.search``.
        prunes: Whether runs are ended early.
        parallel: As ``study.parallel``.
    """

    def __init__(
        self,
        world: RecordedWorld,
        seed: int,
        *,
        streams: int | None = 2,
        prunes: bool = True,
        parallel: int = 4,
    ) -> None:
        self._spec = world.spec
        self._space = world.spec.space()
        self._seed = seed
        self._streams = streams
        self._prunes = prunes
        self._parallel = parallel
        features = Features(world.spec)
        self._rungs = list(world.rungs)
        self._maximize = world.spec.study.direction == "maximize"
        self._strategy = KnowledgeGradient(
            self._space,
            lambda sampled_params: features(self._spec.parameters("search", sampled_params)),
            maximize=self._maximize,
            num_seeds=streams,
            seed=seed,
        )
        self._trials: list[FrozenTrial] = []
        self._selected: Parameters | None = None
        self._stale = False

    def ask(self) -> Job | None:
        number = len(self._trials)
        trials = self._trials_before(number)
        if any(trial.state == TrialState.RUNNING for trial in trials):
            return None
        seed = derive(self._seed, "sampler", number)
        params = self._strategy.ask(trials, self._trials[len(trials) :], number=number, seed=seed, fixed={})
        if params is None:
            params = initial_params(self._spec, "search", number, seed=self._seed)
        stream = number if self._streams is None else number % self._streams
        self._trials.append(
            make_frozen_trial(number, state=TrialState.RUNNING, distributions=self._space, params=params)
        )
        full_params = self._spec.parameters("search", params)
        return Job(number, full_params, seed=1000 * self._seed + stream)

    def _trials_before(self, number: int) -> list[FrozenTrial]:
        return self._trials[: max(0, number - self._parallel + 1)]

    def report(self, job: Job, step: int, value: float) -> Wish:
        trial = self._trials[job.handle]
        trial.intermediate_values[step] = value
        return (
            "end"
            if self._prunes and self._strategy.prune(self._trials_before(trial.number), trial)
            else "go on"
        )

    def end(self, job: Job, value: float | None) -> None:
        trial = self._trials[job.handle]
        trial.state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        trial.value = value
        if value is not None:
            trial.intermediate_values[self._rungs[-1]] = value
            self._stale = True

    def best_set(self) -> Parameters | None:
        if self._stale:
            self._stale = False
            self._selected = self.best_sets(1)[0]
        return self._selected

    def best_sets(self, count: int) -> list[Parameters]:
        """Return the sets that the search would name, the best single one first."""
        ended_trials = [t for t in self._trials if t.state != TrialState.RUNNING]
        sets = self._strategy.recommend(ended_trials, count=count, seed=self._seed)
        if not sets:
            sign = -1.0 if self._maximize else 1.0
            complete = sorted((t for t in ended_trials if t.value is not None), key=lambda t: sign * t.value)  # type: ignore[operator]
            sets = [trial.params for trial in complete[:count]]
        return [self._spec.parameters("search", params) for params in sets]


Make = Callable[[RecordedWorld, int], Any]

TUNERS: dict[str, Make] = {
    "Optuna random": lambda w, s: Optuna(
        w, optuna.samplers.RandomSampler(seed=s), optuna.pruners.NopPruner(), s
    ),
    "Optuna TPE, Median": lambda w, s: Optuna(
        w, optuna.samplers.TPESampler(seed=s), optuna.pruners.MedianPruner(), s
    ),
    "Optuna TPE, Hyperband": lambda w, s: Optuna(
        w,
        optuna.samplers.TPESampler(seed=s),
        optuna.pruners.HyperbandPruner(min_resource=w.rungs[0], max_resource=w.rungs[-1]),
        s,
    ),
    "Optuna TPE": lambda w, s: Optuna(w, optuna.samplers.TPESampler(seed=s), optuna.pruners.NopPruner(), s),
    "Optuna GP": lambda w, s: Optuna(w, optuna.samplers.GPSampler(seed=s), optuna.pruners.NopPruner(), s),
    "Optuna CMA-ES": lambda w, s: Optuna(
        w, optuna.samplers.CmaEsSampler(seed=s), optuna.pruners.NopPruner(), s
    ),
    "tempopt": Tempopt,
    "tempopt, no pruning": lambda w, s: Tempopt(w, s, prunes=False),
}
