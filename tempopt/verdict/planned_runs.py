"""Number of runs of a study to its first verdict: minimum, typical and maximum, in closed form.

The numbers follow from the rules of ``tempopt.verdict``, stage by stage, without a gain and with a gain of
two standard deviations of a pair's difference. Failed runs, and limits that end the search, are ignored; they
reduce the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from tempopt.spec.domains import RangeDomain
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import KINDS, Kind
from tempopt.temperature import AS_FOUND, GENERATION, GROUPS, LR_RATIOS, split_name
from tempopt.verdict.detectable_gain import expected_pairs
from tempopt.verdict.stages import max_arm_candidates

_MOVES = 0.5
"""Probability that a winner is compared with constants, if it may be something else."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A number that depends on the results: its minimum, typical and maximum value."""

    min: float
    typical: float
    max: float

    def __add__(self, other: Span) -> Span:
        return Span(min=self.min + other.min, typical=self.typical + other.typical, max=self.max + other.max)

    def times(self, factor: float) -> Span:
        """Return each of the numbers times a factor."""
        return Span(min=self.min * factor, typical=self.typical * factor, max=self.max * factor)


_NONE = Span(min=0, typical=0, max=0)


def _fixed_span(count: float) -> Span:
    return Span(min=count, typical=count, max=count)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRuns:
    """The runs of a study to its first verdict, by kind.

    Args:
        no_gain: If there is no gain.
        gain: If there is a gain of two standard deviations of a pair's difference.
    """

    no_gain: dict[Kind, Span]
    gain: dict[Kind, Span]

    def total(self, *, gain: bool, without: tuple[Kind, ...] = ()) -> Span:
        """Return the number of runs of all kinds except ``without``, with or without a gain."""
        counts = self.gain if gain else self.no_gain
        return sum((span for kind, span in counts.items() if kind not in without), _NONE)

    def max_total(self, without: tuple[Kind, ...] = ()) -> float:
        """Return the largest number of runs of all kinds except ``without``."""
        return max(self.total(gain=gain, without=without).max for gain in (False, True))


def planned_runs(spec: StudySpec) -> PlannedRuns:
    """Return the number of runs of a study to its first verdict."""
    return PlannedRuns(no_gain=_counts(spec, gain=False), gain=_counts(spec, gain=True))


def _counts(spec: StudySpec, *, gain: bool) -> dict[Kind, Span]:
    pairs = _pairs(spec, gain=gain)
    if not spec.is_about_temperature:
        return {"confirm": pairs.times(len(spec.compare or ()))}
    study, seeds, tunes = spec.study, spec.study.seeds.choose, bool(spec.ordinary_names)
    candidates = max_arm_candidates(spec, spec.num_trials)
    choose = _NONE
    if candidates > 1:
        min_choices = 0 if not _is_continuous(spec) else candidates * seeds
        choose += Span(min=min_choices, typical=candidates * seeds, max=candidates * seeds)
    if tunes:
        # the winner, with its own ordinary parameters and with the baseline's
        choose += Span(min=0, typical=seeds, max=2 * seeds)
    arms, parts = 2 + spec.has_twin, _plan_parts(spec)
    confirm = Span(min=pairs.min * 2, typical=pairs.typical * arms, max=pairs.max * arms)
    # unless every winner is a constant temperature
    if gain and any(group != "level" for _, group in parts):
        confirm += Span(min=0, typical=pairs.typical * 2 * _MOVES, max=pairs.max * 2)
    counts: dict[Kind, Span] = {
        "baseline": _fixed_span(spec.num_baseline + spec.num_tuning),
        "constant": _fixed_span(spec.num_constant),
        "search": _fixed_span(spec.num_trials),
        "choose": choose,
        "confirm": confirm,
    }
    if study.explain:
        num_parts = len(parts)
        plans = num_parts * (1 + (num_parts > 2)) if num_parts > 1 else 0
        learned = len(LR_RATIOS) * spec.learns
        # in addition to the plans: winner and baseline, if they are not on the choosing seeds already
        sets = plans + learned + 2 * (plans + learned > 0)
        methods = len(spec.method_parameter_names) + any(name in GENERATION for name in spec.search)
        num_ablations = num_parts + methods + (plans > 0) + (learned > 0)
        counts["choose"] += Span(min=0, typical=seeds * sets / 2, max=seeds * sets)
        counts["ablation"] = Span(
            min=0, typical=pairs.typical * num_ablations / 2, max=pairs.max * num_ablations
        )
    return {kind: counts[kind] for kind in KINDS if kind in counts and counts[kind].max}


def _pairs(spec: StudySpec, *, gain: bool) -> Span:
    """Return the number of confirmed pairs, which interim looks may end early."""
    confirm = spec.study.seeds.confirm
    return Span(min=confirm.looks[0], typical=expected_pairs(spec, gain=gain), max=confirm.max)


def _is_continuous(spec: StudySpec) -> bool:
    """Return whether the search has so many parameter sets that no two trials try the same one."""
    return any(
        isinstance(domain, RangeDomain) and domain.step is None and not isinstance(domain.low, int)
        for domain in spec.search.values()
    )


def _plan_parts(spec: StudySpec) -> set[tuple[str, str]]:
    """Return the parts that a plan of the space may have, each with the name of its temperature."""
    names = [split_name(name) for name in {*spec.search, *spec.fixed_temperatures}]
    return {
        (temperature, group)
        for temperature, bare in names
        for group, members in GROUPS.items()
        if bare in members and bare != AS_FOUND
    }
