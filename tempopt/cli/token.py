"""``tempopt token``: create, list and revoke the tokens of a server, in its database or over HTTP."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tempopt.errors import UsageError
from tempopt.server.tokens import create_token, lifetime
from tempopt.storage.http.address import is_server
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.credentials import token_for
from tempopt.storage.opening import open_store

_COLUMNS = ("id", "name", "user", "scopes", "studies", "created", "expires", "used", "state")


def token(arguments: argparse.Namespace) -> None:
    """Create, list or revoke a token."""
    options = {
        "--name": arguments.name,
        "--scope": arguments.scope,
        "--studies": arguments.studies,
        "--expires": arguments.expires,
        "--user": arguments.user,
    }
    if arguments.action != "create" and (extra_options := [name for name, value in options.items() if value]):
        raise UsageError(f"{extra_options[0]} is for tempopt token create. Take it out.")
    if arguments.json and arguments.action != "list":
        raise UsageError("--json is for tempopt token list. Take it out.")
    if (arguments.action == "revoke") != (arguments.id is not None):
        raise UsageError("An id goes with revoke, and with nothing else: tempopt token revoke ID")
    {"create": _create, "revoke": _revoke, "list": _list}[arguments.action](arguments)


def _create(arguments: argparse.Namespace) -> None:
    if not arguments.name or not arguments.scope:
        raise UsageError("Give a name and a scope: tempopt token create --name cluster --scope agent")
    options: dict[str, Any] = {
        "name": arguments.name,
        "scopes": arguments.scope,
        "studies": arguments.studies or "",
        "user": arguments.user or "",
    }
    if is_server(arguments.url):
        answer = _send_request(arguments, "POST", "/api/tokens", {**options, "expires": arguments.expires})
        text, id = answer["token"], answer["id"]
    else:
        life = None if arguments.expires is None else lifetime(arguments.expires)
        with open_store(arguments.url, create=True) as store:
            text, row = create_token(store, **options, life=life)
        id = row.id
    print(f"The token {id} is shown once:", file=sys.stderr)
    print(text)


def _revoke(arguments: argparse.Namespace) -> None:
    if is_server(arguments.url):
        name = _send_request(arguments, "DELETE", f"/api/tokens/{quote(arguments.id, safe='')}")["name"]
    else:
        with open_store(arguments.url, create=False) as store:
            store.revoke_token(arguments.id)
            row = store.token(arguments.id)
        if row is None:
            raise UsageError(f'There is no token "{arguments.id}". To list them: tempopt token list')
        name = row.name
    print(f"The token {arguments.id} ({name}) is revoked; servers refuse it within a few seconds.")


def _list(arguments: argparse.Namespace) -> None:
    rows: list[dict[str, Any]]
    if is_server(arguments.url):
        rows = _send_request(arguments, "GET", "/api/tokens")
    else:
        with open_store(arguments.url, create=False) as store:
            tokens = [asdict(row) for row in store.tokens()]
        rows = [{**row, "digest": None, "scopes": list(row["scopes"])} for row in tokens]
    text_rows = [{name: _format_text(row, name) for name in _COLUMNS} for row in rows]
    print(
        json.dumps(text_rows, indent=2) if arguments.json else "\n".join(_align_columns(text_rows, _COLUMNS))
    )


def _align_columns(rows: Iterable[Mapping[str, str]], names: Sequence[str]) -> list[str]:
    """Return the lines of a table: its heading, then a line for each row, in aligned columns."""
    lines = [dict(zip(names, names, strict=True)), *rows]
    widths = {name: max(len(line[name]) for line in lines) for name in names}
    return ["  ".join(line[name].ljust(widths[name]) for name in names).rstrip() for line in lines]


def _format_text(row: dict[str, Any], name: str) -> str:
    if name == "state":
        if row["revoked"]:
            return "revoked"
        return (
            "expired" if row["expires"] and _format_moment(row["expires"]) <= datetime.now(UTC) else "valid"
        )
    value = row[name]
    if isinstance(value, list):
        return ",".join(value)
    if name in ("created", "expires", "used"):
        return "" if value is None else f"{_format_moment(value):%Y-%m-%d %H:%M}"
    if name == "user":
        return str(value or row["name"])
    return "all" if name == "studies" and not value else str(value)


def _format_moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _send_request(arguments: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    with closing(ServerConnection(arguments.url, token_for(arguments.url))) as server:
        return server.request(method, path, json=body)
