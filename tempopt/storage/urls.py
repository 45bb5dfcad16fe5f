"""Parse and mask database URLs; opens no connection."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, quote_plus

from tempopt.errors import StorageError, UsageError, mask_secrets, not_text, unknown
from tempopt.files import absolute
from tempopt.storage.http.address import is_server
from tempopt.storage.http.credentials import default_server

if TYPE_CHECKING:
    # SQLAlchemy is loaded when a database is opened: the URL of a server does not need it.
    from sqlalchemy.engine import URL

DEFAULT_STORAGE = "sqlite:///tempopt.db"
"""The default store: a database in the current folder."""

# MariaDB has the dialect name of MySQL, so that table options are stated once.
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mysql+pymysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "mariadb+pymysql": "mysql+pymysql",
}
_EXAMPLES = (
    "sqlite:///tempopt.db, postgresql://user:password@host/database or mysql://user:password@host/database"
)
_MYSQL_OPTIONS = (
    *("bind_address", "charset", "connect_timeout", "init_command", "local_infile", "max_allowed_packet"),
    *("program_name", "read_default_file", "read_default_group", "read_timeout", "server_public_key"),
    *("sql_mode", "ssl_ca", "ssl_cert", "ssl_check_hostname", "ssl_disabled", "ssl_key", "ssl_key_password"),
    *("ssl_verify_cert", "ssl_verify_identity", "unix_socket", "use_unicode", "write_timeout"),
)
_PSYCOPG_ARGUMENTS = ("autocommit", "context", "cursor_factory", "prepare_threshold", "row_factory")
_SECRET_QUERY = re.compile(r"([?&][^=&]{0,60}(?:pass|pwd|secret|token)[^=&]{0,60}=)([^&]*)", re.IGNORECASE)
# Greedy up to the last "@": a password with an "@" that is not percent-encoded is masked completely.
_USERINFO = re.compile(r"^([^:]+://[^:@/?]*):(.*)@", re.DOTALL)


def storage_url(url: str | None) -> str:
    """Return the given URL; for None that of the environment variable TEMPOPT_STORAGE, else the default.

    The default is the server of the last login (``tempopt login``), else a file in the current folder.
    """
    if url is not None:
        return url
    return os.environ.get("TEMPOPT_STORAGE") or default_server() or DEFAULT_STORAGE


def url_masker(url: str) -> Callable[[str], str]:
    """Return a function that masks the password of a store in a text, in all spellings of drivers."""
    return mask_secrets if is_server(url) else parse_database_url(url).mask


def masked_url(url: str) -> str:
    """Return a URL of a database or a server with its password masked."""
    return mask_secrets(url) if is_server(url) else parse_database_url(url).masked


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseUrl:
    """Address of a database.

    Args:
        url: The URL to connect to: driver named, SQLite paths absolute.
        masked: The URL with its password masked: the only form that may be printed, logged or stored.
        secrets: The texts that :meth:`mask` replaces: the password in all spellings of drivers.
    """

    url: URL
    masked: str
    secrets: tuple[str, ...] = field(repr=False)

    def mask(self, text: str) -> str:
        """Return the text with every spelling of the password replaced by ``***``."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text


def parse_database_url(text: str) -> DatabaseUrl:
    """Return the address of a URL or of a bare path to an SQLite file.

    Raises:
        StorageError: The URL cannot be read, or names a database or driver that is not supported.
    """
    text = text.strip()
    if no_text := not_text(text):
        raise StorageError(f"The storage URL holds {no_text}. Give one as in {_EXAMPLES}.")
    if "://" not in text:
        text = f"sqlite:///{text}"
    scheme, _, location = text.partition("://")
    driver = _DRIVERS.get(scheme.lower())
    if driver is None:
        remedy = f"Give a URL as in {_EXAMPLES}."
        raise StorageError(unknown("database", scheme, ("sqlite", "postgresql", "mysql", "mariadb"), remedy))
    if driver == "sqlite":
        return _parse_sqlite_url(location)
    shown_url = _mask_secrets(text)
    if location.partition("?")[0].count("@") > 1:
        raise StorageError(
            f"The storage URL {shown_url} has more than one @. In a user name or password write @ as %40, "
            ": as %3A and / as %2F."
        )
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(f"{driver}://{location}")
    except (ArgumentError, ValueError):
        # The parser's own error repeats the URL, password and all.
        raise StorageError(
            f"The storage URL {shown_url} cannot be read. Give one as in {_EXAMPLES}."
        ) from None
    if not url.database:
        raise StorageError(f"The storage URL {shown_url} names no database. Give one as in {_EXAMPLES}.")
    if options := _list_unsupported_options(url):
        raise StorageError(
            f"The storage URL {shown_url} has options that are not supported in a URL: {', '.join(options)}. "
            "Remove them."
        )
    return DatabaseUrl(
        url=url,
        masked=f"{driver.partition('+')[0]}://{_mask_secrets(text).partition('://')[2]}",
        secrets=_list_secrets(text, url),
    )


def _list_unsupported_options(url: URL) -> list[str]:
    """Return the options of a URL that its driver does not know, or for which it needs objects."""
    if url.get_backend_name() == "mysql":
        return [name for name in url.query if name not in _MYSQL_OPTIONS]
    # libpq itself refuses unknown options; these are psycopg's
    return [name for name in url.query if name in _PSYCOPG_ARGUMENTS]


def _parse_sqlite_url(location: str) -> DatabaseUrl:
    path, _, _ = location.removeprefix("/").partition("?")
    if not location.startswith("/") or path in ("", ":memory:") or path.startswith("file:"):
        raise StorageError(
            f'The storage URL "sqlite://{location}" does not name a file that other processes can open. '
            "Give a path, as in sqlite:///tempopt.db or sqlite:////home/me/tempopt.db."
        )
    try:
        file = absolute(path, "The storage path")
    except UsageError as error:
        raise StorageError(str(error)) from error
    if file.exists() and not file.is_file() and not file.is_dir():
        raise StorageError(f"{file} is a pipe, a socket or a device. Give the path of a file.")
    from sqlalchemy.engine import URL

    return DatabaseUrl(url=URL.create("sqlite", database=str(file)), masked=f"sqlite:///{path}", secrets=())


def _mask_secrets(text: str) -> str:
    return _SECRET_QUERY.sub(r"\1***", _USERINFO.sub(r"\1:***@", text))


def _list_secrets(text: str, url: URL) -> tuple[str, ...]:
    raw = [value for _, value in _SECRET_QUERY.findall(text)]
    userinfo = _USERINFO.match(text)
    if userinfo is not None:
        raw.append(userinfo.group(2))
    for key, value in url.query.items():
        if _SECRET_QUERY.match(f"?{key}="):
            raw.extend((value,) if isinstance(value, str) else value)
    if url.password is not None:
        raw.append(str(url.password))
    spellings = {s for p in raw for s in (p, quote(p, safe=""), quote(p), quote_plus(p), repr(p)[1:-1]) if s}
    # Longest first, or a part would be masked before the complete text is found.
    return tuple(sorted(spellings, key=lambda s: (-len(s), s)))
