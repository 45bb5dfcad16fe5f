"""A study moves from one machine to another with nothing but its URL: machines are network namespaces."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.network import Network
from tests.cluster.one import Site
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
    machines: Network,
    tmp_path: Path,
    undisturbed_record: Callable[[int], Record],
    agents: int,
    disk_is_lost: bool,
) -> None:
    if reason := why_not("postgresql"):
        pytest.skip(reason)
    server = start_private("postgresql", machines.address)
    url = server.create_database("machines")
    first_site = Site(tmp_path / "a", url, machines.machine().whole_prefix)
    taken_up = Site(tmp_path / "b", url, machines.machine().whole_prefix)
    try:
        first_site.search(studies.spec(TICKETS, lease=5))
        first_site.catch(PACE)
        for _ in range(agents - 1):
            first_site.start("agent", NAME)
        wait_until(lambda: _at_work(url) == agents, "every agent at work")
        running_ticket = first_site.catch(PACE)
        for process in first_site.processes:
            # takes every process of its machine with it
            process.send_signal(signal.SIGKILL)
            process.wait()
        if disk_is_lost:
            first_site.folder.rename(tmp_path / "lost")
        first = taken_up.start("resume", NAME)
        other_agents = [taken_up.start("agent", NAME) for _ in range(agents - 1)]
        assert [taken_up.end(process) for process in (first, *other_agents)] == [0] * agents, (
            taken_up.log_text()
        )
        assert not studies.read(url, TICKETS).differences(undisturbed_record(TICKETS))
        assert (0 in taken_up.steps(running_ticket)) is disk_is_lost
    finally:
        first_site.close()
        taken_up.close()
        server.remove()
