"""A pool of a database, and the same behind a server; studies that nobody trains."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tempopt.confirmation.stages import first_tickets
from tempopt.pool.agent import Source
from tempopt.pool.behind_server import ServerSource
from tempopt.pool.on_database import DatabaseSource
from tempopt.records.rows import Pooled, StudyRow
from tempopt.remote.connection import ServerConnection
from tempopt.spec.study_spec import StudySpec
from tempopt.store import Store
from tempopt.store.optuna_calls import make_study
from tests.server.conftest import Served
from tests.server.conftest import served as served
from tests.toy_study import SMALL, TOYS, toy_spec


def begin(store: Store, name: str = "toy", **study: Any) -> StudyRow:
    """Begin a study of real trainings that nobody has begun to train; keywords go to its ``study:``."""
    spec = StudySpec.parse(toy_spec(name=name, **(SMALL | study)), source="the test")
    row = store.create_study(
        name, spec.to_json(), spec.identity(), pooled=Pooled(owner="ada", parallel=spec.study.parallel)
    )
    make_study(store.url, name=name, direction="minimize", metric="val_loss")
    store.add_tickets(row.id, first_tickets(spec))
    return row


@dataclass(frozen=True)
class Place:
    """Where agents get their studies.

    Args:
        store: The database that all is in.
        source: What an agent of the pool asks.
    """

    store: Store
    source: Source


@pytest.fixture
def on_database(tmp_path: Path) -> Iterator[Place]:
    """The pool of a database, in the test's folder."""
    with Store.open(f"sqlite:///{tmp_path / 'pool.db'}") as store:
        yield Place(store, DatabaseSource(store, tmp_path / "kept"))


@pytest.fixture
def behind_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """The pool behind a real server, which an agent and its workers reach with a token for agents."""
    token = served.new_token("agent")
    monkeypatch.setenv("TEMPOPT_TOKEN", token)
    connection = ServerConnection(served.url, token)
    yield Place(served.store, ServerSource(connection, None))
    connection.close()


@pytest.fixture(params=["on_database", "behind_server"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Each place in turn."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(TOYS))
    monkeypatch.syspath_prepend(TOYS)
    found: Place = request.getfixturevalue(request.param)
    return found
