"""Specs and ticket rows for tests of what is pure, and the toy study for those of what is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tempopt.report.study_result import StudyResult, assemble
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import KINDS, Kind, Measurement, NewTicket, StudyRow, StudyState, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.run_evaluations import INFERENCE_ARMS, evaluations
from tempopt.verdict.stages import next_tickets
from tests import fake_worker
from tests.rows import ticket_row
from tests.specs import Write
from tests.toy_study import EndedStudy, undisturbed_study, work_in


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return what writes the text of a spec to a file."""

    def writer(text: str) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(text)
        return path

    return writer


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
        ticket = {
            "id": number + 1000 * KINDS.index(kind),
            "kind": kind,
            "arm": kind,
            "number": number,
            "seed": number,
            "parameters": {"temperature_init": 1.0},
            "trial_number": number if kind == "search" else None,
            "outcome": "complete" if value is not None else None,
        }
        return ticket_row(**{**ticket, "value": value, "steps": 10, "total_steps": 10, **fields})

    return make


@pytest.fixture(scope="session")
def run_ticket(make_ticket: Callable[..., TicketRow]) -> Callable[..., TicketRow]:
    """Return what makes of a new ticket the row of its finished run."""

    def run(ticket: NewTicket, value: float | None, **fields: Any) -> TicketRow:
        ticket_fields = {
            n: getattr(ticket, n) for n in ("arm", "seed", "candidate", "pair", "parameters", "round")
        }
        return make_ticket(ticket.kind, ticket.number, value, **{**ticket_fields, **fields})

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
        for arm, tau in (("baseline", 1.0), ("constant", 2.0), ("search", 3.0))
        for i in range(1 if arm == "baseline" else 4)
    ]
    gain = {"baseline": 0.0, "constant": 0.05, "search": 0.1, "learned": 0.03}
    while new_tickets := next_tickets(rows, spec):
        for ticket in new_tickets:
            worth = 0.5 + gain[arms_of(ticket)[0]] * (1 + (ticket.pair or 0) / 100)
            is_choice = ticket.kind == "choose"
            rows.append(run_ticket(ticket, 0.5 + (ticket.candidate or 0) / 100 if is_choice else worth))
    return rows


Measure = Callable[..., list[Measurement]]


@pytest.fixture(scope="session")
def measure(make_spec: Callable[..., StudySpec]) -> Measure:
    """Return a measurer of the confirming runs: what each is as trained, plus what an evaluation adds.

    Keyword arguments are arms, to what evaluations (by name) add; two that share a run add up.
    """

    def add_measurements(tickets: Sequence[TicketRow], **gains: dict[str, float]) -> list[Measurement]:
        measurements = []
        winner = next(t.parameters for t in tickets if t.kind == "confirm" and "search" in arms_of(t))
        assert winner is not None
        for t in tickets:
            arms = arms_of(t)
            if t.kind != "confirm" or t.value is None or not set(arms) & set(INFERENCE_ARMS):
                continue
            assert t.parameters is not None
            for evaluation in evaluations("confirm", arms, make_spec(), winner, t.parameters):
                gain = sum(gains.get(arm, {}).get(evaluation.name, 0.0) for arm in arms)
                measurements.append(
                    Measurement(ticket_id=t.id, step=10, name=evaluation.name, value=t.value + gain)
                )
        return measurements

    return add_measurements


@pytest.fixture(scope="session")
def measure_baseline(measure: Measure) -> Measure:
    """Return a measurer of the confirming runs in which another temperature helps those at tau = 1."""

    def add_measurements(
        tickets: list[TicketRow], gains: dict[str, float] | None = None
    ) -> list[Measurement]:
        return measure(
            tickets, baseline={"validate:winner": 0.03, "test:winner": 0.03} if gains is None else gains
        )

    return add_measurements


@pytest.fixture(scope="session")
def result_of() -> Callable[..., StudyResult]:
    """Return what assembles a result of a spec, tickets and measurements."""

    def make_result(
        spec: StudySpec,
        tickets: list[TicketRow],
        measurements: Sequence[Measurement] = (),
        state: StudyState = "running",
    ) -> StudyResult:
        row = StudyRow(
            id=1, name="pairs", spec=spec.to_json(), spec_hash="", state=state, created=datetime.now(UTC)
        )
        return assemble(row, tickets, measurements)

    return make_result


@pytest.fixture
def toy_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of the test's own, with the toy modules in reach of workers."""
    work_in(tmp_path, monkeypatch)


@pytest.fixture
def fake_workers(toy_folder: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have agents work with workers that train nothing."""
    fake_worker.install(monkeypatch)


@pytest.fixture(scope="session")
def undisturbed_fake(tmp_path_factory: pytest.TempPathFactory) -> EndedStudy:
    """The toy study as workers that train nothing carry it out when nothing happens to it."""
    with pytest.MonkeyPatch.context() as patch:
        fake_worker.install(patch)
        return undisturbed_study(tmp_path_factory.mktemp("undisturbed"))


@pytest.fixture(scope="session")
def undisturbed_run(tmp_path_factory: pytest.TempPathFactory) -> EndedStudy:
    """The toy study as one agent with one worker carries it out when nothing happens to it."""
    return undisturbed_study(tmp_path_factory.mktemp("undisturbed"))
