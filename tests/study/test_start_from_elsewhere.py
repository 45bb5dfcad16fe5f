"""Studies whose runs start from weights, on other machines: killed agents, ranks, launchers, pools."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.any_agent import AnyAgent, DatabaseStudies
from tempopt.cli import main
from tempopt.mcp_server.budget import Budget
from tempopt.mcp_server.session import Session
from tempopt.mcp_server.tools import TOOLS, call
from tempopt.store.store import Store
from tempopt.store.weights import file_name, weights_url
from tempopt.study import admin, api
from tests.study.test_start_from import as_by_hand, begun, digest, folder, kept, spec, tickets  # noqa: F401
from tests.toy_study import URL

pytestmark = pytest.mark.long

SHORT = {"learned": False}


def outcomes(storage: str) -> list[tuple[Any, ...]]:
    """Return what each run of the study had and came to, to the bit."""
    with Store.open(storage, create=False) as store:
        rows = store.tickets(store.load_study("tuned").id)
    return sorted((t.kind, t.number, t.arm or "", t.seed, str(t.parameters), t.state, t.value) for t in rows)


def died(program: str, when: Callable[[], bool]) -> None:
    """Run a program and kill it as soon as something is so."""
    words = [sys.executable, "-c", f"from tempopt.study import api\n{program}"]
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
    try:
        while not when():
            assert process.poll() is None, "it ended before that"
            time.sleep(0.02)
    finally:
        # its workers end by themselves
        process.kill()
        process.wait()


def test_an_agent_that_is_killed_goes_on_elsewhere_without_the_file(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage, shared = f"sqlite:///{folder}/shared.db", folder / "shared"
    given = {"storage": storage, "workers": 1, "checkpoints": str(shared)}

    def at_work() -> bool:
        if not Path("shared.db").exists():
            return False
        try:
            return {"done", "running"} <= {row[5] for row in outcomes(storage)}
        except Exception:
            # it is being made
            return False

    asked = spec(**SHORT)
    died(f"api.search({asked!r}, **{given!r})", at_work)
    expected = f"sqlite:///{folder}/expected.db"
    api.search(asked, storage=expected, workers=1)
    Path("base.ckpt").unlink()
    Path("another machine").mkdir()
    monkeypatch.chdir("another machine")
    # somebody else's, of that name
    Path("base.ckpt").write_text("no weights")
    assert api.resume("tuned", storage=storage, workers=1, checkpoints=shared).verdict is not None
    assert outcomes(storage) == outcomes(expected)


SLEEPS = """
import os, pathlib, time
def fsync(descriptor):
    pathlib.Path("copying").touch()
    time.sleep(600)
os.fsync = fsync
"""


@pytest.mark.usefixtures("begun")
def test_an_agent_that_is_killed_while_it_copies_the_weights_leaves_none_that_are_wrong() -> None:
    there = Path(weights_url("other", "tuned", kept().name))
    resume = f"api.resume('tuned', storage={URL!r}, workers=1, checkpoints='other')"
    died(f"{SLEEPS}{resume}", Path("copying").exists)
    assert [each.suffix for each in there.parent.iterdir()] == [".writing"]
    Path("base.ckpt").rename("elsewhere.ckpt")
    assert api.resume("tuned", storage=URL, workers=1, checkpoints="other").verdict is not None
    assert there.read_bytes() == Path("elsewhere.ckpt").read_bytes()
    assert as_by_hand(tickets()) >= {"baseline", "search", "confirm"}
    assert admin.delete(URL, "tuned").left == {}
    assert not Path("other/tuned").exists()


def test_two_processes_of_a_run_start_from_the_weights() -> None:
    given = spec(**SHORT)
    given["trainer"]["devices"] = 2
    given["data"]["init_args"] = {"batch_size": 3}
    assert api.search(given, storage=URL, workers=1).verdict is not None
    assert as_by_hand(tickets()) >= {"baseline", "constant", "search", "confirm"}


def test_an_agent_of_a_launcher_starts_from_the_weights() -> None:
    import yaml

    Path("spec.yaml").write_text(yaml.safe_dump(spec(**SHORT)))
    words = ["search", "spec.yaml", "--storage", URL, "--launcher", "local", "--workers", "1"]
    assert main(words) == 0
    assert as_by_hand(tickets()) >= {"baseline", "constant", "search", "confirm"}
    assert kept().is_file()


def test_a_coding_agents_study_starts_from_the_weights() -> None:
    session = Session(f"sqlite:///{Path.cwd()}/tempopt.db", user="coder", budget=Budget())
    try:
        search = next(each for each in TOOLS if each.name == "search")
        call(session, search, {"spec": spec(**SHORT)})
        while session.store.load_study("tuned").state == "running":
            time.sleep(0.2)
    finally:
        session.close()
    assert as_by_hand(tickets()) >= {"baseline", "constant", "search", "confirm"}


@pytest.mark.usefixtures("begun")
def test_an_agent_of_every_study_takes_the_weights_from_the_studys_place(
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = file_name(digest())
    Path("base.ckpt").unlink()
    storage = f"sqlite:///{folder}/tempopt.db"
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    with Store.open(storage, create=False) as store:
        studies = DatabaseStudies(store=store, workers=1)
        assert AnyAgent(studies, idle_seconds=60.0, note=print).run() == []
    monkeypatch.chdir(folder)
    assert as_by_hand(tickets()) >= {"baseline", "search", "confirm"}
    assert Path("tempopt-runs/tuned/weights", name).is_file()
