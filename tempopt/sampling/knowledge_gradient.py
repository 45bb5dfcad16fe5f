"""The knowledge gradient of an arm: which trial to start or prune, and what to recommend.

Every decision uses one measure: the expected improvement of the recommended set per remaining training step.
Values of parameter sets are means over seeds, so that lucky runs are not followed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from tempopt.sampling.candidate_pool import CandidatePool, Describe, WarmStartStudy, distinct_sets
from tempopt.sampling.guard_constraints import MIN_PROBABILITY, GuardConstraints
from tempopt.sampling.surrogate import (
    CurveExtrapolator,
    FloatArray,
    Observations,
    Posterior,
    Surrogate,
    continuation_value,
    knowledge_gradient,
    pull_in_low_outliers,
    select_batch,
)
from tempopt.seeds import shared_seed
from tempopt.spec.sections import MAX_RUNS, MIN_MODEL_RUNS
from tempopt.storage.rows import Parameters

Row = TypeVar("Row", bound=tuple[Any, ...])

_MIN_COMPLETE_TRIALS = 6
_MIN_COMPLETE_SHARE = 1 / 3
"""Smallest number of complete trials, and smallest share of all ended ones, with which trials are pruned."""
_MAX_FIT_RUNS = 240
"""Largest number of runs in a fit, which takes time by the third power of their number."""
_MIN_WORTH_SHARE = 0.5
"""Share of a new run's worth below which a run is ended; below 1 since forecasts can be wrong."""
_MIN_IMPROVEMENT = 1e-6
"""Share of the range of means below which an improvement counts as rounding."""
_MAX_CACHED = 32  # entries of a cache
_CLEAR_MARGIN = 0.5
"""Standard deviations of the difference by which a set has to be expected to beat the best constant."""
_REFINE_ROUNDS = 3  # of sets near the best of the round before
_PROMISING_SHARE = 0.25
"""Share of the sets of a part of the space, by descending mean, from which the next one is taken."""


class ArmModel:
    """Predictions for any parameter set by the known runs of an arm.

    Args:
        complete_trials: Complete trials, at least one.
        broken_trials: Pruned and diverged trials.
        describe: Turns sampled values into features.
        maximize: Whether larger values of the metric are better; in this class larger is always better.
        seed_index_of: Returns the index of the study seed of a trial number.
        trends: Number of trailing features that are trends of earlier studies.
        guarding: Constraints of the guards; None if there are none.
    """

    def __init__(
        self,
        complete_trials: Sequence[FrozenTrial],
        broken_trials: Sequence[FrozenTrial],
        describe: Describe,
        *,
        maximize: bool,
        seed_index_of: Callable[[int], int],
        trends: int = 0,
        guarding: GuardConstraints | None = None,
    ) -> None:
        self._describe = describe
        self._seed_index_of = seed_index_of
        self._sign = 1.0 if maximize else -1.0
        self.total_steps = max(max(trial.intermediate_values, default=1) for trial in complete_trials)
        """Steps of the longest run."""
        self._forecast = CurveExtrapolator(
            [(self._reports(trial), self._value(trial)) for trial in complete_trials]
        )
        self.may_prune = len(complete_trials) >= max(
            _MIN_COMPLETE_TRIALS, _MIN_COMPLETE_SHARE * (len(complete_trials) + len(broken_trials))
        )
        """Whether enough runs are complete to forecast from."""
        rows = [(trial, self._value(trial), 0.0) for trial in complete_trials]
        worst = min(value for _, value, _ in rows)
        self.has_only_diverged = {
            describe(trial.params).tobytes() for trial in broken_trials if not finite(trial)
        }
        """Features, as bytes, of the parameter sets whose runs all diverged."""
        self.has_only_diverged -= {describe(trial.params).tobytes() for trial in complete_trials}
        for trial in broken_trials:
            # a diverged run has no value and counts as the worst
            diverged = not finite(trial)
            estimate = (worst, 0.0) if diverged else self._forecast(self._reports(trial))
            if estimate is not None:
                rows.append((trial, *estimate))
        rows = subsample_informative(rows)
        self.trials: list[FrozenTrial] = [trial for trial, _, _ in rows]
        self._features_ND = np.array([describe(trial.params) for trial in self.trials])
        self.runs = Observations(
            features_ND=self._features_ND,
            seeds_N=np.array([seed_index_of(trial.number) for trial in self.trials]),
            values_N=np.array([value for _, value, _ in rows]),
            excess_N=np.array([excess for _, _, excess in rows]),
        )
        """Values of the runs, or forecasts of them."""
        self.surrogate = Surrogate(
            replace(self.runs, values_N=pull_in_low_outliers(self.runs.values_N)), trends=trends
        )
        self._base, self._weigh = 0.0, None
        if guarding is not None:
            trial_values = [(trial, self._value(trial)) for trial in complete_trials]
            informative_trials = [trial for trial, _ in subsample_informative(trial_values)]
            self._base = guarding.base
            weigh = guarding.feasibility_probability
            self._weigh = weigh(informative_trials, describe, seed_index_of, trends)

    def posterior(self, features_MD: FloatArray, *, pending: Sequence[FrozenTrial] = ()) -> Posterior:
        """Return the predicted means of parameter sets; larger is better.

        Args:
            features_MD: The described parameter sets.
            pending: Trials in progress, assumed to reach their predicted values.
        """
        pending_PD = np.array([self._describe(trial.params) for trial in pending])
        seed_indices = np.array([self._seed_index_of(trial.number) for trial in pending], dtype=np.int64)
        surrogate = self.surrogate.with_pending(pending_PD, seed_indices)
        return surrogate.posterior(features_MD, self._weigh, self._base)

    def worth_of_rest(self, trial: FrozenTrial, posterior: Posterior) -> float | None:
        """Return the worth per step of the rest of a run; None if it cannot be estimated yet.

        Args:
            trial: The run with its reports.
            posterior: Values of the parameter sets that might be recommended.
        """
        estimate = self._forecast(self._reports(trial))
        remaining_steps = self.total_steps - max(trial.intermediate_values, default=0)
        if estimate is None or remaining_steps <= 0:
            return None
        forecast, doubt = estimate
        described_D = self._describe(trial.params)
        joint_posterior = posterior.with_candidate(described_D)
        mean_1, variance_1, together_M1 = joint_posterior.predict_runs(
            described_D[None], self._seed_index_of(trial.number)
        )
        run = float(mean_1[0]), float(variance_1[0]), together_M1[:, 0]
        return (
            continuation_value(joint_posterior.mean_M, run=run, forecast=forecast, doubt=doubt)
            / remaining_steps
        )

    def worth_of_new(self, posterior: Posterior, number: int) -> FloatArray:
        """Return the worth per step of a new run, for each of the parameter sets.

        Args:
            posterior: Values of the parameter sets.
            number: Number of the trial that would train one of them.
        """
        seed_index = self._seed_index_of(number)
        _, variance_M, together_MM = posterior.predict_runs(posterior.features_MD, seed_index)
        return knowledge_gradient(posterior.mean_M, variance_M, together_MM)

    @cached_property
    def ranked(self) -> list[FrozenTrial]:
        """The usable trials, by descending predicted mean of their sets."""
        mean_N = self.surrogate.mean(self._features_ND)
        if self._weigh is not None:
            mean_N = self._weigh(self._features_ND) * (mean_N - self._base)
        return [self.trials[index] for index in np.argsort(-mean_N, kind="stable")]

    def _value(self, trial: FrozenTrial) -> float:
        assert trial.value is not None
        return self._sign * float(trial.value)

    def _reports(self, trial: FrozenTrial) -> dict[int, float]:
        return {step: self._sign * value for step, value in finite(trial).items()}


def finite(trial: FrozenTrial) -> dict[int, float]:
    """Return the finite reports of a trial."""
    return {step: value for step, value in trial.intermediate_values.items() if math.isfinite(value)}


def subsample_informative(rows: list[Row]) -> list[Row]:
    """Return the most informative rows if there are too many: half of them the best, half spread over all.

    Args:
        rows: Each with its value at index 1; larger is better.
    """
    if len(rows) <= _MAX_FIT_RUNS:
        return rows
    order = sorted(rows, key=lambda row: row[1], reverse=True)
    best, other_rows = order[: _MAX_FIT_RUNS // 2], order[_MAX_FIT_RUNS // 2 :]
    indices = np.linspace(0, len(other_rows) - 1, _MAX_FIT_RUNS - len(best)).round().astype(int)
    return best + [other_rows[index] for index in indices]


class KnowledgeGradient:
    """Decisions for one arm, from its results so far.

    Args:
        space: The search space of the arm.
        featurize: Turns sampled values into features.
        maximize: Whether larger values of the metric are better.
        num_seeds: Number of seeds that the arm's trials share; None: each has its own.
        seed: Seed of the draws that all trials share.
        earlier: Earlier studies.
        guarding: Constraints of the guards; None if there are none.
        list_design: Returns trials of other arms that the model learns from too, all complete. Its argument
            is the number of runs at the baseline among them; None for all.
    """

    def __init__(
        self,
        space: Mapping[str, BaseDistribution],
        featurize: Describe,
        *,
        maximize: bool,
        num_seeds: int | None,
        seed: int,
        earlier: Sequence[WarmStartStudy] = (),
        guarding: GuardConstraints | None = None,
        list_design: Callable[[int | None], Sequence[FrozenTrial]] = lambda num_baseline: (),
    ) -> None:
        self._list_design = list_design
        self._guarding = guarding
        self._earlier = earlier
        self.describe = _describe_with_trends(featurize, earlier) if earlier else featurize
        self._maximize = maximize
        self._num_seeds = num_seeds
        self._sets = CandidatePool(space, self.describe, seed=seed & 0xFFFFFFFF, earlier=earlier)
        self._model_cache: dict[tuple[int, ...], ArmModel | None] = {}
        self._worth_cache: dict[int, tuple[Posterior, float]] = {}
        self._trials_described: dict[int, FloatArray] = {}

    def model(
        self, finished_trials: Sequence[FrozenTrial], *, num_baseline: int | None = None
    ) -> ArmModel | None:
        """Return the model of the first trials of the arm and its design; None if too few are complete.

        Args:
            finished_trials: The first trials of the arm, all ended.
            num_baseline: Number of runs at the baseline in the design; None: all complete ones.
        """
        design = self._list_design(num_baseline)
        numbers = tuple(trial.number for trial in (*design, *finished_trials))
        if numbers not in self._model_cache:
            _make_room(self._model_cache)
            trial_groups = _usable_trials([*design, *finished_trials], self._seed_index_of)
            num_complete = sum(trial.state == TrialState.COMPLETE for trial in finished_trials)
            self._model_cache[numbers] = (
                ArmModel(
                    *trial_groups,
                    self.describe,
                    maximize=self._maximize,
                    seed_index_of=self._seed_index_of,
                    trends=len(self._earlier),
                    guarding=self._guarding,
                )
                if min(len(trial_groups[0]), num_complete) >= MIN_MODEL_RUNS
                else None
            )
        return self._model_cache[numbers]

    def warm_start_params(self, number: int) -> Parameters | None:
        """Return the warm-start parameters for a trial; None if no more are available.

        Args:
            number: Number of the trial; the first one has none.
        """
        firsts = self._sets.warm_start_configs
        return firsts[number - 1] if 1 <= number <= len(firsts) else None

    def ask(
        self,
        finished_trials: Sequence[FrozenTrial],
        pending: Sequence[FrozenTrial],
        *,
        number: int,
        seed: int,
        fixed: Mapping[str, Any],
    ) -> Parameters | None:
        """Return the values to train with; None if there are too few results.

        Args:
            finished_trials: The first trials of the arm, all ended.
            pending: Trials between these and the new one.
            number: Number of the new trial.
            seed: Seed of the draws.
            fixed: Values that are not chosen.
        """
        model, trials = self.model(finished_trials), [*finished_trials, *pending]
        if (untried_set := self._untried_set(trials, number, fixed, begins=model is None)) is not None:
            return untried_set
        if model is None:
            return None
        rng = np.random.default_rng(seed)
        pool, features_MD = self._pool(model, rng, fixed)
        posterior = model.posterior(features_MD, pending=pending)
        best, _ = self._best_new(model, posterior, trials, number)
        return pool[best]

    def prune(self, finished_trials: Sequence[FrozenTrial], running_trial: FrozenTrial) -> bool:
        """Return whether the rest of a run is worth much less per step than a new run.

        Nothing is pruned before enough runs are complete (``model.may_prune``). After that, a run whose last
        report is not finite is always pruned.

        Args:
            finished_trials: The first trials of the arm, all ended.
            running_trial: The run with its reports.
        """
        model = self.model(finished_trials)
        if model is None or not model.may_prune:
            return False
        if max(running_trial.intermediate_values) not in finite(running_trial):
            return True
        posterior, worth = self._worth_of_new(model, finished_trials)
        remaining_worth = model.worth_of_rest(running_trial, posterior)
        return remaining_worth is not None and remaining_worth < _MIN_WORTH_SHARE * worth

    def expected_improvement(self, finished_trials: Sequence[FrozenTrial]) -> tuple[float, float] | None:
        """Return the expected improvement of the recommendation by one more run, and the noise of a run.

        Both in units of the metric; None if there are too few results.

        Args:
            finished_trials: The first trials of the arm, all ended.
        """
        model = self.model(finished_trials)
        if model is None or not model.may_prune:
            return None
        _, worth = self._worth_of_new(model, finished_trials)
        return worth * model.total_steps, model.surrogate.noise

    def recommend(
        self,
        finished_trials: Sequence[FrozenTrial],
        *,
        count: int,
        seed: int,
        constant: Mapping[str, Any] | None = None,
        accepts: Callable[[Mapping[str, Any]], bool] = bool,
    ) -> list[Parameters]:
        """Return the parameter sets with the largest expected maximum, the best single one first.

        With guards, they are among those that are likely to keep them, if there are any. A constant
        temperature is first unless another set is expected to be better by half a standard deviation of their
        difference.

        Args:
            finished_trials: Ended trials.
            count: Largest number of sets.
            seed: Seed of the draws.
            constant: The best constant temperature; None: no set has priority.
            accepts: Returns whether a parameter set may be recommended.
        """
        model = self.model(finished_trials)
        if model is None:
            return []
        rng = np.random.default_rng(seed)
        pool, features_MD = self._recommendable_sets(model, rng)
        if model.has_only_diverged:
            is_trained = [row_D.tobytes() not in model.has_only_diverged for row_D in features_MD]
            pool, features_MD = list(itertools.compress(pool, is_trained)), features_MD[is_trained]
        if constant is not None:
            pool, features_MD = distinct_sets(
                [*pool, dict(constant)], np.vstack([features_MD, self._sets.feature_matrix([constant])])
            )
        accepted_indices = [index for index, candidate in enumerate(pool) if accepts(candidate)]
        if not accepted_indices:
            return []
        pool, features_MD = [pool[index] for index in accepted_indices], features_MD[accepted_indices]
        posterior = model.posterior(features_MD)
        if (
            self._guarding is not None
            and (likely_indices := np.flatnonzero(posterior.weights_M >= MIN_PROBABILITY)).size
        ):
            pool, features_MD = [pool[index] for index in likely_indices], features_MD[likely_indices]
            posterior = model.posterior(features_MD)
        first_index = int(np.argmax(posterior.mean_M))
        if constant is not None:
            described_D = self.describe(constant)
            same_indices = np.flatnonzero((features_MD == described_D).all(axis=1))
            if same_indices.size and not _is_better(posterior, first_index, int(same_indices[0])):
                first_index = int(same_indices[0])
        indices = select_batch(posterior, count=min(count, len(pool)), rng=rng, first=first_index)
        return [pool[index] for index in indices]

    def ask_within(
        self,
        finished_trials: Sequence[FrozenTrial],
        pending: Sequence[FrozenTrial],
        sets: CandidatePool,
        *,
        number: int,
        num_baseline: int,
        seed: int,
    ) -> Parameters | None:
        """Return the next set of a part of the space to train, in order to find the best of that part.

        Args:
            finished_trials: Ended trials of the arm.
            pending: Trials in progress.
            sets: The part of the space.
            number: Number of the new trial.
            num_baseline: Number of ended runs at the baseline.
            seed: Seed of the draws.

        Returns:
            Values of the part's names; None if too few runs are complete.
        """
        model = self.model(finished_trials, num_baseline=num_baseline)
        if model is None:
            return None
        pool, features_MD = self._refine_candidates(model, sets, np.random.default_rng(seed))
        # the ends of ranges are the least known, and a waste with so few runs
        num_promising = math.ceil(len(pool) * _PROMISING_SHARE)
        posterior = model.posterior(features_MD[:num_promising], pending=pending)
        best, _ = self._best_new(model, posterior, [*model.trials, *pending], number)
        return pool[best]

    def _refine_candidates(
        self, model: ArmModel, sets: CandidatePool, rng: np.random.Generator
    ) -> tuple[list[Parameters], FloatArray]:
        """Return sets of a part of the space, many near the best, by descending mean, and their features."""
        ranked_sets, features_MD = list[Parameters](), np.empty((0, 0))
        for _ in range(_REFINE_ROUNDS):
            pool, features_MD = sets.pool(ranked_sets, rng, {})
            order = np.argsort(-model.posterior(features_MD).mean_M, kind="stable")
            ranked_sets, features_MD = [pool[index] for index in order], features_MD[order]
        return ranked_sets, features_MD

    def recommend_within(
        self,
        finished_trials: Sequence[FrozenTrial],
        sets: CandidatePool,
        *,
        seed: int,
    ) -> Parameters | None:
        """Return the best set of a part of the space by the model; None if too few runs are complete.

        Args:
            finished_trials: Ended trials.
            sets: The part of the space.
            seed: Seed of the draws.
        """
        model = self.model(finished_trials)
        if model is None:
            return None
        ranked, _ = self._refine_candidates(model, sets, np.random.default_rng(seed))
        return ranked[0]

    def rank_tried(self, finished_trials: Sequence[FrozenTrial]) -> list[Parameters]:
        """Return the tried parameter sets, by descending posterior mean; empty if there are too few runs."""
        model = self.model(finished_trials)
        if model is None:
            return []
        tried_sets = [trial.params for trial in model.ranked]
        means_M = model.posterior(self._sets.feature_matrix(tried_sets)).mean_M
        return [tried_sets[index] for index in np.argsort(-means_M, kind="stable")]

    def _recommendable_sets(
        self, model: ArmModel, rng: np.random.Generator
    ) -> tuple[list[Parameters], FloatArray]:
        """Return the parameter sets that may be recommended, tried ones first, and their features."""
        tried_sets = [trial.params for trial in model.ranked]
        pool_sets, features_MD = self._pool(model, rng)
        return distinct_sets(
            [*tried_sets, *pool_sets], np.vstack([self._sets.feature_matrix(tried_sets), features_MD])
        )

    def _worth_of_new(
        self, model: ArmModel, finished_trials: Sequence[FrozenTrial]
    ) -> tuple[Posterior, float]:
        """Return the posterior of these sets, and the worth per step of a new run."""
        end = len(finished_trials)
        if end not in self._worth_cache:
            _make_room(self._worth_cache)
            _, features_MD = self._pool(model, np.random.default_rng(end))
            posterior = model.posterior(features_MD)
            _, worth = self._best_new(model, posterior, finished_trials, end)
            self._worth_cache[end] = posterior, worth
        return self._worth_cache[end]

    def _best_new(
        self,
        model: ArmModel,
        posterior: Posterior,
        trials: Sequence[FrozenTrial],
        number: int,
    ) -> tuple[int, float]:
        """Return the index of the set to train, and its worth per step.

        It is the set whose training is worth most. If nothing is left to be learned, it is the set with the
        best expected value. A set that was already trained with the trial's seed would repeat its values; it
        is returned only if there is no other.
        """
        seed_index = self._seed_index_of(number)
        same_seed_trials = [trial for trial in trials if self._seed_index_of(trial.number) == seed_index]
        used_keys = {self._cached_features(trial).tobytes() for trial in same_seed_trials}
        worth_M = model.worth_of_new(posterior, number) / model.total_steps
        min_worth = _MIN_IMPROVEMENT * float(np.ptp(posterior.mean_M)) / model.total_steps
        clipped_worth_M = np.where(worth_M > min_worth, worth_M, 0.0)
        order = np.lexsort((-posterior.mean_M, -clipped_worth_M)).tolist()
        best = next(
            (index for index in order if posterior.features_MD[index].tobytes() not in used_keys), order[0]
        )
        return best, float(worth_M[best])

    def _untried_set(
        self, trials: Sequence[FrozenTrial], number: int, fixed: Mapping[str, Any], *, begins: bool
    ) -> Parameters | None:
        """Return an untried set of a small space, or, at the beginning, one not tried with the trial's seed.

        None if the space is not small, or all sets have been tried.
        """
        candidates = [{**parameters, **fixed} for parameters in self._sets.exhaustive_configs]
        if not candidates:
            return None
        seed_index = self._seed_index_of(number)
        # a trial from outside of the space has no values in it
        trial_keys = [
            (self._cached_features(t).tobytes(), self._seed_index_of(t.number)) for t in trials if t.params
        ]
        key_sets = [
            {key for key, _ in trial_keys},
            {key for key, trial_seed_index in trial_keys if trial_seed_index == seed_index},
        ]
        keys = [row_D.tobytes() for row_D in self._sets.feature_matrix(candidates)]
        for used_keys in key_sets if begins else key_sets[:1]:
            for candidate, key in zip(candidates, keys, strict=True):
                if key not in used_keys:
                    return candidate
        return None

    def _cached_features(self, trial: FrozenTrial) -> FloatArray:
        if trial.number not in self._trials_described:
            self._trials_described[trial.number] = self.describe(trial.params)
        return self._trials_described[trial.number]

    def _seed_index_of(self, number: int) -> int:
        if self._num_seeds is None:
            return number
        # numbers of the first design are below those of the search by a multiple of this
        return shared_seed(number % (self._num_seeds * MAX_RUNS), self._num_seeds)

    def _pool(
        self, model: ArmModel, rng: np.random.Generator, fixed: Mapping[str, Any] | None = None
    ) -> tuple[list[Parameters], FloatArray]:
        """Return the candidate parameter sets and their features."""
        return self._sets.pool([trial.params for trial in model.ranked], rng, fixed or {})


def _is_better(posterior: Posterior, index: int, other_index: int) -> bool:
    """Return whether one set is expected to be clearly better than another."""
    covariance_MM = posterior.covariance()
    variance = (
        covariance_MM[index, index]
        + covariance_MM[other_index, other_index]
        - 2 * covariance_MM[index, other_index]
    )
    gain = float(posterior.mean_M[index] - posterior.mean_M[other_index])
    return gain > 0 and gain >= _CLEAR_MARGIN * math.sqrt(max(float(variance), 0.0))


def _describe_with_trends(featurize: Describe, earlier: Sequence[WarmStartStudy]) -> Describe:
    def describe_with_earlier(sampled: Mapping[str, Any]) -> FloatArray:
        own_D = featurize(sampled)
        return np.append(own_D, [prior_study(own_D) for prior_study in earlier])

    return describe_with_earlier


def _usable_trials(
    trials: Iterable[FrozenTrial], seed_index_of: Callable[[int], int]
) -> tuple[list[FrozenTrial], list[FrozenTrial]]:
    """Return the complete trials, and the ended ones that can be forecast.

    Of trials that are the same training, the one with most steps counts.
    """
    longest: dict[Hashable, tuple[bool, int, FrozenTrial]] = {}
    for trial in trials:
        has_ended = trial.state == TrialState.COMPLETE
        is_complete = has_ended and trial.value is not None and math.isfinite(trial.value)
        if not is_complete and trial.state != TrialState.PRUNED:
            continue
        training = _training_id(trial, seed_index_of)
        entry = is_complete, max(trial.intermediate_values, default=0), trial
        if training not in longest or entry[:2] > longest[training][:2]:
            longest[training] = entry
    entries = sorted(longest.values(), key=lambda entry: entry[2].number)
    complete_trials = [trial for is_complete, _, trial in entries if is_complete]
    return complete_trials, [trial for is_complete, _, trial in entries if not is_complete]


def _training_id(trial: FrozenTrial, seed_index_of: Callable[[int], int]) -> Hashable:
    """Return a key that is equal for trials with the same values and seed, which are the same training."""
    # a choice may be a list
    return seed_index_of(trial.number), frozenset((name, repr(value)) for name, value in trial.params.items())


def _make_room(cache: dict[Any, Any]) -> None:
    """Make room for one entry: trials in progress alternate, each with its own history."""
    if len(cache) >= _MAX_CACHED:
        del cache[next(iter(cache))]
