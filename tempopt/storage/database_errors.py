"""What a database's errors mean: try again at once, try again later, or tell a person; and in what words."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, NoReturn

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tempopt.errors import StorageError, StoreBusy, StoreUnreachable
from tempopt.storage.urls import DatabaseUrl

_SQLITE, _SERVERS = ("sqlite",), ("postgresql", "mysql")
_ALL = (*_SQLITE, *_SERVERS)
# What the driver says, and what a person can do about it; the first that fits the dialect is told.
_ADVICE = (
    (
        _SERVERS,
        r"read.?only|during recovery",
        "The server takes no writes for now, as a standby does. Make it writable, or have the URL lead to "
        "the server that is.",
    ),
    (
        _SERVERS,
        r"no space|disk.* full|could not (?:extend|write)|is full|errno: 28",
        "Free some space on the disk of the server.",
    ),
    (
        _SERVERS,
        r"recovery mode|not yet accepting|crash of another",
        "The server has crashed. Its log says why; a full disk is a common cause. See that its disk has free "
        "space, and start it again if it does not come back.",
    ),
    (
        _SERVERS,
        r"too many (?:clients|connections)|connection slots|has exceeded the|too many user",
        "The server allows no more connections. Let it allow more, or run fewer agents: each holds one.",
    ),
    (
        _SERVERS,
        r"out of memory|can't create a new thread|sort memory",
        "The server is short of memory. End something on it, or give it more.",
    ),
    (
        _ALL,
        r"password|authentication|access denied|role .* does not exist",
        "Check the user name and the password in the URL; in them, @ is written %40, : %3A and / %2F.",
    ),
    (
        _ALL,
        r"unknown database|database .* does not exist",
        "Create the database first, or correct its name in the URL.",
    ),
    (
        _SQLITE,
        r"not a database|malformed|disk image",
        "The file is something else, or damaged. Give another path.",
    ),
    (
        _SQLITE,
        r"readonly|read-only|unable to open",
        "SQLite needs a folder that exists and in which files can be written, for the database and "
        "the two files that it keeps beside it. Make it so, or give another path.",
    ),
    (_ALL, r"foreign key", "The study was deleted meanwhile."),
    (
        _ALL,
        r"locked|lock timeout|lock wait",
        "Another program holds the database. End it, or wait until it is done.",
    ),
    (_SQLITE, r"disk is full|no space|disk full", "Free some space on the disk of the database."),
    (_SQLITE, r"disk i/o error", "See whether the disk of the database is full or damaged."),
    (
        _ALL,
        r"permission denied|denied to user",
        "This user may not write there. Give the URL of one who may, or let the administrator give this user "
        "the right to create and change tables.",
    ),
    (
        _ALL,
        r"refused|timed? ?out|timeout|resolve|not known|unreachable|can't connect|connection|gone away|lost"
        r"|starting up|shutting down|terminat",
        "See that the server is running and can be reached from this machine, then try again.",
    ),
)

# Lock not available, deadlock, serialization failure: the transaction is undone and may succeed next time.
_LOCKED_POSTGRESQL = ("40001", "40P01", "55P03")
_LOCKED_MYSQL = (1020, 1205, 1213)
# Connection exceptions; and the server ends, has crashed, starts, is full, or ended a session that hung.
_AWAY_POSTGRESQL = re.compile(r"08...|57P0[1235]|25P03")
# The server answers and cannot serve just now. No writes, as on a standby; no disk, memory or connection.
_BUSY_POSTGRESQL = re.compile(r"25006|53...|57P03")
# Too many connections, for all and for this user; no disk, memory, thread or table space; only reading.
_BUSY_MYSQL = {1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1226, 1792, 1836}
# A code that means this only with these words: an option forbids it.
_BUSY_MYSQL_SAID = {1290: "read.only"}
# "No space left on device", under the code of whatever needed some: a table, a log, a temporary file.
_FULL_MYSQL = re.compile(r"\berr(?:no|code|or):? 28\b", re.IGNORECASE)
_BUSY_SAID = re.compile(r"too many clients|connection slots|starting up|read-only|too many connections")
# Cannot connect, gone, shutting down, aborted, network errors, killed by an administrator.
_AWAY_MYSQL = {1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2005, 2006, 2013, 2055}
# The disk is full, read-only, closed to this user or fails: what a person has to see to.
_AWAY_SQLITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
# libpq gives no code for what fails while it connects; these are answers of a server that is there.
_ANSWERED = re.compile(
    r"password|authentication|pg_hba|does not exist|permission|not permitted|certificate|invalid|dsn"
    r"|unsupported|ssl was required|does not support ssl",
    re.IGNORECASE,
)


def is_transient(dialect: str, error: SQLAlchemyError) -> bool:
    """Return whether the same transaction may succeed when it is tried again: lock, deadlock."""
    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    if dialect == "sqlite":
        return "is locked" in str(original)
    if dialect == "postgresql":
        return original.sqlstate in _LOCKED_POSTGRESQL
    return bool(original.args) and original.args[0] in _LOCKED_MYSQL


def is_connection_lost(dialect: str, error: SQLAlchemyError) -> bool:
    """Return whether the database is away, or too busy, for now: nothing is wrong with what was asked."""
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated or is_transient(dialect, error) or is_busy(dialect, error):
        return True
    original: Any = error.orig
    if dialect == "sqlite":
        # the lowest byte is the kind of error, and what is above it tells more
        return getattr(original, "sqlite_errorcode", 0) & 0xFF in _AWAY_SQLITE
    if dialect == "postgresql":
        if original.sqlstate is not None:
            return _AWAY_POSTGRESQL.fullmatch(original.sqlstate) is not None
        return type(original).__name__ in _CONNECTING and not _ANSWERED.search(str(original))
    return dialect == "mysql" and bool(original.args) and original.args[0] in _AWAY_MYSQL


def is_busy(dialect: str, error: SQLAlchemyError) -> bool:
    """Return whether a server answers and cannot serve for now: it is full, or takes no writes."""
    if not isinstance(error, DBAPIError):
        return False
    original: Any = error.orig
    if dialect == "postgresql":
        if original.sqlstate is not None:
            return _BUSY_POSTGRESQL.fullmatch(original.sqlstate) is not None
        return type(original).__name__ in _CONNECTING and _BUSY_SAID.search(str(original)) is not None
    if dialect != "mysql" or not original.args:
        return False
    code, message = original.args[0], str(original.args[-1])
    if code in _BUSY_MYSQL or _FULL_MYSQL.search(message):
        return True
    pattern = _BUSY_MYSQL_SAID.get(code)
    return pattern is not None and re.search(pattern, message, re.IGNORECASE) is not None


_CONNECTING = ("OperationalError", "ConnectionTimeout")


def to_storage_error(address: DatabaseUrl, dialect: str, error: SQLAlchemyError) -> NoReturn:
    """Raise what a person can read: StoreUnreachable for an outage, else StorageError; no password in it."""
    # The driver's words alone: SQLAlchemy adds the statement and what was to be written.
    words = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    message = str(words.args[-1] if dialect == "mysql" and words.args else words)
    message = address.mask(" ".join(message.split())).rstrip(".?")
    advice = next(
        (a for dialects, p, a in _ADVICE if dialect in dialects and re.search(p, message, re.IGNORECASE)), ""
    )
    kind = StorageError
    if is_connection_lost(dialect, error):
        kind = StoreBusy if is_busy(dialect, error) else StoreUnreachable
    # Not "from error": its text and its traceback may hold the password.
    raise kind(f"The database {address.masked} failed: {message}. {advice}".rstrip()) from None
