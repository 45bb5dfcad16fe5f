"""What came before the round of now: how the search space was amended, and what each verdict may spend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from tempopt.records.rows import TicketRow
from tempopt.records.tickets import current_round, of_kind, usable, verdicts
from tempopt.spec.amendments import changes, fits
from tempopt.spec.study_spec import StudySpec
from tempopt.statistics.alpha_ledger import FIRST, level

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One entry of the error ledger: a verdict whose confirmation has begun.

    Args:
        verdict: Which of the study's it is, from 1.
        round: The round that it closes, from 0.
        alpha: What it may spend of the 5 % that all share.
    """

    verdict: int
    round: int
    alpha: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One amendment of the search space, as it is told.

    Args:
        round: First round that was searched in the new space.
        during: Whether that round had begun, in the space before.
        changes: A text for each name, as in ``temperature_init: high 4.0 -> 16.0``.
        trials: Complete search trials that there were.
        kept: How many of them lie in the new space.
    """

    round: int
    during: bool
    changes: tuple[str, ...]
    trials: int
    kept: int


def ledger(tickets: Sequence[TicketRow]) -> list[Entry]:
    """Return what the verdicts of a study may spend, those whose confirmation has begun."""
    begun = sorted({each.round for each in of_kind(tickets, "confirm") if each.attempt})
    numbers = {of_round: verdicts(tickets, of_round) for of_round in begun}
    return [Entry(verdict=n, round=of_round, alpha=level(n)) for of_round, n in numbers.items()]


def amended(tickets: Sequence[TicketRow], spec: StudySpec) -> list[Change]:
    """Return how the search space of a study was amended, oldest first."""
    search, found = of_kind(tickets, "search"), []
    for place, each in enumerate(spec.amendments):
        after = spec.in_space(place + 1)
        before = [run for run in search if run.space <= place and run.parameters is not None]
        complete = [run for run in before if usable(run)]
        found.append(
            Change(
                round=each.round,
                during=any(run.round == each.round for run in before),
                changes=tuple(changes(each.spec.search, after.search)),
                trials=len(complete),
                kept=sum(fits(run, after) for run in complete),
            )
        )
    return found


def ledger_lines(result: StudyResult) -> list[str]:
    """Return the amendments of a study and its error ledger in words; none for a study of one round."""
    entries = ledger(result.runs)
    lines = [_told(each) for each in amended(result.runs, result.spec)]
    if not lines and len(entries) < 2:
        return lines
    told = [f"verdict {e.verdict} (round {e.round}) may spend {100 * e.alpha:.3g} %" for e in entries]
    share = f"{100 * _following(result.runs):.3g} %"
    told.append(f"the next one {share}" if told else f"the first verdict may spend {share}")
    return [*lines, f"error ledger, 5 % for all verdicts: {', '.join(told)}."]


def _following(tickets: Sequence[TicketRow]) -> float:
    """Return what the next verdict may spend."""
    # a round that is open has its share, whenever its confirmation begins
    return level(verdicts(tickets, current_round(tickets) + 1))


def next_share(tickets: Sequence[TicketRow]) -> str:
    """Return a sentence on the share of the error rate that the next verdict has; empty before the first."""
    following = _following(tickets)
    if following == FIRST:
        return ""
    return (
        f"The next verdict has {100 * following:.3g} % of the 5 % that all verdicts of the study share; the "
        f"first had {100 * FIRST:.3g} %."
    )


def _told(change: Change) -> str:
    when = f"{'during' if change.during else 'before'} round {change.round}"
    kept = f"{change.kept} of {change.trials} complete trials lie in the new space"
    return f"amended {when}: {'; '.join(change.changes)} ({kept})."


def rounds_json(result: StudyResult) -> dict[str, Any]:
    """Return the documented data of amendments and ledger."""
    return {
        "amendments": [
            {**asdict(each), "changes": list(each.changes)} for each in amended(result.runs, result.spec)
        ],
        "ledger": [asdict(each) for each in ledger(result.runs)],
    }
