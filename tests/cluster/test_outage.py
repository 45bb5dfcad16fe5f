"""The database is away for a while, a machine is needed, or dies: nothing is lost, nothing is done again."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import INTERRUPTED, wait_until
from tests.cluster.network import Network
from tests.cluster.one import Site
from tests.cluster.studies import NAME, Record
from tests.servers import PrivateServer, start_private, why_not

TICKETS = 8

pytestmark = pytest.mark.long


@pytest.fixture
def site_for(tmp_path: Path) -> Iterator[Callable[[str], Site]]:
    """Return what gives the folder for the study of a URL; what runs there is ended with the test."""
    sites = []

    def make(url: str) -> Site:
        sites.append(Site(tmp_path / "here", url))
        return sites[-1]

    yield make
    for site in sites:
        site.close()


def test_an_agent_trains_on_while_the_database_is_away_and_writes_everything_once(
    server: PrivateServer, site_for: Callable[[str], Site], undisturbed_record: Callable[[int], Record]
) -> None:
    site = site_for(server.create_database("outage"))
    agent = site.search(studies.spec(TICKETS, lease=300, store_timeout=3600))
    running_ticket = site.catch()
    server.kill()
    site.set_pace(0)
    # one of the first, which are never pruned: it is trained to its end
    assert running_ticket.number < studies.NEVER_PRUNED
    wait_until(lambda: len(site.steps(running_ticket)) == studies.STEPS, "the end of the training")
    assert agent.poll() is None, site.log_text()
    server.start()
    assert site.end(agent) == 0, site.log_text()
    assert not studies.read(site.url, TICKETS).differences(undisturbed_record(TICKETS))
    # nothing was trained twice: not one attempt was discarded
    assert {row.attempt for row in studies.tickets(site.url)} == {1}


def test_an_agent_whose_database_stays_away_ends_and_its_run_goes_on_from_its_checkpoint(
    server: PrivateServer, site_for: Callable[[str], Site], undisturbed_record: Callable[[int], Record]
) -> None:
    site = site_for(server.create_database("outage"))
    agent = site.search(studies.spec(TICKETS, lease=5, store_timeout=1))
    running_ticket = site.catch()
    server.stop()
    assert site.end(agent) == 1
    assert "store_timeout" in site.log_text() or "resume" in site.log_text(), site.log_text()
    server.start()
    site.set_pace(0)
    num_before = len(site.steps(running_ticket))
    assert site.end(site.start("resume", NAME)) == 0, site.log_text()
    assert not studies.read(site.url, TICKETS).differences(undisturbed_record(TICKETS))
    later_steps = site.steps(running_ticket)[num_before:]
    assert later_steps and 0 not in later_steps, "the run began again from nothing"


@pytest.mark.parametrize("blow", [pytest.param(signal.SIGINT, marks=pytest.mark.nightly), signal.SIGTERM])
def test_an_agent_that_is_told_to_go_gives_its_ticket_back_to_go_on_from_its_checkpoint(
    tmp_path: Path,
    site_for: Callable[[str], Site],
    undisturbed_record: Callable[[int], Record],
    blow: signal.Signals,
) -> None:
    site = site_for(f"sqlite:///{tmp_path / 'tempopt.db'}")
    agent = site.search(studies.spec(TICKETS, lease=300))
    site.catch()
    agent.send_signal(blow)
    assert site.end(agent) == INTERRUPTED, site.log_text()
    rows = studies.tickets(site.url)
    assert {row.state for row in rows} == {"done", "waiting"}
    assert {row.failures for row in rows} == {0}
    (given_back,) = [row for row in rows if row.state == "waiting" and row.checkpoints]
    num_trained = len(site.steps(given_back))
    site.set_pace(0)
    assert site.end(site.start("resume", NAME)) == 0, site.log_text()
    assert not studies.read(site.url, TICKETS).differences(undisturbed_record(TICKETS))
    later_steps = site.steps(given_back)[num_trained:]
    assert later_steps and 0 not in later_steps, "the run began again from nothing"


def _at_work(url: str) -> int:
    return sum(row.state == "running" for row in studies.tickets(url))


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
        first_site.catch()
        for _ in range(agents - 1):
            first_site.start("agent", NAME)
        wait_until(lambda: _at_work(url) == agents, "every agent at work")
        running_ticket = first_site.catch()
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
