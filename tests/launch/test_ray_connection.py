"""Connections to Ray that fail: which are tried again, what is said in the end, and what is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import UsageError
from tempopt.launch.registry import make_launcher
from tests.cluster import ray_cluster
from tests.cluster.ray_cluster import RayCluster
from tests.servers import strike

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

_CLIENT_START_FAILED = (
    "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs."
)


class Cluster:
    """Answers at an address, and does to each try to connect what a test says."""

    def __init__(self, outcomes: list[BaseException | None]) -> None:
        self.outcomes = outcomes
        self.tries = 0
        self.shut = 0

    def init(self, **_: Any) -> None:
        self.tries += 1
        outcome = self.outcomes[min(self.tries, len(self.outcomes)) - 1]
        if outcome is not None:
            raise outcome

    def shutdown(self) -> None:
        self.shut += 1


@pytest.fixture
def connect_to(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Returns what connects to a cluster with given outcomes."""
    from tempopt.launch import ray_connection

    monkeypatch.setattr(ray_connection, "_PAUSE", 0.0)
    monkeypatch.setattr(ray_connection, "_listening", lambda address: "127.0.0.1:1")
    monkeypatch.setattr(ray_connection.ray_token, "negotiate_token", lambda *_: True)
    monkeypatch.setattr(ray_connection.ray, "is_initialized", lambda: False)

    def connect(*outcomes: BaseException | None) -> tuple[Cluster, Any]:
        fake_cluster = Cluster(list(outcomes))
        monkeypatch.setattr(ray_connection.ray, "init", fake_cluster.init)
        monkeypatch.setattr(ray_connection.ray, "shutdown", fake_cluster.shutdown)
        connection = ray_connection.SharedRayConnection()
        return fake_cluster, lambda: connection.acquire("ray://head:10001", None, None)

    yield connect


@pytest.mark.parametrize("failures", [1, 2, 4])
def test_a_connection_that_failed_for_a_passing_reason_is_tried_again(
    connect_to: Any, capsys: pytest.CaptureFixture[str], failures: int
) -> None:
    cluster, take = connect_to(*[ConnectionAbortedError(_CLIENT_START_FAILED)] * failures, None)
    take()
    assert (cluster.tries, cluster.shut) == (failures + 1, failures)
    stderr_lines = capsys.readouterr().err.splitlines()
    assert len(stderr_lines) == failures
    assert (
        stderr_lines[0]
        == "tempopt: Ray at ray://head:10001 has not taken the connection; trying again (2 of 5)"
    )


def test_a_connection_that_never_comes_about_is_given_up_with_the_cause_and_the_remedy(
    connect_to: Any,
) -> None:
    cluster, take = connect_to(ConnectionAbortedError(_CLIENT_START_FAILED))
    with pytest.raises(
        UsageError, match="address=ray://head:10001: tried 5 times: .*client server failed"
    ) as error:
        take()
    assert (cluster.tries, cluster.shut) == (5, 5)
    assert "GRPC_ENABLE_FORK_SUPPORT=0" in str(error.value)


def test_what_would_fail_again_is_tried_once(connect_to: Any, capsys: pytest.CaptureFixture[str]) -> None:
    cluster, take = connect_to(RuntimeError("Version mismatch: the cluster has Ray 2.52."))
    with pytest.raises(UsageError, match=r"Version mismatch: the cluster has Ray 2.52. Give HOST:PORT"):
        take()
    assert (cluster.tries, cluster.shut, capsys.readouterr().err) == (1, 1, "")


def test_an_exception_without_a_message_is_named(connect_to: Any) -> None:
    _, take = connect_to(AssertionError())
    with pytest.raises(
        UsageError, match="address=ray://head:10001: AssertionError without a message, raised in init"
    ):
        take()


def test_ctrl_c_is_not_tried_again_and_leaves_no_half_of_a_connection(connect_to: Any) -> None:
    cluster, take = connect_to(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take()
    assert (cluster.tries, cluster.shut) == (1, 1)


@contextlib.contextmanager
def _servers_killed(max_kills: int) -> Iterator[list[int]]:
    """Kill the first processes, ``most`` of them, that a head node starts for programs that connect."""
    killed_pids: list[int] = []
    finish = threading.Event()

    def watch() -> None:
        while not finish.is_set() and len(killed_pids) < max_kills:
            for process_folder in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    is_one = b"--mode=specific-server" in (process_folder / "cmdline").read_bytes()
                    if (
                        is_one
                        and int(process_folder.name) not in killed_pids
                        and strike(int(process_folder.name), signal.SIGKILL)
                    ):
                        killed_pids.append(int(process_folder.name))
            time.sleep(0.001)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield killed_pids
    finally:
        finish.set()
        watching.join()


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes that serve ray://."""
    with ray_cluster.run_cluster(with_clients=True) as running_cluster:
        yield running_cluster


@pytest.mark.long
def test_a_client_server_that_dies_is_another_the_next_time(
    cluster: RayCluster, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from tempopt.launch import ray_connection

    with monkeypatch.context() as patch, _servers_killed(10) as killed_pids:
        patch.setattr(ray_connection, "_TRIES", 1)
        with pytest.raises(UsageError, match="tried once: .*GRPC_ENABLE_FORK_SUPPORT=0"):
            make_launcher("ray", {"address": cluster.client_address})
    assert killed_pids
    # what failed is not in the way of another kind of connection
    for address in (cluster.address, "auto"):
        launcher = make_launcher("ray", {"address": address})
        assert launcher.has_gpus()
        launcher.close()
    with _servers_killed(1) as killed_pids:
        launcher = make_launcher("ray", {"address": cluster.client_address})
    assert len(killed_pids) == 1 and launcher.has_gpus()
    launcher.close()
    assert "trying again (2 of 5)" in capfd.readouterr().err
    assert "RAY_ADDRESS" not in os.environ
