"""How the jobs of a study stand, and their end, asked of their launchers by another process.

A launcher may load a cluster's whole client, or wait for a cluster that is away: neither is for a program
that only looks. Run as ``python -P -m tempopt.launch.job_status``, with what is asked on standard input.

A user who can write the database can write the row of a job. So a row's module is never imported, its options
are never used, and no address is connected to but the one that the person who asks has given.
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
"""State of a job that cannot be asked after from here."""
_PATIENCE = 60.0
# an agent that is asked to leave saves its runs first
_PATIENCE_TO_LEAVE = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job as it stands.

    Args:
        launcher: What its launcher is called.
        id: What the launcher calls it.
        state: As in :class:`tempopt.launch.launcher.Job`, or ``unknown``.
        message: Why it failed or what it waits for; why nothing is known.
    """

    launcher: str
    id: str
    state: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherSelection:
    """The launcher that a person has given to query jobs.

    Args:
        launcher: ``--launcher``; None: only those that need nothing from the person.
        options: ``--launch`` and ``--address``.
    """

    launcher: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def of(self, launcher: str) -> dict[str, str]:
        """Return the options for jobs of a launcher."""
        return dict(self.options) if launcher == self.launcher else {}


def query_job_status(rows: Sequence[JobRow], launch_options: LauncherSelection) -> list[JobStatus]:
    """Return the states of jobs, in the order in which they were given; ``unknown`` if not to be queried."""
    return _collect_job_statuses(rows, launch_options, "jobs")


def cancel_jobs(rows: Sequence[JobRow], launch_options: LauncherSelection) -> list[JobStatus]:
    """Cancel jobs, and return their states then, in the order in which they were given."""
    return _collect_job_statuses(rows, launch_options, "cancel")


def _collect_job_statuses(
    rows: Sequence[JobRow], launch_options: LauncherSelection, what: str
) -> list[JobStatus]:
    standings: dict[tuple[str, str], JobStatus] = {}
    for launcher in dict.fromkeys(row.launcher for row in rows):
        started = {row.id: _ray_address(row) for row in rows if row.launcher == launcher}
        options = launch_options.of(launcher)
        why = _refusal(launcher, options, launch_options)
        answers = _ask(what, launcher, options, started) if why is None else _unknown(launcher, started, why)
        standings |= {(launcher, answer.id): answer for answer in answers}
    return [standings[row.launcher, row.id] for row in rows]


def _refusal(launcher: str, options: Mapping[str, str], launch_options: LauncherSelection) -> str | None:
    """Return why a launcher is not queried, None if it is."""
    if launcher == "ray" and (options.get("address") or os.environ.get("RAY_ADDRESS") or "local") == "local":
        return (
            "Jobs on Ray are asked after at an address that you give, not at one that the database names. "
            "Add --address URL, or set RAY_ADDRESS."
        )
    if launcher in BUILT_IN or launcher == launch_options.launcher:
        return None
    return (
        "A launcher that does not come with tempopt is asked only if you name it, since that runs its code. "
        "If you trust it, add --launcher package.module:Class, and its options with --launch KEY=VALUE."
    )


def _ray_address(row: JobRow) -> str | None:
    """Return the address of the Ray cluster that a job runs on, None for other launchers."""
    if row.launcher != "ray":
        return None
    return str(row.options.get("address")) if isinstance(row.options, dict) else "no address"


def _unknown(launcher: str, ids: Iterable[str], why: str) -> list[JobStatus]:
    return [JobStatus(launcher=launcher, id=id, state=UNKNOWN, message=why) for id in ids]


def _ask(
    what: str, launcher: str, options: Mapping[str, str], started: Mapping[str, str | None]
) -> list[JobStatus]:
    question = json.dumps({"what": what, "launcher": launcher, "options": dict(options), "started": started})
    # -P: a module in the current folder takes no engine's place
    command = [sys.executable, "-P", "-m", "tempopt.launch.job_status"]
    patience = _PATIENCE_TO_LEAVE if what == "cancel" else _PATIENCE
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {patience:g} s"
    else:
        if done.returncode == 0:
            # an engine may print something of its own accord, before it and behind
            answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)][-1]
            rows = json.loads(answers.removeprefix(_ANSWER))
            return [JobStatus(launcher=launcher, **row) for row in rows]
        reason = (done.stderr.strip().splitlines() or ["no reason is known"])[-1]
    return _unknown(launcher, started, reason)


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
            why = f"It was started on the Ray at {address}, and the one that was asked is at {own_address}."
            answers.append({"id": id, "state": UNKNOWN, "message": why})
    return answers


if __name__ == "__main__":
    print(_ANSWER + json.dumps(_answer(json.load(sys.stdin))), flush=True)
