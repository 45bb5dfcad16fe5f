"""One agent in a process of its own, started again when it dies; what every launcher runs where it has room.

It ends with its launcher: an agent without one would train where it was given no room.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tempopt.launch.launcher import Job, State, Task

AGENT_MODULE = "tempopt.cli.agent_entrypoint"
"""Module that is run as an agent, with its task on standard input."""
CLEAN_EXIT_CODES = (0, 130)
"""Exit codes of an agent that left in good order: the study is done, or it was told to leave."""

_SHORT_LIFE = 60.0
_SHORT_LIVES = 5
_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """How an agent ended for good.

    Args:
        code: Exit code of the last process (negative: killed by that signal).
        message: What it said last if that was an error, else empty.
    """

    code: int
    message: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it left in good order."""
        return self.code in CLEAN_EXIT_CODES

    def to_job(self, id: str) -> Job:
        """Return the job of the agent that ended so."""
        state: State = "done" if self.is_clean else "failed"
        return Job(id=id, state=state, message=self.message, code=self.code)


class RestartPolicy:
    """When what has died is started again: after pauses that grow, until several short lives are in a row."""

    def __init__(self) -> None:
        self._pause = 1.0
        self._short = 0

    def next_restart_delay(self, seconds: float) -> float | None:
        """Count a death; return the seconds until the restart, None if there is none.

        Args:
            seconds: For how long it had lived.
        """
        self._short = self._short + 1 if seconds < _SHORT_LIFE else 1
        if self._short >= _SHORT_LIVES:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _SHORT_LIFE)
        return pause


class Supervisor:
    """Runs one task's agent; :meth:`run` returns when it has ended for good.

    Args:
        task: The agent.
        output: File descriptor that gets what it prints; None: this process's own standard output.
    """

    def __init__(self, task: Task, output: int | None = None) -> None:
        self._task = task
        self._output = output
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> ExitInfo:
        """Run the agent, again and again if it dies, and return how it ended for good."""
        lives = RestartPolicy()
        while True:
            began = time.monotonic()
            ending = self._once()
            has_died = ending.code not in (*CLEAN_EXIT_CODES, 1, 2)
            if self._leaving.is_set():
                # one that was told before it could listen had nothing to leave undone
                return ExitInfo(code=130) if ending.code == -signal.SIGTERM else ending
            if not has_died:
                return ending
            pause = lives.next_restart_delay(time.monotonic() - began)
            if pause is None or self._leaving.wait(pause):
                return ending

    def leave(self) -> None:
        """Have the agent checkpoint and leave, and do not start it again; killed once its grace is over."""
        with self._lock:
            self._leaving.set()
            process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            # the agent uses up its grace; what comes after it is quick
            process.wait(self._task.grace + 30.0)
        except subprocess.TimeoutExpired:
            process.kill()

    def _once(self) -> ExitInfo:
        with self._lock:
            if self._leaving.is_set():
                return ExitInfo(code=130)
            self._process = process = _start_agent(self._task, self._output)
        assert process.stdin is not None and process.stderr is not None
        with process.stdin, process.stderr:
            with contextlib.suppress(BrokenPipeError):
                process.stdin.write(json.dumps(dataclasses.asdict(self._task)).encode() + b"\n")
                process.stdin.flush()
            lines = self._forward_stderr(process.stderr)
            code = process.wait()
        message = "" if code in CLEAN_EXIT_CODES else "\n".join(lines)
        if code < 0 and not message:
            message = f"the agent was killed by {signal.Signals(-code).name}"
        return ExitInfo(code=code, message=message)

    def _forward_stderr(self, stream: IO[bytes]) -> deque[str]:
        """Copy the agent's standard error, and return the last lines of it."""
        last_lines: deque[str] = deque(maxlen=_LINES)
        for line in stream:
            last_lines.append(line.decode(errors="replace").rstrip("\n"))
            os.write(sys.stderr.fileno() if self._output is None else self._output, line)
        return last_lines


def _start_agent(task: Task, output: int | None) -> subprocess.Popen[bytes]:
    folder = task.folder if task.folder is not None and Path(task.folder).is_dir() else None
    return subprocess.Popen(
        [sys.executable, "-m", AGENT_MODULE],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={**os.environ, **task.environment},
        # Ctrl-C in a terminal is for the process that launched it to handle
        start_new_session=True,
    )
