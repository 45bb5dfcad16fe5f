"""What programs cost that run side by side: wall and CPU seconds, of all that they start too. Linux only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

_LOOK_EVERY = 0.1
_SUBREAPER = 36
_TICK = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What programs cost, from the start of the first to the end of the last.

    Args:
        wall: Seconds that it took.
        cpu: CPU seconds of all processes.
        daemons: Those of them that were spent by daemons.
        others: Cores that everybody else on the machine took meanwhile.
    """

    wall: float
    cpu: float
    daemons: float
    others: float


@dataclass(frozen=True)
class Process:
    """One line of the table of processes."""

    pid: int
    parent: int
    started: int
    seconds: float


def processes() -> dict[int, Process]:
    """Return all processes by id."""
    processes_by_pid = {}
    for entry in os.listdir("/proc"):  # noqa: PTH208  # ten times a second, of a few hundred
        if entry.isdecimal() and (process := process_of(int(entry))) is not None:
            processes_by_pid[process.pid] = process
    return processes_by_pid


def process_of(pid: int) -> Process | None:
    """Return a process, None if there is none of that id."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # the name of the program, in parentheses, may hold spaces
    fields = text.rpartition(")")[2].split()
    return Process(pid, int(fields[1]), int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICK)


class Watch:
    """Looks at all that descends from this process, again and again, and remembers what each has spent.

    Args:
        is_daemon: Given a command line, says whether it is a daemon's.
    """

    def __init__(self, is_daemon: Callable[[str], bool]) -> None:
        self._is_daemon = is_daemon
        self._seconds: dict[tuple[int, int], float] = {}
        self._daemons: dict[tuple[int, int], bool] = {}
        self._enough = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._enough.wait(_LOOK_EVERY):
            self._look()

    def _look(self) -> None:
        table = processes()
        children: dict[int, list[int]] = {}
        for process in table.values():
            children.setdefault(process.parent, []).append(process.pid)
        pids = list(children.get(os.getpid(), []))
        while pids:
            process = table[pids.pop()]
            pids += children.get(process.pid, [])
            key = (process.pid, process.started)
            self._seconds[key] = process.seconds
            # what a process is it becomes after it has begun, and when it has ended there is no telling
            if command := _command(process.pid):
                self._daemons[key] = self._is_daemon(command)

    def end(self) -> tuple[float, float]:
        """Return the CPU seconds of all processes that were seen, and of the daemons among them."""
        self._enough.set()
        self._thread.join()
        daemons = sum(seconds for key, seconds in self._seconds.items() if self._daemons.get(key))
        return sum(self._seconds.values()), daemons


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def run(
    commands: Sequence[Sequence[str]],
    *,
    folder: Path,
    environment: dict[str, str],
    is_daemon: Callable[[str], bool] = lambda command: False,
) -> Usage:
    """Run programs side by side in a folder; return what they cost, and all that they started.

    CPU time is known in two ways, and the larger counts: the kernel adds up exactly what was waited for
    by its parent, and a look at the table ten times a second misses of each process what it did after
    the last look. Ray waits for none of its workers, so that of its processes a little is missed.
    """
    # a process that outlives its parent becomes a child of this process, and can be seen and waited for
    ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)
    cpu_before, busy, clock = _waited_for(), _busy_seconds(), time.monotonic()
    watch = Watch(is_daemon)
    options = {"cwd": folder, "env": environment, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    processes = [subprocess.Popen(command, **options) for command in commands]
    outputs = [process.communicate()[0].decode() for process in processes]
    wall = time.monotonic() - clock
    _end_what_is_left()
    seen_cpu, daemons = watch.end()
    cpu = max(_waited_for() - cpu_before, seen_cpu)
    other_load = max(0.0, _busy_seconds() - busy - cpu) / (time.monotonic() - clock)
    for process, text in zip(processes, outputs, strict=True):
        assert process.returncode == 0, f"void: a program failed\n{text}"
    return Usage(wall=wall, cpu=cpu, daemons=daemons, others=other_load)


def _end_what_is_left() -> None:
    """Wait for what the programs have left behind, and end what does not end by itself."""
    deadline = time.monotonic() + 10.0
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            if time.monotonic() > deadline:
                for process in processes().values():
                    if process.parent == os.getpid():
                        os.kill(process.pid, signal.SIGKILL)
            time.sleep(0.05)


def _waited_for() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _busy_seconds() -> float:
    """Return the CPU seconds that this machine's cores have worked since it was started."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split()[1:8])
    return (user + nice + system + irq + softirq) / _TICK
