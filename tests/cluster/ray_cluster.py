"""A Ray of the tests' own: two nodes on this machine that declare CPUs and GPUs, of which one can be lost."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.servers import descendants

CPUS, GPUS = 2, 2
"""What each node declares, whatever this machine has."""

_STORE = 80 * 2**20


def why_not() -> str:
    """Return why there can be no cluster here, and how to get it; empty if there can."""
    if importlib.util.find_spec("ray") is None:
        return "NOT TESTED on Ray: it is not installed. Run: pip install 'tempopt[ray]'"
    return ""


class RayCluster:
    """A head node and another; the programs of this process find no other Ray by ``auto``."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster()
        self.head = self.add()
        self.other = self.add()

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self) -> Any:
        """Add a node and return it once it is there."""
        with _sigterm_kept():
            return self.cluster.add_node(
                num_cpus=CPUS, num_gpus=GPUS, object_store_memory=_STORE, include_dashboard=False
            )

    def remove(self, node: Any) -> list[int]:
        """End a node as a power cut would, and return the processes that its workers had started."""
        found = descendants(raylet(node))
        self.cluster.remove_node(node, allow_graceful=False)
        return found


def raylet(node: Any) -> int:
    """Return the process of a node of which all its others descend."""
    pid: int = node.all_processes["raylet"][0].process.pid
    return pid


def parent(pid: int) -> int:
    """Return the process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def variable(pid: int, name: str) -> str | None:
    """Return a variable of a process's environment."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(pair.partition("=")[::2] for pair in pairs).get(name)


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    kept = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, kept)


@contextlib.contextmanager
def running(shared: Path) -> Iterator[RayCluster]:
    """Run a cluster, the only one at a time of all processes that share a folder."""
    # sockets are in there, whose paths may not be long
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    before = os.environ.get("RAY_TMPDIR")
    with (shared / "ray.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # where Ray notes which cluster of this machine is the last one, too
        os.environ["RAY_TMPDIR"] = folder
        made = None
        try:
            made = RayCluster()
            yield made
        finally:
            if made is not None:
                made.cluster.shutdown()
            if before is None:
                del os.environ["RAY_TMPDIR"]
            else:
                os.environ["RAY_TMPDIR"] = before
            shutil.rmtree(folder, ignore_errors=True)
