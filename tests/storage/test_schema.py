"""The tables: made, migrated or refused."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, event, inspect, text

from tempopt.errors import StorageError
from tempopt.storage import Store, schema, upgrade
from tempopt.storage.database import Database
from tempopt.storage.models import METADATA
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket
from tempopt.storage.urls import parse_database_url

NEXT = """
import sqlalchemy as sa
from alembic import op

revision, down_revision = "9999", "0001"

def upgrade():
    op.add_column("tempopt_ticket", sa.Column("mood", sa.DateTime))
"""


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    schema_database = Database(parse_database_url(url))
    yield schema_database
    schema_database.close()


@pytest.fixture
def next_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the program one version newer than it is."""
    migrations = tmp_path / "50% migrations"
    shutil.copytree(schema.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    (migrations / "versions" / "9999_mood.py").write_text(NEXT)
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    monkeypatch.setattr(schema, "HEAD", "9999")


def columns(connection: Connection) -> set[str]:
    return {column["name"] for column in inspect(connection).get_columns("tempopt_ticket")}


def test_the_version_that_the_program_needs_is_that_of_its_last_migration() -> None:
    assert ScriptDirectory(str(schema.MIGRATIONS)).get_heads() == [schema.HEAD]


def test_the_migrations_make_the_tables_that_the_models_describe(store: Store, database: Database) -> None:
    def differences(connection: Connection) -> list[object]:
        options = {"compare_type": True, "version_table": schema.VERSION_TABLE}
        differing: list[object] = compare_metadata(
            MigrationContext.configure(connection, opts=options), METADATA
        )
        return differing

    assert database.read(differences) == []


def test_a_database_without_studies_is_refused_where_none_is_to_be_made(url: str, database: Database) -> None:
    database.write(lambda c: c.execute(text("CREATE TABLE foreign_table (x INTEGER)")))
    with pytest.raises(StorageError, match=r"holds no tempopt studies.*tempopt search"):
        open_store(url, create=False)
    with pytest.raises(StorageError, match="holds no tempopt studies"):
        upgrade(url)
    assert database.read(lambda c: inspect(c).get_table_names()) == ["foreign_table"]


def test_many_that_open_an_empty_database_at_the_same_time_all_find_the_tables(url: str) -> None:
    errors: list[BaseException] = []

    def begin() -> None:
        try:
            open_store(url).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=begin) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with open_store(url, create=False) as store:
        assert store.list_studies() == []


def test_a_lock_is_released_when_the_new_version_can_be_read(backend: str, url: str) -> None:
    if backend != "mariadb":
        pytest.skip("The locks of the other databases end with the transaction.")
    versions: list[str | None] = []

    def look(*arguments: object) -> None:
        if "RELEASE_LOCK" in str(arguments[2]):
            second_database = Database(parse_database_url(url))
            versions.append(second_database.read(schema._read_version)[0])
            second_database.close()

    event.listen(Engine, "before_cursor_execute", look)
    try:
        open_store(url).close()
    finally:
        event.remove(Engine, "before_cursor_execute", look)
    assert versions == [schema.HEAD]


def test_a_database_newer_than_the_program_is_refused(store: Store, url: str, database: Database) -> None:
    database.write(lambda c: c.execute(text(f"UPDATE {schema.VERSION_TABLE} SET version_num = 'f00f'")))
    for attempt in (lambda: open_store(url), lambda: open_store(url, create=False), lambda: upgrade(url)):
        with pytest.raises(StorageError, match=r"newer tempopt \(tables f00f.*pip install --upgrade"):
            attempt()


@pytest.mark.usefixtures("next_version")
class TestOlder:
    """Databases that were written before the newest migration."""

    @pytest.fixture
    def old_store(self, url: str, monkeypatch: pytest.MonkeyPatch) -> Store:
        with monkeypatch.context() as patch:
            patch.setattr(schema, "HEAD", "0001")
            patch.setattr(schema, "MIGRATIONS", Path(schema.__file__).parent / "migrations")
            return open_store(url)

    def test_one_with_studies_is_refused_until_it_is_upgraded(
        self, old_store: Store, url: str, database: Database
    ) -> None:
        study = old_store.create_study("example", {}, "")
        old_store.add_tickets(study.id, [NewTicket(kind="search", arm="search", number=0, seed=0)])
        tickets_before = old_store.tickets(study.id)
        old_store.close()
        for create in (True, False):
            with pytest.raises(StorageError, match=r"older tempopt.*tempopt storage upgrade"):
                open_store(url, create=create)
        assert upgrade(url) == "9999"
        assert "mood" in database.read(columns)
        with open_store(url) as store:
            assert store.tickets(study.id) == tickets_before
        assert upgrade(url) == "9999"

    def test_an_empty_one_is_migrated_without_asking(
        self, old_store: Store, url: str, database: Database
    ) -> None:
        old_store.close()
        with pytest.raises(StorageError, match="older tempopt"):
            open_store(url, create=False)
        open_store(url).close()
        assert "mood" in database.read(columns)


def test_sqlite_keeps_its_journal_ahead_so_that_readers_do_not_wait(tmp_path: Path) -> None:
    file = tmp_path / "x.db"
    open_store(str(file)).close()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_failed_migration_leaves_a_database_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    migrations = tmp_path / "migrations"
    shutil.copytree(schema.MIGRATIONS, migrations, ignore=shutil.ignore_patterns("__pycache__"))
    broken_migration = NEXT + '    op.execute("SELECT no_such_column FROM tempopt_ticket")\n'
    (migrations / "versions" / "9999_mood.py").write_text(broken_migration)
    file = str(tmp_path / "x.db")
    open_store(file).close()
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    with monkeypatch.context() as newer:
        newer.setattr(schema, "HEAD", "9999")
        with pytest.raises(StorageError, match="no_such_column"):
            upgrade(file)
    with open_store(file, create=False) as store:
        assert store.list_studies() == []
    with closing(sqlite3.connect(file)) as connection:
        names = [row[1] for row in connection.execute("PRAGMA table_info(tempopt_ticket)")]
    assert "mood" not in names


def test_an_old_server_is_refused_with_the_version_that_is_needed(
    backend: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(schema, "_MIN_VERSIONS", dict.fromkeys(schema._MIN_VERSIONS, (99, 1)))
    with pytest.raises(StorageError, match=rf"(?i)^{backend} [0-9.]+ is too old: 99\.1 or later is needed"):
        open_store(url)
