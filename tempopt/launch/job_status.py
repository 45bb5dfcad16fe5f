"""Query and cancel the jobs of a study through their launchers, in a separate process.

A launcher may load a cluster's client, or wait for a cluster that cannot be reached, which a program that
only shows a study should not do. Run as ``python -P -m tempopt.launch.job_status``, with the query on
standard input.

A user who can write to the database can write the row of a job. So the module and the options in a row are
never used, and the process connects only to the address that the caller has given.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tempopt.launch.registry import BUILT_IN, make_launcher
from tempopt.storage.rows import JobRow

_ANSWER = "tempopt: "
UNKNOWN = "unknown"
"""State of a job that cannot be queried from here."""
_QUERY_TIMEOUT_SECONDS = 60.0
# an agent saves its runs before it leaves
_LEAVE_TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """State of one job.

    Args:
        launcher: Name of its launcher.
        id: The launcher's id of the job.
        state: As in :class:`tempopt.launch.launcher.Job`, or ``unknown``.
        message: Why it failed, what it waits for, or why its state is unknown.
    """

    launcher: str
    id: str
    state: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSelection:
    """The launcher that the user has given to query jobs.

    Args:
        launcher: ``--launcher``; None: only launchers that need no options.
        options: ``--launch`` and ``--address``.
    """

    launcher: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def options_for(self, launcher: str) -> dict[str, str]:
        """Return the options for jobs of a launcher."""
        return dict(self.options) if launcher == self.launcher else {}


def query_job_status(rows: Sequence[JobRow], launch_options: LauncherSelection) -> list[JobStatus]:
    """Return the states of jobs, in the given order; ``unknown`` for launchers that are not queried."""
    return _collect_job_statuses(rows, launch_options, "jobs")


def cancel_jobs(rows: Sequence[JobRow], launch_options: LauncherSelection) -> list[JobStatus]:
    """Cancel jobs, and return their states afterwards, in the given order."""
    return _collect_job_statuses(rows, launch_options, "cancel")


def _collect_job_statuses(
    rows: Sequence[JobRow], launch_options: LauncherSelection, what: str
) -> list[JobStatus]:
    statuses: dict[tuple[str, str], JobStatus] = {}
    for launcher in dict.fromkeys(row.launcher for row in rows):
        started = {row.id: _ray_address(row) for row in rows if row.launcher == launcher}
        options = launch_options.options_for(launcher)
        why = _find_refusal(launcher, options, launch_options)
        answers = (
            _query_launcher(what, launcher, options, started)
            if why is None
            else _build_unknown_statuses(launcher, started, why)
        )
        statuses |= {(launcher, answer.id): answer for answer in answers}
    return [statuses[row.launcher, row.id] for row in rows]


def _find_refusal(launcher: str, options: Mapping[str, str], launch_options: LauncherSelection) -> str | None:
    """Return why a launcher is not queried, None if it is."""
    if launcher == "ray" and (options.get("address") or os.environ.get("RAY_ADDRESS") or "local") == "local":
        return (
            "Jobs on Ray are queried at an address that you give, not at one that the database names. "
            "Add --address URL, or set RAY_ADDRESS."
        )
    if launcher in BUILT_IN or launcher == launch_options.launcher:
        return None
    return (
        "A launcher outside tempopt is queried only if you name it, since that runs its code. "
        "If you trust it, add --launcher package.module:Class, and its options with --launch KEY=VALUE."
    )


def _ray_address(row: JobRow) -> str | None:
    """Return the address of the Ray cluster that a job runs on, None for other launchers."""
    if row.launcher != "ray":
        return None
    return str(row.options.get("address")) if isinstance(row.options, dict) else "no address"


def _build_unknown_statuses(launcher: str, ids: Iterable[str], why: str) -> list[JobStatus]:
    return [JobStatus(launcher=launcher, id=id, state=UNKNOWN, message=why) for id in ids]


def _query_launcher(
    what: str, launcher: str, options: Mapping[str, str], started: Mapping[str, str | None]
) -> list[JobStatus]:
    question = json.dumps({"what": what, "launcher": launcher, "options": dict(options), "started": started})
    # -P: a module in the current folder must not replace that of an engine
    command = [sys.executable, "-P", "-m", "tempopt.launch.job_status"]
    timeout = _LEAVE_TIMEOUT_SECONDS if what == "cancel" else _QUERY_TIMEOUT_SECONDS
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {timeout:g} s"
    else:
        if done.returncode == 0:
            # an engine may print other lines before and after the answer
            answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)][-1]
            rows = json.loads(answers.removeprefix(_ANSWER))
            return [JobStatus(launcher=launcher, **row) for row in rows]
        reason = (done.stderr.strip().splitlines() or ["no reason is known"])[-1]
    return _build_unknown_statuses(launcher, started, reason)


def _answer(question: dict[str, Any]) -> list[dict[str, str]]:
    started = question["started"]
    with contextlib.closing(make_launcher(question["launcher"], question["options"])) as launcher:
        own_address = launcher.options.get("address")
        reachable_ids = [id for id, address in started.items() if address in (None, own_address)]
        if question["what"] == "cancel":
            launcher.cancel(reachable_ids)
        jobs = launcher.jobs(reachable_ids)
    answers = [{"id": job.id, "state": job.state, "message": job.message} for job in jobs]
    for id, address in started.items():
        if id not in reachable_ids:
            why = f"It was started on the Ray at {address}, but the Ray at {own_address} was queried."
            answers.append({"id": id, "state": UNKNOWN, "message": why})
    return answers


if __name__ == "__main__":
    print(_ANSWER + json.dumps(_answer(json.load(sys.stdin))), flush=True)
