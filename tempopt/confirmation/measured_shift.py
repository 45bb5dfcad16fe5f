"""What the runs of a study say of the shift of ln τ from the proxy (``study.proxy.temperature: measured``).

Pure. Which shift follows from them is spec/size_race.py's; the plain words are results/proxy_text.py's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tempopt.records.racing import best_candidate
from tempopt.records.rows import TicketRow
from tempopt.records.tickets import oriented, usable
from tempopt.spec.size_race import mean_of, shift_race, shifts_by_rank
from tempopt.statistics.paired_tests import ALPHA, PairedTest, paired

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_FEWEST = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedShift:
    """The winner of the proxy at the first larger size, with ln τ moved by a shift.

    Args:
        shift: What was added to ln τ.
        value: Mean over the seeds; None: no run has a value.
        pairs: Number of seeds.
    """

    shift: float
    value: float | None
    pairs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShift:
    """The shift of ln τ that a study has measured.

    Args:
        shift: What is added to ln τ from each size to the next: the shift of what was best at the first
            larger size, 0 where that is another finalist or τ = 1.
        tried: What was tried, by shift.
        gain: What the shift gains over 0, or where it is 0, the best of the others, by the seeds that both
            have had; None: two seeds are not there.
        told_apart: Whether that is not 0 at 5 %, divided by the number of shifts that were tried.
    """

    shift: float
    tried: tuple[TriedShift, ...]
    gain: PairedTest | None
    told_apart: bool


def measured_shift(tickets: Sequence[TicketRow], spec: StudySpec) -> MeasuredShift | None:
    """Return the shift that a study has measured; None: it measures none, or has not yet.

    Args:
        tickets: All tickets of the study.
        spec: Its spec.
    """
    race = shift_race(tickets, spec)
    if not race:
        return None
    ranks = shifts_by_rank(race, spec)
    values = {rank: _values(race, spec, rank) for rank in ranks}
    sign = oriented(1.0, spec.study.direction)
    tried = [
        TriedShift(
            shift=shift,
            value=sign * mean_of(race, spec, rank) if values[rank] else None,
            pairs=sum(t.candidate == rank for t in race),
        )
        for rank, shift in ranks.items()
    ]
    best = best_candidate(race, spec.study.direction)
    moved = [rank for rank in ranks if rank and values[rank]]
    other = best if best in moved else max(moved, key=lambda rank: mean_of(race, spec, rank), default=0)
    gain = on_common_seeds(values[other], values[0]) if other else None
    return MeasuredShift(
        shift=ranks.get(best, 0.0),
        tried=tuple(sorted(tried, key=lambda each: each.shift)),
        gain=gain,
        told_apart=gain is not None and gain.p_value < ALPHA / (len(ranks) - 1),
    )


def on_common_seeds(one: Mapping[int, float], other: Mapping[int, float]) -> PairedTest | None:
    """Return Student's paired test of values by pair, more being better; None: fewer than two are common."""
    pairs = sorted(one.keys() & other.keys())
    if len(pairs) < _FEWEST:
        return None
    return paired([one[pair] - other[pair] for pair in pairs], test="t", direction="maximize")


def _values(race: Sequence[TicketRow], spec: StudySpec, rank: int) -> dict[int, float]:
    return {
        t.pair: oriented(t.value, spec.study.direction)
        for t in race
        if t.candidate == rank and t.pair is not None and usable(t) and t.value is not None
    }
