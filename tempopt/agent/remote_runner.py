"""Runs one agent on a study behind a server: no database and no bucket is reached from here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tempopt.agent.agent_loop import Agent
from tempopt.agent.agent_rpc import AgentRpcClient
from tempopt.agent.dry_run import check_spec_on_worker, start_workers
from tempopt.agent.observer import Observer
from tempopt.agent.process import WorkerProcess
from tempopt.agent.remote_client import RemoteStudyClient
from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.agent.store_connection import retry_while_busy
from tempopt.agent.study_runner import claim_local_placements, ensure_writable_dir, resolve_worker_count
from tempopt.agent.turn import Turn
from tempopt.spec.custom_schedules import import_schedules
from tempopt.spec.resources import Workers
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.checkpoints import DEFAULT_FOLDER
from tempopt.storage.http.connection import ServerConnection
from tempopt.storage.http.filesystem import SERVER
from tempopt.storage.http.protocol import JoinResponse
from tempopt.storage.http.wire import deserialize
from tempopt.storage.rows import StudyRow, StudyState


def run_remote_agent(
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
    answer = retry_while_busy(lambda: AgentRpcClient(connection, name, 1).join(), note=observer.note)
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
    num_requested = resolve_worker_count(workers, spec, turn)
    with (
        ensure_writable_dir(logs) as log_folder,
        sigterm_as_keyboard_interrupt(),
        claim_local_placements(spec, num_requested) as places,
        start_workers(places) as worker_processes,
    ):
        spec = check_spec_on_worker(spec, worker_processes[0], again=turn is None)
        return _worked(connection, spec, worker_processes, log_folder, observer, turn)


def _worked(
    connection: ServerConnection,
    spec: StudySpec,
    workers: list[WorkerProcess],
    folder: Path,
    observer: Observer,
    turn: Turn | None,
) -> StudyState:
    line = AgentRpcClient(connection, spec.study.name, len(workers))
    answer = line.join()
    study = _study(answer)
    client = RemoteStudyClient(
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
        # a study that is over, or was deleted, needs no report on leaving
        client.disconnect()
    return "done" if client.is_finished() else client.state


def _study(answer: JoinResponse) -> StudyRow:
    row: dict[str, Any] = answer.study
    study: StudyRow = deserialize(StudyRow, row)
    return study
