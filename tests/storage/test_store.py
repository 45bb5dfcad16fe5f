"""The contract of the store, the same on every database."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from tempopt.errors import StaleAttempt, StorageError, StudyNotFound
from tempopt.storage import Store
from tempopt.storage.changes import RunOutcome
from tempopt.storage.opening import open_store
from tempopt.storage.queries import STAGES
from tempopt.storage.rows import (
    KINDS,
    MAX_VALUE,
    Kind,
    Measurement,
    NewTicket,
    StudyRow,
    StudyTotals,
    TicketRow,
)
from tempopt.storage.ticket_queries import ARMS
from tests.storage.scenes import HOUR, complete, make_end, new_ticket, only_ticket, reported, take, take_next

QUICK = settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def ticket(store: Store, study: StudyRow) -> TicketRow:
    store.add_tickets(study.id, [new_ticket(0)])
    return take_next(store, study)


def end_with(store: Store, ticket: TicketRow, *measurements: Measurement) -> None:
    """End a ticket's run with these evaluations."""
    store.write(
        ticket.study_id,
        [make_end(ticket, complete(measurements=list(measurements)))],
        agent="agent",
        lease=HOUR,
    )


# ---- studies


def test_a_study_comes_back_as_it_was_written(store: Store) -> None:
    spec = {"z": 1, "a": [0.1, 1e-300, None, True], "τ": {"nested": "ünï\\code\n"}}
    study_row = store.create_study("naïve 研究", spec, "abc")
    assert store.load_study("naïve 研究") == study_row
    assert list(store.load_study("naïve 研究").spec) == ["z", "a", "τ"]
    assert (study_row.state, study_row.version, study_row.checkpoints) == ("running", 0, None)
    assert abs(study_row.created - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_name_is_given_once(store: Store, study: StudyRow) -> None:
    with pytest.raises(StorageError, match=r'already has a study "example".*tempopt resume example'):
        store.create_study("example", {}, "other")
    assert store.load_study("example") == study


def test_names_that_differ_in_case_are_different_studies(store: Store, study: StudyRow) -> None:
    other_study = store.create_study("Example", {}, "")
    assert store.load_study("Example").id == other_study.id != study.id


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


def test_the_spec_and_the_place_of_the_checkpoints_can_be_set(store: Store, study: StudyRow) -> None:
    store.set_spec(study.id, {"study": {"trials": 7}}, "1" * 64)
    store.set_checkpoints(study.id, "s3://bucket/runs")
    changed_study = replace(
        study, spec={"study": {"trials": 7}}, spec_hash="1" * 64, checkpoints="s3://bucket/runs"
    )
    assert store.load_study("example") == changed_study
    with pytest.raises(StudyNotFound, match="deleted"):
        store.set_spec(study.id + 1, {}, "")
    with pytest.raises(StudyNotFound, match="deleted"):
        store.set_checkpoints(study.id + 1, "")


def test_studies_are_listed_with_their_numbers_of_tickets(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(0, "baseline"), new_ticket(0), new_ticket(1)])
    take_next(store, study)
    empty = store.create_study("empty", {}, "")
    first, second = store.list_studies()
    assert first.tickets == {"baseline": {"running": 1}, "search": {"waiting": 2}}
    assert first.study == store.load_study("example")
    assert (second.study, second.tickets) == (empty, {})


def test_studies_are_listed_with_the_agents_at_work(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(5)])
    store.create_study("empty", {}, "")
    for agent in ("two", "one", "two"):
        take_next(store, study, agent)
    assert [summary.agents for summary in store.list_studies()] == [("one", "two"), ()]
    store.write(study.id, [], renew={store.tickets(study.id)[1].id: 1}, agent="one", lease=-1.0)
    assert store.list_studies()[0].agents == ("two",)


def test_deleting_a_study_leaves_the_others(store: Store, ticket: TicketRow) -> None:
    other_study = store.create_study("other", {}, "")
    store.add_tickets(other_study.id, [new_ticket(0), new_ticket(1)])
    other_ticket = take_next(store, other_study)
    for running_ticket in (ticket, other_ticket):
        end_change = make_end(running_ticket, log="what it printed")
        store.write(
            running_ticket.study_id, [reported(running_ticket, 1, 1.0), end_change], agent="agent", lease=HOUR
        )
    store.delete_study("example")
    assert [s.study.name for s in store.list_studies()] == ["other"]
    assert store.tickets(ticket.study_id) == store.measurements(ticket.study_id) == []
    assert store.logs(ticket.study_id) == []
    assert [t.state for t in store.tickets(other_study.id)] == ["done", "waiting"]
    assert len(store.measurements(other_study.id)) == len(store.logs(other_study.id)) == 1


def test_a_large_study_is_deleted_whole(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(1201)])
    store.delete_study("example")
    assert store.tickets(study.id) == store.list_studies() == []


def test_the_id_of_a_deleted_ticket_is_not_given_out_again(store: Store, ticket: TicketRow) -> None:
    store.delete_study("example")
    second_study = store.create_study("example", {}, "")
    store.add_tickets(second_study.id, [new_ticket(0)])
    assert second_study.id != ticket.study_id
    assert take_next(store, second_study).id != ticket.id
    reply = store.write(second_study.id, [make_end(ticket)], agent="agent", lease=HOUR)
    assert "deleted" in reply.refused[ticket.id]
    assert only_ticket(store, second_study.id).state == "running"


# ---- tickets


def test_a_ticket_comes_back_as_it_was_written(store: Store, study: StudyRow) -> None:
    parameters = {"temperature_init": 0.1 + 0.2, "schedule": "cosine", "data.batch_size": 64}
    sampled_params = {"x": 0.1}
    new_one = new_ticket(
        3, "confirm", candidate=2, pair=7, parameters=parameters, round=4, sampled=sampled_params
    )
    store.add_tickets(study.id, [new_one])
    ticket = only_ticket(store, study.id)
    assert (ticket.kind, ticket.arm, ticket.number, ticket.round) == ("confirm", "search", 3, 4)
    assert (ticket.candidate, ticket.pair, ticket.seed) == (2, 7, 2**63 - 4)
    assert (ticket.parameters, ticket.sampled) == (parameters, sampled_params)
    assert (ticket.state, ticket.attempt, ticket.checkpoints) == ("waiting", 0, ())
    assert ticket.outcome is ticket.value is ticket.started is ticket.trial_number is ticket.lease is None


def test_adding_the_same_tickets_again_changes_nothing(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(0), new_ticket(1)])
    ticket_before = take_next(store, study)
    store.add_tickets(study.id, [new_ticket(0), new_ticket(1), new_ticket(2), new_ticket(2)])
    store.add_tickets(study.id, [])
    assert [t.number for t in store.tickets(study.id)] == [0, 1, 2]
    assert replace(store.tickets(study.id)[0], lease=HOUR) == ticket_before


def test_the_version_of_a_study_grows_when_its_tickets_become_others(store: Store, study: StudyRow) -> None:
    versions = []
    steps = [
        lambda: store.add_tickets(study.id, [new_ticket(0), new_ticket(1)]),
        lambda: store.add_tickets(study.id, [new_ticket(1)]),
        lambda: take_next(store, study),
        lambda: store.withdraw(study.id, ["search"]),
        lambda: store.withdraw(study.id, ["search"]),
    ]
    for step in steps:
        step()
        versions.append(store.load_study("example").version)
    assert versions == [1, 1, 1, 2, 2]


def test_what_follows_from_other_tickets_than_there_are_is_not_written(store: Store, study: StudyRow) -> None:
    assert store.add_tickets(study.id, [new_ticket(0), new_ticket(1)], version=0)
    version = store.load_study("example").version
    assert store.add_tickets(study.id, [new_ticket(2), new_ticket(3)], version=version)
    # a caller that has not seen the two that came later
    assert not store.add_tickets(study.id, [new_ticket(2), new_ticket(4)], version=version)
    assert not store.set_state(study.id, "done", version=version)
    assert len(store.tickets(study.id)) == 4
    assert store.load_study("example").state == "running"
    assert store.set_state(study.id, "done", version=version + 1)
    assert store.load_study("example").state == "done"


def test_a_study_runs_again_with_its_new_tickets_and_not_without(store: Store, study: StudyRow) -> None:
    def state() -> str:
        return store.load_study("example").state

    store.add_tickets(study.id, [new_ticket(0)], resume=True)
    store.set_state(study.id, "done")
    store.add_tickets(study.id, [new_ticket(0)], resume=True)
    store.add_tickets(study.id, [new_ticket(1)])
    assert not store.add_tickets(study.id, [new_ticket(2)], version=1, resume=True)
    assert state() == "done"
    assert store.add_tickets(study.id, [new_ticket(0), new_ticket(2)], version=2, resume=True)
    assert (state(), store.load_study("example").version) == ("running", 3)


def test_what_is_withdrawn_is_not_begun_and_what_was_begun_goes_on(store: Store, study: StudyRow) -> None:
    store.add_tickets(
        study.id, [new_ticket(0, "baseline"), *(new_ticket(n) for n in range(3)), new_ticket(0, "choose")]
    )
    take_next(store, study, max_number_by_kind={"search": None})
    assert store.withdraw(study.id, ["baseline", "search"]) == 3
    states = [(t.kind, t.state) for t in store.tickets(study.id)]
    assert states == [
        ("baseline", "withdrawn"),
        ("search", "running"),
        ("search", "withdrawn"),
        ("search", "withdrawn"),
        ("choose", "waiting"),
    ]
    assert take_next(store, study).kind == "choose"
    assert take(store, study.id) is None
    store.add_tickets(study.id, [new_ticket(1)])
    assert take(store, study.id) is None


def test_a_ticket_that_was_taken_and_not_begun_is_withdrawn_with_the_others(
    store: Store, study: StudyRow
) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(3)])
    own_ticket = take_next(store, study, max_number_by_kind={"search": None})
    other_ticket = take_next(store, study, agent="another", max_number_by_kind={"search": None})
    version = store.load_study(study.name).version
    assert store.withdraw_from(own_ticket, version=version - 1) is None
    stale = replace(other_ticket, attempt=other_ticket.attempt + 1, number=9)
    assert store.withdraw_from(stale, version=version) == 0
    # one that was returned before it continues
    own_ticket, other_ticket = other_ticket, own_ticket
    store.release(study.id, ["agent"])
    assert store.withdraw_from(own_ticket, version=version) == 2
    assert [t.state for t in store.tickets(study.id)] == ["waiting", "withdrawn", "withdrawn"]
    assert store.load_study(study.name).version == version + 1
    with pytest.raises(StaleAttempt):
        store.begin(own_ticket.id, own_ticket.attempt, {}, {}, None)


def test_the_arms_that_share_a_run_fit_into_their_column(store: Store, study: StudyRow) -> None:
    arm = "+".join(ARMS)
    ticket = NewTicket(kind="confirm", arm=arm, number=0, seed=1)
    store.add_tickets(study.id, [ticket])
    assert [ticket.arm for ticket in store.tickets(study.id)] == [arm]


def test_tickets_are_taken_in_the_order_of_stages_then_of_numbers(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(n, kind) for kind in reversed(KINDS) for n in (1, 0)])
    order = [(kind, n) for kind in sorted(KINDS, key=STAGES.__getitem__) for n in (0, 1)]
    assert [(t.kind, t.number) for t in store.tickets(study.id)] == order
    assert [(t.kind, t.number) for t in (take_next(store, study) for _ in order)] == order
    assert take(store, study.id) is None


def test_only_the_kinds_and_numbers_that_are_wanted_are_taken(store: Store, study: StudyRow) -> None:
    store.add_tickets(
        study.id,
        [new_ticket(0, "baseline"), *(new_ticket(n, "search") for n in range(3)), new_ticket(0, "choose")],
    )
    assert take(store, study.id, max_number_by_kind={"constant": None}) is None
    assert take(store, study.id, max_number_by_kind={}) is None
    max_number_by_kind = {"choose": None, "search": 1}
    order = [take_next(store, study, max_number_by_kind=max_number_by_kind) for _ in range(3)]
    assert [(t.kind, t.number) for t in order] == [("search", 0), ("search", 1), ("choose", 0)]
    assert take(store, study.id, max_number_by_kind=max_number_by_kind) is None
    assert take_next(store, study, max_number_by_kind={"search": 2}).number == 2
    assert [t.kind for t in store.tickets(study.id, kinds=["baseline", "choose"])] == ["baseline", "choose"]


def test_tickets_of_a_study_that_was_deleted_are_refused(store: Store, study: StudyRow) -> None:
    store.delete_study("example")
    for attempt in (
        lambda: store.add_tickets(study.id, [new_ticket(0)]),
        lambda: store.withdraw(study.id, ["search"]),
        lambda: store.news(study.id, {}),
        lambda: store.write(study.id, [], agent="agent", lease=HOUR),
    ):
        with pytest.raises(StudyNotFound, match="has been deleted"):
            attempt()
    assert take(store, study.id) is None


def test_tickets_of_another_study_are_left_alone(store: Store, ticket: TicketRow) -> None:
    other_study = store.create_study("other", {}, "")
    assert take(store, other_study.id, "other", dead=["agent"]) is None
    assert store.release(other_study.id, ["agent"]) == store.withdraw(other_study.id, ["search"]) == 0
    assert store.write(other_study.id, [make_end(ticket)], agent="agent", lease=HOUR).refused.keys() == {
        ticket.id
    }
    assert replace(only_ticket(store, ticket.study_id), lease=HOUR) == ticket


# ---- news


def test_news_lists_started_tickets_from_a_number_on(store: Store, study: StudyRow) -> None:
    store.add_tickets(
        study.id, [new_ticket(n, kind) for kind in ("baseline", "search", "confirm") for n in range(3)]
    )
    taken_tickets = [
        take_next(store, study, max_number_by_kind={kind: None})
        for kind in ("baseline", "search", "search", "confirm")
    ]
    store.write(study.id, [make_end(taken_tickets[1])], agent="agent", lease=HOUR)
    news = store.news(study.id, {"search": 1, "confirm": 0})
    assert [(t.kind, t.number, t.state) for t in news.tickets] == [
        ("search", 1, "running"),
        ("confirm", 0, "running"),
    ]
    assert (news.state, news.version) == ("running", 1)
    assert [t.state for t in store.news(study.id, {"search": 0}).tickets] == ["done", "running"]
    assert store.news(study.id, {}).tickets == []


def test_news_hold_the_reports_of_what_is_over_and_belongs_to_an_arm_that_searches(
    store: Store, study: StudyRow
) -> None:
    kinds: list[Kind] = ["constant", "search", "search", "choose", "confirm"]
    store.add_tickets(study.id, [new_ticket(kinds[:n].count(kind), kind) for n, kind in enumerate(kinds)])
    constant, first, second, choose, confirm = (take_next(store, study) for _ in kinds)
    test = Measurement(ticket_id=first.id, step=9, name="test", value=7.0)
    guard = Measurement(ticket_id=first.id, step=9, name="validate/guard:val_loss", value=2.0)
    changes = [reported(t, 1, float(t.id)) for t in (constant, first, second, choose, confirm)]
    changes += [make_end(constant), make_end(first, complete(measurements=[test, guard]))]
    changes += [make_end(choose), make_end(confirm)]
    store.write(study.id, changes, agent="agent", lease=HOUR)
    news = store.news(study.id, {"constant": 0, "search": 0, "choose": 0, "confirm": 0})
    report_keys = [(m.ticket_id, m.name) for m in news.reports]
    reports = [(ticket.id, "report") for ticket in (constant, first)]
    assert report_keys == sorted([*reports, (first.id, "validate/guard:val_loss")])


def test_news_of_tickets_that_came_in_between_are_of_a_version_that_knows_them(
    store: Store, study: StudyRow, url: str
) -> None:
    """Others add a ticket and begin it before each statement that the reader sends."""
    versions: dict[int, set[int]] = {0: set()}
    with open_store(url) as other_store:

        def write_between(*statement: Any) -> None:
            number = len(versions)
            other_store.add_tickets(study.id, [new_ticket(number)])
            versions[number] = versions[number - 1] | {number}
            take_next(other_store, study)

        event.listen(store._database._reader, "before_cursor_execute", write_between)
        news = store.news(study.id, {"search": 0})
    assert len(versions) >= 3
    assert {ticket.number for ticket in news.tickets} <= versions[news.version]


# ---- measurements


def test_measurements_are_found_by_ticket_and_by_name(store: Store, study: StudyRow) -> None:
    store.add_tickets(study.id, [new_ticket(0), new_ticket(1)])
    for taken_ticket in (take_next(store, study), take_next(store, study)):
        names = ("test", "validate")
        end_with(
            store,
            taken_ticket,
            *(Measurement(ticket_id=taken_ticket.id, step=1, name=n, value=1.0) for n in names),
        )
    first = store.tickets(study.id)[0]
    assert len(store.measurements(study.id)) == 4
    assert {m.ticket_id for m in store.measurements(study.id, ticket_ids=[first.id])} == {first.id}
    assert {m.name for m in store.measurements(study.id, names={"test"})} == {"test"}
    assert len(store.measurements(study.id, ticket_ids=[first.id], names=["test", "none"])) == 1
    assert store.measurements(study.id, ticket_ids=[]) == []


# SQLite keeps no sign of a zero.
FINITE = st.floats(-MAX_VALUE, MAX_VALUE).map(lambda value: value + 0.0)


@QUICK
@given(values=st.lists(FINITE, min_size=1, max_size=20))
def test_every_finite_measurement_comes_back_bit_for_bit(
    store: Store, ticket: TicketRow, values: list[float]
) -> None:
    store.write(
        ticket.study_id,
        [reported(ticket, 2**40 + i, v) for i, v in enumerate(values)],
        agent="agent",
        lease=HOUR,
    )
    read = store.measurements(ticket.study_id)[: len(values)]
    assert [m.value.hex() for m in read] == [float(v).hex() for v in values]


# what the values of a spec may be
SCALARS = st.one_of(
    st.integers(1 - 2**63, 2**63 - 1),
    *(st.booleans(), st.none(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
)
PARAMETERS = st.dictionaries(st.text(min_size=1), SCALARS | st.lists(SCALARS, max_size=3), max_size=6)


@QUICK
@given(parameters=PARAMETERS, sampled_params=PARAMETERS)
def test_parameters_come_back_exactly(
    store: Store, ticket: TicketRow, parameters: dict[str, Any], sampled_params: dict[str, Any]
) -> None:
    assert store.begin(ticket.id, 1, parameters, sampled_params, None) is None
    read = only_ticket(store, ticket.study_id)
    assert repr((read.parameters, read.sampled)) == repr((parameters, sampled_params))


def test_opening_a_store_loads_no_migrations(tmp_path: Path, environment: dict[str, str]) -> None:
    file = tmp_path / "x.db"
    open_store(str(file)).close()
    code = (
        "import sys; from tempopt.storage import open_store; open_store(sys.argv[1]).close(); "
        "print([m for m in ('alembic', 'optuna', 'psycopg', 'pymysql') if m in sys.modules])"
    )
    assert _run_code(environment, code, str(file)) == "[]"


def _run_code(environment: dict[str, str], code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


# ---- jobs


def test_jobs_are_there_before_the_study_is_and_go_with_it(store: Store) -> None:
    store.add_jobs("early", "slurm", {"partition": "gpu"}, ["7_0", "7_1"])
    store.add_jobs("another", "ray", {}, ["a"])
    first, second = store.jobs("early")
    assert (first.id, second.id) == ("7_0", "7_1")
    assert (first.launcher, first.options) == ("slurm", {"partition": "gpu"})
    assert abs((datetime.now(UTC) - first.created).total_seconds()) < 3600
    store.create_study("early", {}, "")
    assert store.jobs("early") == [first, second]
    store.delete_study("early")
    assert store.jobs("early") == []
    assert [job.id for job in store.jobs("another")] == ["a"]


def test_jobs_that_are_told_again_are_no_jobs_more(store: Store) -> None:
    store.add_jobs("x", "ray", {"address": "here"}, ["a", "b", "a"])
    jobs_before = store.jobs("x")
    store.add_jobs("x", "ray", {"address": "there"}, ["b", "c"])
    store.add_jobs("x", "slurm", {}, ["b"])
    assert store.jobs("x")[:2] == jobs_before
    assert [(job.launcher, job.id) for job in store.jobs("x")] == [
        ("ray", "a"),
        ("ray", "b"),
        ("ray", "c"),
        ("slurm", "b"),
    ]


def test_forgotten_jobs_are_gone(store: Store) -> None:
    store.add_jobs("x", "ray", {}, ["a", "b", "c"])
    store.add_jobs("y", "ray", {}, ["a"])
    store.forget_jobs("x", ["a", "c", "never was"])
    assert [job.id for job in store.jobs("x")] == ["b"]
    assert [job.id for job in store.jobs("y")] == ["a"]
    store.forget_jobs("x", [])
    assert [job.id for job in store.jobs("x")] == ["b"]


# ---- totals


def _end(store: Store, study: StudyRow, outcomes: RunOutcome) -> None:
    """Have the next ticket of a study taken, and end so."""
    change = make_end(take_next(store, study), outcomes)
    assert not store.write(study.id, [change], agent="agent", lease=HOUR).refused


def test_totals_are_of_each_study_and_the_best_of_complete_search_trials_alone(store: Store) -> None:
    first_study, second_study, empty = (
        store.create_study(name, {}, "0") for name in ("one", "other", "empty")
    )
    store.add_tickets(
        first_study.id, [new_ticket(0, "baseline"), *(new_ticket(number) for number in range(3))]
    )
    store.add_tickets(second_study.id, [new_ticket(0)])
    # the baseline's comes first, and is the highest
    for value in (9.0, 0.25, 0.75):
        _end(store, first_study, complete(value, gpu_seconds=1.5))
    take_next(store, first_study)
    _end(store, second_study, complete(0.5))
    totals = store.totals()
    assert totals[first_study.id] == StudyTotals(lowest=0.25, highest=0.75, seconds=7.5, gpu_seconds=4.5)
    assert totals[second_study.id] == StudyTotals(lowest=0.5, highest=0.5, seconds=2.5, gpu_seconds=0.0)
    assert empty.id not in totals
