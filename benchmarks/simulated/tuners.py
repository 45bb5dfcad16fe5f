"""The tuners that are compared, each behind the same four methods."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import optuna
from optuna.trial import FrozenTrial, TrialState

from benchmarks.recorded.world import World
from benchmarks.simulated.clock import Job, Parameters, Wish
from benchmarks.simulated.features import Features
from benchmarks.simulated.plan_search import FEWEST, Picture, PlanSearch, hopeless
from tempopt.study.history import frozen


class Optuna:
    """Plain Optuna by ask and tell, in memory.

    Args:
        world: What is searched.
        sampler: Optuna's.
        pruner: Optuna's.
        seed: Seed of the trainings; every one has a seed of its own.
    """

    def __init__(
        self, world: World, sampler: optuna.samplers.BaseSampler, pruner: optuna.pruners.BasePruner, seed: int
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
        whole = self._spec.parameters("search", trial.params)
        return Job(trial, whole, seed=1000 * self._seed + trial.number)

    def report(self, job: Job, step: int, value: float) -> Wish:
        job.handle.report(value, step)
        return "end" if job.handle.should_prune() else "go on"

    def end(self, job: Job, value: float | None) -> None:
        state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        self._study.tell(job.handle, value, state=state)

    def selected(self) -> Parameters | None:
        try:
            return self._spec.parameters("search", self._study.best_trial.params)
        except ValueError:
            return None


class Plans:
    """A search that knows plans, see plan_search.py; not what tempopt does by default.

    Args:
        world: What is searched.
        seed: Seed of the search and of the trainings.
        streams: How many seeds trainings share by turns; None: each has its own.
        startup: Trials that are drawn at random.
        hope: As in :func:`benchmarks.simulated.plan_search.hopeless`.
        prunes: Whether runs are ended early.
        trust: Complete trials from which on the picture names the best, and not the best value.
    """

    def __init__(
        self,
        world: World,
        seed: int,
        *,
        streams: int | None = None,
        startup: int = 8,
        hope: float = 1.0,
        prunes: bool = True,
        trust: int = 5,
    ) -> None:
        self._spec = world.spec
        self._space = world.spec.space()
        self._maximize = world.spec.study.direction == "maximize"
        self._seed = seed
        self._streams = streams
        self._prunes = prunes
        features = Features(world.spec)
        cache: dict[str, Any] = {}

        def describe(sampled: Any) -> Any:
            key = repr(sorted(sampled.items()))
            if key not in cache:
                cache[key] = features(self._spec.parameters("search", sampled))
            return cache[key]

        self._describe = describe
        self._startup = startup
        self._trials: dict[int, FrozenTrial] = {}
        self._hope = hope
        self._selected: Parameters | None = None
        self._trust = trust
        self._stale = False
        self._pictures: dict[int, Picture | None] = {}

    def _seed_of(self, number: int) -> int:
        return number if self._streams is None else number % self._streams

    def ask(self) -> Job | None:
        number = len(self._trials)
        picture = self._picture(list(self._trials.values()))
        search = PlanSearch(seed=hash((self._seed, number)) % 2**32)
        params = search.propose(self._space, picture if number >= self._startup else None)
        self._pictures[number] = picture
        self._trials[number] = frozen(
            number, state=TrialState.RUNNING, distributions=self._space, params=params
        )
        whole = self._spec.parameters("search", params)
        return Job(number, whole, seed=1000 * self._seed + self._seed_of(number))

    def _picture(self, trials: list[FrozenTrial]) -> Picture | None:
        if sum(t.state == TrialState.COMPLETE for t in trials) < FEWEST:
            return None
        return Picture(trials, self._describe, maximize=self._maximize, seed_of=self._seed_of)

    def report(self, job: Job, step: int, value: float) -> Wish:
        own = self._trials[job.handle]
        own.intermediate_values[step] = value
        picture = self._pictures[job.handle]
        if not self._prunes or picture is None or len(picture.complete) < 4:
            return "go on"
        return "end" if hopeless(picture, own, hope=self._hope) else "go on"

    def end(self, job: Job, value: float | None) -> None:
        own = self._trials[job.handle]
        own.state = TrialState.PRUNED if value is None else TrialState.COMPLETE
        own.value = value
        if value is not None:
            self._stale = True

    def selected(self) -> Parameters | None:
        if self._stale:
            self._stale = False
            complete = [t for t in self._trials.values() if t.state == TrialState.COMPLETE]
            sign = 1 if self._maximize else -1
            picture = self._picture(list(self._trials.values()))
            if picture is None or len(complete) < self._trust:
                best = max(complete, key=lambda t: sign * (t.value or 0.0)).params
            else:
                best = PlanSearch(seed=self._seed).recommend(self._space, picture)
            self._selected = self._spec.parameters("search", best)
        return self._selected


Make = Callable[[World, int], Any]

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
    "plans": lambda w, s: Plans(w, s, streams=4),
    "plans, no pruning": lambda w, s: Plans(w, s, streams=4, prunes=False),
}
