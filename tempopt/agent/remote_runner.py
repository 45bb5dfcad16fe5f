"""Runs one agent on a study behind a server: no database and no bucket is reached from here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tempopt.agent.agent_loop import Agent
from tempopt.agent.agent_rpc import ServerLine
from tempopt.agent.dry_run import checked, workers_of
from tempopt.agent.observer import Observer
from tempopt.agent.process import WorkerProcess
from tempopt.agent.remote_client import ServerClient
from tempopt.agent.signals import terminable
from tempopt.agent.store_connection import while_busy
from tempopt.agent.study_runner import places_here, workers_asked, writable_folder
from tempopt.agent.turn import Turn
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import DEFAULT_FOLDER
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.filesystem import SERVER
from tempopt.storage.http.protocol import Joined
from tempopt.storage.http.wire import from_plain
from tempopt.storage.rows import StudyRow, StudyState


def work_behind(
    connection: ServerConnection,
    name: str,
    *,
    workers: Workers | None,
    folder: str | Path | None = None,
    token_file: str | Path | None = None,
    observer: Observer,
    turn: Turn | None = None,
) -> StudyState:
    """Work on a study until nothing is left to do; return its state then.

    Args:
        connection: The server.
        name: Name of the study.
        workers: As for :func:`tempopt.search`.
        folder: Local folder for logs; None: ``tempopt-runs`` in the current one.
        token_file: File that workers read the token for checkpoints from; None: where this process has it.
        observer: Is told what happens.
        turn: Says when the agent leaves the study to serve another; None: it stays until nothing is left.

    Raises:
        StudyNotFound: There is no study of that name.
        UsageError: It was paused, or the server does not serve this agent.
        SpecError: Its class is not found on this machine.
        StudyFailed: Nothing can be trained, or the server was away for longer than ``study.store_timeout``.
    """
    answer = while_busy(lambda: ServerLine(connection, name, 1).join(), note=observer.note)
    study = _study(answer)
    if study.state == "done":
        return study.state
    spec = StudySpec.from_json(study.spec)
    import_schedules(spec)
    logs = Path(DEFAULT_FOLDER if folder is None else folder).absolute() / name
    # workers put and get checkpoints themselves
    os.environ[SERVER] = connection.url
    if token_file is not None:
        os.environ["TEMPOPT_TOKEN_FILE"] = str(Path(token_file).absolute())
        os.environ.pop("TEMPOPT_TOKEN", None)
    num_requested = workers_asked(workers, spec, turn)
    with (
        writable_folder(logs) as log_folder,
        terminable(),
        places_here(spec, num_requested) as places,
        workers_of(places) as worker_processes,
    ):
        spec = checked(spec, worker_processes[0], again=turn is None)
        return _worked(connection, spec, worker_processes, log_folder, observer, turn)


def _worked(
    connection: ServerConnection,
    spec: StudySpec,
    workers: list[WorkerProcess],
    folder: Path,
    observer: Observer,
    turn: Turn | None,
) -> StudyState:
    line = ServerLine(connection, spec.study.name, len(workers))
    answer = line.join()
    study = _study(answer)
    client = ServerClient(
        spec=spec,
        study=study,
        joined=answer,
        line=line,
        folder=folder,
        observer=observer,
        stays=turn is None,
    )
    agent = Agent(
        spec=spec,
        client=client,
        workers=workers,
        folder=folder,
        checkpoints=connection.url,
        observer=observer,
        turn=turn,
    )
    try:
        agent.run()
    finally:
        workers[:] = agent.workers
        # a study that is over, or was deleted, has nothing to be told on leaving
        client.hang_up()
    return "done" if client.over() else client.state


def _study(answer: Joined) -> StudyRow:
    row: dict[str, Any] = answer.study
    study: StudyRow = from_plain(StudyRow, row)
    return study
