"""Whole studies on each database, disturbed by clocks and servers: they end the same as undisturbed."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, tzinfo
from typing import Any

import pytest
from optuna.storages import RDBStorage
from sqlalchemy import make_url

from tempopt.api.calls import resume, search
from tempopt.service.studies import run_agent
from tempopt.storage.opening import open_store
from tempopt.training.messages import RunRequest
from tests.fake_worker import FakeWorker
from tests.report.full_text import full_lines
from tests.servers import PrivateServer
from tests.storage.scenes import assert_fields
from tests.toy_study import (
    SMALL,
    EndedStudy,
    Watcher,
    begin_study,
    facts,
    has_searched,
    is_same_study,
    read_study,
    tickets,
    toy_spec,
    undisturbed_study,
)

pytestmark = pytest.mark.usefixtures("toy_folder", "fake_workers")

_COUNT = itertools.count()


def small(**study: Any) -> dict[str, Any]:
    return toy_spec(**{**SMALL, "trials": 4, "lease": 30, **study})


@pytest.fixture
def in_peace(tmp_path_factory: pytest.TempPathFactory) -> EndedStudy:
    return undisturbed_study(tmp_path_factory.mktemp("peace"), small)


class Clock:
    """The clock of a machine, as Python tells it, which may be set wrong."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.hours = 0.0
        clock = self

        class ShiftedClock(datetime):
            @classmethod
            def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
                return datetime.now(tz) + timedelta(hours=clock.hours)

        for name, module in list(sys.modules.items()):
            if name.startswith("tempopt") and getattr(module, "datetime", None) is datetime:
                patch.setattr(module, "datetime", ShiftedClock)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    return Clock(monkeypatch)


@pytest.mark.parametrize(("creator", "agent"), [(-2.0, 2.0), (2.0, -2.0)])
def test_a_wrong_clock_neither_ends_nor_lengthens_a_search(
    url: str, clock: Clock, in_peace: EndedStudy, creator: float, agent: float
) -> None:
    clock.hours = creator
    begin_study(small(limits={"hours": 1.0}), url, has_searched(1))
    with open_store(url, create=False) as store:
        assert 0.0 <= store.load_study("toy").age < 3600.0
    clock.hours = agent
    assert is_same_study(read_study(resume("toy", storage=url, workers=1), url), in_peace)


class LimitedServer:
    """A private server and a user of it without an administrator's rights, who can be held back.

    Args:
        server: The server.
        backend: ``postgresql`` or ``mariadb``.
    """

    def __init__(self, server: PrivateServer, backend: str) -> None:
        self._server, self._is_postgresql = server, backend == "postgresql"
        name = f"limited_{next(_COUNT)}"
        base = make_url(server.create_database(name))
        self._user = name
        self.url = base.set(username=name).render_as_string(hide_password=False)
        if self._is_postgresql:
            self._execute(f"CREATE ROLE {name} LOGIN", f"ALTER DATABASE {name} OWNER TO {name}")
        else:
            self._execute(f"CREATE USER {name}@'%'", f"GRANT ALL ON {name}.* TO {name}@'%'")

    def take_no_writes(self, is_read_only: bool) -> None:
        if self._is_postgresql:
            value = "on" if is_read_only else "off"
            self._execute(
                f"ALTER SYSTEM SET default_transaction_read_only = {value}", "SELECT pg_reload_conf()"
            )
        else:
            self._execute(f"SET GLOBAL read_only = {int(is_read_only)}")

    def take_no_connections(self, is_limited: bool) -> None:
        if self._is_postgresql:
            self._execute(f"ALTER ROLE {self._user} CONNECTION LIMIT {1 if is_limited else -1}")
        else:
            self._execute(f"ALTER USER {self._user}@'%' WITH MAX_USER_CONNECTIONS {int(is_limited)}")

    def _execute(self, *statements: str) -> None:
        for statement in statements:
            self._server.execute(statement)


@pytest.fixture
def limited_server(private: PrivateServer, backend: str) -> LimitedServer:
    return LimitedServer(private, backend)


@pytest.mark.parametrize("backend", ["postgresql", "mariadb"], indirect=True)
def test_a_server_that_takes_no_writes_for_a_while_is_waited_for(
    limited_server: LimitedServer, in_peace: EndedStudy
) -> None:
    def block_writes() -> None:
        limited_server.take_no_writes(True)
        timer = threading.Timer(2.0, limited_server.take_no_writes, [False])
        timer.start()
        timers.append(timer)

    timers: list[threading.Timer] = []
    watcher = Watcher(has_searched(1), block_writes)
    result = search(small(), storage=limited_server.url, workers=1, observer=watcher)
    timers[0].join()
    assert is_same_study(read_study(result, limited_server.url), in_peace)
    (note,) = [note for note in watcher.notes if "accepts no writes now" in note]
    assert "Training continues" in note and "SQLite" not in note
    assert [note for note in watcher.notes if "The store is back" in note] == [watcher.notes[-1]]


@pytest.mark.parametrize("backend", ["postgresql", "mariadb"], indirect=True)
def test_an_agent_that_finds_no_connection_free_begins_when_one_is(
    limited_server: LimitedServer, in_peace: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_study(small(), limited_server.url, has_searched(1))
    with open_store(limited_server.url, create=False) as admin_store:
        admin_store.set_state(admin_store.load_study("toy").id, "running")
        limited_server.take_no_connections(True)
        watcher = NoteWatcher(lambda text: (admin_store.close(), limited_server.take_no_connections(False)))
        result = run_agent("toy", storage=limited_server.url, workers=1, observer=watcher)
    assert is_same_study(read_study(result, limited_server.url), in_peace)
    (note,) = watcher.notes
    assert "run fewer agents: each holds one" in note and "This agent waits for it" in note


class NoteWatcher(Watcher):
    """Does something when it is told the first thing."""

    def __init__(self, action: Callable[[str], object]) -> None:
        super().__init__()
        self._first: Callable[[str], object] | None = action

    def note(self, text: str) -> None:
        super().note(text)
        if self._first is not None:
            first, self._first = self._first, None
            first(text)


def fail_run(patch: pytest.MonkeyPatch, url: str, kind: str, number: int) -> None:
    """Have every attempt at one run fail."""
    train = FakeWorker._train

    def train_or_fail(self: FakeWorker, request: RunRequest) -> None:
        rows = tickets(url) if request.ticket else []
        if (kind, number) in [(row.kind, row.number) for row in rows if row.id == request.ticket]:
            raise ValueError("no space left on the device")
        train(self, request)

    patch.setattr(FakeWorker, "_train", train_or_fail)


def test_runs_that_were_lost_are_asked_for_again_and_nothing_was_decided_without_them(
    url: str, in_peace: EndedStudy, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_run(patch, url, "search", 3)
        begin_study(small(max_attempts=1), url, has_searched(4))
    (failed_ticket,) = [ticket for ticket in tickets(url) if ticket.state == "failed"]
    storage = RDBStorage(url)
    try:
        assert [trial.state.name for trial in storage.get_all_trials(1)].count("FAIL") == 1
        watcher = Watcher()
        result = resume("toy", storage=url, workers=1, retry_failed=True, observer=watcher)
        assert is_same_study(read_study(result, url), in_peace)
        (retrained_ticket,) = [ticket for ticket in tickets(url) if ticket.id == failed_ticket.id]
        assert_fields(retrained_ticket, attempt=2, failures=0, trial_number=failed_ticket.trial_number)
        trial = storage.get_all_trials(1)[retrained_ticket.trial_number or 0]
        assert (trial.state.name, trial.value) == (
            "COMPLETE",
            retrained_ticket.value,
        ) or trial.state.name == "PRUNED"
        assert "error" not in trial.user_attrs
    finally:
        storage.remove_session()
        storage.engine.dispose()
    assert "1 of 1 runs that failed on every attempt are repeated" in watcher.notes[0]
    assert "no space left on the device" in watcher.notes[0]
    # asked once more, it is nothing
    assert is_same_study(read_study(resume("toy", storage=url, workers=1, retry_failed=True), url), in_peace)


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_pairs_that_a_verdict_lacks_are_replaced_by_fresh_ones_once_and_counted_as_another_look(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        fail_run(patch, url, "confirm", 0)
        first_result = search(
            small(max_attempts=1, seeds={"choose": 1, "confirm": 3}), storage=url, workers=1
        )
    assert first_result.verdict is not None and (
        first_result.verdict.verdict_number,
        first_result.verdict.primary.dropped,
    ) == (1, 1)
    text = "\n".join(full_lines(first_result))
    assert "tempopt resume toy --retry-failed" in text
    watcher = Watcher()
    second_result = resume("toy", storage=url, workers=1, retry_failed=True, observer=watcher)
    assert second_result.verdict is not None and second_result.verdict.verdict_number == 2
    assert "--retry-failed" not in "\n".join(full_lines(second_result))
    assert second_result.verdict.primary.paired.n_pairs == first_result.verdict.primary.paired.n_pairs + 2
    assert "2 fresh pairs are trained in place of those that the verdict lacked" in watcher.notes[0]
    facts_before = facts(url)
    assert resume("toy", storage=url, workers=1, retry_failed=True).verdict == second_result.verdict
    assert facts(url) == facts_before
