"""A study moves from one machine to another with nothing but its URL: machines are network namespaces."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.network import Network
from tests.cluster.one import Place
from tests.cluster.studies import NAME, Record
from tests.servers import start_private, why_not

TICKETS = 8
# Seconds of a step while the machine dies.
PACE = 0.6


def _at_work(url: str) -> int:
    return sum(row.state == "running" for row in studies.tickets(url))


@pytest.mark.long
@pytest.mark.parametrize(
    ("agents", "disk_is_lost"), [(1, True), (3, False)], ids=["one agent, its disk lost", "three agents"]
)
def test_a_study_begun_on_a_machine_that_dies_ends_on_another_as_it_would_have(
    machines: Network, tmp_path: Path, undisturbed: Callable[[int], Record], agents: int, disk_is_lost: bool
) -> None:
    if reason := why_not("postgresql"):
        pytest.skip(reason)
    server = start_private("postgresql", machines.address)
    url = server.create_database("machines")
    begun = Place(tmp_path / "a", url, machines.machine().whole_prefix)
    taken_up = Place(tmp_path / "b", url, machines.machine().whole_prefix)
    try:
        begun.search(studies.spec(TICKETS, lease=5))
        begun.catch(PACE)
        for _ in range(agents - 1):
            begun.start("agent", NAME)
        wait_until(lambda: _at_work(url) == agents, "every agent at work")
        caught = begun.catch(PACE)
        for process in begun.processes:
            # takes every process of its machine with it
            process.send_signal(signal.SIGKILL)
            process.wait()
        if disk_is_lost:
            begun.folder.rename(tmp_path / "lost")
        first = taken_up.start("resume", NAME)
        others = [taken_up.start("agent", NAME) for _ in range(agents - 1)]
        assert [taken_up.end(process) for process in (first, *others)] == [0] * agents, taken_up.said()
        assert not studies.read(url, TICKETS).differences(undisturbed(TICKETS))
        assert (0 in taken_up.steps(caught)) is disk_is_lost
    finally:
        begun.close()
        taken_up.close()
        server.remove()
