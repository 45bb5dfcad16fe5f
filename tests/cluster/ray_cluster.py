"""A Ray of the tests' own: two nodes on this machine that declare CPUs and GPUs, of which one can be lost.

It has to come up, and to be reached, on a machine that does much else at the same time.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import random
import shutil
import signal
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers import descendants, strike

PATIENTLY = pytest.mark.timeout(1800, func_only=True)
"""Time limit of a test that needs a cluster, without the time for which it waits for others' to end."""

CPUS, GPUS = 2, 2
"""What each node declares, whatever this machine has."""

_STORE = 80 * 2**20

# gRPC's handlers of fork crash what a process with other threads in gRPC starts: nodes, and the servers of
# ray:// (ray-project/ray issue 63202). Read when gRPC is first used, so set before any test has begun.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

_PATIENT = {
    # seconds that one service gives another to answer, and a new worker to report
    "RAY_gcs_server_request_timeout_seconds": "180",
    "RAY_worker_register_timeout_seconds": "180",
    # a node waits so long for its own helpers, and ends without them
    "RAY_agent_register_timeout_ms": "180000",
    # else what else runs here leaves Ray's workers hardly any time
    "RAY_worker_niceness": "0",
    # else Ray ends agents when other programs have taken the memory
    "RAY_memory_monitor_refresh_ms": "0",
}
_PATIENCE = 180.0
_LOCK_PATIENCE = 3600.0
_TRIES = 3


def why_not() -> str:
    """Return why there can be no cluster here, and how to get it; empty if there can."""
    if importlib.util.find_spec("ray") is None:
        return "NOT TESTED on Ray: it is not installed. Run: pip install 'tempopt[ray]'"
    return ""


class RayCluster:
    """A head node and another; the programs of this process find no other Ray by ``auto``.

    Args:
        with_clients: Whether it is reached by ``ray://``, too.
    """

    def __init__(self, *, with_clients: bool = False) -> None:
        from ray.cluster_utils import Cluster

        port = _free_port() if with_clients else None
        self.cluster = Cluster()
        self.client_address = f"ray://127.0.0.1:{port}"
        try:
            self.head = self.add(ray_client_server_port=port)
            self.second_node = self.add()
            if port is not None:
                _wait_for(port)
        except BaseException:
            self.cluster.shutdown()
            raise

    @property
    def address(self) -> str:
        return str(self.cluster.address)

    def add(self, **options: Any) -> Any:
        """Add a node and return it once it is there; ``more`` is what Ray is told of it, besides."""
        with _sigterm_kept(), _patiently(), warnings.catch_warnings():
            # Ray leaves the log of its server for clients open
            warnings.simplefilter("ignore", ResourceWarning)
            node = self.cluster.add_node(
                wait=False,
                num_cpus=CPUS,
                num_gpus=GPUS,
                object_store_memory=_STORE,
                include_dashboard=False,
                # what no test asks here takes as long to start as what is asked
                include_log_monitor=False,
                no_monitor=True,
                **options,
            )
            # what waits by default gives up after half a minute
            self.cluster._wait_for_node(node, timeout=_PATIENCE)
            return node

    def remove(self, node: Any) -> list[int]:
        """End a node as a power cut would, and return the processes that its workers had started."""
        pids = descendants(raylet(node))
        self.cluster.remove_node(node, allow_graceful=False)
        return pids


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
    previous_handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _free_port() -> int:
    """Return a port that nothing listens on, and that the system does not give out as a free one."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for port in random.SystemRandom().sample(range(24_100, low), 100):
        with contextlib.suppress(OSError), socket.create_server(("0.0.0.0", port)):
            return port
    raise RuntimeError(f"No port between 24100 and {low} is free.")


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=10.0).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


@contextlib.contextmanager
def no_other() -> Iterator[None]:
    """Wait until no other test on this machine has a cluster, and keep others from starting one.

    All would take the ports from 23000 on, and ``auto`` finds any process of Ray.

    Raises:
        RuntimeError: Another has one for longer than any test takes.
    """
    path = Path(tempfile.gettempdir()) / f"tempopt-tests-ray-{os.getuid()}.lock"
    deadline = time.monotonic() + _LOCK_PATIENCE
    with path.open("a") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{path} is locked: another test has a Ray cluster.") from None
                time.sleep(0.2)
        yield


@contextlib.contextmanager
def _patiently() -> Iterator[None]:
    """Have Ray wait for a node that it starts: by itself it gives up after half a minute."""
    from ray._private import services

    original_get_node = services.get_node

    def get_node(*args: Any) -> Any:
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                return original_get_node(*args)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(services, "get_node", get_node)
        yield


def _start_cluster(*, with_clients: bool) -> RayCluster:
    """Start a cluster, again if a node does not come up."""
    pids_before = descendants(os.getpid())
    for num_left in reversed(range(_TRIES)):
        try:
            return RayCluster(with_clients=with_clients)
        except Exception:
            # Ray gives no hold of a node that has started by half
            for pid in descendants(os.getpid()):
                if pid not in pids_before:
                    strike(pid, signal.SIGKILL)
            if not num_left:
                raise
    raise AssertionError("unreachable")


@contextlib.contextmanager
def run_cluster(*, with_clients: bool = False) -> Iterator[RayCluster]:
    """Run a cluster, the only one of this machine's tests at a time.

    Its nodes ask for a token if RAY_AUTH_MODE and RAY_AUTH_TOKEN_PATH were set when this program began.

    Args:
        with_clients: Whether the head node serves ``ray://``.
    """
    # sockets are in there, whose paths may not be long
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    with no_other(), pytest.MonkeyPatch.context() as patch:
        # where Ray notes which cluster of this machine is the last one, too
        for name, value in {**_PATIENT, "RAY_TMPDIR": folder}.items():
            patch.setenv(name, value)
        ray_cluster = None
        try:
            ray_cluster = _start_cluster(with_clients=with_clients)
            yield ray_cluster
        finally:
            if ray_cluster is not None:
                ray_cluster.cluster.shutdown()
            shutil.rmtree(folder, ignore_errors=True)
