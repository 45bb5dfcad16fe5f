"""Rights on a shared database: the statements of docs/trust.md, carried out; and what writing amounts to."""

from __future__ import annotations

import os
import queue
import re
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest
from sqlalchemy import create_engine, text

from tempopt import cli
from tempopt.errors import StorageError
from tempopt.report.dashboard import Dashboard
from tempopt.storage.opening import open_store
from tests.report.made_study import World, make, write
from tests.servers import Server, find_or_start

PAGE = Path(__file__).parents[2] / "docs" / "trust.md"


def statements(number: int, unique: str) -> Iterator[str]:
    """Yield the statements of a block of SQL on the page, with names that no other test has."""
    block = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)[number]
    renamed_block = re.sub(r"\bteam\b|\bteam(?=_)", unique, block)
    for line in renamed_block.splitlines():
        yield line.removesuffix(";")


def carry_out(server: Server, lines: Iterator[str], database: str | None = None) -> None:
    """Carry out statements as psql does, each by itself, ``\\connect`` included."""
    url = server.base if database is None else server.url(database)
    for line in lines:
        if line.startswith(r"\connect "):
            url = server.url(line.split()[1])
            continue
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(text(line))
        engine.dispose()


@pytest.fixture
def urls() -> Iterator[tuple[str, str]]:
    """Yield the URLs of who works and of who looks, on a database that was made as the page says."""
    server, why_not = find_or_start("postgresql")
    if server is None:
        pytest.skip(why_not)
    unique = f"tempopt_roles_{os.getpid()}"
    try:
        carry_out(server, statements(0, unique))
        host = server.url(unique).partition("@")[2]
        yield tuple(f"postgresql://{unique}_{role}@{host}" for role in ("agents", "readers"))  # type: ignore[misc]
    finally:
        server.execute(f"DROP DATABASE IF EXISTS {unique} WITH (FORCE)")
        for role in ("agents", "readers"):
            server.execute(f"DROP ROLE IF EXISTS {unique}_{role}")


READ = (
    *("list", "show pairs", "show pairs --json", "logs pairs", "logs pairs search-0"),
    *("report pairs", "export pairs", "gc --dry-run"),
)


@pytest.mark.service
def test_a_reader_sees_every_study_and_the_database_refuses_all_that_would_change_one(
    urls: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    agents, readers = urls
    synthetic = make(World(trials=4, layers=1, heads=1))
    write(agents, replace(synthetic, row=replace(synthetic.row, state="running")))
    rows = optuna.storages.RDBStorage(agents.replace("postgresql:", "postgresql+psycopg:"))
    optuna.create_study(study_name="pairs", storage=rows)
    rows.engine.dispose()
    for line in READ:
        assert cli.main([*line.split(), "--storage", readers]) == 0, line
    assert Path("pairs.html").is_file()
    capsys.readouterr()
    for line in ("pause pairs", "stop pairs", "delete pairs --yes"):
        assert cli.main([*line.split(), "--storage", readers]) == cli.USAGE_EXIT_CODE, line
        assert "permission denied" in capsys.readouterr().err, line
    with open_store(readers, create=False) as store, pytest.raises(StorageError, match="may not write"):
        store.set_state(store.load_study("pairs").id, "paused")
    engine = create_engine(readers.replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect() as connection:
        tables = connection.scalars(text("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")).all()
        rights = {
            (table, right): connection.scalar(text(f"SELECT has_table_privilege('{table}', '{right}')"))
            for table in tables
            for right in ("SELECT", "INSERT", "UPDATE", "DELETE", "TRUNCATE")
        }
        creates = connection.scalar(text("SELECT has_schema_privilege('public', 'CREATE')"))
    engine.dispose()
    assert {"tempopt_study", "tempopt_ticket", "trials", "studies"} <= set(tables)
    assert {privilege for privilege, has in rights.items() if has} == {(table, "SELECT") for table in tables}
    assert not creates
    notes: queue.Queue[str] = queue.Queue()
    with Dashboard(readers, port=0, name="pairs", note=notes.put) as dashboard:
        threading.Thread(target=dashboard.serve, daemon=True).start()
        with urllib.request.urlopen(f"{dashboard.url}/api/studies") as answer:
            assert "pairs" in answer.read().decode()
        assert re.search("could not be written", notes.get(timeout=240))
    with open_store(agents, create=False) as store:
        assert store.load_study("pairs").state == "running"


@pytest.mark.service
def test_a_database_that_has_studies_is_opened_to_readers_by_the_second_block(urls: tuple[str, str]) -> None:
    agents, readers = urls
    server, _ = find_or_start("postgresql")
    assert server is not None
    write(agents, make(World(trials=4, confirmed=False, layers=0)))
    database = agents.rpartition("/")[2]
    carry_out(
        server, iter([f"REVOKE SELECT ON ALL TABLES IN SCHEMA public FROM {database}_readers"]), database
    )
    assert cli.main(["list", "--storage", readers]) == cli.USAGE_EXIT_CODE
    carry_out(server, statements(1, database), database)
    assert cli.main(["list", "--storage", readers]) == 0


def test_an_agent_imports_what_the_database_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    Path("named_by_a_row.py").write_text("open('imported', 'w').close()\n")
    spec = World(trials=4, confirmed=False, layers=0).spec().to_json()
    spec["search"] = {"schedule": ["named_by_a_row:Schedule"]}
    with open_store("sqlite:///tempopt.db") as store:
        store.create_study("pairs", spec, "0")
    assert cli.main(["show", "pairs"]) == 0
    assert not Path("imported").exists()
    assert cli.main(["agent", "pairs"]) == cli.USAGE_EXIT_CODE
    # the class is not there, but the module has run by then
    assert 'class in "named_by_a_row" "Schedule"' in capsys.readouterr().err
    assert Path("imported").exists()
