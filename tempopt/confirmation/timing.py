"""Which runs time a training step of the winner beside one of the baseline, for the guard ``step_time``.

Pure: rows in, new tickets out. How a run takes its time is training/step_timing.py's, what the times say is
guards.py's. An agent takes such a ticket only while no other run of the study is in progress anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tempopt.confirmation.comparisons import Evidence, gain
from tempopt.confirmation.pairs import confirmed_arms
from tempopt.records.rows import NewTicket, Parameters, TicketRow
from tempopt.records.tickets import current_round, fresh_seed, next_number, of_kind
from tempopt.spec.guards import STEP_TIME
from tempopt.statistics.paired_tests import least_pairs
from tempopt.temperature import training_key

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

REPETITIONS = 8


def timing_tickets(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the runs that time a step; none unless a gain is shown and they are asked for and not there yet.

    Args:
        tickets: All tickets of the study, which are all over, the confirmation's among them.
        spec: The study's spec.
    """
    if STEP_TIME not in spec.study.guards:
        return []
    answer = gain(Evidence(tickets, spec, current_round(tickets)))
    return timing_runs(tickets, spec) if answer is not None and answer.significant else []


def timing_runs(tickets: Sequence[TicketRow], spec: StudySpec) -> list[NewTicket]:
    """Return the runs that time a step if a gain is shown; none if they are not asked for, or there already.

    Args:
        tickets: As for :func:`timing_tickets`.
        spec: The study's spec.
    """
    now = current_round(tickets)
    arms = confirmed_arms(of_kind(tickets, "confirm", of_round=now))
    if STEP_TIME not in spec.study.guards or not {"search", "baseline"} <= arms.keys():
        return []
    if training_key(arms["search"]) == training_key(arms["baseline"]):
        return []
    if of_kind(tickets, "timing", of_round=now):
        return []
    alpha, first = Evidence(tickets, spec, now).alpha, next_number(tickets, "timing")
    return [
        NewTicket(
            kind="timing",
            arm="timing",
            number=first + pair,
            seed=fresh_seed(spec.study.seed, "timing", pair, now),
            pair=pair,
            parameters=arms["search"],
            round=now,
        )
        for pair in range(max(REPETITIONS, least_pairs(spec.study.test, alpha)))
    ]


def timed_against(tickets: Sequence[TicketRow], of_round: int) -> Parameters:
    """Return the parameters of the baseline that a round's winner is timed against."""
    return confirmed_arms(of_kind(tickets, "confirm", of_round=of_round))["baseline"]
