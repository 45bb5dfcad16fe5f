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
"""The arms that are confirmed. Of arms with equal parameters the first in this order has the runs.

* ``search``: the winner.
* ``baseline``: the best that is known at τ = 1.
* ``twin``: the winner's own other parameters at τ = 1.
* ``constant``: the best constant that is known, once a gain of another winner is shown.
* ``constant_twin``: the winner with the geometric mean of its schedule in place of it, likewise.
"""


def is_terminal(ticket: TicketRow) -> bool:
    """Return whether nothing more will become of the ticket; one that was withdrawn is over, too."""
    return ticket.state in TERMINAL_STATES


def are_over(tickets: Iterable[TicketRow]) -> bool:
    """Return whether no ticket is waiting or running."""
    return all(is_terminal(ticket) for ticket in tickets)


def current_round(tickets: Iterable[TicketRow]) -> int:
    """Return the round that is being worked on, or was last: 0 for a study that was never enlarged."""
    return max((ticket.round for ticket in tickets), default=0)


def is_usable(ticket: TicketRow) -> bool:
    """Return whether the run came to its end with a finite value."""
    return ticket.outcome == "complete" and ticket.value is not None and math.isfinite(ticket.value)


def gpu_seconds_of(ticket: TicketRow) -> float:
    """Return the seconds of cards that a ticket took, its training seconds where it trained on none."""
    return ticket.gpu_seconds or ticket.seconds


def arms_of(ticket: TicketRow) -> tuple[str, ...]:
    """Return the arms that a ticket trains for; several with equal parameters share a run."""
    return tuple(ticket.arm.split("+"))


def join_arms(arms: Mapping[Any, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return what is trained for some arms, those that train the same as one: :func:`arms_of` parts them."""
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
    """Return on how many pairs there are tickets."""
    return 1 + max((ticket.pair for ticket in tickets if ticket.pair is not None), default=-1)


def is_round_of_added_pairs(tickets: Iterable[TicketRow], of_round: int) -> bool:
    """Return whether a round consists of pairs that were added to the verdict before it."""
    return of_round > 0 and not any(t.kind == "search" and t.round == of_round for t in tickets)


def rounds_of_verdict(tickets: Sequence[TicketRow], of_round: int) -> list[int]:
    """Return the rounds whose pairs a verdict rests on, oldest first: its own, and those it was added to."""
    rounds = [of_round]
    while is_round_of_added_pairs(tickets, rounds[0]):
        rounds.insert(0, rounds[0] - 1)
    return rounds


def parameters_of(tickets: Iterable[TicketRow], arm: str) -> dict[str, Any] | None:
    """Return the parameters that tickets of an arm train with, None if there are none."""
    return next((t.parameters for t in tickets if arm in arms_of(t) and t.parameters is not None), None)


def to_maximize(value: float, direction: Direction) -> float:
    """Return the value with the sign under which more is better."""
    return value if direction == "maximize" else -value


def next_number(tickets: Iterable[TicketRow], kind: Kind) -> int:
    """Return the first number that no ticket of the kind has: numbers go on from round to round."""
    return 1 + max((ticket.number for ticket in tickets if ticket.kind == kind), default=-1)


def fresh_seed(study_seed: int, kind: Kind, pair: int, of_round: int) -> int:
    """Return the seed that a kind trains a pair with; later rounds have others than the first."""
    later = (of_round,) if of_round else ()
    return derive(study_seed, kind, pair, *later)


def verdicts(tickets: Iterable[TicketRow], of_round: int) -> int:
    """Return which verdict of its study that of a round is, from 1.

    A round whose confirmation was never begun has shown nothing.
    """
    confirmed_rounds = {t.round for t in tickets if t.kind == "confirm" and t.attempt and t.round < of_round}
    return 1 + len(confirmed_rounds)


def last_values(measurements: Iterable[Measurement], prefix: str) -> dict[str, dict[int, float]]:
    """Return the last finite value of measurements whose name begins so, by the rest of the name and ticket.

    Args:
        measurements: Measurements of any tickets.
        prefix: What the names begin with.
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
