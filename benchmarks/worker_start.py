"""What does it cost to start a worker, forked from a warm process and as a new interpreter?

CPU seconds of all processes together, from the start of a worker until it can be given a run; and from
``tempopt search max_retrieval`` until each of its workers has begun a training, the dry run included.

    python -m benchmarks.worker_start
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tempopt.agent.placement import Placement
from tempopt.agent.process import WorkerProcess
from tempopt.agent.rank_process import COLD
from tempopt.errors import UsageError
from tempopt.storage.opening import open_store
from tempopt.training.messages import Ready

_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    print("| a worker's start | CPU s, median | wall s, median |\n|---|---|---|")
    for name, costs in starts(arguments.repeat).items():
        cpu, wall = (statistics.median(series) for series in zip(*costs, strict=True))
        print(f"| {name} | {cpu:.2f} | {wall:.2f} |", flush=True)
    print("\n| search with | forked, CPU s | cold, CPU s | forked, wall s | cold, wall s |")
    print("|---|---|---|---|---|")
    for count in arguments.workers:
        (forked_time, wall), (cold, wall_cold) = (
            begin_search(count, is_forked=True),
            begin_search(count, is_forked=False),
        )
        print(
            f"| {count} workers | {forked_time:.1f} | {cold:.1f} | {wall:.1f} | {wall_cold:.1f} |", flush=True
        )


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


def begin_search(workers: int, *, is_forked: bool) -> tuple[float, float]:
    """Return CPU and wall seconds of a search until each of its workers has begun a training."""
    words = ["search", "max_retrieval", "--workers", str(workers), "--set", "trainer.max_steps=100000"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **({} if is_forked else {COLD: "1"})}
    with tempfile.TemporaryDirectory() as folder:
        clock = time.monotonic()
        search = subprocess.Popen(
            [sys.executable, "-m", "tempopt", *words],
            cwd=folder,
            env={**environment, "PYTHONPATH": str(Path.cwd())},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        url = f"sqlite:///{folder}/tempopt.db"
        try:
            _wait(lambda: search.poll() is None, lambda: _at_work(url) >= workers)
            return cpu_seconds(search.pid), time.monotonic() - clock
        finally:
            search.send_signal(signal.SIGKILL)
            search.wait()
            # its workers end when they miss it
            time.sleep(1.0)


def _wait(lives: Callable[[], bool], condition: Callable[[], bool]) -> None:
    while not condition():
        assert lives(), "the search ended before its workers had begun"
        time.sleep(0.02)


def _at_work(url: str) -> int:
    try:
        with open_store(url, create=False) as store:
            rows = store.tickets(store.load_study("max_retrieval").id)
    except UsageError:
        return 0
    return sum(row.state == "running" and row.total_steps is not None for row in rows)


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
