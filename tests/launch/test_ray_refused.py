"""Addresses and options of Ray that are refused, without a cluster."""

from __future__ import annotations

import socket
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
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{closed}", "refused.* Give HOST:PORT"),
        ("ray://{closed}", "refused.* Give HOST:PORT"),
        ("{silent}", "nothing that speaks as Ray does"),
        ("head", "no host and port"),
    ],
)
def test_an_address_at_which_no_ray_answers_is_refused(
    silent_address: str, closed_address: str, monkeypatch: pytest.MonkeyPatch, address: str, message: str
) -> None:
    from tempopt.launch import ray_connection

    monkeypatch.setattr(ray_connection, "_PATIENCE", 3.0)
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
