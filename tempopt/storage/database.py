"""Connections and transactions on one database, with failures told in words; knows no tables."""

from __future__ import annotations

import contextlib
import functools
import random
import sqlite3
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import SQLAlchemyError

from tempopt.errors import StorageError, install_command
from tempopt.storage.database_errors import error_kind, to_storage_error
from tempopt.storage.engines import server_engine, sqlite_engine
from tempopt.storage.urls import DatabaseUrl

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R", bound="Repository")

_EXTRAS = {"postgresql": ("psycopg", "postgresql"), "mysql": ("pymysql", "mysql")}
_PATIENCE_SECONDS = 20.0
# Not the global generator: waiting must not move anybody's random numbers.
_JITTER = random.SystemRandom()


class Database:
    """One database: an engine that reads, an engine that writes, and the URL that may be shown.

    Work is handed in as a function of a connection and runs in one transaction; a write that met
    a lock or a deadlock is rolled back and tried again from its beginning. A connection that was lost is
    told and not tried again, since what was to be written may have been: the next call makes a new one.

    Raises:
        StorageError: The driver of the database is not installed.
    """

    def __init__(self, address: DatabaseUrl) -> None:
        self.address = address
        self.dialect = address.url.get_backend_name()
        try:
            if self.dialect == "sqlite":
                self._writer = sqlite_engine(address, "BEGIN IMMEDIATE")
                self._reader = sqlite_engine(address, "BEGIN")
            else:
                self._writer = self._reader = server_engine(address)
        except ImportError:
            module, extra = _EXTRAS[self.dialect]
            raise StorageError(
                f"The database {address.masked} needs the Python package {module}, which is not installed. "
                f"Run: {install_command(extra)}"
            ) from None

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run the work in one transaction that writes nothing.

        Raises:
            StoreUnreachable: The database is away or held by others.
            StorageError: It fails.
        """
        try:
            with self._reader.begin() as connection:
                return work(connection)
        except SQLAlchemyError as error:
            to_storage_error(self.address, self.dialect, error)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run the work in one transaction, again if it met a lock.

        Raises:
            StoreUnreachable: The database is away or held by others; what was written may be there or not.
            StorageError: It fails.
        """
        give_up = time.monotonic() + _PATIENCE_SECONDS
        pause = 0.01
        while True:
            try:
                with self._writer.begin() as connection:
                    return work(connection)
            except SQLAlchemyError as error:
                kind = error_kind(self.dialect, error)
                if kind != "locked" or time.monotonic() > give_up:
                    if kind == "busy":
                        # after a fail-over, a connection may be the one to what has become a standby
                        self._writer.dispose()
                    to_storage_error(self.address, self.dialect, error)
            time.sleep(pause * _JITTER.uniform(0.5, 1.5))
            pause = min(2 * pause, 0.5)

    @property
    def engine(self) -> Engine:
        """The engine that writes."""
        return self._writer

    def write_ahead(self) -> None:
        """Let SQLite's readers and its writer work at the same time (kept in the file); others do already."""
        if self.dialect != "sqlite":
            return
        # A file system without shared memory, or the database is in use: the old journal is right too.
        with (
            contextlib.suppress(sqlite3.OperationalError),
            contextlib.closing(self._writer.raw_connection()) as raw,
        ):
            raw.cursor().execute("PRAGMA journal_mode=WAL")

    def close(self) -> None:
        """Close every connection."""
        self._writer.dispose()
        self._reader.dispose()


class Repository:
    """Rows of one kind in one database; threads may share it.

    Args:
        database: The database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database


def read_transaction(method: Callable[Concatenate[R, Connection, P], T]) -> Callable[Concatenate[R, P], T]:
    """Run a method of a repository in one transaction that writes nothing; callers give no connection."""

    @functools.wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.read(lambda connection: method(self, connection, *args, **kwargs))

    return call


def write_transaction(method: Callable[Concatenate[R, Connection, P], T]) -> Callable[Concatenate[R, P], T]:
    """Run a method of a repository in one transaction, from its beginning again if it met a lock."""

    @functools.wraps(method)
    def call(self: R, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._database.write(lambda connection: method(self, connection, *args, **kwargs))

    return call
