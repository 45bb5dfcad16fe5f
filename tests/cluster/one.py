"""One tempopt command at a time, with a study held at a pace, and what its runs and the store say of it."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tempopt.storage.rows import TicketRow
from tests.cluster import studies
from tests.cluster.crew import PATIENCE, wait_until


@dataclass
class Shell:
    """A folder in which commands are given, on this machine or on another.

    Args:
        folder: Made if it is not there.
        prefix: Words that lead to the machine.
        variables: Environment variables that are set for the commands.
    """

    folder: Path
    prefix: Sequence[str] = ()
    variables: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> Path:
        """File with what the commands printed."""
        return self.folder / "output.txt"

    def environment(self) -> dict[str, str]:
        """Return the environment of the commands."""
        return studies.environment(**self.variables)

    def run(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a tempopt command, which adds to the log."""
        command = [*self.prefix, *studies.tempopt(*words)]
        process = studies.spawn(command, self.folder, self.log, self.environment())
        self.processes.append(process)
        return process

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a command, once it has ended."""
        wait_until(lambda: process.poll() is not None, "the end of a command")
        code: int = process.returncode
        return code

    def log_text(self) -> str:
        """Return what the commands printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """Kill what is left; workers end with their agents."""
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGKILL)
            process.wait(timeout=PATIENCE)


class Site(Shell):
    """A shell whose commands work on a study, at a pace that can be set.

    Args:
        folder: Made if it is not there.
        url: The study's database.
        prefix: Words that lead to the machine.
    """

    def __init__(self, folder: Path, url: str, prefix: Sequence[str] = ()) -> None:
        super().__init__(folder, prefix, {"PACE": str(folder / "pace"), "TRACE": str(folder / "trace")})
        self.url = url

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a tempopt command that works on the study with one worker."""
        return self.run(*words, "--storage", self.url, "--workers", "1")

    def search(self, spec: dict[str, Any]) -> subprocess.Popen[bytes]:
        """Begin a study that is held."""
        self.hold()
        return self.start("search", studies.write_spec(self.folder, spec))

    def hold(self) -> None:
        """Let the second search ticket and later ones wait in their middle until a pace is set."""
        studies.set_pace(self.folder, 0.03, held_from=1, held_at=studies.STEPS // 2)

    def set_pace(self, seconds: float) -> None:
        """Let every training step last so much longer than it does."""
        studies.set_pace(self.folder, seconds)

    def catch(self) -> TicketRow:
        """Return a search ticket at work that has a checkpoint, once another is done."""
        running_rows: list[TicketRow] = []

        def is_there() -> bool:
            rows = self._search()
            running_rows[:] = [row for row in rows if row.state == "running" and row.checkpoints]
            return bool(running_rows) and any(row.state == "done" for row in rows)

        wait_until(is_there, "a search ticket at work with a checkpoint")
        return running_rows[0]

    def _search(self) -> list[TicketRow]:
        assert any(process.poll() is None for process in self.processes), self.log_text()
        return [row for row in studies.read_tickets(self.url) if row.kind == "search"]

    def steps(self, ticket: TicketRow) -> list[int]:
        """Return the steps that were trained here for a ticket, in their order."""
        assert ticket.parameters is not None
        trace = (self.folder / "trace").read_text() if (self.folder / "trace").exists() else ""
        first = repr(ticket.parameters["temperature_init"])
        return [int(step) for ticket_name, step in map(str.split, trace.splitlines()) if ticket_name == first]
