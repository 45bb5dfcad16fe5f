"""``tempopt webhook``: secrets to sign with, a trial of endpoints, and what became of messages."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tempopt.cli import DONE, FAILED
from tempopt.cli.output import in_columns
from tempopt.errors import UsageError
from tempopt.remote.address import is_server
from tempopt.server.webhooks.endpoints import Endpoint, new_secret, plain, read_endpoints
from tempopt.server.webhooks.events import text
from tempopt.server.webhooks.sending import send
from tempopt.store.store import Store
from tempopt.store.webhooks import message_id

_MOST = 100
_COLUMNS = ("added", "endpoint", "event", "state", "attempts", "error")


def webhook(arguments: argparse.Namespace) -> int:
    """Make a secret, try endpoints, list messages, send them again, or forget an endpoint."""
    action = arguments.action
    if arguments.webhooks is not None and action != "test":
        raise UsageError("--webhooks is for tempopt webhook test. Take it out.")
    if arguments.json and action != "list":
        raise UsageError("--json is for tempopt webhook list. Take it out.")
    if arguments.name is not None and action not in ("test", "retry", "forget"):
        raise UsageError(f"A name goes with test, retry and forget, not with {action}. Take it out.")
    if action == "secret":
        print(new_secret())
        return DONE
    if action == "test":
        return _test(arguments)
    if is_server(arguments.url):
        raise UsageError(
            f"{arguments.url} is a server, and messages are in its database. Give the URL of the "
            "database with --storage."
        )
    return {"list": _list, "retry": _retry, "forget": _forget}[action](arguments)


def _test(arguments: argparse.Namespace) -> int:
    if arguments.webhooks is None:
        raise UsageError("Give the file of endpoints: tempopt webhook test --webhooks FILE")
    endpoints = read_endpoints(Path(arguments.webhooks))
    names = [each.name for each in endpoints]
    if arguments.name is not None and arguments.name not in names:
        raise UsageError(
            f'{arguments.webhooks} has no endpoint "{arguments.name}". It has {", ".join(names)}.'
        )
    tried = [each for each in endpoints if arguments.name in (None, each.name)]
    return DONE if all([_tried(each) for each in tried]) else FAILED


def _tried(endpoint: Endpoint) -> bool:
    answer = send(endpoint, message_id(), text("webhook.test", {"endpoint": plain(endpoint)}))
    said = f"{endpoint.name} ({endpoint.host}): "
    if answer.error:
        print(f"{said}{answer.error}", file=sys.stderr)
        return False
    print(f"{said}delivered")
    return True


def _list(arguments: argparse.Namespace) -> int:
    with Store.open(arguments.url, create=False) as store:
        rows = store.webhooks.latest(most=_MOST)
    told: list[dict[str, Any]] = [
        {"added": f"{datetime.fromtimestamp(each.created, UTC):%Y-%m-%d %H:%M:%S}", **asdict(each)}
        for each in rows
    ]
    if arguments.json:
        shown = ("id", *_COLUMNS)
        print(json.dumps([{name: row[name] for name in shown} for row in told], indent=2))
        return DONE
    texts = [{name: str(row[name]) for name in _COLUMNS} for row in told]
    print(*in_columns(texts, _COLUMNS), sep="\n")
    return DONE


def _retry(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        raise UsageError("Give the name of the endpoint: tempopt webhook retry NAME")
    with Store.open(arguments.url, create=False) as store:
        count = store.webhooks.retry(arguments.name)
    if not count:
        print(f"No message to {arguments.name} was given up: there is nothing to send again.")
        return DONE
    print(f"{_messages(count)} to {arguments.name} will be sent again within seconds.")
    return DONE


def _forget(arguments: argparse.Namespace) -> int:
    if arguments.name is None:
        raise UsageError("Give the name of the endpoint: tempopt webhook forget NAME")
    with Store.open(arguments.url, create=False) as store:
        count = store.webhooks.remove(arguments.name)
    print(f"The endpoint {arguments.name} is forgotten; {_messages(count)} to it had not been delivered.")
    return DONE


def _messages(count: int) -> str:
    return f"{count} message{'s' * (count != 1)}"
