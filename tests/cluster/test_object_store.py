"""An S3 server is slow or fails for a while: no damaged checkpoint is used, and results are the same."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.one import Site
from tests.cluster.studies import Record
from tests.servers import strike, worker_pids
from tests.training.faulty_store import FAULTS, StoreLine

pytest_plugins = ["tests.training.object_store"]
pytestmark = pytest.mark.long

TICKETS = 6
# Seconds; an object store may take three quarters of them for a checkpoint.
LEASE = 12.0


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, marks=() if fault == "silent" else pytest.mark.nightly) for fault in FAULTS]
)
def test_a_search_whose_object_store_fails_for_a_while_ends_as_an_undisturbed_one(
    store_line: StoreLine,
    bucket: str,
    tmp_path: Path,
    undisturbed_record: Callable[[int], Record],
    fault: str,
) -> None:
    site = Site(tmp_path / "here", f"sqlite:///{tmp_path / 'tempopt.db'}")
    try:
        spec = studies.write_spec(tmp_path, studies.spec(TICKETS, lease=LEASE, max_attempts=3))
        site.set_pace(0.3)
        agent = site.start("search", spec, "--checkpoints", bucket)
        running_ticket = site.catch()
        store_line.fault = fault
        wait_until(lambda: store_line.num_faults.get("PUT", 0) > 0, "a checkpoint that the fault meets")
        [worker] = worker_pids(agent.pid)
        num_before = len(site.steps(running_ticket))
        strike(worker, signal.SIGKILL)
        # its next attempt reads a checkpoint, and then trains and writes others
        wait_until(lambda: len(site.steps(running_ticket)) > num_before + 6, "the next attempt", 150)
        store_line.fault = None
        site.set_pace(0)
        assert site.end(agent) == 0, site.log_text()
        assert not studies.read(site.url, TICKETS).differences(undisturbed_record(TICKETS))
        # that of the worker that was killed
        assert sum(row.failures for row in studies.tickets(site.url)) == 1, site.log_text()
        if fault not in ("slow", "half stored", "half sent"):
            assert site.log_text().count("Checkpoints are written again") >= 1, site.log_text()
    finally:
        site.close()


def test_a_search_that_begins_with_a_silent_object_store_says_so(
    store_line: StoreLine, bucket: str, tmp_path: Path
) -> None:
    site = Site(tmp_path / "here", f"sqlite:///{tmp_path / 'tempopt.db'}")
    store_line.fault = "silent"
    try:
        spec = studies.write_spec(tmp_path, studies.spec(TICKETS))
        assert site.end(site.start("search", spec, "--checkpoints", bucket)) == 2
        assert "no answer for 60 s" in site.log_text() and "Traceback" not in site.log_text()
    finally:
        site.close()
