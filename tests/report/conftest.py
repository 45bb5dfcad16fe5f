"""Studies that every test of the report looks at, made once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tempopt.report.study_result import StudyResult
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.stages import initial_tickets, next_tickets
from tests.report.made_study import World, make
from tests.specs import change_spec

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
def make_comparison(run_ticket: Any, result_of: Any) -> Any:
    """Return a maker of comparisons that are over: sets, and what each is worth on a pair."""

    def make(
        worth: Any,
        *sets: Any,
        waiting: bool = False,
        all_pairs: bool = False,
        vary: Any = None,
        **settings: Any,
    ) -> StudyResult:
        spec_settings = {"study__seeds": {"confirm": 4}, **settings}
        compared_sets = () if vary else sets or [{}, {"lr": 0.1}]
        spec = comparison_spec(
            change_spec(**spec_settings), compared_sets, vary=vary, name="gate", all_pairs=all_pairs
        )
        ends = {
            "lost": {"state": "failed", "outcome": "failed", "error": "gone"},
            None: {"outcome": "diverged"},
        }
        rows: list[TicketRow] = []
        new_tickets = initial_tickets(spec)
        while new_tickets:
            for t in new_tickets:
                value = worth(t.arm, t.pair)
                number = value if isinstance(value, float) else None
                rows.append(run_ticket(t, number, id=len(rows), **ends.get(value, {})))
            new_tickets = next_tickets(rows, spec)
        if waiting:
            rows[-1] = replace(rows[-1], state="waiting", outcome=None, value=None)
        study_result: StudyResult = result_of(spec, rows, state="running" if waiting else "done")
        return study_result

    return make


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
