"""Version of the tables, and their migration to this program's version."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Column, Connection, MetaData, String, Table, insert, inspect, select, text
from sqlalchemy.dialects.mysql.base import MySQLDialect

from tempopt.errors import StorageError, StoreNotBegun
from tempopt.storage.database import Database
from tempopt.storage.models import METADATA, STUDY
from tempopt.storage.urls import DatabaseUrl, parse_database_url

if TYPE_CHECKING:
    # Alembic is loaded only when there is something to migrate: opening a store stays quick.
    from alembic.config import Config

VERSION_TABLE = "tempopt_alembic_version"
HEAD = "0001"
MIGRATIONS = Path(__file__).parent / "migrations"

_VERSION = Table(VERSION_TABLE, MetaData(), Column("version_num", String(32), primary_key=True))
# Locks with which one process at a time creates the tables; in SQLite the write transaction is the lock.
# Requested with short waits, since a server that does not answer for longer counts as lost.
_LOCK = {
    "postgresql": "SELECT pg_try_advisory_xact_lock(7365717036)",
    "mysql": "SELECT GET_LOCK('tempopt_schema', 1)",
}
_UNLOCK = {"mysql": "SELECT RELEASE_LOCK('tempopt_schema')"}
_MAX_LOCK_SECONDS = 60.0
# The first versions with SKIP LOCKED; for SQLite, with UPSERT.
_MIN_VERSIONS = {"PostgreSQL": (9, 5), "MariaDB": (10, 6), "MySQL": (8, 0, 1), "SQLite": (3, 24)}


def _prepare_tables(database: Database, *, create: bool) -> None:
    """Check that the tables have this program's version; the StorageError has a remedy if they have not.

    Args:
        create: Whether missing tables are created, and older tables without a study are migrated.
    """
    version, is_empty = database.read(_read_version)
    if version == HEAD:
        return
    if version is None and not create:
        raise StoreNotBegun(
            f"The database {database.address.masked} holds no tempopt studies. "
            "Give the URL of one that does, or begin a study there: tempopt search SPEC --storage URL"
        )
    if version is not None:
        _refuse_newer(database, version)
        if not (create and is_empty):
            raise StorageError(
                f"The database {database.address.masked} was written by an older tempopt (tables {version}, "
                f"this program needs {HEAD}). Keep a copy of it, end every program that uses it, and run: "
                "tempopt storage upgrade --storage URL"
            )
    _migrate_tables(database)


def upgrade(url: str) -> str:
    """Migrate the tables at a URL to this program's version, and return it; refuse newer tables."""
    database = Database(parse_database_url(url))
    try:
        refuse_missing_file(database.address)
        version, _ = database.read(_read_version)
        if version is None:
            raise StorageError(f"The database {database.address.masked} holds no tempopt studies to upgrade.")
        _refuse_newer(database, version)
        _migrate_tables(database)
    finally:
        database.close()
    return HEAD


def connect(url: str, *, create: bool) -> Database:
    """Return the database at a URL, with checked or new tables; raise StorageError if that fails."""
    database = Database(parse_database_url(url))
    try:
        if not create:
            refuse_missing_file(database.address)
        database.read(_refuse_old_server)
        _prepare_tables(database, create=create)
    except BaseException:
        database.close()
        raise
    return database


def refuse_missing_file(address: DatabaseUrl) -> None:
    """Raise StoreNotBegun if an SQLite file does not exist."""
    path = address.url.database
    if address.url.get_backend_name() == "sqlite" and path is not None and not Path(path).exists():
        raise StoreNotBegun(
            f"There is no file {path}. Change to the folder where the study was created, "
            "or give its URL: --storage sqlite:///PATH"
        )


def _refuse_old_server(connection: Connection) -> None:
    dialect = connection.dialect
    name = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}[dialect.name]
    if isinstance(dialect, MySQLDialect) and dialect.is_mariadb:
        name = "MariaDB"
    version = tuple(part for part in dialect.server_version_info or () if isinstance(part, int))
    if version < _MIN_VERSIONS[name]:
        oldest = ".".join(map(str, _MIN_VERSIONS[name]))
        raise StorageError(f"{name} {'.'.join(map(str, version))} is too old: {oldest} or later is needed.")


def _read_version(connection: Connection) -> tuple[str | None, bool]:
    """Return the version of the tables, None if they do not exist, and whether they hold no study."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None, True
    version = connection.scalar(select(_VERSION.c.version_num))
    is_empty = version is None or connection.execute(select(STUDY.c.id).limit(1)).first() is None
    return version, is_empty


def _build_config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _refuse_newer(database: Database, version: str) -> None:
    from alembic.script import ScriptDirectory

    revisions = [script.revision for script in ScriptDirectory.from_config(_build_config()).walk_revisions()]
    if version not in revisions:
        raise StorageError(
            f"The database {database.address.masked} was written by a newer tempopt (tables {version}, "
            f"this program supports {HEAD}). Install that version: pip install --upgrade tempopt"
        )


def _migrate_tables(database: Database) -> None:
    """Create the tables of the models, or change older ones by the migrations."""

    def migrate_to_head(connection: Connection) -> None:
        _lock(database, connection)
        try:
            # Another process may have migrated while this one waited for the lock.
            version = _read_version(connection)[0]
            if version is None:
                _create_tables(connection)
            elif version != HEAD:
                from alembic import command

                config = _build_config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except BaseException:
            _unlock(database, connection, "ROLLBACK")
            raise
        _unlock(database, connection, "COMMIT")

    database.write(migrate_to_head)
    database.enable_write_ahead_log()


def _create_tables(connection: Connection) -> None:
    # Only missing tables: in MySQL, tables persist that a process created before it was killed.
    METADATA.create_all(connection)
    _VERSION.create(connection, checkfirst=True)
    connection.execute(insert(_VERSION).values(version_num=HEAD))


def _unlock(database: Database, connection: Connection, statement: str) -> None:
    """End the transaction, then release a lock that does not end with it."""
    if database.dialect in _UNLOCK:
        # The next holder of the lock must read the new version, or it creates the tables again.
        connection.execute(text(statement))
        connection.execute(text(_UNLOCK[database.dialect]))


def _lock(database: Database, connection: Connection) -> None:
    deadline = time.monotonic() + _MAX_LOCK_SECONDS
    while database.dialect in _LOCK and not connection.scalar(text(_LOCK[database.dialect])):
        if time.monotonic() > deadline:
            raise StorageError(
                f"Another program has been changing the tables of {database.address.masked} for a minute. "
                "Wait until it is done, or end it, then try again."
            )
        time.sleep(0.1)
