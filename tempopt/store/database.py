"""Connections and transactions on one database, with failures told in words; knows no tables."""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
import time
from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tempopt.errors import StorageError
from tempopt.store.urls import Address

T = TypeVar("T")

_EXTRAS = {"postgresql": ("psycopg", "postgresql"), "mysql": ("pymysql", "mysql")}
_CONNECT_SECONDS = 10
_BUSY_SECONDS = 1.0
_PATIENCE_SECONDS = 60.0
# Not the global generator: waiting must not move anybody's random numbers.
_JITTER = random.SystemRandom()

# What the driver says, and what a person can do about it; the first that fits is told.
_ADVICE = (
    (
        r"password|authentication|access denied|role .* does not exist",
        "Check the user name and the password in the URL; in them, @ is written %40, : %3A and / %2F.",
    ),
    (
        r"unknown database|database .* does not exist",
        "Create the database first, or correct its name in the URL.",
    ),
    (
        r"not a database|malformed|disk image",
        "The file is something else, or damaged. Give another path.",
    ),
    (
        r"readonly|read-only|unable to open",
        "SQLite needs a folder that exists and in which files can be written, for the database and "
        "the two files that it keeps beside it. Make it so, or give another path.",
    ),
    (r"foreign key", "The study was deleted meanwhile."),
    (r"locked", "Another program holds the database. End it, or wait until it is done."),
    (r"disk is full|no space|disk full", "Free some space on the disk of the database."),
    (
        r"permission denied|denied to user",
        "Let the administrator give this user the right to create and change tables.",
    ),
    (
        r"refused|timed? ?out|timeout|resolve|not known|unreachable|can't connect|connection|gone away|lost",
        "See that the server is running and can be reached from this machine, then try again.",
    ),
)


class Database:
    """One database: an engine that reads, an engine that writes, and the URL that may be shown.

    Work is handed in as a function of a connection and runs in one transaction; a write that met
    a lock or a deadlock is rolled back and tried again from its beginning.

    Raises:
        StorageError: The driver of the database is not installed.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self.dialect = address.url.get_backend_name()
        try:
            if self.dialect == "sqlite":
                self._writer = _sqlite_engine(address, "BEGIN IMMEDIATE")
                self._reader = _sqlite_engine(address, "BEGIN")
            else:
                self._writer = self._reader = _server_engine(address)
        except ImportError:
            module, extra = _EXTRAS[self.dialect]
            raise StorageError(
                f"The database {address.shown} needs the Python package {module}, which is not installed. "
                f'Run: pip install "tempopt[{extra}]"'
            ) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run the work in one transaction that writes nothing; StorageError if the database fails."""
        try:
            with self._reader.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            self._tell(error)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run the work in one transaction, again if it met a lock; StorageError if the database fails."""
        give_up = time.monotonic() + _PATIENCE_SECONDS
        pause = 0.01
        while True:
            try:
                with self._writer.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                if not _is_transient(self.dialect, error) or time.monotonic() > give_up:
                    self._tell(error)
            time.sleep(pause * _JITTER.uniform(0.5, 1.5))
            pause = min(2 * pause, 0.5)

    def write_ahead(self) -> None:
        """Let SQLite's readers and its writer work at the same time (kept in the file); others do already."""
        if self.dialect != "sqlite":
            return
        # A file system without shared memory, or somebody inside just now: the old journal is right too.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(self._writer.raw_connection()) as raw,
        ):
            raw.cursor().execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        """Close every connection."""
        self._writer.dispose()
        self._reader.dispose()

    def _tell(self, error: SQLAlchemyError) -> NoReturn:
        # The driver's words alone: SQLAlchemy adds the statement and what was to be written.
        words = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
        said = str(words.args[-1] if self.dialect == "mysql" and words.args else words)
        said = self.address.mask(" ".join(said.split())).rstrip(".?")
        advice = next((a for p, a in _ADVICE if re.search(p, said, re.IGNORECASE)), "")
        # Not "from error": its text and its traceback may hold the password.
        raise StorageError(f"The database {self.address.shown} failed: {said}. {advice}".rstrip()) from None


def _sqlite_engine(address: Address, begin: str) -> Engine:
    """Return an engine whose transactions begin where SQLAlchemy says, with the statement given.

    The sqlite3 module begins one only at the first change, after the reading that the change rests
    on: two processes then claim the same row.
    """
    engine = create_engine(address.url, connect_args={"timeout": _BUSY_SECONDS})

    @event.listens_for(engine, "connect")
    def prepare_connection(connection: Any, record: Any) -> None:
        connection.isolation_level = None
        connection.execute("PRAGMA foreign_keys = ON")

    @event.listens_for(engine, "begin")
    def begin_transaction(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _server_engine(address: Address) -> Engine:
    """Return an engine for a server; READ COMMITTED, since MySQL's default locks the gaps between rows."""
    arguments = {} if "connect_timeout" in address.url.query else {"connect_timeout": _CONNECT_SECONDS}
    return create_engine(
        address.url, isolation_level="READ COMMITTED", pool_pre_ping=True, connect_args=arguments
    )


def _is_transient(dialect: str, error: SQLAlchemyError) -> bool:
    """Return whether the same transaction may succeed when it is tried again: lock, deadlock."""
    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    if dialect == "sqlite":
        return "is locked" in str(original)
    if dialect == "postgresql":
        return original.sqlstate in ("40001", "40P01", "55P03")
    return bool(original.args) and original.args[0] in (1020, 1205, 1213)
