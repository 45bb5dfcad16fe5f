"""The knowledge gradient of an arm: which trial to start, prune or resume, and what to recommend.

Every decision has one measure: how much better the parameter set that would be named is expected to be for
it, by training step. Values are those of parameter sets in the mean over seeds, so that no lucky run is
followed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState
from scipy.stats import qmc

from tempopt.records.rows import Parameters
from tempopt.sampling.guarding import LIKELY, Guarding
from tempopt.sampling.prior_study import PriorStudy
from tempopt.sampling.surrogate import (
    Forecast,
    Posterior,
    Runs,
    Surrogate,
    continuation_value,
    knowledge_gradient,
    near,
    select_batch,
)
from tempopt.sampling.unit_cube import at_place, at_places, nearest, place_of
from tempopt.spec.sections import FEWEST

Array = NDArray[np.float64]
Row = TypeVar("Row", bound=tuple[Any, ...])
Describe = Callable[[Mapping[str, Any]], Array]
"""Turns sampled values into the features of the parameter set that they make."""

_ENOUGH = 6
_COMPLETE = 1 / 3
"""Least share of ended trials that are complete: the prediction of final values is fitted to them."""
_PATIENCE = 0.5
"""Share of a new run's worth that the rest of a run may fall to before it is ended: forecasts can err."""
_NOTHING = 1e-6
"""Share of the range of means below which a rise of the best is a matter of rounding."""
_TELLING = 240
"""Runs that are looked at, at most: a fit takes time by the third power of their number."""
_IN_FLIGHT = 32
_FROM_EARLIER = 2
_EVERYWHERE = 256
_CENTRES = 6
_NEAR = 10
_WIDTH = 0.1
_REDRAWN = 0.15


class ArmModel:
    """What the runs of an arm that may be known say of any parameter set.

    Args:
        complete: Trials that came to their end, at least one.
        broken: Those that were ended, and that diverged.
        describe: Turns sampled values into features.
        maximize: Whether more of the metric is better; here, more is always better.
        stream_of: Which of the study's seeds the trial of a number is trained with.
        trends: How many of the features, the last ones, are what earlier studies say.
        guarding: What guards ask of a parameter set; None: nothing.
    """

    def __init__(
        self,
        complete: Sequence[FrozenTrial],
        broken: Sequence[FrozenTrial],
        describe: Describe,
        *,
        maximize: bool,
        stream_of: Callable[[int], int],
        trends: int = 0,
        guarding: Guarding | None = None,
    ) -> None:
        self._describe = describe
        self._stream_of = stream_of
        self._sign = 1.0 if maximize else -1.0
        self.total_steps = max(max(t.intermediate_values, default=1) for t in complete)
        """Steps of the longest run."""
        self._forecast = Forecast([(self._reports(t), self._value(t)) for t in complete])
        self.may_prune = len(complete) >= max(_ENOUGH, _COMPLETE * (len(complete) + len(broken)))
        """Whether so many runs came to their end that forecasts go by more than a few lucky ones."""
        rows = [(trial, self._value(trial), 0.0) for trial in complete]
        worst = min(value for _, value, _ in rows)
        for trial in broken:
            # a run that diverged has no value, and is as bad as the worst that has one
            diverged = not _finite(trial)
            said = (worst, 0.0) if diverged else self._forecast(self._reports(trial))
            if said is not None:
                rows.append((trial, *said))
        rows = telling(rows)
        self.trials: list[FrozenTrial] = [trial for trial, _, _ in rows]
        self._features_ND = np.array([describe(trial.params) for trial in self.trials])
        self.surrogate = Surrogate(
            Runs(
                features_ND=self._features_ND,
                seeds_N=np.array([stream_of(trial.number) for trial in self.trials]),
                values_N=near(np.array([value for _, value, _ in rows])),
                excess_N=np.array([excess for _, _, excess in rows]),
            ),
            trends=trends,
        )
        self._base, self._weigh = 0.0, None
        if guarding is not None:
            own = [trial for trial, _ in telling([(trial, self._value(trial)) for trial in complete])]
            self._base, self._weigh = guarding.base, guarding.weigh(own, describe, stream_of, trends)

    def posterior(self, features_MD: Array, *, pending: Sequence[FrozenTrial] = ()) -> Posterior:
        """Return the predicted means of parameter sets; more is better.

        Args:
            features_MD: The parameter sets, described.
            pending: Trials in progress, taken to reach their predicted values.
        """
        waiting = np.array([self._describe(trial.params) for trial in pending])
        streams = np.array([self._stream_of(trial.number) for trial in pending], dtype=np.int64)
        expecting = self.surrogate.expecting(waiting, streams)
        return expecting.posterior(features_MD, self._weigh, self._base)

    def worth_of_rest(self, trial: FrozenTrial, posterior: Posterior) -> float | None:
        """Return what a step of the rest of a run is worth; None: nothing can be said yet.

        Args:
            trial: The run, with what it has reported.
            beliefs: What parameter sets that might be named come to.
        """
        said = self._forecast(self._reports(trial))
        left = self.total_steps - max(trial.intermediate_values, default=0)
        if said is None or left <= 0:
            return None
        forecast, doubt = said
        described_D = self._describe(trial.params)
        both = posterior.joined_by(described_D)
        mean_1, variance_1, together_M1 = both.of_runs(described_D[None], self._stream_of(trial.number))
        run = float(mean_1[0]), float(variance_1[0]), together_M1[:, 0]
        return continuation_value(both.mean_M, run=run, forecast=forecast, doubt=doubt) / left

    def worth_of_new(self, posterior: Posterior, number: int) -> Array:
        """Return what a step of a new run is worth, for each of the parameter sets.

        Args:
            beliefs: What the parameter sets come to.
            number: Number of the trial that would train one of them.
        """
        _, variance_M, together_MM = posterior.of_runs(posterior.features_MD, self._stream_of(number))
        return knowledge_gradient(posterior.mean_M, variance_M, together_MM) / self.total_steps

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """The trials, in descending order of the predicted mean of their sets, as far as it counts."""
        mean_N = self.surrogate.mean(self._features_ND)
        if self._weigh is not None:
            mean_N = self._weigh(self._features_ND) * (mean_N - self._base)
        return [self.trials[place] for place in np.argsort(-mean_N, kind="stable")]

    def _value(self, trial: FrozenTrial) -> float:
        assert trial.value is not None
        return self._sign * float(trial.value)

    def _reports(self, trial: FrozenTrial) -> dict[int, float]:
        return {step: self._sign * value for step, value in _finite(trial).items()}


class KnowledgeGradient:
    """Decides for one arm by what is known.

    Args:
        space: What the arm samples.
        describe: Turns sampled values into features.
        maximize: Whether more of the metric is better.
        streams: How many seeds the arm's trials share by turns; None: each has its own.
        thaws: Whether a run that was ended can be continued: another with its values and its seed.
        seed: What is drawn once for all trials follows from it.
        earlier: What earlier studies say.
        guarding: What guards ask of a parameter set; None: nothing.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        describe: Describe,
        *,
        maximize: bool,
        streams: int | None,
        thaws: bool,
        seed: int,
        earlier: Sequence[PriorStudy] = (),
        guarding: Guarding | None = None,
    ) -> None:
        self._space = dict(space)
        self._guarding = guarding
        self._earlier = earlier
        self._describe = _with_earlier(describe, earlier) if earlier else describe
        self._maximize = maximize
        self._streams = streams
        self._thaws = thaws
        self._seed = seed & 0xFFFFFFFF
        self._kept: dict[tuple[int, ...], ArmModel | None] = {}
        self._new: dict[int, tuple[Posterior, float]] = {}
        self._trials_described: dict[int, Array] = {}

    def model(self, known: Sequence[FrozenTrial]) -> ArmModel | None:
        """Return what the first trials of the arm say; None: too few of them are complete."""
        numbers = tuple(trial.number for trial in known)
        if numbers not in self._kept:
            _forget(self._kept)
            told = _of_use(known, self._stream_of)
            self._kept[numbers] = (
                ArmModel(
                    *told,
                    self._describe,
                    maximize=self._maximize,
                    stream_of=self._stream_of,
                    trends=len(self._earlier),
                    guarding=self._guarding,
                )
                if len(told[0]) >= FEWEST
                else None
            )
        return self._kept[numbers]

    def first(self, number: int) -> Parameters | None:
        """Return what earlier studies would have a trial begin with; None: they have no more to say.

        Args:
            number: Number of the trial. The first is not for them to say.
        """
        return self._firsts[number - 1] if 1 <= number <= len(self._firsts) else None

    @cached_property
    def _firsts(self) -> list[Parameters]:
        asked = [each for each in self._earlier if each.begins]
        if not asked:
            return []
        pool, features_MD = self._everywhere
        rng, own_MD = np.random.default_rng(self._seed), features_MD[:, : -len(self._earlier)]
        named = [each.best(own_MD, count=_FROM_EARLIER, rng=rng) for each in asked]
        # the best of each, then the second best of each
        return [pool[place] for place in dict.fromkeys(itertools.chain(*zip(*named, strict=True)))]

    def ask(
        self,
        known: Sequence[FrozenTrial],
        pending: Sequence[FrozenTrial],
        *,
        number: int,
        seed: int,
        fixed: Mapping[str, Any],
    ) -> Parameters | None:
        """Return the values to train with; None: too little is known to say.

        Args:
            known: The first trials of the arm, all over.
            pending: Those between them and the one that is asked for.
            number: Number of the trial that is asked for.
            seed: What is drawn follows from it.
            fixed: Values that are not to be chosen.
        """
        model = self.model(known)
        if model is None:
            return None
        rng = np.random.default_rng(seed)
        pool, features_MD = self._pool(model, rng, fixed)
        posterior = model.posterior(features_MD, pending=pending)
        trials = [*known, *pending]
        best, worth = self._best_new(model, posterior, trials, number)
        return self._thawed(model, trials, posterior, number, worth) or pool[best]

    def prune(self, known: Sequence[FrozenTrial], own: FrozenTrial) -> bool:
        """Return whether the rest of a run is worth much less, by step, than a new run.

        Args:
            known: The first trials of the arm, all over.
            own: The run, with what it has reported.
        """
        model = self.model(known)
        if model is None or not model.may_prune:
            return False
        last = max(own.intermediate_values)
        if last <= self._trained_before(known, own):
            return False
        if last not in _finite(own):
            return True
        posterior, worth = self._worth_of_new(model, known)
        rest = model.worth_of_rest(own, posterior)
        return rest is not None and rest < _PATIENCE * worth

    def prospect(self, known: Sequence[FrozenTrial]) -> tuple[float, float] | None:
        """Return how much better one more run is expected to make what would be named, and a run's noise.

        Both in units of the metric; None: too little is known to say.

        Args:
            known: The first trials of the arm, all over.
        """
        model = self.model(known)
        if model is None or not model.may_prune:
            return None
        _, worth = self._worth_of_new(model, known)
        return worth * model.total_steps, model.surrogate.noise

    def recommend(self, known: Sequence[FrozenTrial], *, count: int, seed: int) -> list[Parameters]:
        """Return the parameter sets of which one is expected to be best, the best single one first.

        Where there are guards, of those that are likely to keep them, if there are any.

        Args:
            known: Trials that are over.
            count: How many at most.
            seed: What is drawn follows from it.
        """
        model = self.model(known)
        if model is None:
            return []
        rng = np.random.default_rng(seed)
        tried = [trial.params for trial in model.ranked]
        others, features_MD = self._pool(model, rng)
        pool = [*tried, *others]
        posterior = model.posterior(np.vstack([self._described(tried), features_MD]))
        if self._guarding is not None and (likely := np.flatnonzero(posterior.weights_M >= LIKELY)).size:
            pool = [pool[place] for place in likely]
            posterior = model.posterior(posterior.features_MD[likely])
        places = select_batch(posterior, count=min(count, len(pool)), rng=rng)
        return [pool[place] for place in places]

    def _worth_of_new(self, model: ArmModel, known: Sequence[FrozenTrial]) -> tuple[Posterior, float]:
        """Return what might be named, as far as it is known, and what a step of a new run is worth."""
        end = len(known)
        if end not in self._new:
            _forget(self._new)
            _, features_MD = self._pool(model, np.random.default_rng(end))
            posterior = model.posterior(features_MD)
            _, worth = self._best_new(model, posterior, known, end)
            self._new[end] = posterior, worth
        return self._new[end]

    def _best_new(
        self, model: ArmModel, posterior: Posterior, trials: Iterable[FrozenTrial], number: int
    ) -> tuple[int, float]:
        """Return the place of the set whose training is worth most to a trial, and what a step is worth.

        Where nothing is left to be learned it is the set that is expected to be best. A set that was trained
        with the trial's seed would give the same values again; it is taken only where there is
        no other.
        """
        stream = self._stream_of(number)
        taken = {self._described_once(t).tobytes() for t in trials if self._stream_of(t.number) == stream}
        worth_M = model.worth_of_new(posterior, number)
        nothing = _NOTHING * float(np.ptp(posterior.mean_M)) / model.total_steps
        order = np.lexsort((-posterior.mean_M, -np.where(worth_M > nothing, worth_M, 0.0))).tolist()
        best = next((each for each in order if posterior.features_MD[each].tobytes() not in taken), order[0])
        return best, float(worth_M[best])

    def _described_once(self, trial: FrozenTrial) -> Array:
        if trial.number not in self._trials_described:
            self._trials_described[trial.number] = self._described([trial.params])[0]
        return self._trials_described[trial.number]

    def _described(self, many: Sequence[Mapping[str, Any]]) -> Array:
        return np.array([self._describe(each) for each in many])

    def _thawed(
        self,
        model: ArmModel,
        trials: Sequence[FrozenTrial],
        posterior: Posterior,
        number: int,
        worth: float,
    ) -> Parameters | None:
        """Return the values of a run that was ended and is worth continuing rather than a new one."""
        if not self._thaws:
            return None
        mine = self._stream_of(number)
        taken = {_training(t, self._stream_of) for t in trials if t.state != TrialState.PRUNED}
        best, found = worth, None
        for trial in model.trials:
            paused = trial.state == TrialState.PRUNED and _finite(trial)
            if not paused or self._stream_of(trial.number) != mine:
                continue
            if _training(trial, self._stream_of) in taken:
                continue
            rest = model.worth_of_rest(trial, posterior)
            if rest is not None and rest > best:
                best, found = rest, dict(trial.params)
        return found

    def _trained_before(self, known: Sequence[FrozenTrial], own: FrozenTrial) -> int:
        """Return up to which step a run only repeats one that was ended there: it was asked to go on."""
        stream = self._stream_of(own.number)
        # of many trials hardly one has the same values, and they are asked at every report
        alike = (t for t in known if t.params == own.params and self._stream_of(t.number) == stream)
        return max((max(trial.intermediate_values, default=0) for trial in alike), default=0)

    def _stream_of(self, number: int) -> int:
        return number if self._streams is None else number % self._streams

    def _pool(
        self, model: ArmModel, rng: np.random.Generator, fixed: Mapping[str, Any] | None = None
    ) -> tuple[list[Parameters], Array]:
        """Return parameter sets from everywhere, and more from near the best ones, and all described."""
        everywhere, described_MD = self._everywhere
        near = [self._moved(t.params, rng) for t in model.ranked[:_CENTRES] for _ in range(_NEAR)]
        if not fixed:
            return [*everywhere, *near], np.vstack([described_MD, self._described(near)])
        pool = [{**each, **fixed} for each in (*everywhere, *near)]
        return pool, self._described(pool)

    @cached_property
    def _everywhere(self) -> tuple[list[Parameters], Array]:
        sobol = qmc.Sobol(len(self._space), seed=self._seed).random(_EVERYWHERE)
        found = [at_places(self._space, places) for places in sobol]
        for each in (each for each in self._earlier if each.begins):
            found += [nearest(self._space, parameters) for parameters in each.parameters]
        return found, self._described(found)

    def _moved(self, centre: Mapping[str, Any], rng: np.random.Generator) -> Parameters:
        moved = {}
        for name, each in self._space.items():
            held = centre.get(name)
            if held is None or (isinstance(each, CategoricalDistribution) and rng.random() < _REDRAWN):
                moved[name] = at_place(each, rng.random())
            elif isinstance(each, CategoricalDistribution):
                moved[name] = held
            else:
                place = place_of(each, held) + _WIDTH * rng.standard_normal()
                moved[name] = at_place(each, min(max(place, 0.0), 1.0))
        return moved


def _with_earlier(describe: Describe, earlier: Sequence[PriorStudy]) -> Describe:
    def described(sampled: Mapping[str, Any]) -> Array:
        own_D = describe(sampled)
        return np.append(own_D, [each(own_D) for each in earlier])

    return described


def _of_use(
    trials: Iterable[FrozenTrial], stream_of: Callable[[int], int]
) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Return the trials that came to their end, and those that were ended and may be forecast.

    Of trials that are one training, ended and continued, the longest has told all that the others did.
    """
    longest: dict[Hashable, tuple[bool, int, FrozenTrial]] = {}
    for trial in trials:
        ended = trial.state == TrialState.COMPLETE
        complete = ended and trial.value is not None and math.isfinite(trial.value)
        if not complete and trial.state != TrialState.PRUNED:
            continue
        training = _training(trial, stream_of)
        told = complete, max(trial.intermediate_values, default=0), trial
        if training not in longest or told[:2] > longest[training][:2]:
            longest[training] = told
    kept = sorted(longest.values(), key=lambda told: told[2].number)
    return [t for complete, _, t in kept if complete], [t for complete, _, t in kept if not complete]


def _finite(trial: FrozenTrial) -> dict[int, float]:
    """Return what a trial has reported, without what is no number."""
    return {step: value for step, value in trial.intermediate_values.items() if math.isfinite(value)}


def _training(trial: FrozenTrial, stream_of: Callable[[int], int]) -> Hashable:
    """Return what is equal for trials with the same values and seed, which are one training."""
    # a choice may be a list
    return stream_of(trial.number), frozenset((name, repr(value)) for name, value in trial.params.items())


def telling(rows: list[Row]) -> list[Row]:
    """Return the rows that tell most where there are too many: half of them the best, half from all over.

    Args:
        rows: Each with its value in second place; more is better.
    """
    if len(rows) <= _TELLING:
        return rows
    order = sorted(rows, key=lambda row: row[1], reverse=True)
    best, others = order[: _TELLING // 2], order[_TELLING // 2 :]
    places = np.linspace(0, len(others) - 1, _TELLING - len(best)).round().astype(int)
    return best + [others[place] for place in places]


def _forget(kept: dict[Any, Any]) -> None:
    """Make room for one more: trials in flight ask by turns, each for what it may know."""
    if len(kept) >= _IN_FLIGHT:
        del kept[next(iter(kept))]
