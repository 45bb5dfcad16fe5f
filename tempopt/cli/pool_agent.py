"""``tempopt agent --pool``: an agent that serves every study of a database or a server, one after another."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from tempopt.agent.signals import terminable
from tempopt.cli import DONE, INTERRUPTED
from tempopt.errors import UsageError
from tempopt.pool.agent import PoolWorker, own_gpus
from tempopt.pool.behind_server import ServerSource
from tempopt.pool.on_database import DatabaseSource
from tempopt.records.pool import PoolAgent
from tempopt.remote.address import is_server, server_url
from tempopt.remote.connection import ServerConnection
from tempopt.remote.credentials import token_for
from tempopt.store.store import Store
from tempopt.study import api

OF_LAUNCHER = ("launch", "address", "agents", "cpus_per_agent", "memory_per_agent", "detach")
"""Arguments that are for a launcher alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where studies come from.

    Args:
        source: What says which study is to be served, and what the pool lacks.
        url: URL of the database or the server; it may hold a password.
        shown: The same for people.
        store: The database; None: it is a server.
    """

    source: DatabaseSource | ServerSource
    url: str
    shown: str
    store: Store | None = None


@contextlib.contextmanager
def place(url: str, *, checkpoints: str | None, token_file: str | None) -> Iterator[Place]:
    """Open a database or a server for agents of the pool.

    Args:
        url: Of the database or the server.
        checkpoints: Where runs are saved; None: each study's own place.
        token_file: File with the token for the server; None: where this process has it.

    Raises:
        UsageError: One of the others was given that does not go with it.
    """
    if not is_server(url):
        if token_file is not None:
            raise UsageError(
                "--token-file is for a server. Give its URL with --server, or take the option out."
            )
        with Store.open(url, create=False) as store:
            source = DatabaseSource(store, checkpoints)
            yield Place(source=source, url=store.url, shown=store.url_shown, store=store)
        return
    api.refuse_place(checkpoints)
    file = None if token_file is None else Path(token_file)
    connection = ServerConnection(server_url(url), lambda: token_for(url, file))
    try:
        behind = ServerSource(connection, file)
        yield Place(source=behind, url=connection.url, shown=connection.url)
    finally:
        connection.close()


def pooled(arguments: argparse.Namespace) -> int:
    """Serve the studies of the pool, or keep agents started that do."""
    if arguments.name is not None:
        raise UsageError(
            f'"{arguments.name}" and --pool were both given: an agent of the pool serves every study. Give '
            "one of them; a study has its own queue with tempopt queue."
        )
    if arguments.workers is not None:
        raise UsageError("--workers is for an agent of one study; of the pool, --gpus-per-agent says it.")
    if arguments.launcher is not None:
        from tempopt.cli.pool_launch import launched

        return launched(arguments)
    for name in OF_LAUNCHER:
        if getattr(arguments, name):
            option = name.replace("_", "-")
            raise UsageError(f"--{option} is for a launcher. Give one, as in --launcher slurm.")
    with place(
        store_url(arguments),
        checkpoints=arguments.checkpoints,
        token_file=arguments.token_file,
    ) as found:
        return serve(
            found,
            gpus=arguments.gpus_per_agent,
            queues=arguments.queues,
            labels=arguments.labels,
            idle=arguments.idle,
        )


def store_url(arguments: argparse.Namespace) -> str:
    """Return the URL that was given, of a server or a database.

    Raises:
        UsageError: Both were given.
    """
    if arguments.server is None:
        return str(arguments.url)
    if arguments.storage or arguments.storage_file:
        raise UsageError("--server and --storage were both given. Give one of them.")
    return server_url(arguments.server)


def serve(
    found: Place,
    *,
    gpus: int | None,
    queues: Sequence[str],
    labels: Sequence[str],
    idle: float | None,
    launch: str = "",
) -> int:
    """Serve the studies of the pool until Ctrl-C, or until there is nothing to do for ``idle`` seconds.

    Args:
        found: Where studies come from.
        gpus: GPUs that are this agent's alone; None: one where there are any.
        queues: Queues that are served; empty: every one.
        labels: Labels of this agent.
        idle: Seconds; None: for ever.
        launch: Key of the command that keeps this agent started; empty: a person began it.

    Returns:
        The exit code.
    """
    with terminable(), own_gpus(gpus) as held:
        agent = PoolAgent(
            name="", launch=launch, queues=frozenset(queues), labels=frozenset(labels), gpus=held
        )
        told(f"An agent of the pool of {found.shown}: {kind(agent)}.")
        try:
            PoolWorker(found.source, agent, idle=idle, told=told).run()
        except KeyboardInterrupt:
            told("Interrupted. Everything that was reported is saved.")
            return INTERRUPTED
    told(f"Nothing to do for {idle:g} s.")
    return DONE


def kind(agent: PoolAgent) -> str:
    """Return in words what an agent serves and has."""
    queues = ", ".join(sorted(agent.queues)) or "every queue"
    labels = f", labels {', '.join(sorted(agent.labels))}" if agent.labels else ""
    return f"{queues}{labels}, {agent.gpus or 'no'} GPU{'s' * (agent.gpus != 1)}"


def told(text: str) -> None:
    """Print a line with the time of day."""
    print(f"[{datetime.now():%H:%M:%S}] {text}", flush=True)
