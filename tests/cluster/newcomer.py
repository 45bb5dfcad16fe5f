"""The way of a team's first day: a server on one machine, an agent on another, a person at a third."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.cluster.crew import PATIENCE, wait_until
from tests.cluster.network import Machine
from tests.cluster.studies import environment, tempopt

_KNOCK = """
import socket, sys
for port in sys.argv[2:]:
    try:
        socket.create_connection((sys.argv[1], int(port)), timeout=5).close()
    except OSError:
        continue
    print(port)
"""
# What is mounted in a command's place is seen by no other process.
_HIDDEN = 'mount -t tmpfs none "$0" && exec "$@"'


def free_port(host: str) -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Seat:
    """A machine with a folder, a home and a person at it.

    Args:
        folder: Made if it is not there.
        machine: Where its commands run; None: this machine.
        hidden: A folder of another machine, which is not to be seen here.
        more: Environment variables that are set here.
    """

    folder: Path
    machine: Machine | None = None
    hidden: Path | None = None
    more: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (self.folder / "home").mkdir(parents=True, exist_ok=True)
        self.processes: list[subprocess.Popen[bytes]] = []

    @property
    def log(self) -> Path:
        """File with what the commands printed."""
        return self.folder / "printed.log"

    def words(self, command: list[str]) -> list[str]:
        """Return the command line that has a command carried out here."""
        if self.hidden is not None:
            command = ["unshare", "--mount", "sh", "-c", _HIDDEN, str(self.hidden), *command]
        return [*(self.machine.prefix if self.machine else ()), *command]

    def environment(self) -> dict[str, str]:
        """Return the environment of its commands, with no credentials of this machine."""
        env_vars = environment(HOME=str(self.folder / "home"))
        for name in list(env_vars):
            if name.startswith(("AWS_", "XDG_")):
                del env_vars[name]
        return env_vars | dict(self.more)

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Start a tempopt command, which adds to the log."""
        with self.log.open("ab") as output:
            process = subprocess.Popen(
                self.words(tempopt(*words)),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def output(self, command: list[str]) -> str:
        """Return what a command prints, which ends well; its messages go to the log."""
        with self.log.open("ab") as messages:
            process = subprocess.run(
                self.words(command),
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=messages,
                timeout=PATIENCE,
            )
        assert process.returncode == 0, self.log_text()
        return process.stdout.decode()

    def reachable_ports(self, address: str, ports: list[int]) -> list[int]:
        """Return which of these ports of an address can be reached from here."""
        reached_ports = self.output([sys.executable, "-c", _KNOCK, address, *map(str, ports)])
        return [int(port) for port in reached_ports.split()]

    def end(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit code of a command, once it has ended."""
        wait_until(lambda: process.poll() is not None, "the end of a command")
        code: int = process.returncode
        return code

    def log_text(self) -> str:
        """Return what the commands printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def close(self) -> None:
        """End what is left, agents with their workers."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=PATIENCE)
            if process.poll() is None:
                process.kill()
                process.wait()


class ProcessList:
    """Looks at the command lines of all processes, as ``ps`` shows them, while it is entered.

    Args:
        needles: What is looked for.
    """

    def __init__(self, needles: list[str]) -> None:
        self.matches: set[str] = set()
        self.looks = 0
        self._needles = [needle.encode() for needle in needles]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> ProcessList:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.05):
            self.looks += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    words = path.read_bytes()
                    if any(needle in words for needle in self._needles):
                        self.matches.add(words.replace(b"\0", b" ").decode(errors="replace"))


def holders(folder: Path, needles: list[str], *, but: set[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the files below a folder that hold one of these texts, but for those that ought to."""
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and path not in but:
            data = path.read_bytes()
            yield from ((path, needle) for needle in needles if needle.encode() in data)


def answers(host: str, port: int) -> bool:
    """Return whether a process listens there."""
    with contextlib.suppress(OSError), socket.create_connection((host, port), timeout=5):
        return True
    return False


@contextlib.contextmanager
def listener(host: str) -> Iterator[int]:
    """Yield a port on which something listens that is no business of others."""
    with socket.socket() as sock:
        sock.bind((host, 0))
        sock.listen()
        port: int = sock.getsockname()[1]
        yield port


def wait_for(host: str, port: int, process: subprocess.Popen[bytes], log_path: Path) -> None:
    """Wait until a server that was started listens."""
    deadline = time.monotonic() + PATIENCE
    while not answers(host, port):
        assert process.poll() is None, log_path.read_text(errors="replace")
        assert time.monotonic() < deadline, f"no server listens: {log_path.read_text(errors='replace')}"
        time.sleep(0.05)


def private(path: Path, text: str) -> Path:
    """Write a file that no other user may read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write(text)
    return path
