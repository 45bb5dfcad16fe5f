"""The contract of the store, the same on every database."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tempopt.errors import StaleAttempt, StorageError, StudyNotFound
from tempopt.store import KINDS, Kind, Measurement, NewTicket, Outcomes, Store, StudyRow, TicketRow

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def new(number: int, kind: Kind = "search", **more: Any) -> NewTicket:
    return NewTicket(kind=kind, arm="search", number=number, seed=2**63 - 1 - number, **more)


def taken(store: Store, study: StudyRow, agent: str = "agent") -> TicketRow:
    """Return the next ticket, which there must be."""
    ticket = store.take_ticket(study.id, agent)
    assert ticket is not None
    return ticket


@pytest.fixture
def ticket(store: Store, study: StudyRow) -> TicketRow:
    store.add_tickets(study.id, [new(0)])
    return taken(store, study)


def complete(value: float = 0.5, **more: Any) -> Outcomes:
    return Outcomes(outcome="complete", value=value, steps=100, seconds=2.5, **more)


# ---- studies


def test_a_study_comes_back_as_it_was_written(store: Store) -> None:
    spec = {"z": 1, "a": [0.1, 1e-300, None, True], "τ": {"nested": "ünï\\code\n"}}
    written = store.create_study("naïve 研究", spec, "abc")
    assert store.load_study("naïve 研究") == written
    assert list(store.load_study("naïve 研究").spec) == ["z", "a", "τ"]
    assert written.state == "running"
    assert abs(written.created - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_name_is_given_once(store: Store, study: StudyRow) -> None:
    with pytest.raises(StorageError, match=r'has a study "example" already.*tempopt resume example'):
        store.create_study("example", {}, "other")
    assert store.load_study("example") == study


def test_names_that_differ_in_case_are_different_studies(store: Store, study: StudyRow) -> None:
    other = store.create_study("Example", {}, "")
    assert store.load_study("Example").id == other.id != study.id


@pytest.mark.parametrize("name", ["", " ", "x ", "x" * 256])
def test_a_name_that_cannot_be_stored_is_refused(store: Store, name: str) -> None:
    with pytest.raises(StorageError, match="1 to 255 characters"):
        store.create_study(name, {}, "")


def test_an_unknown_study_is_refused_with_the_names_that_there_are(store: Store, study: StudyRow) -> None:
    with pytest.raises(
        StudyNotFound, match=r'Unknown study "exmple". Did you mean "example"\? Known: example'
    ):
        store.load_study("exmple")
    with pytest.raises(StudyNotFound, match="exmple"):
        store.delete_study("exmple")


def test_the_state_of_a_study_can_be_set(store: Store, study: StudyRow) -> None:
    store.set_state(study.id, "paused")
    assert store.load_study("example") == replace(study, state="paused")
    with pytest.raises(StudyNotFound, match="deleted"):
        store.set_state(study.id + 1, "done")


def test_studies_are_listed_with_their_numbers_of_tickets(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0, "unit"), new(0), new(1)])
    taken(store, study)
    empty = store.create_study("empty", {}, "")
    first, second = store.list_studies()
    assert (first.study, first.tickets) == (study, {"unit": {"running": 1}, "search": {"waiting": 2}})
    assert (second.study, second.tickets) == (empty, {})


def test_deleting_a_study_leaves_the_others(store: Store, ticket: TicketRow) -> None:
    other = store.create_study("other", {}, "")
    store.add_tickets(other.id, [new(0)])
    kept = taken(store, other)
    for held in (ticket, kept):
        store.record(held.id, 1, [Measurement(ticket_id=held.id, step=1, name="report", value=1.0)])
    store.delete_study("example")
    assert [s.study.name for s in store.list_studies()] == ["other"]
    assert store.tickets(ticket.study_id) == store.measurements(ticket.study_id) == []
    assert store.tickets(other.id) == [kept]
    assert len(store.measurements(other.id)) == 1


def test_the_id_of_a_deleted_ticket_is_not_given_out_again(store: Store, ticket: TicketRow) -> None:
    store.delete_study("example")
    again = store.create_study("example", {}, "")
    store.add_tickets(again.id, [new(0)])
    assert again.id != ticket.study_id
    assert taken(store, again).id != ticket.id
    with pytest.raises(StaleAttempt, match="deleted"):
        store.finish(ticket.id, 1, complete())


# ---- tickets


def test_a_ticket_comes_back_as_it_was_written(store: Store, study: StudyRow) -> None:
    parameters = {"temperature_init": 0.1 + 0.2, "schedule": "cosine", "data.batch_size": 64}
    store.add_tickets(study.id, [new(3, "confirm", candidate=2, pair=7, parameters=parameters)])
    (ticket,) = store.tickets(study.id)
    assert (ticket.kind, ticket.arm, ticket.number) == ("confirm", "search", 3)
    assert (ticket.candidate, ticket.pair, ticket.seed) == (2, 7, 2**63 - 4)
    assert (ticket.parameters, ticket.state, ticket.attempt) == (parameters, "waiting", 0)
    assert ticket.outcome is ticket.value is ticket.started is ticket.trial_number is None


def test_adding_the_same_tickets_again_changes_nothing(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0), new(1)])
    before = taken(store, study)
    store.add_tickets(study.id, [new(0), new(1), new(2)])
    store.add_tickets(study.id, [])
    assert [t.number for t in store.tickets(study.id)] == [0, 1, 2]
    assert store.tickets(study.id)[0] == before


def test_tickets_are_taken_in_the_order_of_kinds_then_of_numbers(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(n, kind) for kind in reversed(KINDS) for n in (1, 0)])
    order = [(kind, n) for kind in KINDS for n in (0, 1)]
    assert [(t.kind, t.number) for t in store.tickets(study.id)] == order
    assert [(t.kind, t.number) for t in (taken(store, study) for _ in order)] == order
    assert store.take_ticket(study.id, "agent") is None


def test_only_the_kinds_that_are_wanted_are_taken(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0, "unit"), new(0, "search"), new(0, "choose")])
    first = store.take_ticket(study.id, "agent", kinds=["choose", "search"])
    assert first is not None
    assert first.kind == "search"
    assert store.take_ticket(study.id, "agent", kinds=["constant"]) is None
    assert [t.kind for t in store.tickets(study.id, kinds=["unit", "choose"])] == ["unit", "choose"]


def test_taking_a_ticket_counts_the_attempt_and_names_the_agent(store: Store, ticket: TicketRow) -> None:
    assert (ticket.state, ticket.attempt, ticket.agent) == ("running", 1, "agent")
    assert ticket.started is not None
    assert abs(ticket.started - datetime.now(UTC)) < timedelta(minutes=5)
    assert store.tickets(ticket.study_id) == [ticket]


def test_tickets_of_a_study_that_was_deleted_are_refused(store: Store, study: StudyRow) -> None:
    store.delete_study("example")
    with pytest.raises(StorageError, match="deleted meanwhile"):
        store.add_tickets(study.id, [new(0)])
    assert store.take_ticket(study.id, "agent") is None


def test_tickets_of_another_study_are_left_alone(store: Store, ticket: TicketRow) -> None:
    other = store.create_study("other", {}, "")
    assert store.take_ticket(other.id, "agent") is None
    assert store.release_agent(other.id, None) == 0


def test_a_ticket_given_back_is_taken_again_as_the_next_attempt(store: Store, ticket: TicketRow) -> None:
    store.give_back(ticket.id, 1, error="interrupted", seconds=1.5)
    (waiting,) = store.tickets(ticket.study_id)
    assert (waiting.state, waiting.agent, waiting.failures) == ("waiting", None, 0)
    again = store.take_ticket(ticket.study_id, "second")
    assert again is not None
    assert (again.attempt, again.agent, again.error, again.seconds) == (2, "second", "interrupted", 1.5)
    store.give_back(ticket.id, 2)
    assert store.tickets(ticket.study_id)[0].error == "interrupted"


def test_a_ticket_fails_for_good_after_the_last_attempt(store: Store, ticket: TicketRow) -> None:
    study = store.load_study("example")
    assert store.fail(ticket.id, 1, "out of memory", max_attempts=2, seconds=1.0) == "waiting"
    store.give_back(ticket.id, taken(store, study).attempt)
    assert (
        store.fail(ticket.id, taken(store, study).attempt, "killed", max_attempts=2, seconds=1.0) == "failed"
    )
    (failed,) = store.tickets(study.id)
    assert (failed.state, failed.outcome, failed.error) == ("failed", "failed", "killed")
    assert (failed.attempt, failed.failures, failed.seconds) == (3, 2, 2.0)
    assert failed.finished is not None
    assert store.take_ticket(study.id, "agent") is None


def test_an_agents_tickets_can_be_released(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(n) for n in range(4)])
    done = taken(store, study, "dead")
    store.finish(done.id, 1, complete())
    lost, held = taken(store, study, "dead"), taken(store, study, "alive")
    assert store.release_agent(study.id, "dead") == 1
    assert [t.state for t in store.tickets(study.id)] == ["done", "waiting", "running", "waiting"]
    assert store.tickets(study.id)[2] == held
    assert taken(store, study).id == lost.id
    assert store.release_agent(study.id, None) == 2


# ---- runs


def test_a_finished_ticket_knows_how_its_run_ended(store: Store, ticket: TicketRow) -> None:
    measured = Measurement(ticket_id=ticket.id, step=100, name="validate", value=0.1 + 0.2)
    store.set_run(ticket.id, 1, total_steps=500, code="sha256:1")
    store.set_parameters(ticket.id, 1, {"lr": 0.1}, trial_number=7)
    store.finish(ticket.id, 1, complete(0.1 + 0.2, measurements=[measured]))
    (done,) = store.tickets(ticket.study_id)
    assert (done.state, done.outcome, done.value, done.steps) == ("done", "complete", 0.1 + 0.2, 100)
    assert (done.total_steps, done.code, done.parameters, done.trial_number) == (
        500,
        "sha256:1",
        {"lr": 0.1},
        7,
    )
    assert (done.seconds, done.error) == (2.5, None)
    assert done.finished is not None and done.started is not None
    assert done.finished >= done.started
    assert store.measurements(ticket.study_id) == [measured]


def test_a_diverged_run_has_no_value_and_the_step_at_which_it_happened(
    store: Store, ticket: TicketRow
) -> None:
    store.finish(ticket.id, 1, Outcomes(outcome="diverged", value=None, steps=7, seconds=1.0, diverged_at=7))
    (done,) = store.tickets(ticket.study_id)
    assert (done.state, done.outcome, done.value, done.diverged_at) == ("done", "diverged", None, 7)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_a_complete_run_must_have_a_finite_value(value: float | None) -> None:
    with pytest.raises(ValueError, match="value"):
        Outcomes(outcome="complete", value=value, steps=1, seconds=1.0)


def test_a_diverged_run_must_not_have_a_value() -> None:
    with pytest.raises(ValueError, match="diverged"):
        Outcomes(outcome="diverged", value=1.0, steps=1, seconds=1.0)


STALE: dict[str, Callable[[Store, int, int], object]] = {
    "set_run": lambda store, id_, attempt: store.set_run(id_, attempt, total_steps=1, code=""),
    "set_parameters": lambda store, id_, attempt: store.set_parameters(id_, attempt, {}),
    "record": lambda store, id_, attempt: store.record(id_, attempt, []),
    "finish": lambda store, id_, attempt: store.finish(id_, attempt, complete()),
    "give_back": lambda store, id_, attempt: store.give_back(id_, attempt),
    "fail": lambda store, id_, attempt: store.fail(id_, attempt, "", max_attempts=3),
}


@pytest.mark.parametrize("write", STALE.values(), ids=STALE)
def test_every_write_of_a_stale_attempt_is_refused(
    store: Store, ticket: TicketRow, write: Callable[[Store, int, int], object]
) -> None:
    store.give_back(ticket.id, 1)
    with pytest.raises(StaleAttempt, match=r"search 0\) is waiting at attempt 1; attempt 1 is thrown away"):
        write(store, ticket.id, 1)
    again = store.take_ticket(ticket.study_id, "second")
    with pytest.raises(StaleAttempt, match=r"running at attempt 2, held by second; attempt 1"):
        write(store, ticket.id, 1)
    assert store.tickets(ticket.study_id) == [again]
    store.finish(ticket.id, 2, complete())
    with pytest.raises(StaleAttempt, match="done at attempt 2"):
        write(store, ticket.id, 2)


def test_a_stale_attempt_writes_no_measurement(store: Store, ticket: TicketRow) -> None:
    store.give_back(ticket.id, 1)
    measured = [Measurement(ticket_id=ticket.id, step=1, name="report", value=1.0)]
    with pytest.raises(StaleAttempt):
        store.record(ticket.id, 1, measured)
    with pytest.raises(StaleAttempt):
        store.finish(ticket.id, 1, complete(measurements=measured))
    assert store.measurements(ticket.study_id) == []


def test_an_error_with_characters_that_databases_refuse_is_stored(store: Store, ticket: TicketRow) -> None:
    store.give_back(ticket.id, 1, error="nul \0, half \udc80, whole \N{SNOWMAN}" + "x" * 100_000)
    error = store.tickets(ticket.study_id)[0].error
    assert error == "nul \\0, half \\udc80, whole \N{SNOWMAN}" + "x" * 100_000


# ---- measurements


def test_recording_again_after_a_resume_does_not_double(store: Store, ticket: TicketRow) -> None:
    first = [Measurement(ticket_id=ticket.id, step=s, name="report", value=0.1 * s) for s in (10, 20)]
    store.record(ticket.id, 1, first)
    store.record(ticket.id, 1, [*first[1:], replace(first[1], step=30), replace(first[1], name="validate")])
    store.record(ticket.id, 1, [replace(first[0], value=0.7), replace(first[0], value=0.8)])
    assert [(m.name, m.step, m.value) for m in store.measurements(ticket.study_id)] == [
        ("report", 10, 0.8),
        ("report", 20, 2.0),
        ("report", 30, 2.0),
        ("validate", 20, 2.0),
    ]


def test_measurements_are_found_by_ticket_and_by_name(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new(0), new(1)])
    for held in (taken(store, study), taken(store, study)):
        both = [Measurement(ticket_id=held.id, step=1, name=n, value=1.0) for n in ("test", "validate")]
        store.record(held.id, 1, both)
    first = store.tickets(study.id)[0]
    assert len(store.measurements(study.id)) == 4
    assert {m.ticket_id for m in store.measurements(study.id, ticket_ids=[first.id])} == {first.id}
    assert {m.name for m in store.measurements(study.id, names={"test"})} == {"test"}
    assert len(store.measurements(study.id, ticket_ids=[first.id], names=["test", "none"])) == 1
    assert store.measurements(study.id, ticket_ids=[]) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_measurement_that_is_not_finite_comes_back_as_nan(
    store: Store, ticket: TicketRow, value: float
) -> None:
    store.record(ticket.id, 1, [Measurement(ticket_id=ticket.id, step=1, name="test", value=value)])
    (measured,) = store.measurements(ticket.study_id)
    assert math.isnan(measured.value)


@QUICK
@given(values=st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_every_finite_measurement_comes_back_bit_for_bit(
    store: Store, ticket: TicketRow, values: list[float]
) -> None:
    written = [
        Measurement(ticket_id=ticket.id, step=2**40 + i, name="x", value=v) for i, v in enumerate(values)
    ]
    store.record(ticket.id, 1, written)
    read = store.measurements(ticket.study_id)[: len(values)]
    assert [m.value.hex() for m in read] == [float(v).hex() for v in values]


SCALARS = st.one_of(
    st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False), st.text(alphabet=st.characters())
)


@QUICK
@given(parameters=st.dictionaries(st.text(min_size=1), SCALARS | st.lists(SCALARS, max_size=3), max_size=6))
def test_parameters_come_back_exactly(store: Store, ticket: TicketRow, parameters: dict[str, Any]) -> None:
    store.set_parameters(ticket.id, 1, parameters)
    read = store.tickets(ticket.study_id)[0].parameters
    assert read is not None
    assert repr(read) == repr(parameters)


def test_importing_the_room_loads_no_database_code(environment: dict[str, str]) -> None:
    code = "import sys, tempopt.store; print([m for m in ('sqlalchemy', 'alembic') if m in sys.modules])"
    assert _printed(environment, code) == "[]"


def test_opening_a_store_loads_no_migrations(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "x.db"
    Store.open(str(file)).close()
    code = (
        "import sys; from tempopt.store import Store; Store.open(sys.argv[1]).close(); "
        "print([m for m in ('alembic', 'optuna', 'psycopg', 'pymysql') if m in sys.modules])"
    )
    assert _printed(environment, code, str(file)) == "[]"


def _printed(environment: dict[str, str], code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()
