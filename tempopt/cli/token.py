"""``tempopt token``: the tokens of a server, created, listed and revoked, on its database or over HTTP."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from tempopt.cli import EXIT_OK
from tempopt.cli.output import in_columns
from tempopt.errors import UsageError
from tempopt.server.tokens import create_token, lifetime
from tempopt.storage.http.address import is_server
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.credentials import token_for
from tempopt.storage.opening import open_store

_COLUMNS = ("id", "name", "user", "scopes", "studies", "created", "expires", "used", "state")


def token(arguments: argparse.Namespace) -> int:
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
    if arguments.action == "create":
        return _create(arguments)
    if arguments.action == "revoke":
        return _revoke(arguments)
    return _list(arguments)


def _create(arguments: argparse.Namespace) -> int:
    if not arguments.name or not arguments.scope:
        raise UsageError("Give a name and a scope: tempopt token create --name cluster --scope agent")
    if is_server(arguments.url):
        body = {
            "name": arguments.name,
            "scopes": arguments.scope,
            "studies": arguments.studies or "",
            "expires": arguments.expires,
            "user": arguments.user or "",
        }
        answer = _send_request(arguments, "POST", "/api/tokens", body)
        text, id = answer["token"], answer["id"]
    else:
        life = None if arguments.expires is None else lifetime(arguments.expires)
        with open_store(arguments.url, create=True) as store:
            text, row = create_token(
                store,
                name=arguments.name,
                scopes=arguments.scope,
                studies=arguments.studies or "",
                life=life,
                user=arguments.user or "",
            )
        id = row.id
    print(f"The token {id} is shown once:", file=sys.stderr)
    print(text)
    return EXIT_OK


def _revoke(arguments: argparse.Namespace) -> int:
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
    return EXIT_OK


def _list(arguments: argparse.Namespace) -> int:
    rows: list[dict[str, Any]]
    if is_server(arguments.url):
        rows = _send_request(arguments, "GET", "/api/tokens")
    else:
        with open_store(arguments.url, create=False) as store:
            tokens = [asdict(row) for row in store.tokens()]
        rows = [{**row, "digest": None, "scopes": list(row["scopes"])} for row in tokens]
    text_rows = [{name: _text(row, name) for name in _COLUMNS} for row in rows]
    if arguments.json:
        print(json.dumps(text_rows, indent=2))
        return EXIT_OK
    print(*in_columns(text_rows, _COLUMNS), sep="\n")
    return EXIT_OK


def _text(row: dict[str, Any], name: str) -> str:
    if name == "state":
        if row["revoked"]:
            return "revoked"
        return "expired" if row["expires"] and _moment(row["expires"]) <= datetime.now(UTC) else "valid"
    value = row[name]
    if isinstance(value, list):
        return ",".join(value)
    if name in ("created", "expires", "used"):
        return "" if value is None else f"{_moment(value):%Y-%m-%d %H:%M}"
    if name == "user":
        return str(value or row["name"])
    return "all" if name == "studies" and not value else str(value)


def _moment(value: datetime | str) -> datetime:
    return datetime.fromisoformat(value) if isinstance(value, str) else value


def _send_request(arguments: argparse.Namespace, method: str, path: str, body: Any = None) -> Any:
    with closing(ServerConnection(arguments.url, token_for(arguments.url))) as server:
        return server.request(method, path, json=body)
