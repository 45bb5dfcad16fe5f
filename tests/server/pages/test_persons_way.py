"""The way of a person who has nothing but a browser: from a pasted spec to a verdict and its export."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.studies import environment, tempopt
from tests.server.conftest import Served
from tests.server.pages.browsing import at_browser, wait_until
from tests.server.pages.test_browser_submit import marked
from tests.server.test_specs import text_of
from tests.toy_study import toy_spec

# a browser, a server and an agent, one after the other: minutes where others use the machine
pytestmark = [pytest.mark.browser, pytest.mark.timeout(900)]
# An agent of the pool whose workers take a while for a run and train nothing. They keep checkpoints as files
# and not behind a server, so it works on the database; what it says and is told is in the same rows.
PRETENDING = """
import sys
from tempopt import cli
from tests import fake_worker
fake_worker.install(pace=0.03)
sys.exit(cli.main(["agent", "--pool", "--storage", sys.argv[1]]))
"""


@contextmanager
def agent(served: Served, folder: Path, *, trains: bool) -> Iterator[Path]:
    """Yield the file in which an agent of the pool, at work until the end, says what it does.

    Args:
        trains: Whether it really trains, behind the server.
    """
    token, said = folder / "agent.token", folder / "agent.log"
    token.write_text(served.new_token("agent"))
    token.chmod(0o600)
    command = [sys.executable, "-X", "faulthandler", "-c", PRETENDING, served.storage]
    if trains:
        command = tempopt("agent", "--pool", "--server", served.url, "--token-file", str(token))
    with said.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        yield said
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            # where every thread of it is stands in its log then
            process.send_signal(signal.SIGABRT)
            process.wait()
            raise
        finally:
            print(said.read_text())


def state(page: Any, *wanted: str) -> None:
    """Wait, without loading the page anew, until it says one of these states of the study."""
    condition = "(wanted) => wanted.includes(document.querySelector('#standing .state')?.dataset.state)"
    wait_until(page, condition, list(wanted))


def over(served: Served, kind: str = "") -> int:
    """Return how many runs of the study are over."""
    rows = served.store.tickets(served.store.load_study("toy").id)
    return sum(row.state == "done" for row in rows if kind in ("", row.kind))


@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_person_comes_from_a_pasted_spec_to_a_verdict_and_its_export(
    browser: Any, served: Served, tmp_path: Path, trains: bool
) -> None:
    spec = toy_spec()
    right = text_of(spec)
    wrong = right.replace("direction: minimize", "direction: down").replace("max_steps: 24", "max_stepps: 24")
    token = served.new_token("submit")
    with agent(served, tmp_path, trains=trains) as said, at_browser(browser, served, token=token) as page:
        # paste, and mend
        page.get_by_role("link", name="Submit", exact=True).click()
        page.get_by_label("Study spec").fill(wrong)
        page.locator(".messages li").nth(1).wait_for()
        assert marked(page)[0] == "direction: down"
        page.get_by_label("Study spec").fill(right)
        # the price, and the start
        page.locator("#findings tr.all").wait_for()
        page.get_by_label("Seconds of one run").fill("1")
        page.get_by_text("time on 1 worker").wait_for()
        page.get_by_role("button", name="Start").click()
        page.wait_for_url("**/studies/toy", wait_until="commit")
        # watch, have it rest, and go on
        state(page, "running")
        wait_until(page, "() => document.querySelector('#standing progress')?.value > 0")
        page.get_by_role("button", name="Pause").click()
        state(page, "paused")
        page.get_by_role("button", name="Resume").wait_for()
        before = over(served)
        assert served.store.load_study("toy").state == "paused"
        page.get_by_role("button", name="Resume").click()
        state(page, "running")
        # the verdict comes by itself
        state(page, "done")
        assert page.locator("#h-verdict").inner_text() not in ("", "No verdict yet"), said.read_text()
        assert over(served) > before
        assert over(served, "confirm") > 0
        # and is taken home
        with page.expect_download() as download:
            page.get_by_role("link", name="YAML", exact=True).click()
        exported = Path(download.value.path()).read_text()
        assert yaml.safe_load(exported)["model"]
        page.locator("#standing").get_by_role("link", name="Optuna").click()
        page.wait_for_url("**/dashboard/studies/1", wait_until="commit")
        page.get_by_text("toy (id=1)").wait_for()
    rows = served.store.tickets(served.store.load_study("toy").id)
    assert {row.state for row in rows} <= {"done", "withdrawn"}
    assert all(row.failures == 0 for row in rows), "a pause costs no run a failure"
    served.app.state.dashboard.close()
