"""The error ledger: the level that each verdict of a study may spend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import current_round, of_kind, rounds_of_verdict, verdicts

if TYPE_CHECKING:
    from tempopt.report.study_data import ComparedData, StudyData


def ledger_json(result: StudyData) -> list[dict[str, Any]]:
    """Return the error ledger: the levels of the verdicts whose confirmation has begun.

    Each entry has the number ``verdict`` from 1, its ``round`` from 0, and its two-sided level ``alpha``.
    """
    rounds = sorted({ticket.round for ticket in of_kind(result.runs, "confirm") if ticket.attempt})
    numbers = {of_round: verdicts(result.runs, of_round) for of_round in rounds}
    return [
        {"verdict": verdict, "round": of_round, "alpha": alpha_for_verdict(verdict)}
        for of_round, verdict in numbers.items()
    ]


def ledger_lines(result: StudyData) -> list[str]:
    """Return the error ledger of a study as text; empty for a study of one round."""
    entries = ledger_json(result)
    if len(entries) < 2:
        return []
    texts = [
        f"verdict {entry['verdict']} (round {entry['round']}) {100 * entry['alpha']:.3g} %"
        for entry in entries
    ]
    texts.append(f"the next one {100 * _next_alpha(result.runs):.3g} %")
    return [f"levels of the verdicts, two-sided: {', '.join(texts)}."]


def seeds_text(num_seeds: int, num_earlier: int) -> str:
    """Return the number of seeds of a verdict, and how many of them the verdict before uses too."""
    if num_earlier:
        return f"{num_seeds} seeds ({num_earlier} of the verdict before)"
    return f"{num_seeds} fresh seed{'s' * (num_seeds != 1)}"


def earlier_seeds(result: ComparedData, of_round: int, *, counts_failures: bool = True) -> int:
    """Return the number of seeds that the verdict of a round shares with the verdict before.

    Args:
        result: The study.
        of_round: The round.
        counts_failures: Whether runs that failed on every attempt count; else their seeds are left out.
    """
    rounds = rounds_of_verdict(result.runs, of_round)[:-1]
    runs = [run for run in result.runs if run.kind == "confirm" and run.round in rounds]
    lost_pairs = {(run.round, run.pair) for run in runs if run.outcome == "failed" and not counts_failures}
    return len({(run.round, run.pair) for run in runs} - lost_pairs)


def rounds_combined(result: ComparedData, of_round: int) -> list[str]:
    """Return how the rounds of a verdict are combined; empty for one round."""
    count = len(rounds_of_verdict(result.runs, of_round))
    if count < 2:
        return []
    weights = ":".join(str(2**stage) for stage in range(count))
    return [
        f"interval and p combine {count} rounds of pairs with squared weights {weights}; the estimate is the "
        "mean of all pairs, so the interval need not be centred on it."
    ]


def _next_alpha(tickets: Sequence[TicketRow]) -> float:
    """Return the level of the next verdict."""
    # an open round has its share before its confirmation begins
    return alpha_for_verdict(verdicts(tickets, current_round(tickets) + 1))


def next_alpha_text(tickets: Sequence[TicketRow]) -> str:
    """Return a sentence on the level of the next verdict; empty before the first."""
    next_alpha = _next_alpha(tickets)
    if next_alpha == alpha_for_verdict(1):
        return ""
    first = alpha_for_verdict(1)
    return f"The next verdict has the level {100 * next_alpha:.3g} %; the first had {100 * first:.3g} %."
