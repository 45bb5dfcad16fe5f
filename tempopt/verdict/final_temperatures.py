"""Where temperatures that training itself moves ended: learned ones, and those that follow an entropy."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import geometric_mean

from tempopt.storage.rows import Kind, Measurement
from tempopt.storage.ticket_queries import is_usable, last_values
from tempopt.verdict.paired_evidence import Evidence

Ends = dict[str, tuple[float, float, float]]
"""Temperatures at the end of training by name, attention's by the number of its layer: geometric mean, lowest
and highest over the runs."""


def final_temperatures(
    evidence: Evidence,
    measurements: Iterable[Measurement],
    arm: str,
    curve: str,
    kind: Kind = "confirm",
) -> Ends:
    """Return where the temperatures of an arm's runs ended.

    Args:
        evidence: The pairs of the verdict's round.
        measurements: What the confirm runs measured.
        arm: The arm.
        curve: What the names of the measurements begin with.
        kind: Kind of the runs.
    """
    ticket_ids = {
        ticket.id
        for of_round in evidence.rounds
        for ticket in evidence.tickets(kind, arm, of_round)
        if is_usable(ticket)
    }
    last_taus = last_values(
        (measurement for measurement in measurements if measurement.ticket_id in ticket_ids), curve
    )
    taus = {name: list(values.values()) for name, values in last_taus.items()}
    return {name: (geometric_mean(values), min(values), max(values)) for name, values in taus.items()}
