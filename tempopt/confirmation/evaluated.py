"""A trained model at other temperatures: which evaluations there are, and what they tell of this checkpoint.

Pure: rows in, tickets and numbers out. τ = 1 is always evaluated, the best temperature is chosen on the
validation data, and what it gains is estimated on the test data if there are any.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tempopt.records.rows import Measurement, NewTicket, Parameters, TicketRow
from tempopt.records.tickets import (
    arms_of,
    current_round,
    joined,
    next_number,
    of_kind,
    oriented,
    over,
    usable,
)
from tempopt.seeds import derive
from tempopt.spec.amendments import fits
from tempopt.statistics.bootstrap import CONFIDENCE, FEWEST, Interval, paired_bootstrap
from tempopt.temperature import GENERATION, training_key
from tempopt.workers.messages import UNIT_KINDS, UnitKind, sizes_name, units_name

if TYPE_CHECKING:
    from tempopt.confirmation.evaluations import On
    from tempopt.spec.study_spec import StudySpec

_TUNED = "tuned"
"""Arm of the best generation at τ = 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """The metric of each item or batch of an evaluation.

    Args:
        kind: Whether they are items or batches.
        values: The metric of each.
        sizes: Number of items of each; items that are many are taken together.
    """

    kind: UnitKind
    values: tuple[float, ...]
    sizes: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The model at one parameter set, on the data of its evaluation.

    Args:
        params: The parameter set.
        value: The metric.
        gain: How much better than what it is compared with it is, > 0 being better; of the curve: than τ = 1.
        interval: The same with its interval, pointwise; None if there is none.
    """

    params: Parameters
    value: float
    gain: float
    interval: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """What generation and temperatures gain apart, on the data that the whole gain is estimated on.

    Args:
        generation: The best that was evaluated with all temperatures as at τ = 1, against τ = 1 with neutral
            generation.
        temperature: The chosen parameter set against that: what temperatures add to tuned generation.
    """

    generation: Point
    temperature: Point


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """What the evaluations of a trained model have found.

    Args:
        params: The parameter set with the best value on the validation data; that of τ = 1 unless another is
            better.
        at_one: Whether that is τ = 1.
        chosen: The metric there on the validation data, the best of all.
        chosen_at_one: The metric at τ = 1 on the validation data.
        on: The data that the gain is estimated on: ``test``, or the ``validate`` data that chose it.
        value: The metric there on those data.
        value_at_one: The metric at τ = 1 on those data.
        gain: How much better it is than τ = 1 on those data, > 0 being better.
        interval: The same with its interval, over data and for this checkpoint; None if there is none.
        unit: What was resampled; None if the metric is no mean of what was logged by item or batch.
        units: How many there are.
        items: How many items they have together.
        changed: How many of them differ from τ = 1; None if the two did not see the same data in order.
        tried: Number of evaluations on the validation data.
        curve: All of them.
        apart: The gains of generation and of temperatures, which together are the whole; None unless both are
            searched, and before both were evaluated on the data.
    """

    params: Parameters
    at_one: bool
    chosen: float
    chosen_at_one: float
    on: On
    value: float
    value_at_one: float
    gain: float
    interval: Interval | None
    unit: UnitKind | None
    units: int
    items: int
    changed: int | None
    tried: int
    curve: tuple[Point, ...]
    apart: Apart | None

    @property
    def confidence(self) -> float:
        """Coverage of the intervals, each by itself."""
        return CONFIDENCE

    @property
    def shown(self) -> bool:
        """Whether a gain is shown: its interval on data that did not choose it is above 0."""
        return self.on == "test" and self.interval is not None and self.interval.low > 0


def evaluation_seed(spec: StudySpec) -> int:
    """Return the seed of every evaluation: whatever is drawn in one is drawn in all, so that they pair."""
    return derive(spec.study.seed, "evaluate")


def tickets_on_test(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the evaluations on the test data: of the chosen parameters and of τ = 1, or of both in one.

    Where generation is tuned at τ = 1, too, its best parameters are evaluated as well.

    Args:
        tickets: All tickets of the study, which are all over.
        spec: The study's spec.
    """
    now = current_round(tickets)
    best, reference = _best(tickets, spec), _at_one(tickets)
    if spec.study.confirm_on != "test" or of_kind(tickets, "confirm", of_round=now):
        return []
    if best is None or reference is None:
        return []
    chosen = {"search": best, "baseline": reference}
    if (tuned := _tuned(tickets, spec)) is not None:
        chosen[_TUNED] = tuned
    arms = joined({arm: each.parameters or {} for arm, each in chosen.items()})
    return [
        NewTicket(
            kind="confirm",
            arm=arm,
            number=number,
            seed=evaluation_seed(spec),
            pair=0,
            parameters=parameters,
            round=now,
        )
        for number, (arm, parameters) in enumerate(arms.items(), next_number(tickets, "confirm"))
    ]


def most_to_test(tickets: Sequence[TicketRow], spec: StudySpec) -> int:
    """Return how many evaluations on test data the current round will still get, at most."""
    begun = of_kind(tickets, "confirm", of_round=current_round(tickets))
    return 0 if begun or spec.study.confirm_on != "test" else 2 + spec.tunes_generation_alone


def _at_one(tickets: Iterable[TicketRow]) -> TicketRow | None:
    return next((each for each in of_kind(tickets, "baseline") if not each.number and usable(each)), None)


def _runs(tickets: Sequence[TicketRow], spec: StudySpec) -> list[TicketRow]:
    """Return the evaluations on the validation data that count; that at τ = 1 is the first."""
    tried = [*of_kind(tickets, "baseline"), *of_kind(tickets, "search")]
    reference = _at_one(tickets)
    others = [t for t in tried if usable(t) and t != reference and (t.kind != "search" or fits(t, spec))]
    return [] if reference is None else [reference, *others]


def _tuned(tickets: Sequence[TicketRow], spec: StudySpec) -> TicketRow | None:
    """Return the best evaluation that differs from τ = 1 in generation alone; None: it is not tuned."""

    def rest(ticket: TicketRow) -> str:
        return training_key({n: v for n, v in (ticket.parameters or {}).items() if n not in GENERATION})

    runs = _runs(tickets, spec) if spec.tunes_generation_alone else []
    alike = [each for each in runs if rest(each) == rest(runs[0])]
    return max(alike, key=lambda each: oriented(each.value or 0.0, spec.study.direction), default=None)


def _best(tickets: Sequence[TicketRow], spec: StudySpec) -> TicketRow | None:
    """Return the run with the best value on the validation data: that at τ = 1 unless another is better."""
    found = _runs(tickets, spec)
    return max(found, key=lambda each: oriented(each.value or 0.0, spec.study.direction), default=None)


def evaluated(
    tickets: Sequence[TicketRow], measurements: Iterable[Measurement], spec: StudySpec
) -> Evaluated | None:
    """Return what was found so far; None before τ = 1 was evaluated.

    Args:
        tickets: All tickets of the study.
        measurements: What they measured, ``validate`` and ``test`` at least.
        spec: The study's spec.
    """
    best, reference = _best(tickets, spec), _at_one(tickets)
    if best is None or reference is None:
        return None
    measured = _Measured(measurements, spec)
    runs = _runs(tickets, spec)
    curve = measured.compared(runs, "validate")
    tested = _tested(tickets, measured)
    on: On = "validate" if tested is None else "test"
    pair = tested or (best, reference)
    point = measured.compared([pair[1], pair[0]], on)[-1]
    units = measured.units(pair[1], on)
    return Evaluated(
        params=dict(best.parameters or {}),
        at_one=training_key(best.parameters or {}) == training_key(reference.parameters or {}),
        chosen=measured.value(best, "validate"),
        chosen_at_one=measured.value(reference, "validate"),
        on=on,
        value=measured.value(pair[0], on),
        value_at_one=measured.value(pair[1], on),
        gain=point.gain,
        interval=point.interval,
        unit=None if units is None else units.kind,
        units=0 if units is None else len(units.values),
        items=0 if units is None else round(sum(units.sizes)),
        changed=_changed(units, measured.units(pair[0], on)),
        tried=len(runs),
        curve=tuple(curve),
        apart=_apart(tickets, measured, spec, pair, on),
    )


def _apart(
    tickets: Sequence[TicketRow],
    measured: _Measured,
    spec: StudySpec,
    pair: tuple[TicketRow, TicketRow],
    on: On,
) -> Apart | None:
    """Return what generation and temperatures gain apart.

    Args:
        tickets: All tickets of the study.
        measured: What they measured.
        spec: The study's spec.
        pair: The runs on the data, of the chosen parameters and of τ = 1.
        on: The data.
    """
    tuned = _tuned(tickets, spec) if on == "validate" else _confirmed(tickets, _TUNED, measured)
    if tuned is None:
        return None
    chosen, reference = pair
    return Apart(
        generation=measured.compared([reference, tuned], on)[-1],
        temperature=measured.compared([tuned, chosen], on)[-1],
    )


def _tested(tickets: Sequence[TicketRow], measured: _Measured) -> tuple[TicketRow, TicketRow] | None:
    """Return the runs on the test data of the round: of the chosen parameters, and of τ = 1."""
    confirm = of_kind(tickets, "confirm", of_round=current_round(tickets))
    if not confirm or not all(over(each) and usable(each) for each in confirm):
        return None
    chosen, reference = (_confirmed(tickets, arm, measured) for arm in ("search", "baseline"))
    return None if chosen is None or reference is None else (chosen, reference)


def _confirmed(tickets: Sequence[TicketRow], arm: str, measured: _Measured) -> TicketRow | None:
    """Return the round's run of an arm on the test data."""
    confirm = of_kind(tickets, "confirm", of_round=current_round(tickets))
    return next((each for each in confirm if arm in arms_of(each) and measured.has(each, "test")), None)


class _Measured:
    """What runs measured, by run and name."""

    def __init__(self, measurements: Iterable[Measurement], spec: StudySpec) -> None:
        self._spec = spec
        self._found: dict[int, dict[str, dict[int, float]]] = {}
        for each in measurements:
            self._found.setdefault(each.ticket_id, {}).setdefault(each.name, {})[each.step] = each.value

    def has(self, run: TicketRow, name: str) -> bool:
        return name in self._found.get(run.id, {})

    def value(self, run: TicketRow, on: On) -> float:
        """Return the metric of a run; its value where it measured nothing of that name."""
        return next(iter(self._named(run, on).values()), run.value or 0.0)

    def _named(self, run: TicketRow, name: str) -> Mapping[int, float]:
        return self._found.get(run.id, {}).get(name, {})

    def units(self, run: TicketRow, on: On) -> Units | None:
        for kind in UNIT_KINDS:
            values = self._named(run, units_name(on, kind))
            if values:
                sizes = self._named(run, sizes_name(on))
                return Units(
                    kind=kind,
                    values=tuple(values[place] for place in sorted(values)),
                    sizes=tuple(sizes.get(place, 1.0) for place in sorted(values)),
                )
        return None

    def compared(self, runs: Sequence[TicketRow], on: On) -> list[Point]:
        """Return each of some runs compared with the first of them, on the same draws of the units."""
        direction, reference = self._spec.study.direction, runs[0]
        own = self.units(reference, on)
        units = {each.id: self.units(each, on) for each in runs}
        alike = [each for each in runs if own is not None and _alike(own, units[each.id])]
        intervals: dict[int, Interval | None] = {}
        if own is not None and len(own.values) >= FEWEST:
            differences = [
                [
                    oriented(value - one, direction)
                    for value, one in zip(found.values, own.values, strict=True)
                ]
                for each in alike
                if (found := units[each.id]) is not None
            ]
            seed = derive(self._spec.study.seed, "bootstrap")
            found_intervals = paired_bootstrap(differences, own.sizes, seed=seed)
            intervals = {each.id: found for each, found in zip(alike, found_intervals, strict=True)}
        at_one, key = self.value(reference, on), training_key(reference.parameters or {})
        points = []
        for each in runs:
            value, interval = self.value(each, on), intervals.get(each.id)
            if each.id in intervals and training_key(each.parameters or {}) == key:
                # the same evaluation
                interval = Interval(difference=0.0, low=0.0, high=0.0)
            gain = oriented(value - at_one, direction) if interval is None else interval.difference
            points.append(
                Point(params=dict(each.parameters or {}), value=value, gain=gain, interval=interval)
            )
        return points


def _changed(own: Units | None, other: Units | None) -> int | None:
    if own is None or other is None or not _alike(own, other):
        return None
    return sum(one != two for one, two in zip(own.values, other.values, strict=True))


def _alike(own: Units, other: Units | None) -> bool:
    return (
        other is not None
        and (own.kind, own.sizes) == (other.kind, other.sizes)
        and all(map(math.isfinite, (*own.values, *other.values)))
    )
