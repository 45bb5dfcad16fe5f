"""A study that an older tempopt began is found whole after the upgrade, and goes on.

``data/store_0001.sql`` was written by the program of version 0001 itself: eight search tickets, of which
three had ended, one was given back, one was never begun, and three agents had died: in training, after
the trial was made and before its ticket knew of it, and after the trial was closed and before its ticket was.
``data/store_0002.sql`` was written by the program of version 0002: of six search tickets one is complete, one
was lost once and then pruned, one has failed, one was given back with checkpoints and taken again, one runs
and one was never begun. ``data/store_0003.sql`` was written by the program of version 0003: the same of runs
on cards, one of which needs one to itself, begun by a launcher. ``data/store_0004.sql`` was written by the
program of version 0004: the same, of which it is known where they were trained. ``data/store_0005.sql`` was
written by the program of version 0005: two complete runs of which the second began from the first, a
pruned one, two that run and one that was never begun.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import optuna
import pytest
from alembic import command
from optuna.trial import TrialState
from sqlalchemy import Connection, MetaData, create_engine, insert, inspect, select, text

from tempopt.errors import StorageError, StudyNotFound
from tempopt.store import Began, Store, TicketRow, schema, upgrade
from tempopt.store.database import Database
from tempopt.store.urls import parse
from tests.store.scenes import HOUR, PARAMETERS, SAMPLED, TRIAL, complete, ended, reported, take, taken

DATA = Path(__file__).parent / "data"


def _copy(source: Connection, target: Connection) -> None:
    """Copy every row, and let PostgreSQL count on from there."""
    theirs, ours = MetaData(), MetaData()
    theirs.reflect(source)
    ours.reflect(target)
    for table in reversed(ours.sorted_tables):
        target.execute(table.delete())
    for table in ours.sorted_tables:
        rows = [dict(row) for row in source.execute(select(theirs.tables[table.name])).mappings()]
        if rows:
            target.execute(insert(table), rows)
        counted = [column.name for column in table.primary_key if column.autoincrement is True]
        if target.dialect.name == "postgresql" and rows and counted:
            sequence = f"pg_get_serial_sequence('{table.name}', '{counted[0]}')"
            target.execute(text(f"SELECT setval({sequence}, max({counted[0]})) FROM {table.name}"))


@pytest.fixture
def version() -> str:
    """The version of the old database."""
    return "0001"


@pytest.fixture
def old(url: str, backend: str, tmp_path: Path, version: str) -> str:
    """The URL of the old database; on a server, a copy of it in the tables of that version."""
    file = parse(url).url.database if backend == "sqlite" else str(tmp_path / "old.db")
    assert file is not None
    with closing(sqlite3.connect(file)) as connection:
        connection.executescript((DATA / f"store_{version}.sql").read_text(encoding="utf-8"))
    if backend == "sqlite":
        return url
    optuna.storages.RDBStorage(url).engine.dispose()
    database, source = Database(parse(url)), create_engine(f"sqlite:///{file}")

    def make(connection: Connection) -> None:
        config = schema._config()
        config.attributes["connection"] = connection
        command.upgrade(config, version)

    database.write(make)
    with source.connect() as given:
        database.write(lambda connection: _copy(given, connection))
    source.dispose()
    database.close()
    return url


@pytest.fixture
def store(old: str) -> Iterator[Store]:
    upgrade(old)
    with Store.open(old, create=False) as opened:
        yield opened


def trials(store: Store) -> list[optuna.trial.FrozenTrial]:
    storage = optuna.storages.RDBStorage(store.url)
    found = optuna.load_study(study_name="old", storage=storage).get_trials()
    storage.engine.dispose()
    return found


each = pytest.mark.parametrize("version", ["0001", "0002", "0003", "0004", "0005"])


@each
def test_an_old_database_is_refused_until_it_is_upgraded(old: str, version: str) -> None:
    with pytest.raises(
        StorageError, match=rf"tables {version}, this program needs .*tempopt storage upgrade"
    ):
        Store.open(old)
    assert upgrade(old) == schema.HEAD
    assert upgrade(old) == schema.HEAD


@each
def test_nothing_is_lost_in_the_upgrade(old: str) -> None:
    database = Database(parse(old))
    names = ("tempopt_study", "tempopt_ticket", "tempopt_measurement", "trials", "trial_params")

    def rows(connection: Connection) -> dict[str, list[dict[str, object]]]:
        query = "SELECT * FROM {} ORDER BY 1, 2, 3"
        return {n: [dict(row) for row in connection.execute(text(query.format(n))).mappings()] for n in names}

    before = database.read(rows)
    upgrade(old)
    after = database.read(rows)
    database.close()
    written_anew = {"trial_number", "state", "datetime_complete"}
    for name in names:
        kept = [{k: v for k, v in row.items() if k not in written_anew} for row in before[name]]
        assert [{k: row[k] for k in was} for row, was in zip(after[name], kept, strict=True)] == kept


def test_a_search_ticket_knows_what_was_suggested_for_its_trial(store: Store) -> None:
    tickets = store.tickets(1, kinds=["search"])
    assert [t.sampled for t in tickets[:7]] == [trial.params for trial in trials(store)]
    assert [type(t.sampled["n"]) for t in tickets[:7] if t.sampled] == [int] * 7
    assert tickets[7].sampled is None
    assert [t.trial_number for t in tickets] == [0, 1, 2, 3, 4, 5, 6, None]
    assert {(t.round, t.checkpoints, t.checkpoint_seconds) for t in tickets} == {(0, (), 0.0)}


@pytest.mark.parametrize(
    ("version", "added"),
    [
        ("0001", "ALTER TABLE tempopt_study ADD COLUMN version INTEGER NOT NULL DEFAULT 0"),
        ("0002", "ALTER TABLE tempopt_ticket ADD COLUMN gpu_seconds DOUBLE PRECISION NOT NULL DEFAULT 0"),
        ("0003", "ALTER TABLE tempopt_ticket ADD COLUMN machine VARCHAR(255)"),
        ("0004", "ALTER TABLE tempopt_ticket ADD COLUMN forked_from INTEGER"),
        ("0005", "ALTER TABLE tempopt_study ADD COLUMN warm_start TEXT"),
    ],
)
def test_an_upgrade_that_was_broken_off_is_done_again(old: str, added: str) -> None:
    """MySQL ends the transaction at every change of a table: what was added by then stays."""
    database = Database(parse(old))
    database.write(lambda c: c.execute(text(added)))
    upgrade(old)
    names = database.read(lambda c: inspect(c).get_table_names())
    database.close()
    assert {"tempopt_log", "tempopt_job"} <= set(names)


def test_the_study_goes_on_to_its_exact_number_of_trials(store: Store) -> None:
    done: list[TicketRow] = []
    while (ticket := take(store, 1, "new agent", max_attempts=9)) is not None:
        sampled, parameters = ticket.sampled or SAMPLED, ticket.parameters or PARAMETERS
        number = store.begin(ticket.id, ticket.attempt, parameters, sampled, TRIAL)
        assert ticket.trial_number in (None, number)
        changes = [reported(ticket, 5, 0.125), ended(ticket, complete(0.25))]
        assert store.write(1, changes, agent="new agent", lease=HOUR).refused == {}
        done.append(ticket)
    assert [t.number for t in done] == [3, 4, 5, 6, 7]
    assert [t.failures for t in done] == [1, 1, 1, 0, 0]
    found = trials(store)
    assert [trial.number for trial in found] == list(range(8))
    states = [TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED, *[TrialState.COMPLETE] * 5]
    assert [trial.state for trial in found] == states
    assert [trial.value for trial in found] == [0.7, 0.1, None, *[0.25] * 5]
    owners = {trial.number: trial.user_attrs["tempopt:ticket"] for trial in found}
    assert owners == {t.trial_number: t.id for t in store.tickets(1, kinds=["search"])}


def test_what_was_running_may_be_taken_at_once(store: Store) -> None:
    leases = [t.lease for t in store.tickets(1) if t.state == "running"]
    assert len(leases) == 3
    assert all(lease is not None and lease < 0 for lease in leases)
    assert taken(store, store.load_study("old")).number == 3


@pytest.mark.parametrize("version", ["0002"])
class TestBeforeCards:
    """What version 0002 wrote is known of, and nothing of its runs is said to have been on a card."""

    def test_runs_are_as_they_were(self, store: Store) -> None:
        tickets = store.tickets(1)
        assert [t.state for t in tickets] == ["done", "done", "failed", "running", "running", "waiting"]
        assert [t.failures for t in tickets] == [0, 1, 1, 0, 0, 0]
        assert [[c.step for c in t.checkpoints] for t in tickets] == [[], [], [], [20, 10], [], []]
        assert [(t.alone, t.gpu_seconds, t.peak_memory) for t in tickets] == [(False, 0.0, None)] * 6
        assert store.jobs("old") == []
        assert {log.text for log in store.logs(1)} == {"the end", "killed"}

    def test_the_study_goes_on(self, store: Store) -> None:
        agent = "far:1:2:3"
        held = {t.number: t for t in store.tickets(1) if t.state == "running"}
        last = taken(store, store.load_study("old"), agent, held=[t.id for t in held.values()])
        assert (last.number, store.begin(last.id, 1, PARAMETERS, SAMPLED, TRIAL)) == (5, 5)
        for ticket in (*held.values(), last):
            changes = [ended(ticket, complete(0.25, gpu_seconds=7.0, peak_memory=2**33))]
            assert store.write(1, changes, agent=agent, lease=HOUR).refused == {}
        rows = store.tickets(1)[3:]
        assert [(t.state, t.gpu_seconds, t.peak_memory) for t in rows] == [("done", 7.0, 2**33)] * 3
        assert [trial.number for trial in trials(store)] == list(range(6))


@pytest.mark.parametrize("version", ["0003"])
class TestBeforePlaces:
    """What version 0003 wrote is known of, and nothing is said of where its runs were trained."""

    def test_runs_are_as_they_were(self, store: Store) -> None:
        tickets = store.tickets(1)
        assert [t.state for t in tickets] == ["done", "done", "failed", "running", "running", "waiting"]
        assert [(t.machine, t.device) for t in tickets] == [(None, None)] * 6
        assert [(t.gpu_seconds, t.peak_memory) for t in tickets[:2]] == [(1.25, 2**33), (1.5, None)]
        assert [t.alone for t in tickets] == [False, True, *[False] * 4]
        assert [(job.launcher, job.id) for job in store.jobs("old")] == [("slurm", "12_0")]

    def test_the_study_goes_on_and_tells_where(self, store: Store) -> None:
        agent = "far:1:2:3"
        held = {t.number: t for t in store.tickets(1) if t.state == "running"}
        last = taken(store, store.load_study("old"), agent, held=[t.id for t in held.values()])
        assert (last.number, store.begin(last.id, 1, PARAMETERS, SAMPLED, TRIAL)) == (5, 5)
        place = {"machine": "node7", "device": "NVIDIA H200 (cuda:0)"}
        for ticket in (*held.values(), last):
            began = Began(ticket_id=ticket.id, attempt=ticket.attempt, total_steps=100, code="c", **place)
            changes = [began, ended(ticket, complete(0.25))]
            assert store.write(1, changes, agent=agent, lease=HOUR).refused == {}
        rows = store.tickets(1)[3:]
        assert [(t.state, t.machine, t.device) for t in rows] == [("done", *place.values())] * 3
        # those that had ended before get no picture, since their trials are closed
        pictured = [bool(trial._system_attrs) for trial in trials(store)]
        assert pictured == [False, False, False, True, True, True]


@pytest.mark.parametrize("version", ["0004"])
class TestBeforeForks:
    """What version 0004 wrote is known of, and none of its runs is said to have begun from another."""

    def test_runs_are_as_they_were(self, store: Store) -> None:
        tickets = store.tickets(1)
        assert [t.state for t in tickets] == ["done", "done", "failed", "running", "running", "waiting"]
        assert [[c.step for c in t.checkpoints] for t in tickets] == [[], [], [], [20, 10], [], []]
        assert not any(c.shared for t in tickets for c in t.checkpoints)
        assert [(t.forked_from, t.forked_at) for t in tickets] == [(None, None)] * 6
        assert [t.machine for t in tickets] == ["node7"] * 5 + [None]
        assert tickets[0].steps_trained == tickets[0].steps == 100

    def test_the_study_goes_on_and_tells_what_was_forked(self, store: Store) -> None:
        agent = "far:1:2:3"
        held = {t.number: t for t in store.tickets(1) if t.state == "running"}
        kept = held[3].checkpoints
        first = ended(held[3], complete(0.25), checkpoints=kept[:1])
        last = taken(store, store.load_study("old"), agent, held=[t.id for t in held.values()])
        assert (last.number, store.begin(last.id, 1, PARAMETERS, SAMPLED, TRIAL)) == (5, 5)
        began = Began(
            ticket_id=last.id,
            attempt=last.attempt,
            total_steps=100,
            code="c",
            forked_from=held[3].id,
            forked_at=20,
            resumed=False,
        )
        assert store.write(1, [first, began, ended(last)], agent=agent, lease=HOUR).refused == {}
        rows = {t.number: t for t in store.tickets(1)}
        assert rows[3].checkpoints == kept[:1]
        assert (rows[5].forked_from, rows[5].forked_at, rows[5].steps_trained) == (held[3].id, 20, 80)


@pytest.mark.parametrize("version", ["0005"])
class TestBeforeWarmStarts:
    """What version 0005 wrote is known of, and no study is said to have learnt from another."""

    def test_runs_are_as_they_were(self, store: Store) -> None:
        tickets = store.tickets(1)
        assert [t.state for t in tickets] == ["done", "done", "done", "running", "running", "waiting"]
        assert [(t.forked_from, t.forked_at) for t in tickets[:2]] == [(None, None), (tickets[0].id, 20)]
        assert [[(c.step, c.shared) for c in t.checkpoints] for t in tickets[::3]] == [
            [(20, True)],
            [(20, False), (10, False)],
        ]
        assert store.warm_start(1) == []

    def test_later_studies_keep_what_it_has_found(self, store: Store) -> None:
        kept = [{"name": "old", "runs": [[PARAMETERS, -0.7], [PARAMETERS, -0.6]]}]
        later = store.create_study("later", {}, "", warm_start=kept)
        assert store.warm_start(later.id) == kept
        store.delete_study("old")
        assert store.warm_start(later.id) == kept
        with pytest.raises(StudyNotFound):
            store.warm_start(1)
