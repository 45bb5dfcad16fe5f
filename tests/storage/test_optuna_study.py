"""Optuna's study beside ours: made once, by however many agents begin at one moment."""

from __future__ import annotations

import contextlib
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import optuna
import pytest
from sqlalchemy import create_engine, make_url, text

from tempopt.errors import StorageError, UsageError
from tempopt.storage import Store
from tempopt.storage.opening import open_store
from tempopt.storage.optuna_calls import make_study
from tests.servers import Server
from tests.storage.scenes import PARAMETERS, SAMPLED, TRIAL, new_ticket, take_next


def test_agents_that_begin_at_one_moment_make_one_study(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tempopt.db"
    # forked from one process that has everything imported
    program = (
        "import multiprocessing, optuna\n"
        "from tempopt.storage.optuna_calls import make_study\n"
        "context = multiprocessing.get_context('fork')\n"
        "barrier = context.Barrier(4)\n"
        "def make():\n"
        "    barrier.wait()\n"
        f"    make_study({url!r}, name='toy', direction='minimize', metric='val_loss')\n"
        "agents = [context.Process(target=make) for _ in range(4)]\n"
        "for agent in agents: agent.start()\n"
        "for agent in agents: agent.join()\n"
        "raise SystemExit(any(agent.exitcode for agent in agents))\n"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert process.returncode == 0, process.stderr
    assert optuna.get_all_study_names(url) == ["toy"]


def test_a_study_of_another_program_is_not_taken(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/tempopt.db"
    optuna.create_study(study_name="toy", storage=url).add_trial(optuna.trial.create_trial(value=1.0))
    with pytest.raises(UsageError, match="tempopt did not create"):
        make_study(url, name="toy", direction="minimize", metric="val_loss")


def test_rows_of_a_deleted_study_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"sqlite:///{tmp_path}/tempopt.db"
    make_study(url, name="toy", direction="minimize", metric="val_loss")
    with sqlite3.connect(tmp_path / "tempopt.db") as connection:
        connection.execute("DELETE FROM studies")
    connection.close()
    monkeypatch.setattr(time, "sleep", lambda _: None)
    with pytest.raises(StorageError, match="rows of a study that was deleted"):
        make_study(url, name="toy", direction="minimize", metric="val_loss")


@pytest.mark.parametrize("backend", ["mariadb"], indirect=True)
@pytest.mark.parametrize("other_name", ["base", "BASE"])
def test_studies_whose_names_differ_in_case_alone_never_share_optunas(
    store: Store, backend: str, other_name: str
) -> None:
    make_study(store.url, name="Base", direction="minimize", metric="val_loss")
    first_study = store.create_study("Base", {}, "0")
    store.add_tickets(first_study.id, [new_ticket(0)])
    store.begin(take_next(store, first_study).id, 1, PARAMETERS, SAMPLED, TRIAL)
    with pytest.raises(UsageError, match=f'treats the names "Base" and "{other_name}" as the same'):
        make_study(store.url, name=other_name, direction="minimize", metric="val_loss")
    # one that was begun all the same, by an earlier program or with Optuna's study deleted meanwhile
    second_study = store.create_study(other_name, {}, "0")
    store.add_tickets(second_study.id, [new_ticket(0)])
    with pytest.raises(StorageError, match="has been deleted from the database"):
        store.begin(take_next(store, second_study).id, 1, PARAMETERS, SAMPLED, TRIAL)
    store.delete_study(other_name)
    assert optuna.get_all_study_names(store.url) == ["Base"]
    assert len(optuna.load_study(study_name="Base", storage=store.url).trials) == 1


@pytest.mark.parametrize(
    ("names", "alike"),
    [
        (["d", "lr", "D"], ("d", "D")),
        (["mode", "modé"], ("mode", "modé")),
        (["model.lr", "lr"], None),
        (["temperature_init"], None),
    ],
)
def test_names_that_optunas_tables_take_for_one_are_known(
    store: Store, backend: str, names: list[str], alike: tuple[str, str] | None
) -> None:
    assert store.find_colliding_param_names(names) is None
    make_study(store.url, name="example", direction="minimize", metric="val_loss")
    assert store.find_colliding_param_names(names) == (alike if backend == "mariadb" else None)


@pytest.mark.parametrize("backend", ["postgresql", "mariadb"], indirect=True)
def test_each_agent_holds_one_connection_at_rest(store: Store, server: Server) -> None:
    with contextlib.ExitStack() as agents:
        for _ in range(8):
            agent_store = agents.enter_context(open_store(store.url))
            make_study(agent_store.url, name="example", direction="minimize", metric="val_loss")
            agent_store.list_studies()
        assert connections(server, store) == 1 + 8


def connections(server: Server, store: Store) -> int:
    """Return how many connections there are to the database of a store."""
    postgresql = "SELECT count(*) FROM pg_stat_activity WHERE datname = :name"
    mysql = "SELECT count(*) FROM information_schema.processlist WHERE db = :name"
    engine = create_engine(server.base)
    query = text(postgresql if engine.dialect.name == "postgresql" else mysql)
    try:
        with engine.connect() as connection:
            return int(connection.scalar(query, {"name": make_url(store.url).database}) or 0)
    finally:
        engine.dispose()
