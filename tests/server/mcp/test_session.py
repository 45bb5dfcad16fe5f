"""A session on rows that are written by hand: what is spent, who is paused, whose studies it touches."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.server.mcp import session as sessions
from tempopt.server.mcp.budget import Budget
from tempopt.server.mcp.session import Session
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tests.server.http_server import RunningServer
from tests.server.mcp.rows import SMALL_RUNS, begin_study, state_after
from tests.toy_study import SMALL, toy_spec, work_in


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    work_in(tmp_path, monkeypatch)
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.05)
    return "sqlite:///here.db"


def test_spent_is_what_the_rows_of_the_users_studies_say_and_not_of_others(url: str) -> None:
    with open_store(url) as store:
        ended_study = begin_study(store, "done", owner="mcp", hours=1.0)
        store.set_state(ended_study.id, "done")
        begin_study(store, "open", owner="mcp", hours=0.5)
        begin_study(store, "others", owner="ada", hours=0.5)
    with Session(url, user=None, budget=Budget(runs=SMALL_RUNS + 2, gpu_hours=2.0)) as session:
        runs, gpu_hours = session.ledger.budget_status().limits
    # one run of the open study has been trained, and one of the study that is over
    assert (runs.spent, runs.reserved, runs.remaining) == (2, SMALL_RUNS - 1, 1)
    assert gpu_hours.spent == pytest.approx(180 / 3600)
    assert gpu_hours.reserved == pytest.approx(0.5 - 90 / 3600)


@pytest.mark.parametrize(
    ("reserved_hours", "budget", "expected"),
    [(0.02, 5.0, "paused"), (0.5, 0.02, "paused"), (0.5, 5.0, "running")],
    ids=["its reservation is used up", "the budget is used up", "both are left"],
)
def test_a_study_that_has_used_what_it_may_is_paused(
    url: str, reserved_hours: float, budget: float, expected: str
) -> None:
    with open_store(url) as store:
        begin_study(store, "mine", owner="mcp", hours=reserved_hours)
        begin_study(store, "others", owner="ada", hours=0.001)
        with Session(url, user=None, budget=Budget(gpu_hours=budget)) as session:
            if expected == "running":
                time.sleep(0.5)
            assert state_after(store, "mine", state=expected) == expected
            assert store.load_study("others").state == "running"
            has_reserve = any(
                "reserved for it" in trouble for trouble in session.find_blockers("mine", "paused")
            )
            assert has_reserve == (reserved_hours == 0.02)


def test_a_study_without_a_limit_leaves_nothing_that_could_be_promised(url: str) -> None:
    spec = StudySpec.parse(toy_spec(name="second", **SMALL), source="the test")
    with open_store(url) as store:
        begin_study(store, "endless", owner="mcp", hours=None)
    with Session(url, user=None, budget=Budget(gpu_hours=100.0)) as session:
        with pytest.raises(UsageError, match=r"maximum of endless is not known"):
            session.begin(spec)
        assert [entry.study.name for entry in session.store.list_studies()] == ["endless"]


def test_studies_of_others_are_neither_continued_nor_stopped(url: str) -> None:
    spec = StudySpec.parse(toy_spec(name="hers", **SMALL), source="the test")
    with open_store(url) as store:
        begin_study(store, "hers", owner="ada", hours=None)
    with Session(url, user=None, budget=Budget()) as session:
        for session_call in (lambda: session.begin(spec), lambda: session.stop("hers")):
            with pytest.raises(UsageError, match=r"was begun by ada"):
                session_call()
    with Session(url, user="ada", budget=Budget()) as session:
        assert session.stop("hers").withdrawn == 1


def test_behind_a_server_the_user_is_the_tokens(running_server: RunningServer) -> None:
    with pytest.raises(UsageError, match=r"Leave out --user and --workers"):
        Session(running_server.url, user="me", budget=Budget())
    begin_study(running_server.store, "there", owner="admin", hours=0.5)
    with Session(
        running_server.url, user=None, budget=Budget(runs=SMALL_RUNS + 12, gpu_hours=3.0)
    ) as session:
        runs, hours = session.ledger.budget_status().limits
    assert session.user == "admin"
    assert (runs.spent, runs.remaining) == (1, 12)
    assert hours.allowed == 3.0 and hours.spent == pytest.approx(90 / 3600)
