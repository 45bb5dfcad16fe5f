"""Queries on a study's tickets: which are over, of what kind and round, and their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, get_args

from tempopt.seeds import derive
from tempopt.spec.alpha_levels import Direction
from tempopt.storage.rows import TERMINAL_STATES, Kind, Measurement, TicketRow
from tempopt.temperature import training_key

ConfirmationArm = Literal["search", "baseline", "twin", "constant", "constant_twin"]
DECIDING_ARMS: tuple[ConfirmationArm, ...] = ("search", "baseline", "twin")
"""The arms whose runs decide whether a gain is shown."""
ARMS: tuple[ConfirmationArm, ...] = get_args(ConfirmationArm)
"""The arms that are confirmed. If arms have equal parameters, the first in this order has the runs.

* ``search``: the winner.
* ``baseline``: the best known parameters at τ = 1.
* ``twin``: the winner's other parameters at τ = 1.
* ``constant``: the best known constant temperature, once a gain of another winner is shown.
* ``constant_twin``: the winner with a constant, the geometric mean of its schedule, likewise.
"""


def is_terminal(ticket: TicketRow) -> bool:
    """Return whether the ticket is in a final state: done, failed or withdrawn."""
    return ticket.state in TERMINAL_STATES


def are_over(tickets: Iterable[TicketRow]) -> bool:
    """Return whether no ticket is waiting or running."""
    return all(is_terminal(ticket) for ticket in tickets)


def current_round(tickets: Iterable[TicketRow]) -> int:
    """Return the latest round: 0 for a study that was never extended."""
    return max((ticket.round for ticket in tickets), default=0)


def is_usable(ticket: TicketRow) -> bool:
    """Return whether the run is complete and has a finite value."""
    return ticket.outcome == "complete" and ticket.value is not None and math.isfinite(ticket.value)


def gpu_seconds_of(ticket: TicketRow) -> float:
    """Return the GPU seconds of a ticket, its training seconds if it trained without a GPU."""
    return ticket.gpu_seconds or ticket.seconds


def arms_of(ticket: TicketRow) -> tuple[str, ...]:
    """Return the arms that a ticket trains for; several with equal parameters share a run."""
    return tuple(ticket.arm.split("+"))


def join_arms(arms: Mapping[Any, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return parameters by arm, with one joint entry for arms with equal parameters (see :func:`arms_of`)."""
    names: dict[str, list[str]] = {}
    for arm, parameters in arms.items():
        names.setdefault(training_key(parameters), []).append(arm)
    return {"+".join(alike): arms[alike[0]] for alike in names.values()}


def of_kind(
    tickets: Iterable[TicketRow], kind: Kind, arm: str | None = None, *, of_round: int | None = None
) -> list[TicketRow]:
    """Return the tickets of a kind (and arm, and round) by number."""
    matches = [
        ticket
        for ticket in tickets
        if ticket.kind == kind
        and (arm is None or arm in arms_of(ticket))
        and of_round in (None, ticket.round)
    ]
    return sorted(matches, key=lambda ticket: ticket.number)


def pairs_of(tickets: Iterable[TicketRow]) -> int:
    """Return the number of pairs of the tickets."""
    return 1 + max((ticket.pair for ticket in tickets if ticket.pair is not None), default=-1)


def is_round_of_added_pairs(tickets: Iterable[TicketRow], of_round: int) -> bool:
    """Return whether a round consists of pairs that were added to the verdict before it."""
    return of_round > 0 and not any(t.kind == "search" and t.round == of_round for t in tickets)


def rounds_of_verdict(tickets: Sequence[TicketRow], of_round: int) -> list[int]:
    """Return the rounds whose pairs a verdict uses, oldest first: its own, and those that it extends."""
    rounds = [of_round]
    while is_round_of_added_pairs(tickets, rounds[0]):
        rounds.insert(0, rounds[0] - 1)
    return rounds


def parameters_of(tickets: Iterable[TicketRow], arm: str) -> dict[str, Any] | None:
    """Return the parameters that tickets of an arm train with, None if there are none."""
    return next((t.parameters for t in tickets if arm in arms_of(t) and t.parameters is not None), None)


def to_maximize(value: float, direction: Direction) -> float:
    """Return the value with the sign for which more is better."""
    return value if direction == "maximize" else -value


def next_number(tickets: Iterable[TicketRow], kind: Kind) -> int:
    """Return the next number of a ticket of the kind; numbers continue over rounds."""
    return 1 + max((ticket.number for ticket in tickets if ticket.kind == kind), default=-1)


def fresh_seed(study_seed: int, kind: Kind, pair: int, of_round: int) -> int:
    """Return the seed of a pair of a kind; each round has its own seeds."""
    later = (of_round,) if of_round else ()
    return derive(study_seed, kind, pair, *later)


def verdicts(tickets: Iterable[TicketRow], of_round: int) -> int:
    """Return the number of a round's verdict within its study, from 1.

    A round whose confirmation has not begun does not count.
    """
    confirmed_rounds = {t.round for t in tickets if t.kind == "confirm" and t.attempt and t.round < of_round}
    return 1 + len(confirmed_rounds)


def last_values(measurements: Iterable[Measurement], prefix: str) -> dict[str, dict[int, float]]:
    """Return the last finite values of measurements with a prefix, by the rest of their name and by ticket.

    Args:
        measurements: Measurements of any tickets.
        prefix: Prefix of the names.
    """
    last_points: dict[str, dict[int, tuple[int, float]]] = {}
    for measurement in measurements:
        if measurement.name.startswith(prefix) and math.isfinite(measurement.value):
            values_by_ticket = last_points.setdefault(measurement.name.removeprefix(prefix), {})
            values_by_ticket[measurement.ticket_id] = max(
                values_by_ticket.get(measurement.ticket_id, (-1, 0.0)), (measurement.step, measurement.value)
            )
    return {
        name: {ticket: value for ticket, (_, value) in values_by_ticket.items()}
        for name, values_by_ticket in last_points.items()
    }
