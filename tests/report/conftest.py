"""Studies that every test of the report looks at, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tests.report.made_study import World, make

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


@pytest.fixture(scope="session")
def confirmed_result() -> StudyResult:
    """A study that is over and has everything to show."""
    return make(World()).result()


@pytest.fixture(scope="session")
def searching_result() -> StudyResult:
    """A study whose search is done and of which nothing is confirmed."""
    return make(World(confirmed=False, study={"pruner": "none"})).result()


@pytest.fixture(scope="session")
def untouched_result() -> StudyResult:
    """A study of which no trial is over."""
    synthetic = make(World(trials=1, confirmed=False))
    synthetic.tickets.clear()
    synthetic.measurements.clear()
    return synthetic.result()
