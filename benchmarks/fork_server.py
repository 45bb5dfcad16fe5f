"""Does a worker of multiprocessing's fork server cost as much as one that is forked from the zygote?

CPU seconds of all processes together and wall seconds, from the start of a worker until it can be given a
run, in pairs.

    python -c "from benchmarks.fork_server import main; main()"
"""

from __future__ import annotations

import contextlib
import importlib
import math
import multiprocessing
import os
import signal
import socket
import statistics
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.worker_start import cpu_seconds
from tempopt.workers import process
from tempopt.workers.messages import Ready
from tempopt.workers.placement import Placement
from tempopt.workers.rank_process import RankProcess, start_rank

_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOAD = ["torch", *(f"tempopt.training.{name}" for name in ("dry_run", "gpu_memory", "ranks", "worker"))]
# what a worker is started with would else be imported in each
_PRELOAD.append("benchmarks.fork_server")
_PAIRS = 40


def main() -> None:
    """Measure and print."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    _CONTEXT.set_forkserver_preload(_PRELOAD)
    starts: dict[str, Callable[..., RankProcess]] = {"zygote": start_rank, "fork server": ServedRank}
    for name, start in starts.items():
        print("first start, {}: CPU {:.2f} s, wall {:.2f} s".format(name, *_cost(start)), flush=True)
    costs: dict[str, list[tuple[float, float]]] = {name: [] for name in starts}
    for pair in range(_PAIRS):
        for name in list(starts)[:: 1 if pair % 2 else -1]:
            costs[name].append(_cost(starts[name]))
    for name, pairs in costs.items():
        cpu, wall = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(f"later, {name}: CPU {cpu:.3f} s, wall {wall:.3f} s, medians")
    for number, unit in enumerate(("CPU", "wall")):
        gaps = [served[number] - forked[number] for forked, served in zip(*costs.values(), strict=True)]
        error = statistics.stdev(gaps) / math.sqrt(len(gaps))
        print(f"fork server less zygote, {unit}: {statistics.mean(gaps):+.4f} s, standard error {error:.4f}")


def _cost(start: Callable[..., RankProcess]) -> tuple[float, float]:
    process.start_rank = start  # type: ignore[attr-defined]
    before, clock = cpu_seconds(os.getpid()), time.monotonic()
    worker = process.WorkerProcess(slot=0, place=Placement())
    assert isinstance(worker.receive(), Ready)
    cost = cpu_seconds(os.getpid()) - before, time.monotonic() - clock
    worker.kill()
    return cost


class ServedRank:
    """A process that multiprocessing's fork server has forked."""

    def __init__(self, environment: Mapping[str, str], store: Path | None = None) -> None:
        ours, theirs = socket.socketpair()
        line = Connection(theirs.detach())
        self._process = _CONTEXT.Process(
            target=_serve, args=(line, dict(environment), str(Path.cwd()), store and str(store))
        )
        self._process.start()
        line.close()
        self.connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process.pid is not None
        return self._process.pid

    def end(self) -> None:
        """Kill the process group; does not wait."""
        # its number may be another process's by now, and the group's too
        for kill in (os.kill, os.killpg):
            with contextlib.suppress(ProcessLookupError):
                kill(self.pid, signal.SIGKILL)

    def wait(self) -> int:
        """Wait until the process has ended; return the exit code, -N for signal N."""
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode


def _serve(line: Connection, environment: dict[str, str], folder: str, store: str | None) -> None:
    from tempopt.training.lightning_internals import set_rank
    from tempopt.training.worker import main as serve
    from tempopt.workers.class_paths import find_modules_in

    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    find_modules_in(folder)
    importlib.invalidate_caches()
    set_rank(int(environment.get("RANK", 0)))
    serve(os.dup(line.fileno()), store and Path(store))
