"""Run one agent as a child process, and restart it when it dies; used by every launcher.

The agent ends with its launcher, so that it does not train on resources that are no longer its own.
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
"""Module that runs an agent, with its task on standard input."""
CLEAN_EXIT_CODES = (0, 130)
"""Exit codes of an agent that left gracefully: the study is done, or a stop was requested."""

_SHORT_LIFE_SECONDS = 60.0
_MAX_SHORT_LIVES = 5
_MAX_LINES = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitInfo:
    """The permanent end of an agent.

    Args:
        code: Exit code of the last process (negative: killed by that signal).
        message: Its last output if it ended with an error, else empty.
    """

    code: int
    message: str = ""

    @property
    def is_clean(self) -> bool:
        """Whether it left gracefully."""
        return self.code in CLEAN_EXIT_CODES

    def to_job(self, id: str) -> Job:
        """Return the job of the agent."""
        state: State = "done" if self.is_clean else "failed"
        return Job(id=id, state=state, message=self.message, code=self.code)


class RestartPolicy:
    """Restarts after growing pauses, until several lives in a row were short."""

    def __init__(self) -> None:
        self._pause = 1.0
        self._num_short_lives = 0

    def next_restart_delay(self, seconds: float) -> float | None:
        """Count a death, and return the seconds until the restart; None: do not restart.

        Args:
            seconds: Length of the life.
        """
        self._num_short_lives = self._num_short_lives + 1 if seconds < _SHORT_LIFE_SECONDS else 1
        if self._num_short_lives >= _MAX_SHORT_LIVES:
            return None
        pause, self._pause = self._pause, min(2 * self._pause, _SHORT_LIFE_SECONDS)
        return pause


class Supervisor:
    """Runs one task's agent; :meth:`run` returns when it has ended permanently.

    Args:
        task: The agent.
        output: File descriptor for its output; None: standard output of this process.
    """

    def __init__(self, task: Task, output: int | None = None) -> None:
        self._task = task
        self._output = output
        self._leaving = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def run(self) -> ExitInfo:
        """Run the agent, restart it if it dies, and return its permanent end."""
        restart_policy = RestartPolicy()
        while True:
            started_at = time.monotonic()
            ending = self._run_once()
            has_died = ending.code not in (*CLEAN_EXIT_CODES, 1, 2)
            if self._leaving.is_set():
                # a stop before the agent handled signals: no run had begun
                return ExitInfo(code=130) if ending.code == -signal.SIGTERM else ending
            if not has_died:
                return ending
            pause = restart_policy.next_restart_delay(time.monotonic() - started_at)
            if pause is None or self._leaving.wait(pause):
                return ending

    def leave(self) -> None:
        """Shut down the agent gracefully without a restart; kill it after its grace time."""
        with self._lock:
            self._leaving.set()
            process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            # the agent uses its grace time, and ends soon after
            process.wait(self._task.grace + 30.0)
        except subprocess.TimeoutExpired:
            process.kill()

    def _run_once(self) -> ExitInfo:
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
        """Copy the agent's standard error, and return its last lines."""
        last_lines: deque[str] = deque(maxlen=_MAX_LINES)
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
        # Ctrl-C in a terminal is handled by the process that launched the agent
        start_new_session=True,
    )
