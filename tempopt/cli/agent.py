"""``tempopt agent``: add an agent to a study, or one that serves every study."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tempopt.agent.any_agent import AnyAgent, DatabaseStudies, ServerStudies, Studies
from tempopt.agent.observer import Observer
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.agent.study_runner import run_remote_agent
from tempopt.cli import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK
from tempopt.cli.run_study import run_and_report
from tempopt.errors import UsageError
from tempopt.service import studies
from tempopt.service.progress import progress_for_stream
from tempopt.storage.http.address import is_server, server_url
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.credentials import token_for
from tempopt.storage.opening import open_store
from tempopt.storage.schema import refuse_missing_file
from tempopt.storage.urls import parse_database_url

if TYPE_CHECKING:
    from tempopt.report.study_result import StudyResult


def agent(arguments: argparse.Namespace) -> int:
    """Work on a study until it ends, beside its other agents; or serve every study."""
    _check_arguments(arguments)
    if arguments.any:
        return _serve_any(arguments)
    if is_server(arguments.url):
        return _work_for_server(arguments)

    def carry_out(observer: Observer) -> StudyResult:
        return studies.run_agent(
            arguments.name,
            storage=arguments.url,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            observer=observer,
        )

    return run_and_report(arguments.name, carry_out, arguments, again="agent")


def _work_for_server(arguments: argparse.Namespace) -> int:
    """Work on a study behind a server."""
    connection, file = _connect(arguments)
    url, name = connection.url, arguments.name
    try:
        with progress_for_stream(sys.stdout) as observer:
            state = run_remote_agent(
                connection,
                name,
                workers=arguments.workers,
                token_file=file,
                observer=observer,
            )
    except KeyboardInterrupt:
        command = f"tempopt agent {shlex.quote(name)} --server {shlex.quote(url)}"
        print(f"\nInterrupted. Everything that was reported is saved. To continue:\n  {command}")
        return EXIT_INTERRUPTED
    finally:
        connection.close()
    if state != "done":
        print(f'\nThe study "{name}" was paused. Everything that was reported is saved.')
        return EXIT_INTERRUPTED
    print(
        f'\nThe study "{name}" is done. To read its verdict: tempopt show {shlex.quote(name)} --storage {url}'
    )
    return EXIT_OK


def _serve_any(arguments: argparse.Namespace) -> int:
    """Serve every unfinished study of a database or a server."""
    with contextlib.ExitStack() as stack:
        studies: Studies
        if is_server(arguments.url):
            connection, file = _connect(arguments)
            stack.callback(connection.close)
            shown_url = connection.url
            studies = ServerStudies(connection=connection, workers=arguments.workers, token_file=file)
        else:
            # the first study may be submitted later, but a missing file is probably a typing mistake
            refuse_missing_file(parse_database_url(arguments.url))
            store = stack.enter_context(open_store(arguments.url))
            shown_url = store.masked_url
            studies = DatabaseStudies(
                store=store, workers=arguments.workers, checkpoints=arguments.checkpoints
            )
        _print_timed(f"Serves every study of {shown_url}.")
        try:
            with sigterm_as_keyboard_interrupt():
                failed = AnyAgent(studies, idle_seconds=arguments.until_idle, note=_print_timed).run()
        except KeyboardInterrupt:
            _print_timed("Interrupted. Everything that was reported is saved.")
            return EXIT_INTERRUPTED
    if failed:
        _print_timed(f"Not done, failed on this machine: {', '.join(failed)}.")
        return EXIT_FAILED
    _print_timed("No run is left to begin.")
    return EXIT_OK


def _print_timed(text: str) -> None:
    print(f"[{datetime.now():%H:%M:%S}] {text}", flush=True)


def _check_arguments(arguments: argparse.Namespace) -> None:
    """Refuse arguments that exclude each other."""
    if arguments.any == (arguments.name is not None):
        raise UsageError(
            "Give either the name of a study, as in tempopt agent NAME, or --any to serve every study."
        )
    if arguments.until_idle is not None and not arguments.any:
        raise UsageError("--until-idle is for an agent of every study. Give --any in place of a name.")
    if arguments.server is not None and (arguments.storage or arguments.storage_file):
        raise UsageError("--server and --storage were both given. Give one of them.")
    if arguments.server is not None or is_server(arguments.url):
        arguments.url = server_url(arguments.server or arguments.url)
        studies.check_no_checkpoint_url(arguments.checkpoints)
    elif arguments.token_file is not None:
        raise UsageError(
            "--token-file is for a server. Give its URL with --server, or leave out --token-file."
        )


def _connect(arguments: argparse.Namespace) -> tuple[ServerConnection, Path | None]:
    """Return the connection to the server, and the file with the token, if one was given."""
    url, file = arguments.url, None if arguments.token_file is None else Path(arguments.token_file)
    return ServerConnection(url, lambda: token_for(url, file)), file
