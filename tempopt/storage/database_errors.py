"""Classify the errors of databases (retry at once, retry later, report), and explain them."""

from __future__ import annotations

import re
import sqlite3
from typing import Any, Literal, NoReturn

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from tempopt.errors import StorageError, StoreBusy, StoreUnreachable
from tempopt.storage.urls import DatabaseUrl

# Pattern of the driver's message, and a remedy; the first match is used.
_ADVICE = (
    (
        r"read.only|during recovery",
        "The server accepts no writes now, as a standby does. Make it writable, or give the URL of the "
        "primary server.",
    ),
    (
        r"no space|is full|disk full|errno: 28|could not (?:extend|write)|disk i/o error",
        "Free some space on the disk of the database, and see whether the disk is damaged.",
    ),
    (
        r"recovery mode|not yet accepting|crash of another|out of memory|create a new thread|sort memory",
        "The server has crashed, or is short of memory or disk space: its log says why. Start it again if it "
        "does not come back.",
    ),
    (
        r"too many (?:clients|connections)|connection slots|has exceeded the|too many user",
        "The server allows no more connections. Let it allow more, or run fewer agents: each holds one.",
    ),
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
        r"readonly|unable to open",
        "SQLite needs a folder that exists and in which files can be written, for the database and "
        "the two files that it keeps beside it. Make it so, or give another path.",
    ),
    (r"foreign key", "The study has been deleted."),
    (
        r"locked|lock timeout|lock wait",
        "Another program holds the database. End it, or wait until it is done.",
    ),
    (
        r"permission denied|denied to user",
        "This user may not write there, or not create tables. Use a user with these rights in the URL.",
    ),
    (
        r"refused|timed? ?out|timeout|resolve|not known|unreachable|can't connect|connection|gone away|lost"
        r"|starting up|shutting down|terminat",
        "Check that the server is running and can be reached from this machine, then try again.",
    ),
)

ErrorKind = Literal["locked", "busy", "away", "fault"]
"""Meaning of an error: ``locked``: the same transaction may succeed when it is repeated; ``busy``: the server
answers but cannot serve now; ``away``: the database cannot be reached now; ``fault``: the request is
wrong."""

_POSTGRESQL: tuple[tuple[str, ErrorKind], ...] = (
    # Lock not available, deadlock, serialization failure.
    (r"40001|40P01|55P03", "locked"),
    # No writes, as on a standby; no disk, memory or connection.
    (r"25006|53...|57P03", "busy"),
    # Connection exceptions; and the server ends, has crashed, or ended a session that hung.
    (r"08...|57P0[125]|25P03", "away"),
)
_MYSQL: tuple[tuple[ErrorKind, tuple[int, ...]], ...] = (
    ("locked", (1020, 1205, 1213)),
    # Too many connections, for all and for this user; no disk, memory, thread or table space; only reading.
    ("busy", (1021, 1037, 1038, 1040, 1041, 1114, 1135, 1203, 1226, 1792, 1836)),
    # Cannot connect, gone, shutting down, aborted, network errors, killed by an administrator.
    ("away", (1053, 1152, 1158, 1159, 1160, 1161, 1317, 1927, 2002, 2003, 2005, 2006, 2013, 2055)),
)
# The read-only option, which shares its code with other options; and "No space left on device", which is
# reported under the code of the table, log or temporary file.
_BUSY_MYSQL = re.compile(r"--read.only option|\berr(?:no|code|or):? 28\b", re.IGNORECASE)
# The disk is full, read-only, not accessible to this user, or fails.
_AWAY_SQLITE = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
# libpq gives no code for errors while it connects; _ANSWER_MESSAGE matches answers of a reachable server.
_CONNECT_ERRORS = ("OperationalError", "ConnectionTimeout")
_BUSY_MESSAGE = re.compile(r"too many clients|connection slots|starting up|read-only|too many connections")
_ANSWER_MESSAGE = re.compile(
    r"password|authentication|pg_hba|does not exist|permission|not permitted|certificate|invalid|dsn"
    r"|unsupported|ssl was required|does not support ssl",
    re.IGNORECASE,
)


def classify_error(dialect: str, error: SQLAlchemyError) -> ErrorKind:
    """Return the kind of a database's error."""
    if not isinstance(error, DBAPIError):
        return "fault"
    kinds = {
        "sqlite": _classify_sqlite_error,
        "postgresql": _classify_postgresql_error,
        "mysql": _classify_mysql_error,
    }
    kind = kinds[dialect](error.orig)
    return "away" if kind == "fault" and error.connection_invalidated else kind


def _classify_sqlite_error(error: Any) -> ErrorKind:
    if "is locked" in str(error):
        return "locked"
    # the lowest byte is the primary error code
    return "away" if getattr(error, "sqlite_errorcode", 0) & 0xFF in _AWAY_SQLITE else "fault"


def _classify_postgresql_error(error: Any) -> ErrorKind:
    if error.sqlstate is not None:
        kinds = (kind for pattern, kind in _POSTGRESQL if re.fullmatch(pattern, error.sqlstate))
        return next(kinds, "fault")
    if type(error).__name__ not in _CONNECT_ERRORS:
        return "fault"
    if _BUSY_MESSAGE.search(str(error)):
        return "busy"
    return "fault" if _ANSWER_MESSAGE.search(str(error)) else "away"


def _classify_mysql_error(error: Any) -> ErrorKind:
    if not error.args:
        return "fault"
    code, message = error.args[0], str(error.args[-1])
    if _BUSY_MYSQL.search(message):
        return "busy"
    return next((kind for kind, codes in _MYSQL if code in codes), "fault")


def raise_storage_error(address: DatabaseUrl, dialect: str, error: SQLAlchemyError) -> NoReturn:
    """Raise a readable error without a password: StoreUnreachable for an outage, else StorageError."""
    # Only the driver's message: SQLAlchemy adds the statement and its values.
    words = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    message = str(words.args[-1] if dialect == "mysql" and words.args else words)
    message = address.mask(" ".join(message.split())).rstrip(".?")
    advice = next((text for pattern, text in _ADVICE if re.search(pattern, message, re.IGNORECASE)), "")
    kind = classify_error(dialect, error)
    error_class = {"busy": StoreBusy, "fault": StorageError}.get(kind, StoreUnreachable)
    # Not "from error": its text and its traceback may hold the password.
    raise error_class(f"The database {address.masked} failed: {message}. {advice}".rstrip()) from None
