"""Addresses and options of Ray that are refused, without a cluster."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.launch.registry import make_launcher
from tests.cluster import ray_cluster

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING)]


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
@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_at_which_nothing_listens_is_refused(closed_address: str, scheme: str) -> None:
    with pytest.raises(UsageError, match=rf"address={scheme}{closed_address}: .*refused.* Give HOST:PORT"):
        make_launcher("ray", {"address": scheme + closed_address})


@pytest.mark.usefixtures("unconnected_ray")
def test_an_address_of_something_else_is_refused(
    silent_address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempopt.launch import ray_connection, ray_token

    monkeypatch.setattr(ray_connection, "_PATIENCE", 3.0)
    monkeypatch.setattr(ray_token, "_PATIENCE", (0.5, 1.0))
    with pytest.raises(UsageError, match=rf"address={silent_address}: nothing that speaks as Ray does"):
        make_launcher("ray", {"address": silent_address})


@pytest.mark.usefixtures("unconnected_ray")
def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(UsageError, match="address=head: no host and port"):
        make_launcher("ray", {"address": "head"})


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
def test_a_folder_that_is_not_there_is_not_sent() -> None:
    with pytest.raises(UsageError, match="working_dir=nowhere: there is no such folder"):
        make_launcher("ray", {"working_dir": "nowhere"})


def test_autoscaling_is_yes_or_no() -> None:
    with pytest.raises(UsageError, match='autoscaling=perhaps: give "yes" or "no"'):
        make_launcher("ray", {"autoscaling": "perhaps"})


def test_a_ray_that_is_not_installed_can_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tempopt.launch.ray", raising=False)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'tempopt\[ray\]'"):
        make_launcher("ray", {})
