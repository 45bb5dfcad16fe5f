"""A world to search in: any configuration's training, as the recorded trainings of a task let one expect it.

Between the recorded configurations a forest of extremely randomised trees (Geurts et al. 2006) says what a
curve is in the mean; what a seed adds is the residual of a recorded run, drawn from those of the
configurations nearest by. A seed is a recorded seed throughout a world, so that what is common to all
trainings of one seed stays common. The forest is of another family than any sampler that is compared.

Where a metric has two humps (associative recall: some seeds learn, others hardly do), all of this is done on
its logits: else a poor configuration would reach more than 1 with a lucky seed, and the best ones would be
as noisy as those in the middle. The true value of one is the mean over all that may be drawn.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.model_selection import GroupKFold, cross_val_predict

from benchmarks.recorded.make import recorded_rows
from benchmarks.recorded.tasks import TASKS, value_at
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import (
    LEARNED,
    NEUTRAL,
    TemperatureParameters,
    parameters_of_temperature,
    progress,
    split_name,
)

Array = NDArray[np.float64]
_TREES = 100
_NEAREST = 8
_PLACES = 5
_BETWEEN = 3000
_PAIRS = 300
_MARKS = 64
_CLIP = 0.005


@dataclass(frozen=True, slots=True)
class Training:
    """One training in a world, from its beginning to its end.

    Args:
        final: Validation metric at each rung under the plan's last temperature.
        current: The same under the temperature of the moment.
        test: Metric on the test data at the end.
    """

    final: Array
    current: Array
    test: float = float("nan")


def describe(parameters: Mapping[str, Any], spec: StudySpec) -> list[float]:
    """Return what the forest knows of a configuration: τ over progress, and every other searched value."""
    plan = TemperatureParameters.from_mapping(parameters_of_temperature(parameters, "")).plan(2)
    temperatures = [plan.temperatures(progress(index, _PLACES)) for index in range(_PLACES)]
    features = [float(np.log(np.mean(layer_temperatures))) for layer_temperatures in temperatures]
    features.append(float(np.log(temperatures[0][0] / temperatures[0][1])))
    for name in sorted(spec.search):
        value = parameters.get(name, NEUTRAL.get(name))
        if name == "length_scaling":
            features.append(float(value != "none"))
        elif name in ("lr", "output_temperature"):
            features.append(float(np.log(float(value))))  # type: ignore[arg-type]
        elif name == "entropy_lambda":
            features.append(float(value))  # type: ignore[arg-type]
    return features


def _beyond(parameters: Mapping[str, Any]) -> list[int]:
    """Return numbers that are equal where named temperatures, and whether they are learned, are."""
    extra_params = {
        name: value for name, value in parameters.items() if split_name(name)[0] or name == LEARNED
    }
    if not extra_params:
        return []
    digest = hashlib.blake2b(json.dumps(extra_params, sort_keys=True).encode(), digest_size=8).digest()
    return [int.from_bytes(digest, "big")]


class SingleSampleForest:
    """What a fitted forest of regression trees says of one sample, to the bit.

    scikit-learn takes forty times as long for one sample as for its share of many.

    Args:
        forest: scikit-learn's, of several outputs.
    """

    def __init__(self, forest: Any) -> None:
        trees = [estimator.tree_ for estimator in forest.estimators_]
        self._roots = np.cumsum([0, *(tree.node_count for tree in trees)])[:-1]
        self._depth = max(tree.max_depth for tree in trees)
        node_ids = [np.arange(tree.node_count) for tree in trees]
        leaf = [tree.children_left < 0 for tree in trees]

        def join_trees(name: str) -> NDArray[np.int64]:
            # a leaf is its own child, so that all samples take as many steps
            parts = zip(trees, leaf, node_ids, self._roots, strict=True)
            return np.concatenate(
                [np.where(end, node_id, getattr(t, name)) + root for t, end, node_id, root in parts]
            )

        self._left_child, self._right_child = join_trees("children_left"), join_trees("children_right")
        self._feature = np.concatenate([np.maximum(tree.feature, 0) for tree in trees])
        self._threshold = np.concatenate([tree.threshold for tree in trees])
        self._value = np.concatenate([tree.value[:, :, 0] for tree in trees])

    def __call__(self, sample: Any) -> Array:
        """Return the outputs of a sample, given by its features."""
        # scikit-learn compares in float32
        features = np.asarray(sample, dtype=np.float32)
        nodes = self._roots
        for _ in range(self._depth):
            goes_left = features[self._feature[nodes]] <= self._threshold[nodes]
            nodes = np.where(goes_left, self._left_child[nodes], self._right_child[nodes])
        outputs: Array = self._value[nodes].sum(axis=0) / len(self._roots)
        return outputs


class RecordedWorld:
    """The values of trainings of a task.

    Args:
        task: Name of the task.
        is_shuffled: Whether each training is any recorded one, whatever its configuration, so that none is
            better than another.
    """

    def __init__(self, task: str, *, is_shuffled: bool = False) -> None:
        self.task = task
        self._shuffled = is_shuffled
        self.spec = TASKS[task].spec
        self.total_steps = int(self.spec.trainer["max_steps"])
        rows = [row for row in recorded_rows(task) if row["outcome"] == "complete"]
        parameters = [json.loads(row["parameters"]) for row in rows]
        self._recorded = list(
            {row["parameters"]: params for row, params in zip(rows, parameters, strict=True)}.values()
        )
        self._features = np.array([describe(params, self.spec) for params in parameters])
        self._groups = np.array([row["configuration"] for row in rows])
        self._seeds = np.array([row["seed"] for row in rows])
        # where the schedule moves, every second validation was under the last temperature
        moving = next(
            row for row in rows if len(row["final_steps"]) < max(len(r["final_steps"]) for r in rows)
        )
        self.rungs: tuple[int, ...] = tuple(moving["final_steps"])
        self._curves = np.array([self.curve(row) for row in rows])
        self._two_humps = TASKS[task].two_humps
        self._scaled = logit(np.clip(self._curves, _CLIP, 1 - _CLIP)) if self._two_humps else self._curves

    @cached_property
    def mark(self) -> str:
        """What is equal for worlds in which all trainings are the same."""
        marked_sets = self.draw_sets(9)[:_MARKS]
        values = [
            self.truth(marked_sets),
            *(self.train(params, seed).final for seed, params in enumerate(marked_sets)),
        ]
        return hashlib.sha256(np.concatenate(values).round(6).tobytes()).hexdigest()[:16]

    def curve(self, row: Mapping[str, Any]) -> Array:
        """Return a recorded training: rungs under the last τ, rungs under the τ of the moment, the test."""
        final = np.interp(self.rungs, row["final_steps"], row["final_values"])
        current_values = np.interp(self.rungs, row["current_steps"], row["current_values"])
        return np.concatenate([final, current_values, [row["test"]]])

    @cached_property
    def _forest(self) -> ExtraTreesRegressor:
        return self._new_forest().fit(self._features, self._scaled)

    @cached_property
    def _one_by_one(self) -> SingleSampleForest:
        return SingleSampleForest(self._forest)

    @staticmethod
    def _new_forest() -> ExtraTreesRegressor:
        return ExtraTreesRegressor(_TREES, min_samples_leaf=4, max_features=None, random_state=0, n_jobs=1)

    @cached_property
    def _residuals(self) -> Array:
        """What the seeds add: runs less the mean of their configuration, as wide as those of fresh seeds."""
        residuals = np.empty_like(self._scaled)
        for group in set(self._groups.tolist()):
            in_group = self._groups == group
            count = int(in_group.sum())
            residuals[in_group] = (self._scaled[in_group] - self._scaled[in_group].mean(axis=0)) * np.sqrt(
                count / max(1, count - 1)
            )
        return residuals

    @cached_property
    def _held_out(self) -> Array:
        """What the forest says of each run without having seen any of its configuration."""
        predictions: Array = cross_val_predict(
            self._new_forest(), self._features, self._scaled, groups=self._groups, cv=GroupKFold(8)
        )
        is_other_group = self._groups[:, None] == self._groups[None, :]
        return self._mean_over_seeds(predictions, self._features, is_other_group)

    @cached_property
    def _scale(self) -> Array:
        return np.maximum(self._features.std(axis=0), 1e-9)

    def fit_quality(self) -> dict[str, float]:
        """Return held-out error of the forest at the end of training, beside the noise of a seed."""
        value, predictions = self._curves[:, len(self.rungs) - 1], self._held_out[:, len(self.rungs) - 1]
        means = {g: value[self._groups == g].mean() for g in set(self._groups.tolist())}
        mean = np.array([means[g] for g in self._groups])
        seed_deviation = float(np.sqrt(((value - mean) ** 2).sum() / max(1, len(value) - len(means))))
        by_seed = [float((value - mean)[self._seeds == s].mean()) for s in sorted(set(self._seeds.tolist()))]
        return {
            "trainings": float(len(value)),
            "held-out RMSE of a configuration's mean": float(np.sqrt(np.mean((predictions - mean) ** 2))),
            "standard deviation of the means": float(np.std(list(means.values()))),
            "standard deviation of a seed": seed_deviation,
            "standard deviation common to a seed": float(np.std(by_seed)),
        }

    def expected(self, sets: Sequence[Mapping[str, Any]]) -> Array:
        """Return the mean curves of configurations: rungs under the last τ, the τ of the moment, the test."""
        if self._shuffled:
            return np.tile(self._curves.mean(axis=0), (len(sets), 1))
        features = np.array([describe(params, self.spec) for params in sets])
        return self._mean_over_seeds(self._forest.predict(features), features)

    def _mean_over_seeds(self, predictions: Array, features: Array, other_groups: Any = False) -> Array:
        """Return the mean of what may be drawn where the forest says this; ``apart``: runs to leave out."""
        if not self._two_humps:
            return predictions
        distances = self._distances(features) + 1e12 * other_groups
        means = [
            expit(predictions[:, None] + self._residuals[self._nearest(distances, seed)]).mean(axis=1)
            for seed in sorted(set(self._seeds.tolist()))
        ]
        return np.asarray(np.mean(means, axis=0))

    def _distances(self, features: Array) -> Array:
        """Return squared distances of configurations from the recorded runs, shape (many, runs)."""
        distances = [(((self._features - row) / self._scale) ** 2).sum(axis=1) for row in features]
        return np.array(distances)

    def _nearest(self, distances: Array, seed: int) -> Any:
        """Return the runs of a recorded seed whose configurations are nearest, shape (many, ``_NEAREST``)."""
        return np.argsort(distances + 1e9 * (self._seeds != seed), axis=1, kind="stable")[:, :_NEAREST]

    def truth(self, sets: Sequence[Mapping[str, Any]]) -> Array:
        """Return the mean over seeds of configurations' values on test data."""
        values: Array = self.expected(sets)[:, -1]
        return values

    def train(self, parameters: Mapping[str, Any], seed: int) -> Training:
        """Return a training; the same for the same parameters and seed.

        Args:
            parameters: The whole parameter set.
            seed: What is common to trainings of one seed is common here too.
        """
        features = np.array(describe(parameters, self.spec))
        digits = np.round(1e4 * np.abs(features)).astype(int)
        rng = np.random.default_rng([seed, *digits, *_beyond(parameters)])
        if self._shuffled:
            return self._training(self._curves[rng.integers(len(self._curves))])
        mean = self._one_by_one(features)
        recorded_seed = int(np.random.default_rng(seed).integers(len(set(self._seeds.tolist()))))
        nearest_rows = self._nearest(self._distances(features[None]), recorded_seed)[0]
        curve = mean + self._residuals[rng.choice(nearest_rows)]
        return self._training(expit(curve) if self._two_humps else curve)

    def _training(self, curve: Array) -> Training:
        count = len(self.rungs)
        current_curve = curve[count : 2 * count].copy()
        current_curve[-1] = curve[count - 1]
        return Training(final=curve[:count], current=current_curve, test=float(curve[-1]))

    @cached_property
    def baseline(self) -> float:
        """The value of τ = 1 on test data, with the best of the recorded values of what else is searched."""
        return float(self._sign * (self._sign * self.truth(self._flat)).max())

    @cached_property
    def _flat(self) -> list[dict[str, Any]]:
        neutral = self.spec.parameters("baseline", {})
        return [
            params for params in self._recorded if all(params.get(n) == value for n, value in neutral.items())
        ]

    @cached_property
    def best(self) -> float:
        """The value of the best known configuration on test data: of those recorded, and of many between."""
        sets = [*self.draw_sets(0), *self._recorded]
        return float(self._sign * (self._sign * self.truth(sets)).max())

    @cached_property
    def floor(self) -> float:
        """What shares of the best known are counted from: τ = 1, or the median configuration.

        The latter where the best known is not better than τ = 1 by more than the forest may be wrong.
        """
        error = self.fit_quality()["held-out RMSE of a configuration's mean"]
        if self._sign * (self.best - self.baseline) > error:
            return self.baseline
        return float(np.median(self.truth(self.draw_sets(2))))

    def draw_sets(self, seed: int) -> list[dict[str, Any]]:
        """Return some thousand parameter sets from everywhere in the space."""
        rng = np.random.default_rng(seed)
        space = self.spec.space()
        samples = (
            {name: value_at(distribution, rng.random()) for name, distribution in space.items()}
            for _ in range(_BETWEEN)
        )
        return [self.spec.parameters("search", params) for params in samples]

    @property
    def _sign(self) -> float:
        return 1.0 if self.spec.study.direction == "maximize" else -1.0
