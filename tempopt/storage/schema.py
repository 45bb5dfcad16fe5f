"""Which version the tables are of, and bringing them to this program's version."""

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
# One at a time creates the tables; SQLite's writing transaction is such a lock already. Asked for in short
# waits, since a server that does not answer for long is taken for lost.
_LOCK = {
    "postgresql": "SELECT pg_try_advisory_xact_lock(7365717036)",
    "mysql": "SELECT GET_LOCK('tempopt_schema', 1)",
}
_UNLOCK = {"mysql": "SELECT RELEASE_LOCK('tempopt_schema')"}
_PATIENCE_SECONDS = 60.0
# The first to know SKIP LOCKED; for SQLite, to know UPSERT.
_OLDEST = {"PostgreSQL": (9, 5), "MariaDB": (10, 6), "MySQL": (8, 0, 1), "SQLite": (3, 24)}


def _prepare(database: Database, *, create: bool) -> None:
    """See that the tables are of this program's version; StorageError says what to do if they are not.

    Args:
        create: Whether tables that are missing are created; older ones without a study are migrated then.
    """
    version, is_empty = database.read(_look)
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
    _migrate(database)


def upgrade(url: str) -> str:
    """Bring the tables at a URL to this program's version and return it; StorageError if they are newer."""
    database = Database(parse_database_url(url))
    try:
        refuse_missing_file(database.address)
        version, _ = database.read(_look)
        if version is None:
            raise StorageError(f"The database {database.address.masked} holds no tempopt studies to upgrade.")
        _refuse_newer(database, version)
        _migrate(database)
    finally:
        database.close()
    return HEAD


def connect(url: str, *, create: bool) -> Database:
    """Return the database at a URL with its tables in order; StorageError if that cannot be had."""
    database = Database(parse_database_url(url))
    try:
        if not create:
            refuse_missing_file(database.address)
        database.read(_refuse_old_server)
        _prepare(database, create=create)
    except BaseException:
        database.close()
        raise
    return database


def refuse_missing_file(address: DatabaseUrl) -> None:
    """Refuse the address of an SQLite file that does not exist; StoreNotBegun."""
    path = address.url.database
    if address.url.get_backend_name() == "sqlite" and path is not None and not Path(path).exists():
        raise StoreNotBegun(
            f"There is no file {path}. Go to the folder where the study was begun, "
            "or give its URL: --storage sqlite:///PATH"
        )


def _refuse_old_server(connection: Connection) -> None:
    dialect = connection.dialect
    name = {"postgresql": "PostgreSQL", "mysql": "MySQL", "sqlite": "SQLite"}[dialect.name]
    if isinstance(dialect, MySQLDialect) and dialect.is_mariadb:
        name = "MariaDB"
    version = tuple(part for part in dialect.server_version_info or () if isinstance(part, int))
    if version < _OLDEST[name]:
        oldest = ".".join(map(str, _OLDEST[name]))
        raise StorageError(f"{name} {'.'.join(map(str, version))} is too old: {oldest} or later is needed.")


def _look(connection: Connection) -> tuple[str | None, bool]:
    """Return the version of the tables (None: there are none) and whether they hold no study."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None, True
    version = connection.scalar(select(_VERSION.c.version_num))
    is_empty = version is None or connection.execute(select(STUDY.c.id).limit(1)).first() is None
    return version, is_empty


def _config() -> Config:
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    return config


def _refuse_newer(database: Database, version: str) -> None:
    from alembic.script import ScriptDirectory

    revisions = [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()]
    if version not in revisions:
        raise StorageError(
            f"The database {database.address.masked} was written by a newer tempopt (tables {version}, "
            f"this program knows up to {HEAD}). Install that version: pip install --upgrade tempopt"
        )


def _migrate(database: Database) -> None:
    """Create the tables as the models describe them, or change older ones by the migrations."""

    def to_head(connection: Connection) -> None:
        _lock(database, connection)
        try:
            # Another process may have been first while this waited for the lock.
            version = _look(connection)[0]
            if version is None:
                _create(connection)
            elif version != HEAD:
                from alembic import command

                config = _config()
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
        except BaseException:
            _unlock(database, connection, "ROLLBACK")
            raise
        _unlock(database, connection, "COMMIT")

    database.write(to_head)
    database.write_ahead()


def _create(connection: Connection) -> None:
    # Each table only if it is missing: MySQL keeps those that a process has created before it was killed.
    METADATA.create_all(connection)
    _VERSION.create(connection, checkfirst=True)
    connection.execute(insert(_VERSION).values(version_num=HEAD))


def _unlock(database: Database, connection: Connection, statement: str) -> None:
    """End the transaction, then release a lock that is not of the transaction."""
    if database.dialect in _UNLOCK:
        # The next to hold the lock must read the new version, or it creates the tables again.
        connection.execute(text(statement))
        connection.execute(text(_UNLOCK[database.dialect]))


def _lock(database: Database, connection: Connection) -> None:
    give_up = time.monotonic() + _PATIENCE_SECONDS
    while database.dialect in _LOCK and not connection.scalar(text(_LOCK[database.dialect])):
        if time.monotonic() > give_up:
            raise StorageError(
                f"Another program has been changing the tables of {database.address.masked} for a minute. "
                "Wait until it is done, or end it, then try again."
            )
        time.sleep(0.1)
