"""The tokens of servers to which this user has logged in; sends no requests.

They are stored in ``tempopt/servers.json`` below ``XDG_CONFIG_HOME``, else ``~/.config``, readable only by
the user.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tempopt.errors import UsageError
from tempopt.files import read_text
from tempopt.storage.http.address import server_url

_MAX_TOKEN_LENGTH = 1000


def _warn(text: str) -> None:
    print(f"tempopt: warning: {text}", file=sys.stderr)


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """The servers to which this user has logged in.

    Args:
        tokens: Token by URL.
        default: URL of the server that is used where no storage is given; None: there is no default.
    """

    tokens: dict[str, str] = field(default_factory=dict, repr=False)
    default: str | None = None


def servers_file() -> Path:
    """Return the path of the file with the servers, which need not exist."""
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path("~/.config").expanduser()) / "tempopt" / "servers.json"


def servers(warn: Callable[[str], None] = _warn) -> Servers:
    """Return the servers to which this user has logged in.

    Args:
        warn: Called with a sentence if other users of this machine can read the file.

    Raises:
        UsageError: The file cannot be read, or was not written by tempopt.
    """
    path = servers_file()
    try:
        if not path.is_file():
            return Servers()
    except OSError:
        return Servers()
    text = _read_private_file(path, "the servers that you have logged in to", warn)
    try:
        data: Any = json.loads(text)
        tokens = {str(url): str(entry["token"]) for url, entry in data["servers"].items()}
        default = data.get("default")
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UsageError(f"{path} was not written by tempopt login. Remove it and log in again.") from None
    return Servers(tokens=tokens, default=default if default in tokens else None)


def default_server() -> str | None:
    """Return the URL of the server of the last login, None if there is none."""
    return servers(warn=lambda text: None).default


def remember(url: str, token: str) -> Path:
    """Store the token for a server, make it the default server, and return the path of the file."""
    stored_servers = servers(warn=lambda text: None)
    return _write_servers(
        Servers(tokens={**stored_servers.tokens, server_url(url): token}, default=server_url(url))
    )


def forget(url: str | None) -> str | None:
    """Remove a server from the file, and return its URL; None if there is no login to it.

    Args:
        url: URL of the server; None: the default server.
    """
    stored_servers = servers(warn=lambda text: None)
    server = stored_servers.default if url is None else server_url(url)
    if server is None or server not in stored_servers.tokens:
        return None
    tokens = {other_url: token for other_url, token in stored_servers.tokens.items() if other_url != server}
    _write_servers(
        Servers(tokens=tokens, default=None if stored_servers.default == server else stored_servers.default)
    )
    return server


def token_for(url: str, file: str | Path | None = None, warn: Callable[[str], None] = _warn) -> str | None:
    """Return the token for a server, None if none is known.

    The first of these is used: the given file, TEMPOPT_TOKEN, the file that TEMPOPT_TOKEN_FILE names, the
    token that ``tempopt login`` has stored for this URL.

    Args:
        url: URL of the server.
        file: A file whose only line is the token.
        warn: Called with a sentence if other users of this machine can read a file.

    Raises:
        UsageError: A file cannot be read, or holds no token.
    """
    if file is not None:
        return read_token_file(Path(file), warn)
    if token := os.environ.get("TEMPOPT_TOKEN"):
        return validate_token(token, "TEMPOPT_TOKEN")
    if token_file := os.environ.get("TEMPOPT_TOKEN_FILE"):
        return read_token_file(Path(token_file), warn)
    return servers(warn).tokens.get(server_url(url))


def read_token_file(path: Path, warn: Callable[[str], None] = _warn) -> str:
    """Return the token that is the only line of a file.

    Raises:
        UsageError: The file cannot be read, or holds no token.
    """
    return validate_token(_read_private_file(path, "one token", warn), str(path))


def validate_token(text: str, where: str) -> str:
    """Return a token without spaces around it.

    Args:
        text: The token.
        where: Its source, for messages.

    Raises:
        UsageError: The text is not a token: empty, of several words, or with characters not allowed in a
            header.
    """
    token = text.strip()
    if (
        not token
        or len(token) > _MAX_TOKEN_LENGTH
        or not token.isascii()
        or not token.isprintable()
        or " " in token
    ):
        raise UsageError(f"{where} holds no token. Give one line, as tempopt token create has printed it.")
    return token


def _read_private_file(path: Path, holds: str, warn: Callable[[str], None]) -> str:
    text, mode = read_text(path, holds)
    if os.name == "posix" and mode & (stat.S_IRGRP | stat.S_IROTH):
        warn(
            f"{path} holds a token that other users of this machine can read. "
            f"Run: chmod 600 {shlex.quote(str(path))}"
        )
    return text


def _write_servers(stored_servers: Servers) -> Path:
    path = servers_file()
    data = {
        "default": stored_servers.default,
        "servers": {url: {"token": token} for url, token in stored_servers.tokens.items()},
    }
    temporary = path.with_name(f"{path.name}.{os.getpid()}.writing")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # never readable by others, not even for a moment
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(data, file, indent=2)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(
            f"{path} cannot be written: {error.strerror}. Set XDG_CONFIG_HOME to a writable folder."
        ) from error
    finally:
        temporary.unlink(missing_ok=True)
    return path
