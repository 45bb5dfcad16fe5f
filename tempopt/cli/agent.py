"""``tempopt agent``: one more agent for a study, or for the pool that serves every study."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tempopt.agent.observer import Observer
from tempopt.agent.server_runner import work_behind
from tempopt.cli import DONE, INTERRUPTED
from tempopt.cli.pool_agent import OF_LAUNCHER, pooled, store_url
from tempopt.cli.search import how_to_go_on, to_verdict
from tempopt.errors import UsageError
from tempopt.remote.address import is_server, server_url
from tempopt.remote.connection import ServerConnection
from tempopt.remote.credentials import token_for
from tempopt.study import api
from tempopt.study.progress import observing

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult


def agent(arguments: argparse.Namespace) -> int:
    """Work on a study beside its other agents, until it ends; or on one study after another."""
    if arguments.pool:
        return pooled(arguments)
    _refuse_of_pool(arguments)
    if arguments.server is not None or is_server(arguments.url):
        return _agent_behind(arguments)
    if arguments.token_file is not None:
        raise UsageError("--token-file is for a server. Give its URL with --server, or take the option out.")

    def carry_out(observer: Observer) -> StudyResult:
        return api.join(
            arguments.name,
            storage=arguments.url,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            observer=observer,
        )

    def interrupted() -> str:
        return how_to_go_on(arguments.name, arguments, "agent")

    return to_verdict(arguments.name, carry_out, arguments, interrupted=interrupted)


def _agent_behind(arguments: argparse.Namespace) -> int:
    """Work for a server, which alone reaches the database and the checkpoints."""
    if arguments.checkpoints is not None:
        api.refuse_place(arguments.checkpoints)
    url, name = server_url(store_url(arguments)), arguments.name
    file = None if arguments.token_file is None else Path(arguments.token_file)
    connection = ServerConnection(url, lambda: token_for(url, file))
    try:
        with observing(sys.stdout) as seen:
            state = work_behind(
                connection,
                name,
                workers=arguments.workers,
                token_file=file,
                observer=seen,
            )
    except KeyboardInterrupt:
        again = f"tempopt agent {shlex.quote(name)} --server {shlex.quote(url)}"
        print(f"\nInterrupted. Everything that was reported is saved. To go on:\n  {again}")
        return INTERRUPTED
    finally:
        connection.close()
    if state != "done":
        print(f'\nThe study "{name}" was paused. Everything that was reported is saved.')
        return INTERRUPTED
    print(
        f'\nThe study "{name}" is done. To read its verdict: tempopt show {shlex.quote(name)} --storage {url}'
    )
    return DONE


def _refuse_of_pool(arguments: argparse.Namespace) -> None:
    if arguments.name is None:
        raise UsageError(
            "Give the name of a study, as in tempopt agent NAME, or --pool to serve every study in turn."
        )
    of_launcher = ("launcher", *OF_LAUNCHER)
    for name in ("queues", "labels", "gpus_per_agent", "idle", *of_launcher):
        value = getattr(arguments, name)
        if value is None or value is False or value == []:
            continue
        option = {"queues": "queue", "labels": "label"}.get(name, name.replace("_", "-"))
        instead = "tempopt resume NAME --launcher NAME starts the agents of one study. "
        raise UsageError(
            f"--{option} is for agents of the pool. {instead * (name in of_launcher)}Give --pool in place of "
            f"{arguments.name}, or take it out."
        )
