"""The common part of runs of commands and of functions: the messages to the agent."""

from __future__ import annotations

import abc
import dataclasses
import hashlib
import math
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from tempopt.storage.run_code import RunCode
from tempopt.training.identity import git_commit, package_versions
from tempopt.training.messages import (
    Channel,
    Failed,
    Finished,
    ProgramRequest,
    Progress,
    Report,
    Started,
)

BEAT_SECONDS = 0.25
"""Minimum interval between two progress messages."""


class ProgramRun(abc.ABC):
    """One run of a program.

    Args:
        request: What to run.
        channel: Where to report.
    """

    def __init__(self, request: ProgramRequest, channel: Channel) -> None:
        self.request = request
        self.channel = channel
        self.reports: dict[int, float] = {}
        self.last_value: float | None = None
        self.last_step = 0
        self.has_diverged = False
        self._began = time.monotonic()
        self._last_message_at = -math.inf

    @abc.abstractmethod
    def check(self) -> None:
        """Refuse what cannot be started.

        Raises:
            SpecError: It cannot.
        """

    @abc.abstractmethod
    def execute(self) -> Finished | Failed:
        """Run it to its end.

        Raises:
            SpecError: It cannot be started, or what it returns is no value.
        """

    @abc.abstractmethod
    def source_files(self) -> Iterable[Path]:
        """Return the files that are known to hold the program's code."""

    def carry_out(self) -> Finished | Failed:
        """Check the program, and run it unless a check alone is requested."""
        self.check()
        return self.execute() if self.request.task == "train" else self.build_finished_message("complete")

    def send_started(self, earlier_reports: dict[int, float]) -> None:
        """Send that the run has started; its number of steps is unknown."""
        self.reports = dict(earlier_reports)
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.channel.send(
            Started(
                **self._run,
                step=0,
                total_steps=0,
                device=f"GPU {gpus}" if gpus else "cpu",
                precision="",
                layers=[],
                code=self._code().text,
                reports=self._report_pairs,
            )
        )

    def take_report(self, value: float, step: int) -> None:
        """Send a report; a value that is not finite ends the run as diverged."""
        self.last_step = step
        if not math.isfinite(value):
            self.has_diverged = True
            return
        self.reports[step], self.last_value = value, value
        metrics = {self.request.program.metric: value}
        self.channel.send(Report(**self._run, step=step, value=value, metrics=metrics))
        self._last_message_at = time.monotonic()

    def send_progress(self) -> None:
        """Send a progress message unless the last message is younger than BEAT_SECONDS."""
        now = time.monotonic()
        if now - self._last_message_at >= BEAT_SECONDS:
            self._last_message_at = now
            self.channel.send(Progress(**self._run, step=self.last_step))

    def build_ended_message(self, value: float) -> Finished:
        """Return the message of a run that has ended with a value."""
        return self.build_finished_message("complete" if math.isfinite(value) else "diverged", value)

    def build_early_end_message(self) -> Finished | None:
        """Return the message of a run that diverged or was stopped; None: it was neither."""
        if self.has_diverged:
            return self.build_finished_message("diverged")
        is_stopped = self.channel.find_stop(self.request) is not None
        return self.build_finished_message("stopped") if is_stopped else None

    def build_finished_message(
        self, state: Literal["complete", "stopped", "diverged"], value: float | None = None
    ) -> Finished:
        """Return the message of a run that ended without a failure."""
        values = {} if value is None or state != "complete" else dict.fromkeys(self.request.names, value)
        return Finished(
            **self._run,
            state=state,
            step=self.last_step,
            measurements=values,
            metrics={name: {self.request.program.metric: number} for name, number in values.items()},
            seconds=time.monotonic() - self._began,
            reports=self._report_pairs,
        )

    def build_failed_message(
        self,
        kind: Literal["usage", "error", "infrastructure", "no_value"],
        message: str,
        *,
        is_by_program: bool = False,
    ) -> Failed:
        """Return the message of a run that failed."""
        return Failed(**self._run, kind=kind, message=message, is_by_program=is_by_program)

    def find_last_report(self) -> float | None:
        """Return the last value of this attempt, else of the attempts before; None without a report."""
        has_earlier_alone = self.last_value is None and bool(self.reports)
        return self.reports[max(self.reports)] if has_earlier_alone else self.last_value

    @property
    def _run(self) -> dict[str, Any]:
        return {"ticket": self.request.ticket, "attempt": self.request.attempt}

    @property
    def _report_pairs(self) -> list[list[float]]:
        return [[step, value] for step, value in sorted(self.reports.items())]

    def _code(self) -> RunCode:
        """Return the identity of the code, from the source files that are known."""
        files = [path.absolute() for path in self.source_files() if path.is_file()]
        content = hashlib.blake2b(self.request.program.identity.encode(), digest_size=6)
        for path in files:
            content.update(path.read_bytes())
        commit, is_dirty = git_commit(files[0]) if files else (None, False)
        code = RunCode(identity=content.hexdigest(), packages=package_versions())
        return dataclasses.replace(code, commit=commit, is_dirty=is_dirty)
