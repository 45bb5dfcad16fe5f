"""Trials that the store writes are those that Optuna itself writes, row by row and as Optuna reads them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.storages import RDBStorage
from optuna.storages._rdb.models import BaseModel
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import text

from tempopt.errors import StorageError
from tempopt.storage import Store
from tempopt.storage.changes import RunOutcome
from tempopt.storage.optuna_tables import SCHEMA
from tempopt.storage.rows import StudyRow, TicketRow, TrialParam
from tests.storage.scenes import (
    HOUR,
    PARAMETERS,
    SAMPLED,
    TRIAL,
    make_end,
    new_ticket,
    only_ticket,
    reported,
    take_next,
)

SPACE: dict[str, Any] = {
    "lr": FloatDistribution(1e-5, 1e-1, log=True),
    "τ": FloatDistribution(0.25, 4.0, step=0.25),
    "width": IntDistribution(8, 512, log=True),
    "layers": IntDistribution(1, 9, step=2),
    "schedule": CategoricalDistribution(["constant", None, 1.5, True, "cosine"]),
}
VALUES = {"lr": 3e-4, "τ": 1.25, "width": 37, "layers": 3, "schedule": None}
REPORTS = {0: 0.1 + 0.2, 1: math.nan, 2: 1e100, 4: 5e-324, 5: -1e100, 2**31 - 1: 0.25}
NUMBERS = {"tau_final": 0.1 + 0.2, "gain": -5e-324, "seed": 2**63 - 1}
CONSTRAINTS = {"val_loss": 0.1 + 0.2, "latency": -1.5}
COLUMNS_APART = {"datetime_start", "datetime_complete", "library_version"}


@dataclass(frozen=True)
class TableScene:
    """One trial: what is suggested and reported, and how it ends (None: it is running)."""

    params: dict[str, Any] = field(default_factory=lambda: VALUES)
    reports: dict[int, float] = field(default_factory=dict)
    outcomes: RunOutcome | None = None
    state: TrialState = TrialState.RUNNING
    attributes: dict[str, Any] = field(default_factory=dict)
    constraints: dict[str, float] = field(default_factory=dict)


def outcome(name: Any, value: float | None = None, **fields: Any) -> RunOutcome:
    return RunOutcome(outcome=name, value=value, steps=9, seconds=1.0, **fields)


SCENES = {
    "running": TableScene(reports=REPORTS),
    "complete": TableScene(
        reports=REPORTS,
        outcomes=outcome("complete", 0.1 + 0.7, attributes=NUMBERS),
        state=TrialState.COMPLETE,
        attributes=NUMBERS,
    ),
    "constrained": TableScene(
        outcomes=outcome("complete", 0.5, constraints=CONSTRAINTS),
        state=TrialState.COMPLETE,
        constraints=CONSTRAINTS,
    ),
    "without parameters": TableScene(
        params={}, outcomes=outcome("complete", -1.0), state=TrialState.COMPLETE
    ),
    "pruned": TableScene(reports=REPORTS, outcomes=outcome("pruned", 0.25), state=TrialState.PRUNED),
    "pruned before a report": TableScene(outcomes=outcome("pruned"), state=TrialState.PRUNED),
    "diverged": TableScene(
        reports={3: 0.5, 7: math.nan},
        outcomes=outcome("diverged", diverged_at=7, attributes={"tau_final": 2.0}),
        state=TrialState.PRUNED,
        attributes={"tau_final": 2.0, "diverged_at": 7},
    ),
    "failed": TableScene(
        reports={3: 0.5},
        outcomes=outcome("failed", error='no "layer" τ'),
        state=TrialState.FAIL,
        attributes={"error": 'no "layer" τ'},
    ),
    "failed with many words": TableScene(
        outcomes=outcome("failed", error="x" * 5000), state=TrialState.FAIL, attributes={"error": "x" * 1000}
    ),
}


def as_params(params: dict[str, Any]) -> list[TrialParam]:
    return [
        TrialParam(
            name=name,
            value=SPACE[name].to_internal_repr(value),
            distribution=optuna.distributions.distribution_to_json(SPACE[name]),
        )
        for name, value in params.items()
    ]


def by_us(store: Store, study: StudyRow, scene: TableScene) -> int:
    """Write a scene with the store; return the id of the ticket."""
    ticket = take_next(store, study)
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, as_params(scene.params))
    store.write(
        study.id, [reported(ticket, *report) for report in scene.reports.items()], agent="agent", lease=HOUR
    )
    if scene.outcomes is not None:
        store.write(study.id, [make_end(ticket, scene.outcomes)], agent="agent", lease=HOUR)
    return ticket.id


def by_optuna(study: optuna.Study, scene: TableScene, ticket_id: int) -> None:
    """Write the same with Optuna's public calls."""
    template = FrozenTrial(
        number=-1,
        trial_id=-1,
        state=TrialState.RUNNING,
        value=None,
        datetime_start=datetime.now(),
        datetime_complete=None,
        params=scene.params,
        distributions={name: SPACE[name] for name in scene.params},
        user_attrs={"tempopt:ticket": ticket_id},
        system_attrs={},
        intermediate_values={},
    )
    trial = optuna.Trial(study, study._storage.create_new_trial(study._study_id, template))
    for step, value in scene.reports.items():
        trial.report(value, step)
    for key, value in scene.attributes.items():
        trial.set_user_attr(key, value)
    for name, value in scene.constraints.items():
        trial.set_constraint(name, value)
    if scene.state == TrialState.COMPLETE:
        assert scene.outcomes is not None
        study.tell(trial, scene.outcomes.value)
    elif "diverged_at" in scene.attributes:
        # tell() would make the last report the value: the run has none.
        study._storage.set_trial_state_values(trial._trial_id, scene.state)
    elif scene.state != TrialState.RUNNING:
        study.tell(trial, state=scene.state)


def rows(storage: RDBStorage) -> dict[str, list[list[tuple[str, Any]]]]:
    """Return every row of every table of Optuna, without the keys that count the rows, and the moments."""
    table_rows = {}
    with storage.engine.connect() as connection:
        for table in BaseModel.metadata.sorted_tables:
            separate_columns = COLUMNS_APART | {column.name for column in table.primary_key}
            separate_columns -= {"trial_id", "study_id"}
            of_table = connection.execute(table.select().order_by(*table.primary_key)).mappings()
            table_rows[table.name] = [
                [(name, repr(value)) for name, value in row.items() if name not in separate_columns]
                for row in of_table
            ]
    return table_rows


def as_read(storage: RDBStorage) -> list[str]:
    """Return the trials as Optuna reads them, as texts: NaN is then equal to itself."""
    trials = optuna.load_study(study_name="example", storage=storage).get_trials()
    separate_fields = ("datetime_start", "datetime_complete", "_datetime_start")
    return [repr({k: v for k, v in vars(trial).items() if k not in separate_fields}) for trial in trials]


@pytest.fixture
def optuna_storage(new_url: Callable[[], str], optuna_study: optuna.Study) -> Iterator[RDBStorage]:
    """Another database, in which only Optuna writes, with the same study."""
    storage = RDBStorage(new_url())
    optuna.create_study(study_name="example", storage=storage)
    yield storage
    storage.engine.dispose()


def test_the_rows_are_those_that_optuna_writes_and_it_reads_them_the_same(
    store: Store, study: StudyRow, storage: RDBStorage, optuna_storage: RDBStorage
) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(len(SCENES))])
    optuna_study = optuna.load_study(study_name="example", storage=optuna_storage)
    for scene in SCENES.values():
        by_optuna(optuna_study, scene, by_us(store, study, scene))
    expected = rows(optuna_storage)
    assert len(expected["trials"]) == len(SCENES)
    unordered = ("trial_user_attributes", "trial_values", "trial_intermediate_values")
    for table, actual_rows in rows(storage).items():
        if table in unordered:
            actual_rows, expected[table] = sorted(actual_rows), sorted(expected[table])
        assert actual_rows == expected[table], table
    assert as_read(storage) == as_read(optuna_storage)


def test_optuna_takes_a_trial_that_breaks_a_guard_for_infeasible(
    store: Store, study: StudyRow, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(3)])
    for value, excess in ((0.9, 0.1), (0.5, -0.1), (0.7, 0.0)):
        by_us(store, study, TableScene(outcomes=outcome("complete", value, constraints={"val_loss": excess})))
    assert [trial.constraints for trial in optuna_study.trials] == [
        {"val_loss": 0.1},
        {"val_loss": -0.1},
        {"val_loss": 0.0},
    ]
    best = max if optuna_study.direction.name == "MAXIMIZE" else min
    assert optuna_study.best_trial.value == best(0.5, 0.7)


def test_moments_are_optunas(store: Store, study: StudyRow, optuna_study: optuna.Study) -> None:
    store.add_tickets(study.id, [new_ticket(0)])
    time_before = datetime.now()
    by_us(store, study, SCENES["complete"])
    (trial,) = optuna_study.get_trials()
    assert trial.datetime_start is not None and trial.datetime_complete is not None
    assert abs((trial.datetime_start - time_before).total_seconds()) < 60
    assert trial.duration is not None
    assert only_ticket(store, study.id).started is not None
    assert abs(trial.datetime_complete.astimezone(UTC) - datetime.now(UTC)).total_seconds() < 60


def test_a_ticket_that_is_not_optunas_business_makes_no_trial(
    store: Store, study: StudyRow, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(0, "baseline")])
    ticket = take_next(store, study)
    assert store.begin(ticket.id, 1, PARAMETERS, {}, None) is None
    store.write(study.id, [reported(ticket, 1, 0.5), make_end(ticket)], agent="agent", lease=HOUR)
    assert optuna_study.get_trials() == []


def test_a_report_and_a_value_written_again_are_replaced_by_either_side(
    store: Store, study: StudyRow, storage: RDBStorage, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(0)])
    ticket = take_next(store, study)
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    trial_id = optuna_study.get_trials()[0]._trial_id
    storage.set_trial_intermediate_value(trial_id, 1, math.nan)
    store.write(study.id, [reported(ticket, 1, 0.5), reported(ticket, 2, 0.6)], agent="agent", lease=HOUR)
    storage.set_trial_intermediate_value(trial_id, 2, 0.7)
    assert optuna_study.get_trials()[0].intermediate_values == {1: 0.5, 2: 0.7}


def test_two_that_begin_at_the_same_time_get_different_numbers(
    store: Store, study: StudyRow, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(16)])
    errors: list[BaseException] = []

    def begin(agent: str) -> None:
        try:
            for _ in range(4):
                ticket = take_next(store, study, agent)
                store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
                optuna_study.ask()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin, args=(f"agent {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [trial.number for trial in optuna_study.get_trials()] == list(range(32))
    owners = {t.number: t.user_attrs.get("tempopt:ticket") for t in optuna_study.get_trials()}
    assert all(owners[t.trial_number] == t.id for t in store.tickets(study.id) if t.trial_number is not None)


def test_trials_of_tickets_that_are_withdrawn_are_closed_and_no_others(
    store: Store, study: StudyRow, optuna_study: optuna.Study
) -> None:
    store.add_tickets(study.id, [new_ticket(n) for n in range(5)])
    for agent in ("agent", "dead", "second", "alive"):
        ticket = take_next(store, study, agent)
        store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
        store.write(study.id, [reported(ticket, 1, 0.5)], agent=agent, lease=HOUR)
        if agent == "second":
            store.write(study.id, [make_end(ticket)], agent=agent, lease=HOUR)
    store.release(study.id, ["agent"])
    assert take_next(store, study, "alive", dead=["dead"]).number == 0
    store.release(study.id, ["alive"])
    alive_ticket = take_next(store, study, "alive", max_number_by_kind={"search": 0})
    assert store.withdraw(study.id, ["search"]) == 3
    states = [t.state for t in store.tickets(study.id)]
    assert states == ["running", "withdrawn", "done", "withdrawn", "withdrawn"]
    trials = optuna_study.get_trials()
    trial_states = [(t.state, t.user_attrs.get("error")) for t in trials]
    closed_trial = (TrialState.FAIL, "withdrawn: the search was stopped")
    assert trial_states == [
        (TrialState.RUNNING, None),
        closed_trial,
        (TrialState.COMPLETE, None),
        closed_trial,
    ]
    assert trials[1].datetime_complete is not None and trials[1].intermediate_values == {1: 0.5}
    assert trials[0].user_attrs["tempopt:ticket"] == alive_ticket.id


# ---- what others do behind our back


@pytest.fixture
def begun_ticket(store: Store, study: StudyRow, optuna_study: optuna.Study) -> TicketRow:
    store.add_tickets(study.id, [new_ticket(0), new_ticket(1)])
    ticket = take_next(store, study)
    store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    return ticket


def test_a_run_whose_trial_was_deleted_goes_on_without_it(
    store: Store, study: StudyRow, storage: RDBStorage, begun_ticket: TicketRow
) -> None:
    optuna.delete_study(study_name="example", storage=storage)
    reply = store.write(
        study.id, [reported(begun_ticket, 1, 0.5), make_end(begun_ticket)], agent="agent", lease=HOUR
    )
    assert reply.refused == {}
    assert store.tickets(study.id)[0].state == "done"
    assert len(store.measurements(study.id)) == 1


def test_a_trial_in_a_study_that_was_deleted_is_refused_with_what_to_do(
    store: Store, study: StudyRow, storage: RDBStorage, begun_ticket: TicketRow
) -> None:
    optuna.delete_study(study_name="example", storage=storage)
    ticket = take_next(store, study)
    with pytest.raises(
        StorageError, match=r'Optuna\'s study "example" has been deleted from the database.*tempopt show'
    ):
        store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL)
    assert store.tickets(study.id)[1].parameters is None


def test_a_trial_finished_outside_tempopt_stays_unchanged(
    store: Store, study: StudyRow, optuna_study: optuna.Study, begun_ticket: TicketRow
) -> None:
    optuna_study.tell(0, state=TrialState.FAIL)
    store.write(study.id, [reported(begun_ticket, 1, 0.5), make_end(begun_ticket)], agent="agent", lease=HOUR)
    assert store.tickets(study.id)[0].state == "done"
    (trial,) = optuna_study.get_trials()
    assert (trial.state, trial.value, trial.intermediate_values) == (TrialState.FAIL, None, {})


# ---- other versions


def test_the_version_that_is_known_is_that_of_the_optuna_installed(storage: RDBStorage) -> None:
    assert storage.get_head_version() == SCHEMA


# ---- deleting, and living in one database


@pytest.mark.parametrize("is_marked", [True, False])
def test_deleting_a_study_deletes_optunas_with_all_its_rows(
    store: Store, study: StudyRow, storage: RDBStorage, optuna_study: optuna.Study, is_marked: bool
) -> None:
    empty = rows(storage) | {"studies": [], "study_directions": []}
    if is_marked:
        optuna_study.set_user_attr("tempopt", {"metric": "loss"})
        optuna_study._storage.set_study_system_attr(optuna_study._study_id, "x", 1)
        optuna_study.enqueue_trial({"x": 1.0})
    store.add_tickets(study.id, [new_ticket(n) for n in range(2)])
    for scene in (SCENES["complete"], SCENES["running"]):
        by_us(store, study, scene)
    store.delete_study("example")
    assert rows(storage) == empty
    assert store.list_studies() == []


def test_a_foreign_optuna_study_of_the_same_name_is_not_deleted(
    store: Store, study: StudyRow, storage: RDBStorage
) -> None:
    foreign_study = optuna.create_study(study_name="example", storage=storage)
    foreign_study.optimize(lambda trial: trial.suggest_float("x", 0, 1), 2)
    store.delete_study("example")
    assert len(optuna.load_study(study_name="example", storage=storage).trials) == 2


# ---- without tables that are known


@pytest.mark.parametrize("obstacle", ["another version", "no tables"])
def test_without_optuna_a_study_is_searched_all_the_same(
    store: Store,
    study: StudyRow,
    obstacle: str,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if obstacle == "another version":
        request.getfixturevalue("optuna_study")
        update = text("UPDATE alembic_version SET version_num = :version").bindparams(version="v9\x1b[2J")
        store._database.write(lambda c: c.execute(update))
    store.add_tickets(study.id, [new_ticket(0)])
    ticket = take_next(store, study)
    assert store.begin(ticket.id, 1, PARAMETERS, SAMPLED, TRIAL) is None
    store.write(study.id, [reported(ticket, 3, 0.25), make_end(ticket)], agent="agent", lease=HOUR)
    assert only_ticket(store, study.id).state == "done"
    warnings = [record.getMessage() for record in caplog.records if record.name == "tempopt"]
    assert len(warnings) == (obstacle == "another version")
    assert all(r"version v9\x1b[2J," in line for line in warnings)
    store.delete_study("example")
    assert store.list_studies() == []
