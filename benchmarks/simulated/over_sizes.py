"""A proxy and full size in closed form, and surrogates that learn from runs of both.

The best course of ln τ at full size has a given correlation with that of the proxy, and is shifted besides.
Nothing is trained, and ``study.proxy.temperature`` is ``same``: parameters are those of either size.

Shapes: N runs, D features, M parameter sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.answer_cost import Answering
from benchmarks.population import LEAST, SPAN
from benchmarks.recorded.world import Training
from tempopt.records.rows import AT_PROXY, Measurement, TicketRow
from tempopt.records.tickets import usable
from tempopt.sampling.arms import by_step
from tempopt.sampling.features import Features
from tempopt.sampling.over_sizes import OverSizes
from tempopt.sampling.parameter_sets import ParameterSets
from tempopt.sampling.prior_study import PriorStudy
from tempopt.sampling.surrogate import Forecast, Posterior, Runs, Surrogate, near
from tempopt.spec.study_spec import StudySpec

Array = NDArray[np.float64]
Parameters = Mapping[str, Any]

_OTHERS = 10_000


class Larger(Answering):
    """Full size, of which the world of the same class and draw is the proxy.

    Args:
        name: The class.
        draw: Which of it.
        agreement: Correlation of the best course with that of the proxy.
        shift: By how much the best ln τ is higher besides, or lower in every other draw.
        spread: How many times as far values lie apart as on the proxy, those of one parameter set included.
    """

    def __init__(self, name: str, draw: int, agreement: float, shift: float, spread: float = 1.0) -> None:
        super().__init__(name, draw)
        self._spread = spread
        small, side = self._best, 1.0 if draw // 2 % 2 else -1.0
        other, gain = draw + _OTHERS, 0.0
        # a world in which τ = 1 is nearly the best has no gain that could be lost
        while gain < LEAST:
            mixed = agreement * small + math.sqrt(1.0 - agreement**2) * Answering(name, other)._best
            self._best = np.clip(mixed + side * shift / SPAN, -1.0, 1.0)
            gain = float(self._weights @ self._best**2)
            other += _OTHERS
        self._gain = gain

    def train(self, parameters: Parameters, seed: int) -> Training:
        training = super().train(parameters, seed)
        return Training(
            final=self._spread * training.final,
            current=self._spread * training.current,
            test=float(self._spread * training.final[-1]),
        )


def at_full(ticket: TicketRow) -> bool:
    """Return whether a ticket tells the search of full size.

    Those that confirm do not: a search that learns from test data would choose by it.
    """
    return ticket.kind == "transfer" and usable(ticket)


class Trend:
    """The surrogate at full size, which may follow the prediction of the proxy's by a factor that it learns.

    That is what ``study.warm_start`` does, with the proxy as the earlier study; like there, its pruned runs
    are left out.

    Args:
        rows: The tickets of the study.
        reports: What its searching runs have reported.
        spec: Its spec.
    """

    def __init__(self, rows: Sequence[TicketRow], reports: Sequence[Measurement], spec: StudySpec) -> None:
        self._features = Features(spec)
        small = [(r.parameters, r.value) for r in rows if r.kind in AT_PROXY and usable(r)]
        self._proxy = PriorStudy(small, self._features)  # type: ignore[arg-type]
        full = [row for row in rows if at_full(row)]
        self.surrogate = Surrogate(
            Runs(
                features_ND=self.described([row.parameters or {} for row in full]),
                seeds_N=_numbered([row.seed for row in full]),
                values_N=near(np.array([row.value for row in full])),
                excess_N=np.zeros(len(full)),
            ),
            trends=1,
        )

    def described(self, sets: Sequence[Parameters]) -> Array:
        """Return the features of parameter sets at full size."""
        own_MD = [self._features(each) for each in sets]
        return np.array([np.append(own_D, self._proxy(own_D)) for own_D in own_MD])


class Joint:
    """The surrogate of both sizes (``tempopt.sampling.over_sizes``).

    Pruned runs count with their forecasts, as in the search.

    Args:
        rows: The tickets of the study.
        reports: What its searching runs have reported.
        spec: Its spec.
        known: Returns whether a ticket may be known.
    """

    def __init__(
        self,
        rows: Sequence[TicketRow],
        reports: Sequence[Measurement],
        spec: StudySpec,
        known: Callable[[TicketRow], bool] = lambda row: True,
    ) -> None:
        self._features = Features(spec)
        told = [each for each in _with_forecasts(rows, reports) if known(each[0])]
        sizes = [[each for each in told if at_full(each[0]) == which] for which in (False, True)]
        # no two sizes share a seed
        self._seeds = list(dict.fromkeys(row.seed for row, _, _ in (*sizes[0], *sizes[1])))
        self._model = OverSizes([self._runs(part) for part in sizes])
        self.surrogate = self._model.surrogate

    def _runs(self, told: Sequence[tuple[TicketRow, float, float]]) -> Runs:
        return Runs(
            features_ND=self._own([row.parameters or {} for row, _, _ in told]),
            seeds_N=np.array([self.stream_of(row.seed) for row, _, _ in told], dtype=np.int64),
            values_N=np.array([value for _, value, _ in told]),
            excess_N=np.array([excess for _, _, excess in told]),
        )

    def _own(self, sets: Sequence[Parameters]) -> Array:
        return np.array([self._features(each) for each in sets])

    def described(self, sets: Sequence[Parameters], *, full: bool = True) -> Array:
        """Return the features of parameter sets at a size."""
        return self._model.at(self._own(sets), size=int(full))

    def stream_of(self, seed: int) -> int:
        """Return the number of a seed; -1: no run that is known has it."""
        return self._seeds.index(seed) if seed in self._seeds else -1


Model = Trend | Joint
MODELS: dict[str, Any] = {"trend": Trend, "joint": Joint}


def posterior(model: Model, sets: Sequence[Parameters]) -> Posterior:
    """Return what a model says of parameter sets at full size."""
    return model.surrogate.posterior(model.described(sets))


class Pool:
    """Whole parameter sets that a search would consider, from everywhere and from near its best trials.

    Args:
        spec: The study's spec.
        seed: What is drawn once follows from it.
    """

    def __init__(self, spec: StudySpec, seed: int) -> None:
        self._spec, features = spec, Features(spec)
        self._sets = ParameterSets(
            spec.space("search"), lambda each: features(spec.parameters("search", each)), seed=seed
        )

    def of(self, rows: Sequence[TicketRow], seed: int = 0) -> list[dict[str, Any]]:
        """Return the sets after some trials; what is near the best of them is drawn by the seed."""
        trials = [row for row in rows if row.kind == "search" and usable(row)]
        ranked = sorted(trials, key=lambda row: -(row.value or 0.0))
        rng = np.random.default_rng(seed)
        found, _ = self._sets.pool([row.sampled or {} for row in ranked], rng, {})
        return [self._spec.parameters("search", each) for each in found]


def _numbered(seeds: Sequence[Any]) -> NDArray[np.int64]:
    places = {seed: place for place, seed in enumerate(dict.fromkeys(seeds))}
    return np.array([places[seed] for seed in seeds], dtype=np.int64)


def _with_forecasts(
    rows: Sequence[TicketRow], reports: Sequence[Measurement]
) -> list[tuple[TicketRow, float, float]]:
    """Return runs with their values and the variances of those: a pruned one has what is forecast of it."""
    told = [row for row in rows if row.kind in AT_PROXY or at_full(row)]
    found = [(row, float(row.value or 0.0), 0.0) for row in told if usable(row)]
    reported = by_step(each for each in reports if each.name == "report")
    whole = [(reported.get(row.id, {}), value) for row, value, _ in found if row.kind == "search"]
    forecast = Forecast(whole)
    for row in rows:
        if row.kind == "search" and row.outcome == "pruned":
            if (said := forecast(reported.get(row.id, {}))) is not None:
                found.append((row, *said))
    return found
