"""An agent that a launcher has started: carries out its task, until the launcher ends.

A launcher runs it as ``python -m tempopt.cli.agent_entrypoint``, with the task on standard input.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from tempopt.agent.store_connection import StoreTimeoutError
from tempopt.cli import EXIT_NO_DIFFERENCE, EXIT_OK, EXIT_WORSE, build_parsers, exit_code
from tempopt.errors import StoreUnreachable

if TYPE_CHECKING:
    from tempopt.agent.observer import Observer
    from tempopt.report.study_result import StudyResult

# Longer than the restart of a server, but limited, since a waiting process holds resources.
_MAX_OUTAGE_SECONDS = 1800.0
_PAUSE_SECONDS = 5.0
# Longer than an attempt to reach a server that is down.
_WORKED = 300.0


def run() -> int:
    """Carry out the task on standard input, and return the exit code of the command line."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65536)
        if not piece:
            return 130
        line += piece
    task = json.loads(line)
    threading.Thread(target=_exit_with_launcher, daemon=True).start()
    return exit_code(lambda: _retry_while_unreachable(task))


def _exit_with_launcher() -> None:
    # the launcher sends nothing more: the end of the stream is the end of the launcher
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _retry_while_unreachable(task: dict[str, Any]) -> int:
    """Work, and start again while the database cannot be reached, since no user would restart the agent."""
    last_reached = time.monotonic()
    while True:
        began = time.monotonic()
        try:
            return _work(task)
        except (StoreUnreachable, StoreTimeoutError) as error:
            if time.monotonic() - began > _WORKED:
                last_reached = time.monotonic()
            if time.monotonic() - last_reached >= _MAX_OUTAGE_SECONDS:
                raise
            print(f"tempopt: {error} Trying again.", file=sys.stderr, flush=True)
            time.sleep(_PAUSE_SECONDS)


def _work(task: dict[str, Any]) -> int:
    from tempopt.cli.run_study import run_and_report
    from tempopt.service import studies
    from tempopt.spec.study_spec import StudySpec

    arguments = _parse_arguments(task)
    spec = None if task["spec"] is None else StudySpec.from_json(task["spec"])

    def carry_out(observer: Observer) -> StudyResult:
        return studies.run_launched_agent(
            spec,
            task["study"],
            storage=task["storage"],
            workers=task["workers"],
            checkpoints=arguments.checkpoints,
            overrides=arguments.set,
            observer=observer,
        )

    code = run_and_report(task["study"], carry_out, arguments)
    # for its launcher, an agent has succeeded if the comparison has ended, with any outcome
    return EXIT_OK if code in (EXIT_NO_DIFFERENCE, EXIT_WORSE) else code


def _parse_arguments(task: dict[str, Any]) -> argparse.Namespace:
    """Parse the options of a task as arguments of ``search`` or ``resume``."""
    from tempopt.storage import urls

    _, commands = build_parsers()
    command = "resume" if task["spec"] is None else "search"
    arguments = commands[command].parse_intermixed_args([task["study"], *task["options"]])
    arguments.set = getattr(arguments, "set", [])
    arguments.url, arguments.storage = task["storage"], urls.parse_database_url(task["storage"]).masked
    return arguments


if __name__ == "__main__":
    sys.exit(run())
