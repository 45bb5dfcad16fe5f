"""How the jobs of a study stand, and their end, asked of their launchers by another process.

A launcher may load a cluster's whole client, or wait for a cluster that is away: neither is for whoever only
looks. Run as ``python -m tempopt.launch.standing``, with what is asked on standard input.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tempopt.launch.find import make_launcher
from tempopt.records.rows import JobRow

_ANSWER = "tempopt: "
UNKNOWN = "unknown"
"""State of a job that cannot be asked after from here."""
_PATIENCE = 60.0
# an agent that is told to leave saves its runs first
_PATIENCE_TO_LEAVE = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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


def standing(rows: Sequence[JobRow]) -> list[Standing]:
    """Return how jobs stand, in the order in which they were given."""
    return _asked(rows, "jobs")


def cancelled(rows: Sequence[JobRow]) -> list[Standing]:
    """Have the agents of jobs leave, and return how they stand then, in the order that they were given in."""
    return _asked(rows, "cancel")


def _asked(rows: Sequence[JobRow], what: str) -> list[Standing]:
    asked: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        asked.setdefault((row.launcher, json.dumps(row.options)), []).append(row.id)
    found: dict[tuple[str, str], Standing] = {}
    for (launcher, options), ids in asked.items():
        for each in _ask(what, launcher, json.loads(options), ids):
            found[launcher, each.id] = each
    return [found[row.launcher, row.id] for row in rows]


def _ask(what: str, launcher: str, options: dict[str, str], ids: list[str]) -> list[Standing]:
    question = json.dumps({"what": what, "launcher": launcher, "options": options, "ids": ids})
    command = [sys.executable, "-m", "tempopt.launch.standing"]
    patience = _PATIENCE_TO_LEAVE if what == "cancel" else _PATIENCE
    try:
        done = subprocess.run(command, input=question, capture_output=True, text=True, timeout=patience)
    except subprocess.TimeoutExpired:
        reason = f"no answer within {patience:g} s"
    else:
        if done.returncode == 0:
            # an engine may print something of its own accord, before it and behind
            answers = [line for line in done.stdout.splitlines() if line.startswith(_ANSWER)][-1]
            found = json.loads(answers.removeprefix(_ANSWER))
            return [Standing(launcher=launcher, **each) for each in found]
        reason = (done.stderr.strip().splitlines() or ["no reason is known"])[-1]
    return [Standing(launcher=launcher, id=id, state=UNKNOWN, message=reason) for id in ids]


def _answer(question: dict[str, Any]) -> list[dict[str, str]]:
    with contextlib.closing(make_launcher(question["launcher"], question["options"])) as launcher:
        if question["what"] == "cancel":
            launcher.cancel(question["ids"])
        jobs = launcher.jobs(question["ids"])
    return [{"id": job.id, "state": job.state, "message": job.message} for job in jobs]


if __name__ == "__main__":
    print(_ANSWER + json.dumps(_answer(json.load(sys.stdin))), flush=True)
