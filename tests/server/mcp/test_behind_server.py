"""The tools behind a server: what a token lets them do, what a budget leaves, and where code is sent."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import AccessDenied, StudyNotFound, UsageError
from tempopt.server.mcp import session as sessions
from tempopt.server.mcp.budget import Budget, Ledger
from tempopt.server.mcp.session import Session
from tempopt.server.mcp.tools import TOOLS, call
from tempopt.server.tokens import create_token
from tempopt.service import remote_study
from tempopt.spec.study_spec import StudySpec
from tempopt.storage import Store
from tests.server.http_server import RunningServer
from tests.server.mcp.rows import SMALL_RUNS, begin_study, state_after
from tests.toy_study import SMALL, toy_spec, work_in

pytestmark = pytest.mark.server

OpenSession = Callable[..., Session]
STUDY_HOURS = 90 / 3600
"""GPU-hours that a study of :func:`begin_study` has used."""


@pytest.fixture
def open_session(
    running_server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OpenSession]:
    """Return what opens a session with a token of the user coder; no run is tried in it."""
    work_in(tmp_path, monkeypatch)
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.05)
    open_sessions: list[Session] = []

    def fake_try(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a run was tried")

    monkeypatch.setattr(sessions, "forecast_study", fake_try)
    monkeypatch.setattr(remote_study, "dry_run_locally", fake_try)

    def open_(*scopes: str, studies: str = "", budget: Budget | None = None) -> Session:
        token, _ = create_token(
            running_server.store, name="coder", scopes=scopes or ("submit", "view"), studies=studies
        )
        monkeypatch.setenv("TEMPOPT_TOKEN", token)
        open_sessions.append(Session(running_server.url, user=None, budget=budget or Budget()))
        return open_sessions[-1]

    yield open_
    for session in open_sessions:
        session.close()


def ask(session: Session, tool: str, **arguments: Any) -> dict[str, Any]:
    return call(session, TOOLS[tool], arguments)


def spec_of(name: str, **study: Any) -> dict[str, Any]:
    return toy_spec(name=name, **SMALL, **study)


def names(store: Store) -> list[str]:
    return [entry.study.name for entry in store.list_studies()]


def requests(server: RunningServer, method: str, route: str) -> int:
    """Return how many requests a server has answered, whatever the answer was."""
    families = server.app.state.tempopt.metrics.registry.collect()
    samples = [sample for metric in families for sample in metric.samples]
    expected_labels = {"method": method, "route": route}.items()
    counts = [
        s
        for s in samples
        if s.name == "tempopt_request_seconds_count" and expected_labels <= s.labels.items()
    ]
    return round(sum(sample.value for sample in counts))


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition was not met within 20 s"
        time.sleep(0.02)


def test_a_spent_budget_refuses_before_anything_is_tried(
    running_server: RunningServer, open_session: OpenSession
) -> None:
    begin_study(running_server.store, "first", owner="coder", hours=STUDY_HOURS)
    coder = open_session(budget=Budget(gpu_hours=STUDY_HOURS))
    for tool, arguments in (("search", {}), ("compare", {"sets": ["{}", "{temperature_init: 2}"]})):
        with pytest.raises(UsageError, match=r"0 of 0\.025 GPU-hours are left in this budget"):
            ask(coder, tool, spec=spec_of("second"), **arguments)
    assert names(running_server.store) == ["first"]
    [limit] = ask(coder, "list")["budget"]["limits"]
    assert limit["remaining"] == 0 and limit["spent"] == pytest.approx(STUDY_HOURS)


def test_what_cannot_fit_in_runs_is_refused_before_a_run_is_tried_for_hours(
    running_server: RunningServer, open_session: OpenSession
) -> None:
    runs = SMALL_RUNS - 6
    with pytest.raises(
        UsageError, match=f"takes up to {SMALL_RUNS} runs, but {runs} of {runs} runs are left"
    ):
        ask(open_session(budget=Budget(runs=runs, gpu_hours=5.0)), "search", spec=spec_of("mine"))


def test_a_study_that_a_spent_budget_has_paused_says_so_and_does_not_go_on(
    running_server: RunningServer, open_session: OpenSession
) -> None:
    begin_study(running_server.store, "mine", owner="coder", hours=1.0)
    coder = open_session(budget=Budget(gpu_hours=STUDY_HOURS))
    assert state_after(running_server.store, "mine", state="paused") == "paused"
    study_data = ask(coder, "show", study="mine")
    assert study_data["state"] == "paused"
    [trouble] = study_data["troubles"]
    assert "0 of 0.025 GPU-hours are left in this budget" in trouble
    with pytest.raises(UsageError, match=r'"mine" cannot continue within the budget of coder'):
        ask(coder, "search", spec=spec_of("mine"))
    assert running_server.store.load_study("mine").state == "paused"


def test_of_two_studies_that_are_begun_at_one_moment_the_later_is_taken_back(
    running_server: RunningServer, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin_another(spec: StudySpec, observer: Any) -> StudySpec:
        begin_study(running_server.store, "other", owner="coder", hours=1.0)
        return spec

    monkeypatch.setattr(remote_study, "dry_run_locally", begin_another)
    with pytest.raises(UsageError, match=r'"mine" would exceed .* another session has created a study'):
        ask(open_session(budget=Budget(runs=SMALL_RUNS + 2)), "search", spec=spec_of("mine"))
    assert names(running_server.store) == ["other"]


def test_a_study_that_waits_says_for_what(running_server: RunningServer, open_session: OpenSession) -> None:
    begin_study(running_server.store, "mine", owner="coder", hours=1.0)
    coder = open_session()
    study_data = ask(coder, "show", study="mine")
    assert (study_data["state"], study_data["troubles"]) == (
        "waiting",
        ["It waits for an agent: tempopt agent --any, with the URL of the server."],
    )


def test_a_token_that_views_reads_and_does_no_more(
    running_server: RunningServer, open_session: OpenSession
) -> None:
    begin_study(running_server.store, "mine", owner="coder", hours=STUDY_HOURS)
    viewer = open_session("view", budget=Budget(gpu_hours=STUDY_HOURS))
    assert [entry["study"] for entry in ask(viewer, "list")["studies"]] == ["mine"]
    assert ask(viewer, "show", study="mine")["runs_done"] == 1
    assert ask(viewer, "verdict", study="mine")["answer"] == "none_yet"
    for tool, arguments in (
        ("search", {"spec": spec_of("mine")}),
        ("compare", {"spec": spec_of("new"), "sets": ["{}", "{temperature_init: 2}"]}),
        ("stop", {"study": "mine"}),
    ):
        with pytest.raises(
            AccessDenied, match=r"The token of coder has the scopes view; .* takes the scope submit"
        ):
            ask(viewer, tool, **arguments)
    # what it may not pause it does not try to, though all is spent
    time.sleep(0.5)
    assert requests(running_server, "POST", "/api/studies/{name}/pause") == 0
    assert running_server.store.load_study("mine").state == "running"
    assert names(running_server.store) == ["mine"]


def test_a_session_outlives_that_its_token_is_refused_for_a_while(
    running_server: RunningServer, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_study(running_server.store, "mine", owner="coder", hours=STUDY_HOURS)
    refusals: list[str] = []

    def raise_denied(ledger: Ledger) -> bool:
        refusals.append(ledger.user)
        raise AccessDenied("The token has ended.")

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "counts_hours", raise_denied)
        open_session(budget=Budget(gpu_hours=5.0))
        wait_until(lambda: len(refusals) > 1)
        assert running_server.store.load_study("mine").state == "running"
    assert state_after(running_server.store, "mine", state="paused") == "paused"


def test_a_token_for_some_studies_sees_and_begins_no_others(
    running_server: RunningServer, open_session: OpenSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_study(running_server.store, "coder-1", owner="coder", hours=1.0)
    begin_study(running_server.store, "secret", owner="ada", hours=1.0)
    coder = open_session(studies="coder-")
    assert [entry["study"] for entry in ask(coder, "list")["studies"]] == ["coder-1"]
    for tool in ("show", "verdict", "export", "stop"):
        with pytest.raises(StudyNotFound, match=r'^Unknown study "secret"[^s]*coder-1'):
            ask(coder, tool, study="secret")
    for name in ("secret", "new"):
        with pytest.raises(AccessDenied, match=f'begin with "coder-", and this one is "{name}"'):
            ask(coder, "search", spec=spec_of(name))
    with pytest.raises(AccessDenied, match=r'begin with "coder-"'):
        ask(coder, "compare", spec=spec_of("new"), sets=["{}", "{temperature_init: 2}"])
    # there is a study to continue, so that nothing is tried
    assert ask(coder, "search", spec=spec_of("coder-1"))["study"] == "coder-1"
    assert sorted(names(running_server.store)) == ["coder-1", "secret"]
