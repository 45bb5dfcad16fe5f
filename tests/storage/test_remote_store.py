"""A store behind a server returns what the store in the database returns, and writes nothing."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tempopt.errors import StoreUnreachable, StudyNotFound, UsageError
from tempopt.storage import Store
from tempopt.storage.changes import AttemptLost, AttemptReleased
from tempopt.storage.http.remote_store import RemoteStore
from tempopt.storage.opening import open_store
from tempopt.storage.rows import KINDS, Measurement, StudyRow
from tests.rows import MAPS
from tests.server.conftest import RunningServer
from tests.server.conftest import running_server as running_server
from tests.storage.scenes import HOUR, complete, make_end, make_kept, new_ticket, reported, take_next

pytestmark = pytest.mark.server


@pytest.fixture
def study(running_server: RunningServer) -> StudyRow:
    """A study with rows of every kind: running, waiting, done, failed, withdrawn, logs, maps, jobs."""
    store = running_server.store
    row = store.create_study("example", {"study": {"name": "example"}}, "0" * 64, warm_start=[{"name": "a"}])
    store.create_study("other", {"study": {"name": "other"}}, "1" * 64)
    store.set_checkpoints(row.id, "file:///runs")
    store.add_tickets(
        row.id, [new_ticket(n) for n in range(5)] + [new_ticket(n, "confirm", pair=n) for n in range(2)]
    )
    store.add_tickets(row.id, [new_ticket(0, "baseline", sampled={"x": 0.5}, parameters={"x": 0.5})])
    for mark in range(3):
        ticket = take_next(store, row)
        store.begin(ticket.id, ticket.attempt, {"x": 0.1 + 0.2}, {"x": 0.1 + 0.2}, None)
        changes: list[Any] = [
            reported(ticket, 4, 0.1 + mark),
            reported(ticket, 8, math.nan),
            make_kept(ticket, 8),
        ]
        if mark == 0:
            measurements = [Measurement(ticket_id=ticket.id, step=8, name="test:winner", value=1 / 3)]
            changes.append(make_end(ticket, complete(measurements=measurements, maps=MAPS), log="said\nthis"))
        if mark == 1:
            lost_change = AttemptLost(
                ticket_id=ticket.id, attempt=1, error="gone", max_attempts=1, log="Traceback"
            )
            changes.append(lost_change)
        store.write(row.id, changes, agent="agent", lease=HOUR)
    given_back = take_next(store, row)
    returned_changes = [AttemptReleased(ticket_id=given_back.id, attempt=1, seconds=1.5, log="left")]
    store.write(row.id, returned_changes, agent="agent", lease=HOUR)
    take_next(store, row, "far:7")
    store.add_jobs("example", "slurm", {"partition": "gpu"}, ["1", "2"])
    store.withdraw(row.id, ["confirm"])
    return store.load_study("example")


@pytest.fixture
def remote(running_server: RunningServer) -> Iterator[RemoteStore]:
    with open_store(running_server.url) as store:
        assert isinstance(store, RemoteStore)
        yield store


def _ids(store: Store, study: StudyRow) -> list[int]:
    return [ticket.id for ticket in store.tickets(study.id)]


READS: dict[str, Callable[[Store, StudyRow], Any]] = {
    "load_study": lambda store, study: store.load_study("example"),
    "list_studies": lambda store, study: store.list_studies(),
    "warm_start": lambda store, study: store.warm_start(study.id),
    "jobs": lambda store, study: store.jobs("example"),
    "jobs of none": lambda store, study: store.jobs("not_begun"),
    "tickets": lambda store, study: store.tickets(study.id),
    "tickets of kinds": lambda store, study: store.tickets(study.id, ["search", "baseline"]),
    "tickets of no kind": lambda store, study: store.tickets(study.id, []),
    "ticket": lambda store, study: store.ticket(study.id, "search", 1),
    "ticket that is not there": lambda store, study: store.ticket(study.id, "search", 10_000),
    "news": lambda store, study: store.news(study.id, dict.fromkeys(KINDS, 0)),
    "news of some": lambda store, study: store.news(study.id, {"search": 2}),
    "news of none": lambda store, study: store.news(study.id, {}),
    "measurements": lambda store, study: store.measurements(study.id),
    "measurements of some": lambda store, study: store.measurements(
        study.id, _ids(store, study)[:2], ["report"]
    ),
    "measurements of none": lambda store, study: store.measurements(study.id, []),
    "measurements by prefix": lambda store, study: store.measurements(study.id, prefixes=["test", "x"]),
    "logs": lambda store, study: store.logs(study.id),
    "logs of some": lambda store, study: store.logs(study.id, _ids(store, study)[:2]),
    "maps": lambda store, study: store.attention_maps(study.id, _ids(store, study)),
    "maps of none": lambda store, study: store.attention_maps(study.id, []),
}


def _without_leases(value: Any) -> str:
    """Return what is the same at every moment; a lease is told in seconds from now."""
    text = repr(value).replace("TzInfo(0)", "datetime.timezone.utc")
    return re.sub(r"(lease|age)=[-\d.e]+", r"\1", text)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_what_is_read_is_what_the_database_says(
    read: Callable[[Store, StudyRow], Any],
    running_server: RunningServer,
    remote: RemoteStore,
    study: StudyRow,
) -> None:
    assert _without_leases(read(remote, study)) == _without_leases(read(running_server.store, study))


def test_leases_are_told_in_seconds_as_they_are(
    remote: RemoteStore, running_server: RunningServer, study: StudyRow
) -> None:
    leases = [
        [ticket.lease for ticket in store.tickets(study.id) if ticket.lease]
        for store in (remote, running_server.store)
    ]
    assert leases[0]
    assert all(0 < lease <= HOUR for lease in leases[0])
    assert len(leases[0]) == len(leases[1])


def test_more_ids_than_one_request_holds_are_asked_for(remote: RemoteStore, study: StudyRow) -> None:
    all_measurements = remote.measurements(study.id)
    assert remote.measurements(study.id, range(1, 1000)) == all_measurements


def test_a_study_of_another_id_is_not_taken_for_it(
    running_server: RunningServer, remote: RemoteStore, study: StudyRow
) -> None:
    remote.load_study("example")
    running_server.store.delete_study("example")
    running_server.store.create_study("example", {"study": {"name": "example"}}, "2" * 64)
    for read in (remote.tickets, remote.measurements, remote.warm_start):
        with pytest.raises(StudyNotFound):
            read(study.id)
    with pytest.raises(StudyNotFound):
        remote.news(study.id, {})


@pytest.mark.parametrize("name", ["exampel", "a/b", "..", ""])
def test_a_study_that_is_not_there_is_said_not_to_be(remote: RemoteStore, name: str) -> None:
    with pytest.raises(StudyNotFound):
        remote.load_study(name)


def test_what_would_write_to_the_database_is_refused(remote: RemoteStore, study: StudyRow) -> None:
    refused = [
        name for name, method in vars(RemoteStore).items() if method is vars(RemoteStore)["_refuse_access"]
    ]
    assert {"create_study", "set_state", "delete_study", "add_tickets", "release", "write"} <= set(refused)
    for name in refused:
        with pytest.raises(UsageError, match="is a tempopt server"):
            getattr(remote, name)()


def test_every_method_of_a_store_is_answered_or_refused() -> None:
    methods = {
        name
        for repository in Store.__mro__[:-1]
        for name, attribute in vars(repository).items()
        if callable(attribute) and not name.startswith("_")
    }
    assert not methods - vars(RemoteStore).keys()


def test_a_server_that_is_away_is_unreachable() -> None:
    with open_store("http://127.0.0.1:9") as store, pytest.raises(StoreUnreachable, match="127.0.0.1:9"):
        store.list_studies()


def test_nothing_in_what_is_shown_of_it_is_secret(running_server: RunningServer) -> None:
    store = RemoteStore.at(running_server.url, "a-secret-token")
    assert "a-secret-token" not in repr(store) + repr(store.server) + store.url + store.masked_url
    store.close()
