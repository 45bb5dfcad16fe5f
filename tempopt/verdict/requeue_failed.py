"""Which runs that failed on every attempt can be asked for again, and what is trained in place of the others.

Pure: rows in, tickets out. What a verdict has counted stays as it was counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.storage.rows import SEARCH_KINDS, NewTicket, TicketRow
from tempopt.storage.ticket_queries import current_round, of_kind, pairs_of, rounds_of_verdict
from tempopt.verdict.paired_evidence import Evidence, gain_over_baseline
from tempopt.verdict.pairs import more_pairs
from tempopt.verdict.set_comparison import more_compare_pairs

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_FEWEST = 2
"""One pair alone shows nothing."""


def failed_runs_to_requeue(
    tickets: Sequence[TicketRow], spec: StudySpec
) -> tuple[list[TicketRow], list[NewTicket]]:
    """Return the failed tickets that wait again, and fresh pairs in place of those that a verdict lacks.

    Pairs that come in after a verdict are another look at its question. They are a round of their own, as
    pairs that a person adds are, with its share of the level. What nothing depends on any more stays failed;
    searching runs do not, since later rounds learn from them.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
    """
    this_round = current_round(tickets)
    confirm = of_kind(tickets, "confirm", of_round=this_round)
    has_verdict = _has_verdict(tickets, spec)
    waiting_tickets = [
        ticket
        for ticket in tickets
        if ticket.state == "failed" and _counts(ticket, tickets, spec, confirm, has_verdict)
    ]
    lost = _lost_pairs(tickets, this_round) if has_verdict else 0
    count = max(_FEWEST, lost) if lost > 0 else 0
    return waiting_tickets, further_pairs(tickets, spec, count) if count else []


def further_pairs(tickets: Sequence[TicketRow], spec: StudySpec, count: int) -> list[NewTicket]:
    """Return a round of that many more pairs of what the last verdict compared; none while there is none.

    Args:
        tickets: All tickets of the study.
        spec: The study's spec.
        count: Number of pairs, >= 1.
    """
    if spec.compare is not None:
        return more_compare_pairs(tickets, spec, count)
    return more_pairs(tickets, spec, count)


def _has_verdict(tickets: Sequence[TicketRow], spec: StudySpec) -> bool:
    """Return whether there is a verdict of the current round, whatever it says."""
    decided = bool(further_pairs(tickets, spec, 1))
    if not spec.about_temperature:
        return decided
    return decided and gain_over_baseline(Evidence(tickets, spec, current_round(tickets))) is not None


def _counts(
    ticket: TicketRow,
    tickets: Sequence[TicketRow],
    spec: StudySpec,
    confirm: Sequence[TicketRow],
    has_verdict: bool,
) -> bool:
    this_round = current_round(tickets)
    if ticket.kind in SEARCH_KINDS:
        return True
    if ticket.round != this_round:
        return False
    if ticket.kind == "confirm":
        # earlier looks were taken without them
        looks = [look for look in spec.study.seeds.confirm.looks if look < pairs_of(confirm)]
        return not has_verdict and (ticket.pair or 0) >= max(looks, default=0)
    # what was chosen is chosen once its confirmation has begun
    return ticket.kind == "choose" and not confirm


def _lost_pairs(tickets: Sequence[TicketRow], this_round: int) -> int:
    """Return how many pairs the verdict of a round lacks, less those that were added since."""
    first_round, *added_rounds = rounds_of_verdict(tickets, this_round)
    confirm_tickets = [
        ticket for ticket in of_kind(tickets, "confirm") if ticket.round in (first_round, *added_rounds)
    ]
    lost_pairs = {(ticket.round, ticket.pair) for ticket in confirm_tickets if ticket.state == "failed"}
    added_pairs = {(ticket.round, ticket.pair) for ticket in confirm_tickets if ticket.round in added_rounds}
    return len(lost_pairs) - len(added_pairs)
