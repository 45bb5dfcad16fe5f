"""What becomes of a study, whichever client its agents have: of a database, or of a server.

Every case is the same for both: real runs that are pruned, diverge, fail, are lost or interrupted, while the
study is paused, stopped or extended. Agents are tempopt's own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tempopt
from tempopt.report.study_result import StudyResult
from tempopt.server.app import create_app
from tempopt.server.tokens import create_token
from tempopt.service import lifecycle
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyState, TicketRow
from tests.cluster.studies import environment, set_pace
from tests.program.conftest import GAIN, program_spec
from tests.server.http_server import serve_app
from tests.servers import empty_database
from tests.toy_study import REPOSITORY, TOYS, Watcher, toy_spec

# A run of a gain above 4 does what its study is about; it does so once if its folder says that it was there.
TRAININGS = """
import math, os, signal, time
from pathlib import Path


def wait_for_stop(run):
    for _ in range(6000):
        if run.should_stop:
            return
        time.sleep(0.01)
    raise TimeoutError("the run was not stopped")


def train(run):
    value = 1 + math.log(run.params["gain"]) ** 2 + run.seed % 97 / 10_000
    is_first = not (run.folder / "was_here").exists()
    (run.folder / "was_here").touch()
    for step in range(1, 9):
        run.report(value + 1 / step, step=step)
    if run.params["gain"] > 4:
        act(run, is_first)
    return value


def do_nothing(run, is_first):
    pass


def prune(run, is_first):
    wait_for_stop(run)


def diverge(run, is_first):
    run.report(math.nan, step=9)
    raise FloatingPointError("the loss is not a number")


def fail(run, is_first):
    raise RuntimeError("the training breaks")


def lose(run, is_first):
    if is_first:
        os.kill(os.getpid(), signal.SIGKILL)


def wait(run, is_first):
    Path("is_training").touch()
    while not (run.should_stop or Path("go_on").exists()):
        time.sleep(0.01)
"""
GOOD, BAD = [1.3, 1.2, 1.1, 1.0], [6.0, 7.0]
NUM_SEARCHED = len(GOOD) + len(BAD)


@dataclass
class Access:
    """The access of users and agents to their study.

    Args:
        storage: URL that users and agents have: of a database, or of a server.
        database: URL of the database.
    """

    storage: str
    database: str

    def rows(self) -> list[TicketRow]:
        """Return the tickets of the only study, none before it has begun."""
        with open_store(self.database) as store:
            return [row for summary in store.list_studies() for row in store.tickets(summary.study.id)]

    def searched(self) -> list[TicketRow]:
        """Return the search tickets in their order."""
        return [row for row in self.rows() if row.kind == "search"]

    def state(self) -> StudyState:
        """Return the state of the only study."""
        with open_store(self.database) as store:
            (summary,) = store.list_studies()
            return summary.study.state

    def search(self, act: str, *, gains: list[float] = GOOD + BAD, **fields: Any) -> StudyResult:
        """Carry out a study whose bad runs do something, with two workers of this process."""
        Path("trainings.py").write_text(f"{TRAININGS}\n\nact = {act}\n")
        study = {
            "trials": len(gains),
            "pruner": {"name": "median", "n_startup_trials": 2} if act == "prune" else "none",
            "seeds": {"choose": 1, "confirm": 2},
            "max_attempts": 2,
        }
        result: StudyResult = tempopt.search(
            program_spec({"function": "trainings.train"}, {"gain": {**GAIN, "high": 9.0}}, **study),
            enqueue=[{"gain": gain} for gain in gains],
            storage=self.storage,
            workers=2,
            progress=False,
            **fields,
        )
        return result

    def resume(self, **fields: Any) -> StudyResult:
        """Continue the study, in which no run waits any longer."""
        Path("go_on").touch()
        result: StudyResult = tempopt.resume(
            "plain", storage=self.storage, workers=2, progress=False, **fields
        )
        return result


@pytest.fixture(params=["sqlite", "postgresql", "mariadb", "http"])
def access(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Access]:
    """Access to a study in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    is_http = request.param == "http"
    with ExitStack() as stack:
        backend = "sqlite" if is_http else request.param
        database = stack.enter_context(empty_database(backend, tmp_path, "contract"))
        storage = database
        if is_http:
            store = stack.enter_context(open_store(database))
            token, _ = create_token(store, name="ada", scopes=["submit", "agent"])
            monkeypatch.setenv("TEMPOPT_TOKEN", token)
            app = create_app(store, checkpoints=(tmp_path / "kept").as_uri())
            storage = stack.enter_context(serve_app(app))
        yield Access(storage, database)


def outcomes(rows: list[TicketRow]) -> list[tuple[str, str | None, int]]:
    """Return state, outcome and counted failures of tickets."""
    return [(row.state, row.outcome, row.failures) for row in rows]


def once_training(act: Callable[[], object]) -> Watcher:
    """Return an observer that acts once when a bad run trains."""
    return Watcher(lambda snapshot: Path("is_training").exists(), act)


COMPLETE = ("done", "complete", 0)


@pytest.mark.parametrize(
    ("act", "outcome"),
    [
        ("prune", ("done", "pruned", 0)),
        ("diverge", ("done", "diverged", 0)),
        ("fail", ("failed", "failed", 2)),
        ("lose", ("done", "complete", 1)),
    ],
)
def test_runs_end_as_they_do_and_the_study_goes_on_to_its_verdict(
    access: Access, act: str, outcome: tuple[str, str, int]
) -> None:
    result = access.search(act)
    assert result.state == access.state() == "done" and result.verdict is not None
    assert outcomes(access.searched()) == [COMPLETE] * len(GOOD) + [outcome] * len(BAD)
    assert {row.state for row in access.rows()} <= {"done", "failed"}
    assert all(row.error is None for row in access.searched()[: len(GOOD)])


def test_runs_whose_agent_is_interrupted_are_released_and_trained_by_the_next(access: Access) -> None:
    def interrupt() -> None:
        signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        access.search("wait", observer=once_training(interrupt))
    assert access.state() == "running"
    assert not [row for row in access.rows() if row.state == "running" or row.failures]
    assert access.resume().state == "done"
    assert outcomes(access.searched()) == [COMPLETE] * NUM_SEARCHED
    assert max(row.attempt for row in access.searched()) == 2


def test_a_study_that_is_paused_while_it_trains_continues_when_it_is_resumed(access: Access) -> None:
    observer = once_training(lambda: lifecycle.pause(access.storage, "plain"))
    access.search("wait", observer=observer)
    assert access.state() == "paused"
    assert not [row for row in access.rows() if row.state == "running" or row.failures]
    assert access.resume().state == "done"
    assert outcomes(access.searched()) == [COMPLETE] * NUM_SEARCHED


def test_a_search_that_is_stopped_while_it_trains_completes_its_runs_and_confirms(access: Access) -> None:
    def stop() -> None:
        assert lifecycle.stop(access.storage, "plain").withdrawn > 0
        Path("go_on").touch()

    # the bad ones first: the others wait behind them
    result = access.search("wait", gains=BAD + GOOD, observer=once_training(stop))
    assert result.state == "done"
    assert [row.outcome for row in access.searched()[:2]] == ["complete"] * 2
    assert {row.state for row in access.searched()[2:]} <= {"done", "withdrawn"}
    assert access.searched()[-1].state == "withdrawn"
    assert {row.state for row in access.rows() if row.kind == "confirm"} == {"done"}


def test_a_study_that_is_over_is_extended_by_trials(access: Access) -> None:
    access.search("do_nothing", gains=GOOD)
    assert access.resume(add_trials=2).state == "done"
    assert [row.number for row in access.searched()] == list(range(len(GOOD) + 2))
    assert {row.state for row in access.rows()} == {"done"}


@pytest.mark.long
def test_runs_of_an_agent_that_is_killed_are_trained_by_another(access: Access) -> None:
    """The agent is on this machine, where its death is known before its lease expires."""
    code = "import sys\nfrom tests.server.test_contract import Access\nAccess(*sys.argv[1:]).search('wait')"
    command = [sys.executable, "-c", code, access.storage, access.database]
    env_vars = environment(TEMPOPT_TOKEN=os.environ.get("TEMPOPT_TOKEN", ""))
    with subprocess.Popen(command, env=env_vars, stderr=subprocess.DEVNULL) as agent:
        while not Path("is_training").exists():
            assert agent.poll() is None
            time.sleep(0.05)
        agent.kill()
    assert access.resume().state == "done"
    assert {row.state for row in access.rows()} == {"done"}
    assert sum(row.failures for row in access.rows()) in (1, 2)


@pytest.mark.long
def test_real_trainings_end_alike(access: Access, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trainings by Lightning, slow enough that a server prunes them while they train."""
    for folder in (TOYS, REPOSITORY / "tests" / "cluster"):
        monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    monkeypatch.setenv("PACE", "pace")
    set_pace(Path(), 0.3)
    temperatures = {"temperature_init": 1.0, "temperature_final": 1.0, "schedule": "constant"}
    common = {**temperatures, "lr": 0.01, "raise_at": -1, "diverge_at": -1}
    good_sets = [{**common, "lr": 0.001 * number} for number in range(1, 5)]
    diverging, raising, bad = (
        {**common, **change} for change in ({"diverge_at": 9}, {"raise_at": 9}, {"lr": 30.0})
    )
    spec = toy_spec(
        space={
            **{name: {"low": 0.25, "high": 4.0} for name in temperatures if name != "schedule"},
            "schedule": ["constant", "linear"],
            "lr": {"low": 0.0001, "high": 100.0, "log": True},
            **{name: {"choices": [-1, 9], "baseline": -1} for name in ("raise_at", "diverge_at")},
        },
        trials=7,
        arms={"baseline": 1, "constant": 1},
        candidates=1,
        seeds={"choose": 1, "confirm": 2},
        pruner={"name": "median", "n_startup_trials": 2},
        max_attempts=2,
        parallel=2,
    )
    spec["model"]["class_path"] = "paced_modules.PacedModule"
    sets = [diverging, raising, *good_sets, bad]
    result = tempopt.search(spec, enqueue=sets, storage=access.storage, workers=2, progress=False)
    assert result.state == "done" and result.verdict is not None
    diverged, failed, *others, last = outcomes(access.searched())
    assert (diverged, failed) == (("done", "diverged", 0), ("failed", "failed", 2))
    assert set(others) <= {COMPLETE, ("done", "pruned", 0)} and last == ("done", "pruned", 0)
    assert access.searched()[0].diverged_at == 10
    pruned = access.searched()[6]
    assert pruned.steps is not None and pruned.steps < 24, "it was not pruned while it trained"
