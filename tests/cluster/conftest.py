"""The records of the undisturbed studies of these tests, made once for all processes that run tests."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.cluster import network, studies
from tests.cluster.studies import Record
from tests.servers import PrivateServer, start_private, why_not


@pytest.fixture(scope="session")
def undisturbed_record(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Record]:
    """Return what gives the record of a study of so many search tickets that is not disturbed."""
    shared_folder = tmp_path_factory.getbasetemp()
    shared_folder = shared_folder.parent if "PYTEST_XDIST_WORKER" in os.environ else shared_folder

    def record(tickets: int, make_spec: Callable[[int], dict[str, Any]] = studies.spec) -> Record:
        record_file = shared_folder / f"undisturbed-{make_spec.__name__}-{tickets}.json"
        with record_file.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not record_file.exists():
                undisturbed_record = studies.run_undisturbed(
                    tmp_path_factory.mktemp("undisturbed"), make_spec(tickets)
                )
                record_file.write_text(json.dumps(dataclasses.asdict(undisturbed_record)))
            return Record(**json.loads(record_file.read_text()))

    return record


@pytest.fixture
def machines() -> Iterator[network.Network]:
    """A network of machines of the test's own."""
    if reason := network.why_not():
        pytest.skip(reason)
    with network.make_network() as machine_network:
        yield machine_network


@pytest.fixture(params=["postgresql", pytest.param("mariadb", marks=pytest.mark.nightly)])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    """A server of the test's own, which it may kill."""
    if reason := why_not(request.param):
        pytest.skip(reason)
    server = start_private(request.param)
    yield server
    server.remove()
