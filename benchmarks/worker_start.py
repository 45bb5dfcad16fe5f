"""What does it cost to start a worker, forked from a warm process and as a new interpreter?

CPU seconds of all processes together, from the start of a worker until it can be given a run.

    python -m benchmarks.worker_start
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tempopt.agent.placement import Placement
from tempopt.agent.process import WorkerProcess
from tempopt.agent.rank_process import COLD
from tempopt.training.messages import Ready

_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| a worker's start | CPU s, median | wall s, median |\n|---|---|---|")
    for name, costs in starts(arguments.repeat).items():
        cpu, wall = (statistics.median(series) for series in zip(*costs, strict=True))
        print(f"| {name} | {cpu:.2f} | {wall:.2f} |", flush=True)


def starts(repeat: int) -> dict[str, list[tuple[float, float]]]:
    """Return CPU and wall seconds of starts: the first forked one, later ones, and cold ones."""
    costs: dict[str, list[tuple[float, float]]] = {"first, forked": [], "later, forked": [], "cold": []}
    first_worker = _WorkerStart()
    costs["first, forked"].append(first_worker.cost)
    for _ in range(repeat):
        with _stop_worker(_WorkerStart()) as next_worker:
            costs["later, forked"].append(next_worker.cost)
    first_worker.worker.kill()
    with _cold():
        for _ in range(repeat):
            with _stop_worker(_WorkerStart()) as next_worker:
                costs["cold"].append(next_worker.cost)
    return costs


class _WorkerStart:
    """A worker that has been started, and what that took."""

    def __init__(self) -> None:
        cpu_before, clock = cpu_seconds(os.getpid()), time.monotonic()
        self.worker = WorkerProcess(slot=0, placement=Placement())
        assert isinstance(self.worker.receive(), Ready)
        self.cost = cpu_seconds(os.getpid()) - cpu_before, time.monotonic() - clock


@contextmanager
def _stop_worker(worker_start: _WorkerStart) -> Iterator[_WorkerStart]:
    try:
        yield worker_start
    finally:
        worker_start.worker.kill()


@contextmanager
def _cold() -> Iterator[None]:
    os.environ[COLD] = "1"
    try:
        yield
    finally:
        del os.environ[COLD]


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process and of all that it has started, ended or not (Linux only)."""
    stats: dict[int, tuple[int, float]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # the times of children that were waited for are in their parent's
        stats[int(path.parent.name)] = int(fields[1]), sum(map(int, fields[11:15])) / _TICK
    family = [pid]
    for family_pid in family:
        family += [child for child, (parent, _) in stats.items() if parent == family_pid]
    return sum(stats[pid][1] for pid in family if pid in stats)


if __name__ == "__main__":
    main()
