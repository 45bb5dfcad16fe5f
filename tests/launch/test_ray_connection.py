"""Addresses, options and connections of Ray that fail: what is tried again, what is said and left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from tempopt.errors import UsageError
from tempopt.launch.registry import make_launcher
from tests.cluster import ray_cluster
from tests.cluster.ray_cluster import RayCluster
from tests.servers import strike

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

# as Ray 2.60 has them
_CLIENT_START_FAILED = (
    "RuntimeError: Starting Ray client server failed. See ray_client_server_23000.err for detailed logs."
)


@pytest.fixture
def connect_to(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns what gives ray.init with these outcomes, the last one again and again, and ray.shutdown."""
    from tempopt.launch import ray_connection

    monkeypatch.setattr(ray_connection, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(ray_connection, "_check_listening", lambda address: None)
    monkeypatch.setattr(ray_connection.ray, "is_initialized", lambda: False)

    def prepare(*outcomes: BaseException | None) -> tuple[Mock, Mock, Any]:
        init, shutdown = Mock(side_effect=chain(outcomes, repeat(outcomes[-1]))), Mock()
        monkeypatch.setattr(ray_connection.ray, "init", init)
        monkeypatch.setattr(ray_connection.ray, "shutdown", shutdown)
        connection = ray_connection.SharedRayConnection()
        return init, shutdown, lambda: connection.acquire("ray://head:10001", None)

    return prepare


@pytest.mark.parametrize("failures", [1, 4])
def test_a_connection_that_failed_for_a_passing_reason_is_tried_again(
    connect_to: Any, capsys: pytest.CaptureFixture[str], failures: int
) -> None:
    init, shutdown, take = connect_to(*[ConnectionAbortedError(_CLIENT_START_FAILED)] * failures, None)
    take()
    assert (init.call_count, shutdown.call_count) == (failures + 1, failures)
    assert len(capsys.readouterr().err.splitlines()) == failures


@pytest.mark.parametrize(
    ("error", "tries", "message"),
    [
        (ConnectionAbortedError(_CLIENT_START_FAILED), 5, "tried 5 times: .*GRPC_ENABLE_FORK_SUPPORT=0"),
        (RuntimeError("Version mismatch: the cluster has Ray 2.52."), 1, "Ray 2.52. Give HOST:PORT"),
        (AssertionError(), 1, "AssertionError without a message, raised in "),
    ],
    ids=["passing", "lasting", "silent"],
)
def test_a_connection_that_never_comes_about_is_given_up_with_the_cause_and_the_remedy(
    connect_to: Any, error: Exception, tries: int, message: str
) -> None:
    init, shutdown, take = connect_to(error)
    with pytest.raises(UsageError, match=f"address=ray://head:10001: {'.*' if tries == 1 else ''}{message}"):
        take()
    assert (init.call_count, shutdown.call_count) == (tries, tries)


def test_ctrl_c_is_not_tried_again_and_leaves_no_half_of_a_connection(connect_to: Any) -> None:
    init, shutdown, take = connect_to(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        take()
    assert (init.call_count, shutdown.call_count) == (1, 1)


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        (_CLIENT_START_FAILED, "ray start --head with GRPC_ENABLE_FORK_SUPPORT=0"),
        ("RuntimeError: Proxy failed to Connect to backend! Check", "CHECK_CHANNEL_TIMEOUT_S=120"),
        ("Perhaps you called ray.init twice by accident?", "one cluster per machine"),
        ("ray client connection timeout", "RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S=120"),
        ("b'Timed out while waiting for GCS to become available.'", "ray status"),
        ("The current node timed out during startup. This", "too busy to start a Ray of its own"),
        ("Failed to create runtime_env for Ray client server, it is caused by: no such package", None),
        ("Could not find any running Ray instance.", None),
    ],
)
def test_what_another_try_may_not_meet_is_explained(message: str, advice: str | None) -> None:
    from tempopt.launch.ray_connection import explain_transient

    meaning = explain_transient(ConnectionAbortedError(message))
    assert meaning is None if advice is None else advice in (meaning or "")


@pytest.fixture
def silent_address() -> Iterator[str]:
    """The address of a server that never says anything."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed_address(silent_address: str) -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def unconnected_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that is connected to no Ray, whatever this one is."""
    from tempopt.launch import ray, ray_connection

    monkeypatch.setattr(ray, "CONNECTION", ray_connection.SharedRayConnection())
    monkeypatch.setattr(ray.ray, "is_initialized", lambda: False)


@pytest.mark.usefixtures("unconnected_ray")
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{closed}", "refused.* Give HOST:PORT"),
        ("ray://{closed}", "refused.* Give HOST:PORT"),
        ("{silent}", "no answer of a Ray"),
        ("head", "no host and port"),
    ],
)
def test_an_address_at_which_no_ray_answers_is_refused(
    silent_address: str, closed_address: str, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    from tempopt.launch import ray_connection

    monkeypatch.setattr(ray_connection, "_PROBE_TIMEOUT_SECONDS", 3.0)
    address = address.format(silent=silent_address, closed=closed_address)
    with pytest.raises(UsageError, match=f"address={address}: .*{message}"):
        make_launcher("ray", {"address": address})


@ray_cluster.PATIENTLY
@pytest.mark.usefixtures("unconnected_ray")
def test_a_ray_of_this_machine_that_is_not_there_is_said_to_be_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # where no address is noted
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    with ray_cluster.no_other(), pytest.raises(UsageError, match=r"address=auto: .*Give HOST:PORT"):
        make_launcher("ray", {"address": "auto"})


@pytest.mark.usefixtures("unconnected_ray")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"working_dir": "nowhere"}, "working_dir=nowhere: there is no such folder"),
        ({"autoscaling": "perhaps"}, 'autoscaling=perhaps: give "yes" or "no"'),
    ],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make_launcher("ray", options)


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
        with pytest.raises(UsageError, match="tried 1 times: .*GRPC_ENABLE_FORK_SUPPORT=0"):
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
