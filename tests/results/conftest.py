"""What the confirming runs of a study measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tempopt.records.rows import Measurement, TicketRow
from tempopt.records.tickets import arms_of

GAINS = {"validate:winner": 0.03, "test:winner": 0.03}


@pytest.fixture(scope="session")
def measure_baseline(measure: Callable[..., list[Measurement]]) -> Callable[..., list[Measurement]]:
    """Return a measurer of confirming runs in which another temperature helps those at τ = 1.

    It helps a little more on later seeds, since equal differences would tell nothing of the noise.
    """

    def add_measurements(
        tickets: list[TicketRow], gains: dict[str, float] | None = None
    ) -> list[Measurement]:
        gains = GAINS if gains is None else gains
        pairs = {ticket.id: ticket.pair or 0 for ticket in tickets if "baseline" in arms_of(ticket)}
        return [
            replace(row, value=row.value + gains.get(row.name, 0.0) * pairs.get(row.ticket_id, 0) / 100)
            for row in measure(tickets, baseline=gains)
        ]

    return add_measurements
