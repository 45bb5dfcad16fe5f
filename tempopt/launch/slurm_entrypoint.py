"""The program of a Slurm job: one agent, until it has ended permanently or the job has to leave its node.

Requeues the job, and writes its end record.
"""

from __future__ import annotations

import dataclasses
import json
import os
import queue
import re
import signal
import subprocess
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NoReturn

import submitit

from tempopt.launch.launcher import Task
from tempopt.launch.supervise import CLEAN_EXIT_CODES, ExitInfo, Supervisor

STORAGE = "TEMPOPT_STORAGE"
"""Variable with the database's URL; not an argument, since submitit writes arguments into a file."""

_POLL_SECONDS = 2.0


def exit_info_path(folder: Path, job: str) -> Path:
    """Return the file into which a job that has ended writes its exit information."""
    return folder / f"{job}_ended.json"


def read_ended(folder: Path, job: str) -> ExitInfo | None:
    """Return the exit information of a job; None if it has written none."""
    try:
        return ExitInfo(**json.loads(exit_info_path(folder, job).read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None


def write_ended(folder: Path, job: str, ending: ExitInfo) -> None:
    """Write the exit information of a job."""
    path = exit_info_path(folder, job)
    new_path = path.with_suffix(".new")
    new_path.write_text(json.dumps(dataclasses.asdict(ending)), encoding="utf-8")
    new_path.replace(path)


def run_agent(task: Task) -> NoReturn:
    """Run a task's agent in this job, and exit with the agent's code; called by submitit.

    Args:
        task: The agent; its storage is in the environment.
    """
    environment = submitit.JobEnvironment()
    job, paths = environment.job_id, environment.paths
    exit_info_path(paths.folder, job).unlink(missing_ok=True)
    storage = os.environ.pop(STORAGE, None)
    if storage is None:
        ending: ExitInfo | None = ExitInfo(
            code=2,
            message=f"The job did not get {STORAGE} from the environment in which it was submitted: Slurm's "
            "option export has to be ALL. Remove another value from --launch extra=...",
        )
    else:
        # one file for all runs of a requeued job
        with (paths.folder / f"{job}_agent.log").open("ab") as log:
            agent_task = dataclasses.replace(task, storage=storage, environment=_build_environment(task))
            ending = _supervise(agent_task, log.fileno(), job)
    if ending is None:
        raise SystemExit(0)
    write_ended(paths.folder, job, ending)
    if ending.code != 130:
        # a job that was asked to leave may be restarted by Slurm, and then needs this file
        paths.submitted_pickle.unlink(missing_ok=True)
    raise SystemExit(0 if ending.is_clean else max(ending.code, 1))


def _build_environment(task: Task) -> dict[str, str]:
    """Return the environment variables of an agent."""
    # where Slurm does not manage GPUs, every job sees all GPUs of its node
    return {**task.environment, **({} if task.gpus else {"CUDA_VISIBLE_DEVICES": ""})}


def _supervise(task: Task, log: int, job: str) -> ExitInfo | None:
    """Run the agent to its end, and return its exit information; None if the job was requeued."""
    news: queue.SimpleQueue[Future[ExitInfo] | None] = queue.SimpleQueue()
    # replaces the handler of submitit, which does not wait for an agent to leave
    signal.signal(signal.SIGUSR2, lambda *_: news.put(None))
    supervisor = Supervisor(task, log)
    with ThreadPoolExecutor(1, initializer=_block_signal) as pool:
        agent = pool.submit(supervisor.run)
        agent.add_done_callback(news.put)
        should_leave = not _wait_for_end(agent, news)
        if should_leave:
            supervisor.leave()
        ending = agent.result()
    return _requeue(job) if _is_unfinished(ending) and (should_leave or _is_preempted(job)) else ending


def _block_signal() -> None:
    # Slurm's warning goes to every process of the job, and ends processes that do not handle it; child
    # processes inherit the signal mask of the thread
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})


def _wait_for_end(agent: Future[ExitInfo], news: queue.SimpleQueue[Future[ExitInfo] | None]) -> bool:
    """Wait until the agent has ended, or has to leave: after a signal, or the death of Slurm's job step."""
    step = os.getppid()
    while os.getppid() == step:
        try:
            return news.get(timeout=_POLL_SECONDS) is agent
        except queue.Empty:
            continue
    return False


def _is_unfinished(ending: ExitInfo) -> bool:
    return ending.code < 0 or ending.code == 130


def _is_preempted(job: str) -> bool:
    """Return whether Slurm preempts this job.

    Slurm itself does not requeue a job that ends within the grace time of its partition.
    """
    done = subprocess.run(["scontrol", "show", "job", job], capture_output=True, text=True)
    return re.search(r"PreemptTime=\d", done.stdout) is not None


def _requeue(job: str) -> ExitInfo | None:
    """Requeue this job; return its exit information if Slurm refuses that."""
    done = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    if "disabled" in done.stderr:
        # disabled by the cancellation
        return ExitInfo(code=CLEAN_EXIT_CODES[-1])
    return ExitInfo(code=1, message=f"Slurm did not requeue the job: {done.stderr.strip()}")
