"""The knowledge gradient of an arm: which trial to start or prune, and what to recommend.

Every decision has one measure: how much better the parameter set that would be named is expected to be for
it, by training step that is left to train. Values are those of parameter sets in the mean over seeds, so
that no lucky run is followed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tempopt.records.rows import Parameters
from tempopt.sampling.arm_model import ArmModel, Array, Describe, finite
from tempopt.sampling.guarding import LIKELY, Guarding
from tempopt.sampling.parameter_sets import ParameterSets
from tempopt.sampling.prior_study import PriorStudy
from tempopt.sampling.surrogate import Posterior, select_batch
from tempopt.seeds import shared_seed
from tempopt.spec.sections import FEWEST, MOST_RUNS

_PATIENCE = 0.5
"""Share of a new run's worth that the rest of a run may fall to before it is ended: forecasts can err."""
_NOTHING = 1e-6
"""Share of the range of means below which a rise of the best is a matter of rounding."""
_IN_FLIGHT = 32
_CLEARLY = 0.5
"""Standard deviations of their difference by which a set has to be expected to beat the best constant."""
_REFINEMENTS = 3


class KnowledgeGradient:
    """Decides for one arm by what is known.

    Args:
        space: What the arm samples.
        describe: Turns sampled values into features.
        maximize: Whether more of the metric is better.
        streams: How many seeds the arm's trials share; None: each has its own.
        seed: What is drawn once for all trials follows from it.
        earlier: What earlier studies say.
        guarding: What guards ask of a parameter set; None: nothing.
        list_design: Returns the trials outside of the arm that its model learns from, too; all over. Takes
            how many runs at the baseline are among them; None: all.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        describe: Describe,
        *,
        maximize: bool,
        streams: int | None,
        seed: int,
        earlier: Sequence[PriorStudy] = (),
        guarding: Guarding | None = None,
        list_design: Callable[[int | None], Sequence[FrozenTrial]] = lambda num_baseline: (),
    ) -> None:
        self._list_design = list_design
        self._guarding = guarding
        self._earlier = earlier
        self.describe = _with_earlier(describe, earlier) if earlier else describe
        self._maximize = maximize
        self._streams = streams
        self._sets = ParameterSets(space, self.describe, seed=seed & 0xFFFFFFFF, earlier=earlier)
        self._kept: dict[tuple[int, ...], ArmModel | None] = {}
        self._new: dict[int, tuple[Posterior, float]] = {}
        self._trials_described: dict[int, Array] = {}

    def model(self, known: Sequence[FrozenTrial], *, num_baseline: int | None = None) -> ArmModel | None:
        """Return what the first trials of the arm say, with its design; None: too few are complete.

        Args:
            known: The first trials of the arm, all over.
            num_baseline: How many runs at the baseline the design has; None: all that are over.
        """
        design = self._list_design(num_baseline)
        numbers = tuple(trial.number for trial in (*design, *known))
        if numbers not in self._kept:
            _forget(self._kept)
            told = _of_use([*design, *known], self._stream_of)
            num_complete = sum(trial.state == TrialState.COMPLETE for trial in known)
            self._kept[numbers] = (
                ArmModel(
                    *told,
                    self.describe,
                    maximize=self._maximize,
                    stream_of=self._stream_of,
                    trends=len(self._earlier),
                    guarding=self._guarding,
                )
                if min(len(told[0]), num_complete) >= FEWEST
                else None
            )
        return self._kept[numbers]

    def first(self, number: int) -> Parameters | None:
        """Return what earlier studies would have a trial begin with; None: they have no more to say.

        Args:
            number: Number of the trial. The first is not for them to say.
        """
        firsts = self._sets.firsts
        return firsts[number - 1] if 1 <= number <= len(firsts) else None

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
        model, trials = self.model(known), [*known, *pending]
        if (new := self._untried(trials, number, fixed, begins=model is None)) is not None:
            return new
        if model is None:
            return None
        rng = np.random.default_rng(seed)
        pool, features_MD = self._pool(model, rng, fixed)
        posterior = model.posterior(features_MD, pending=pending)
        best, _ = self._best_new(model, posterior, trials, number)
        return pool[best]

    def prune(self, known: Sequence[FrozenTrial], own: FrozenTrial) -> bool:
        """Return whether the rest of a run is worth much less, by step, than a new run.

        Args:
            known: The first trials of the arm, all over.
            own: The run, with what it has reported.
        """
        model = self.model(known)
        if model is None or not model.may_prune:
            return False
        if max(own.intermediate_values) not in finite(own):
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

    def recommend(
        self,
        known: Sequence[FrozenTrial],
        *,
        count: int,
        seed: int,
        constant: Mapping[str, Any] | None = None,
        accepts: Callable[[Mapping[str, Any]], bool] = bool,
    ) -> list[Parameters]:
        """Return the parameter sets of which one is expected to be best, the best single one first.

        Where there are guards, of those that are likely to keep them, if there are any. A constant
        temperature is named first unless another set is expected to be better by half a standard deviation of
        their difference.

        Args:
            known: Trials that are over.
            count: How many at most.
            seed: What is drawn follows from it.
            constant: The best constant temperature; None: none has priority.
            accepts: Returns whether a parameter set may be named.
        """
        model = self.model(known)
        if model is None:
            return []
        rng = np.random.default_rng(seed)
        pool, features_MD = self._nameable(model, rng)
        if model.has_only_diverged:
            trained = [row_D.tobytes() not in model.has_only_diverged for row_D in features_MD]
            pool, features_MD = list(itertools.compress(pool, trained)), features_MD[trained]
        if constant is not None:
            pool, features_MD = _distinct(
                [*pool, dict(constant)], np.vstack([features_MD, self._sets.described([constant])])
            )
        accepted = [place for place, candidate in enumerate(pool) if accepts(candidate)]
        if not accepted:
            return []
        pool, features_MD = [pool[place] for place in accepted], features_MD[accepted]
        posterior = model.posterior(features_MD)
        if self._guarding is not None and (likely := np.flatnonzero(posterior.weights_M >= LIKELY)).size:
            pool, features_MD = [pool[place] for place in likely], features_MD[likely]
            posterior = model.posterior(features_MD)
        first = int(np.argmax(posterior.mean_M))
        if constant is not None:
            described_D = self.describe(constant)
            same = np.flatnonzero((features_MD == described_D).all(axis=1))
            if same.size and not _is_better(posterior, first, int(same[0])):
                first = int(same[0])
        places = select_batch(posterior, count=min(count, len(pool)), rng=rng, first=first)
        return [pool[place] for place in places]

    def ask_within(
        self,
        known: Sequence[FrozenTrial],
        pending: Sequence[FrozenTrial],
        sets: ParameterSets,
        *,
        number: int,
        num_baseline: int,
        seed: int,
    ) -> Parameters | None:
        """Return the set of a part of the space to train, which is to find the best of that part.

        Args:
            known: Trials of the arm that are over.
            pending: Trials in progress.
            sets: The part of the space.
            number: Number of the trial that is asked for.
            num_baseline: Runs at the baseline that are over.
            seed: What is drawn follows from it.

        Returns:
            Values of the part's names; None: too few runs are complete.
        """
        model = self.model(known, num_baseline=num_baseline)
        if model is None:
            return None
        pool, features_MD = self._refined(model, sets, np.random.default_rng(seed))
        posterior = model.posterior(features_MD, pending=pending)
        best, _ = self._best_new(model, posterior, [*model.trials, *pending], number)
        return pool[best]

    def _refined(
        self, model: ArmModel, sets: ParameterSets, rng: np.random.Generator
    ) -> tuple[list[Parameters], Array]:
        """Return sets of a part of the space, many of them near the best, the best first, and described."""
        ranked, features_MD = list[Parameters](), np.empty((0, 0))
        for _ in range(_REFINEMENTS):
            pool, features_MD = sets.pool(ranked, rng, {})
            order = np.argsort(-model.posterior(features_MD).mean_M, kind="stable")
            ranked, features_MD = [pool[place] for place in order], features_MD[order]
        return ranked, features_MD

    def recommend_within(
        self,
        known: Sequence[FrozenTrial],
        sets: ParameterSets,
        *,
        seed: int,
    ) -> Parameters | None:
        """Return the set of a part of the space that is expected to be best; None: too few runs are complete.

        Args:
            known: Trials that are over.
            sets: The part of the space.
            seed: What is drawn follows from it.
        """
        model = self.model(known)
        if model is None:
            return None
        ranked, _ = self._refined(model, sets, np.random.default_rng(seed))
        return ranked[0]

    def rank_tried(self, known: Sequence[FrozenTrial]) -> list[Parameters]:
        """Return the parameter sets that were tried, the best posterior mean first; none: too few runs."""
        model = self.model(known)
        if model is None:
            return []
        tried = [trial.params for trial in model.ranked]
        means_M = model.posterior(self._sets.described(tried)).mean_M
        return [tried[place] for place in np.argsort(-means_M, kind="stable")]

    def _nameable(self, model: ArmModel, rng: np.random.Generator) -> tuple[list[Parameters], Array]:
        """Return the parameter sets that may be named, those that were tried first, and all described."""
        tried = [trial.params for trial in model.ranked]
        others, features_MD = self._pool(model, rng)
        return _distinct([*tried, *others], np.vstack([self._sets.described(tried), features_MD]))

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
        self,
        model: ArmModel,
        posterior: Posterior,
        trials: Sequence[FrozenTrial],
        number: int,
    ) -> tuple[int, float]:
        """Return the place of the set to train, and what a step of it is worth.

        It is the set whose training is worth most. Where nothing is left to be learned it is the set that is
        expected to be best. A set that was trained with the trial's seed would give the same values again;
        it is taken only where there is no other.
        """
        stream = self._stream_of(number)
        alike = [trial for trial in trials if self._stream_of(trial.number) == stream]
        taken = {self._described_once(trial).tobytes() for trial in alike}
        worth_M = model.worth_of_new(posterior, number) / model.total_steps
        nothing = _NOTHING * float(np.ptp(posterior.mean_M)) / model.total_steps
        told_M = np.where(worth_M > nothing, worth_M, 0.0)
        order = np.lexsort((-posterior.mean_M, -told_M)).tolist()
        best = next((each for each in order if posterior.features_MD[each].tobytes() not in taken), order[0])
        return best, float(worth_M[best])

    def _untried(
        self, trials: Sequence[FrozenTrial], number: int, fixed: Mapping[str, Any], *, begins: bool
    ) -> Parameters | None:
        """Return a set of a small space that no trial has, or, at the beginning, none with the trial's seed.

        None: the space is not small, or all have been tried.
        """
        few = [{**each, **fixed} for each in self._sets.few]
        if not few:
            return None
        stream = self._stream_of(number)
        # a trial from outside of the space has no values in it
        known = [(self._described_once(t).tobytes(), self._stream_of(t.number)) for t in trials if t.params]
        tried = [{key for key, _ in known}, {key for key, own in known if own == stream}]
        keys = [row_D.tobytes() for row_D in self._sets.described(few)]
        for taken in tried if begins else tried[:1]:
            for each, key in zip(few, keys, strict=True):
                if key not in taken:
                    return each
        return None

    def _described_once(self, trial: FrozenTrial) -> Array:
        if trial.number not in self._trials_described:
            self._trials_described[trial.number] = self.describe(trial.params)
        return self._trials_described[trial.number]

    def _stream_of(self, number: int) -> int:
        if self._streams is None:
            return number
        # numbers of the design lie below those of the search by a multiple of this
        return shared_seed(number % (self._streams * MOST_RUNS), self._streams)

    def _pool(
        self, model: ArmModel, rng: np.random.Generator, fixed: Mapping[str, Any] | None = None
    ) -> tuple[list[Parameters], Array]:
        """Return the parameter sets that are considered, and all described."""
        return self._sets.pool([trial.params for trial in model.ranked], rng, fixed or {})


def _is_better(posterior: Posterior, place: int, other: int) -> bool:
    """Return whether one set is expected to be clearly better than another."""
    covariance_MM = posterior.covariance()
    variance = covariance_MM[place, place] + covariance_MM[other, other] - 2 * covariance_MM[place, other]
    gain = float(posterior.mean_M[place] - posterior.mean_M[other])
    return gain > 0 and gain >= _CLEARLY * math.sqrt(max(float(variance), 0.0))


def _with_earlier(describe: Describe, earlier: Sequence[PriorStudy]) -> Describe:
    def described(sampled: Mapping[str, Any]) -> Array:
        own_D = describe(sampled)
        return np.append(own_D, [each(own_D) for each in earlier])

    return described


def _distinct(sets: Sequence[Parameters], features_MD: Array) -> tuple[list[Parameters], Array]:
    """Return the sets, and their features, without those that make the same training as one before them."""
    first: dict[bytes, int] = {}
    for place, row_D in enumerate(features_MD):
        first.setdefault(row_D.tobytes(), place)
    kept = list(first.values())
    return [sets[place] for place in kept], features_MD[kept]


def _of_use(
    trials: Iterable[FrozenTrial], stream_of: Callable[[int], int]
) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Return the trials that came to their end, and those that were ended and may be forecast.

    Of trials that are one training, the one with most steps counts.
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


def _training(trial: FrozenTrial, stream_of: Callable[[int], int]) -> Hashable:
    """Return what is equal for trials with the same values and seed, which are one training."""
    # a choice may be a list
    return stream_of(trial.number), frozenset((name, repr(value)) for name, value in trial.params.items())


def _forget(kept: dict[Any, Any]) -> None:
    """Make room for one more: trials in flight ask by turns, each for what it may know."""
    if len(kept) >= _IN_FLIGHT:
        del kept[next(iter(kept))]
