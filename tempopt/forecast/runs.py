"""How many runs a study takes to its first verdict: at least, typically and at most, in closed form.

The numbers follow from the rules of ``tempopt.confirmation``, stage by stage, without a gain and with one.
Runs that fail, and limits that end the search, are left out: with them there are fewer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tempopt.confirmation.rematch import rematch_size
from tempopt.confirmation.stages import candidates_at_most
from tempopt.forecast.power import expected_pairs
from tempopt.records.racing import next_pairs
from tempopt.records.rows import KINDS, Kind
from tempopt.spec.domains import Range
from tempopt.spec.study_spec import StudySpec
from tempopt.temperature import AS_FOUND, GENERATION, GROUPS, LR_RATIOS, split_name

_LEVELS = 5
"""Constant temperatures that take the place of the winner's schedule, at most."""
_STAYS = 0.5
"""Share of the other candidates that are typically still in a race after its first look."""
_MOVES = 0.5
"""Chance that the winner's temperature moves in training, where it may."""
_MOVING = ("schedule", "control")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number that depends on what is found: its minimum, typical and maximum value."""

    min: float
    typical: float
    max: float

    def __add__(self, other: Span) -> Span:
        return Span(min=self.min + other.min, typical=self.typical + other.typical, max=self.max + other.max)

    def times(self, factor: float) -> Span:
        """Return each of the numbers times a factor."""
        return Span(min=self.min * factor, typical=self.typical * factor, max=self.max * factor)


_NONE = Span(min=0, typical=0, max=0)


def _exactly(count: float) -> Span:
    return Span(min=count, typical=count, max=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRuns:
    """The runs of a study to its first verdict, by kind.

    Args:
        no_gain: If no gain is shown.
        gain: If one is shown.
    """

    no_gain: dict[Kind, Span]
    gain: dict[Kind, Span]

    def total(self, *, gain: bool, without: tuple[Kind, ...] = ()) -> Span:
        """Return the number of runs of all kinds but some, with or without a gain."""
        counts = self.gain if gain else self.no_gain
        return sum((span for kind, span in counts.items() if kind not in without), _NONE)

    def all(self, without: tuple[Kind, ...] = ()) -> Span:
        """Return the number of runs whatever is found; typically: the mean of both."""
        no_gain, gain = self.total(gain=False, without=without), self.total(gain=True, without=without)
        return Span(
            min=min(no_gain.min, gain.min),
            typical=(no_gain.typical + gain.typical) / 2,
            max=max(no_gain.max, gain.max),
        )


def planned_runs(spec: StudySpec) -> PlannedRuns:
    """Return how many runs a study takes to its first verdict."""
    return PlannedRuns(no_gain=_counts(spec, gain=False), gain=_counts(spec, gain=True))


def _counts(spec: StudySpec, *, gain: bool) -> dict[Kind, Span]:
    if not spec.about_temperature:
        return _compared(spec, gain=gain)
    study, seeds = spec.study, spec.study.seeds.choose
    tunes, moves = bool(spec.other_names), _moves(spec)
    asked = {"search": study.trials, "constant": spec.num_constant}
    numbers = {arm: candidates_at_most(spec, count) for arm, count in asked.items()}
    # a winner at τ = 1 is compared with nothing but itself
    may_end = not gain
    choose = _NONE
    for count in numbers.values():
        choose += _race(count, seeds, may_be_few=not _is_continuous(spec))
    later = [_race(len(LR_RATIOS), seeds)] * spec.learns + [_levels(seeds)] * moves
    if tunes:
        exchange = Span(min=0, typical=seeds, max=seeds * (1 + (numbers["search"] == 1)))
        later += [_race(study.candidates, seeds), exchange]
    for span in later:
        choose += Span(min=0 if may_end else span.min, typical=span.typical, max=span.max)
    rematch = rematch_size(spec, study.trials, spec.num_baseline) if tunes else 0
    pairs, twin = _pairs(spec, gain=gain), tunes or bool(spec.method_names)
    arms = 3 + twin + moves + spec.learns
    fewest = 1 if may_end else 2 + spec.learns
    counts: dict[Kind, Span] = {
        "baseline": _exactly(spec.num_baseline),
        "constant": _exactly(spec.num_constant),
        "search": _exactly(study.trials),
        "choose": choose,
        "rematch": Span(min=0 if may_end else rematch, typical=rematch, max=rematch),
        "confirm": Span(
            min=pairs.min * fewest,
            typical=pairs.typical * (arms - moves * (1 - _MOVES)),
            max=pairs.max * arms,
        ),
    }
    if study.ablation == "full" or (gain and study.ablation == "auto"):
        untried = (not tunes or study.candidates == 1) + (numbers["search"] == 1 and not tunes)
        simpler, arms_apart = _taken_apart(spec, _parts(spec), untried)
        likely = _taken_apart(spec, math.ceil(_parts(spec) / 2), untried)
        counts["choose"] += Span(min=0, typical=likely[0] * seeds, max=simpler * seeds)
        counts["ablation"] = Span(min=0, typical=likely[1] * pairs.typical, max=arms_apart * pairs.max)
    return {kind: counts[kind] for kind in KINDS if kind in counts and counts[kind].max}


def _pairs(spec: StudySpec, *, gain: bool) -> Span:
    """Return the number of confirmed pairs: a look on the way may end them."""
    confirm = spec.study.seeds.confirm
    return Span(min=confirm.looks[0], typical=expected_pairs(spec, gain=gain), max=confirm.max)


def _race(candidates: int, seeds: int, *, may_be_few: bool = False) -> Span:
    """Return the runs of a race of candidates on so many seeds.

    Args:
        candidates: Candidates at most; one alone does not run.
        seeds: Seeds at most.
        may_be_few: Whether there may turn out to be one candidate alone.
    """
    if candidates < 2:
        return _NONE
    first = len(next_pairs(0, seeds))
    typical = candidates * first + (1 + (candidates - 1) * _STAYS) * (seeds - first)
    return Span(min=0 if may_be_few else candidates * first, typical=typical, max=candidates * seeds)


def _levels(seeds: int) -> Span:
    """Return the runs that choose constants in place of the schedule of a winner, if it has one."""
    race = _race(_LEVELS, seeds)
    return Span(min=0, typical=race.typical * _MOVES, max=race.max)


def _is_continuous(spec: StudySpec) -> bool:
    """Return whether the search has so many parameter sets that no two trials try the same."""
    return any(
        isinstance(domain, Range) and domain.step is None and not isinstance(domain.low, int)
        for domain in spec.search.values()
    )


def _names(spec: StudySpec) -> set[str]:
    return {*spec.search, *spec.fixed_temperatures}


def _moves(spec: StudySpec) -> bool:
    """Return whether the temperature of a winner may move in training."""
    moving = GROUPS["schedule"] | GROUPS["control"]
    return any(split_name(name)[1] in moving for name in _names(spec))


def _plan_parts(spec: StudySpec) -> set[tuple[str, str]]:
    """Return the parts that a plan of the space may have, each with the name of its temperature."""
    names = [split_name(name) for name in _names(spec)]
    return {
        (temperature, group)
        for temperature, bare in names
        for group, members in GROUPS.items()
        if bare in members and bare != AS_FOUND
    }


def _parts(spec: StudySpec) -> int:
    return len(_plan_parts(spec))


def _taken_apart(spec: StudySpec, parts: int, untried: int) -> tuple[int, int]:
    """Return the sets that order simpler plans, and the arms of an ablation, for so many parts of a plan.

    Args:
        spec: The study's spec.
        parts: Parts of the winner's plan.
        untried: Sets that the plans are compared with and that have not run on the choosing seeds.
    """
    generation = any(name in GENERATION for name in spec.search)
    methods = len(spec.method_names) + generation
    if parts + methods < 2:
        return 0, 0
    # each part alone, and all but each; of two parts these are the same
    plans = 0 if parts < 2 else parts * (1 + (parts > 2))
    moving = sum(group in _MOVING for _, group in _plan_parts(spec))
    # without its one moving part the winner is at the constant that is confirmed
    arms = parts - (moving == 1 and parts > 1) + methods + (plans > 2)
    return plans + untried * (plans > 0), arms


def _compared(spec: StudySpec, *, gain: bool) -> dict[Kind, Span]:
    """Return the runs of a comparison of given parameter sets."""
    pairs, sets = _pairs(spec, gain=gain), len(spec.compare or ())
    return {"confirm": pairs.times(sets)}
