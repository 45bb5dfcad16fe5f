"""A launcher that starts nothing: it keeps what it was given, and its jobs stand as a test says."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from tempopt.agent.machine import Machine
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.storage.opening import open_store
from tempopt.storage.store import Store


class RecordingLauncher(Launcher):
    """Has room for three trials of any kind, on machines far away."""

    name: ClassVar[str] = "recorder"
    OPTIONS: ClassVar[Mapping[str, str]] = {"partition": "where; default: anywhere"}
    is_multi_host = True
    survives_command = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self.rooms = [Machine(cores=3)]
        self.tasks: list[Task] = []
        self.cancelled: list[str] = []
        self.stand: list[Job] = []

    def machines(self) -> list[Machine]:
        return self.rooms

    def start(self, tasks: Sequence[Task]) -> list[str]:
        self.tasks += tasks
        return [f"7_{number}" for number in range(len(tasks))]

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        return [job for job in self.stand if job.id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids
        self.stand = [replace(job, state="gone") if job.id in ids else job for job in self.stand]


@pytest.fixture
def far_launcher() -> RecordingLauncher:
    """A launcher whose agents run elsewhere and outlive the program."""
    return RecordingLauncher({})


@pytest.fixture
def local_launcher() -> RecordingLauncher:
    """A launcher whose agents run on this machine, and end with the program."""
    launcher = RecordingLauncher({})
    launcher.is_multi_host = launcher.survives_command = False
    return launcher


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """An empty store, in the folder in which the test works."""
    monkeypatch.chdir(tmp_path)
    with open_store("sqlite:///tempopt.db", create=True) as store:
        yield store
