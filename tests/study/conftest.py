"""Specs and ticket rows for tests of what is pure, and the toy study for those of what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tempopt.store.rows import KINDS, Kind, Measurement, NewTicket, StudyRow, StudyState, TicketRow
from tempopt.study.choose import choose_tickets
from tempopt.study.confirm import confirm_tickets, evaluations
from tempopt.study.results import StudyResult, assemble
from tempopt.study.spec import StudySpec
from tests.study.toy_study import Ended, undisturbed_study, work_in


@pytest.fixture(scope="session")
def make_spec() -> Callable[..., StudySpec]:
    """Return a maker of specs: keyword arguments go to ``study:``, ``sections`` replace whole sections."""

    def make(sections: dict[str, Any] | None = None, **study: Any) -> StudySpec:
        data = {
            "study": {"name": "pairs", "metric": "val_accuracy", "direction": "maximize", **study},
            "model": {"class_path": "package.module.Model", "init_args": {"d_model": 8}},
            "data": {"class_path": "package.module.Data", "init_args": {"batch_size": 4}},
            "trainer": {"max_steps": 10},
            "search": {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}},
        }
        return StudySpec.parse({**data, **(sections or {})}, source="the test")

    return make


@pytest.fixture(scope="session")
def make_ticket() -> Callable[..., TicketRow]:
    """Return a maker of tickets that are done and complete with a value, unless said otherwise."""

    def make(kind: Kind, number: int = 0, value: float | None = None, **fields: Any) -> TicketRow:
        values: dict[str, Any] = {
            "id": number + 1000 * KINDS.index(kind),
            "study_id": 1,
            "kind": kind,
            "arm": kind,
            "number": number,
            "candidate": None,
            "pair": None,
            "seed": number,
            "parameters": {"temperature_init": 1.0},
            "trial_number": number if kind == "search" else None,
            "state": "done",
            "outcome": "complete" if value is not None else None,
            "attempt": 1,
            "value": value,
            "diverged_at": None,
            "error": None,
            "agent": None,
            "seconds": 2.0,
            "steps": 10,
            "total_steps": 10,
            "code": None,
            "started": None,
            "finished": None,
        }
        return TicketRow(**{**values, **fields})

    return make


@pytest.fixture(scope="session")
def run_ticket(make_ticket: Callable[..., TicketRow]) -> Callable[..., TicketRow]:
    """Return what makes of a new ticket the row of its finished run."""

    def run(ticket: NewTicket, value: float | None, **fields: Any) -> TicketRow:
        known = {n: getattr(ticket, n) for n in ("arm", "seed", "candidate", "pair", "parameters")}
        return make_ticket(ticket.kind, ticket.number, value, **{**known, **fields})

    return run


@pytest.fixture(scope="session")
def whole_study(
    make_spec: Callable[..., StudySpec],
    make_ticket: Callable[..., TicketRow],
    run_ticket: Callable[..., TicketRow],
) -> list[TicketRow]:
    """The tickets of a study that is over: the search gains 0.1, a little more on later seeds."""
    spec = make_spec()
    rows = [
        make_ticket(arm, i, 0.5 + i / 100, parameters={"temperature_init": tau + i})
        for arm, tau in (("unit", 1.0), ("constant", 2.0), ("search", 3.0))
        for i in range(1 if arm == "unit" else 4)
    ]
    rows += [run_ticket(t, 0.5 + (t.candidate or 0) / 100) for t in choose_tickets(rows, spec)]
    gain = {"unit": 0.0, "constant": 0.05, "search": 0.1, "init_only": 0.02}
    return rows + [
        run_ticket(t, 0.5 + gain[t.arm] * (1 + (t.pair or 0) / 100)) for t in confirm_tickets(rows, spec)
    ]


@pytest.fixture(scope="session")
def measure_unit(make_spec: Callable[..., StudySpec]) -> Callable[..., list[Measurement]]:
    """Return a measurer of the runs trained at tau = 1; keyword arguments add to values by evaluation."""

    def measure(tickets: list[TicketRow], gains: dict[str, float] | None = None) -> list[Measurement]:
        gains = {"test:winner": 0.03} if gains is None else gains
        asked = evaluations("confirm", "unit", make_spec(), {"temperature_init": 4.0})
        return [
            Measurement(ticket_id=t.id, step=10, name=e.name, value=0.5 + gains.get(e.name, 0.0))
            for t in tickets
            if (t.kind, t.arm) == ("confirm", "unit")
            for e in asked
        ]

    return measure


@pytest.fixture(scope="session")
def result_of() -> Callable[..., StudyResult]:
    """Return what assembles a result of a spec, tickets and measurements."""

    def assembled(
        spec: StudySpec,
        tickets: list[TicketRow],
        measurements: Sequence[Measurement] = (),
        state: StudyState = "running",
    ) -> StudyResult:
        row = StudyRow(
            id=1, name="pairs", spec=spec.to_json(), spec_hash="", state=state, created=datetime.now(UTC)
        )
        return assemble(row, tickets, measurements)

    return assembled


@pytest.fixture
def toy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own, with the toy modules in reach of trainers."""
    work_in(tmp_path, monkeypatch)


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The toy study as one agent with one trainer carries it out when nothing happens to it."""
    return undisturbed_study(tmp_path_factory.mktemp("undisturbed"))
