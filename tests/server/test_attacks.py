"""Attacks from inside: what a token for some studies, or for agents alone, reaches of others."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import ClaimRequest, RunEnded, RunOutcome
from tests.server.http_agent import HttpAgent, begin
from tests.server.http_server import RunningServer
from tests.toy_study import toy_spec

SECRET = 0.123456789


@pytest.fixture
def secret(running_server: RunningServer) -> int:
    """A study of another team, whose runs others may not see; returns the id of one of its tickets."""
    row = begin(running_server.store, name="speech-secret", trials=12)
    for ticket in running_server.store.tickets(row.id, ["search"]):
        parameters = {"temperature_init": SECRET, "temperature_final": 1.0, "schedule": "linear"}
        outcomes = RunOutcome(outcome="complete", value=SECRET, steps=24, seconds=1.0)
        criteria = ClaimRequest(
            max_number_by_kind={"search": ticket.number}, lease=60.0, max_attempts=3, held_ticket_ids=[]
        )
        taken_ticket = running_server.store.take_ticket(row.id, f"agent-{ticket.number}", criteria)
        assert taken_ticket is not None
        running_server.store.begin(taken_ticket.id, 1, parameters, parameters, None)
        change = RunEnded(ticket_id=taken_ticket.id, attempt=1, outcomes=outcomes)
        running_server.store.write(row.id, [change], agent=f"agent-{ticket.number}", lease=60.0)
    return ticket.id


@pytest.fixture
def team(running_server: RunningServer) -> Iterator[httpx.Client]:
    """A client that may do everything to studies of their own team, and nothing to others."""
    with running_server.client(running_server.new_token("view", "submit", studies="vision-")) as client:
        yield client


def _spec(name: str, **study: Any) -> dict[str, Any]:
    return StudySpec.parse(toy_spec(name=name, **study), source="the test").to_json()


def test_a_study_of_others_cannot_be_read_changed_or_told_from_one_that_is_not_there(
    running_server: RunningServer, secret: int, team: httpx.Client
) -> None:
    paths = ("", "/row", "/tickets", "/measurements", "/logs", "/maps", "/warm-start", "/jobs", "/news")
    paths += ("/report", "/export", "/verdict")
    for path in paths:
        hidden_response, not_there = (
            team.get(f"/api/studies/{name}{path}") for name in ("speech-secret", "speech-none")
        )
        assert hidden_response.status_code == not_there.status_code == 404, path
        assert (
            hidden_response.json()["error"]["code"] == not_there.json()["error"]["code"] == "study_not_found"
        )
        assert str(SECRET) not in hidden_response.text
    for verb in ("pause", "stop", "resume", "enqueue", "gc"):
        answer = team.post(
            f"/api/studies/speech-secret/{verb}",
            params={"study": 1},
            json={"sets": []} if verb == "enqueue" else {},
        )
        assert answer.status_code in (404, 422), verb
    assert team.delete("/api/studies/speech-secret", params={"force": True, "study": 1}).status_code == 404
    assert team.get("/api/studies").json() == team.get("/api/summaries").json() == []
    assert running_server.store.load_study("speech-secret").state == "running"


def test_a_run_of_others_is_not_told_under_a_study_of_ones_own(
    running_server: RunningServer, secret: int, team: httpx.Client
) -> None:
    assert team.post("/api/studies", json={"spec": _spec("vision-a")}).is_success
    answer = team.get("/api/studies/vision-a/measurements", params={"ids": [secret]})
    assert str(SECRET) not in answer.text
    answer = team.get("/api/studies/vision-a/logs", params={"ids": [secret]})
    assert str(SECRET) not in answer.text


def test_a_study_does_not_begin_with_runs_of_others(
    running_server: RunningServer, secret: int, team: httpx.Client
) -> None:
    answer = team.post("/api/studies", json={"spec": _spec("vision-b", warm_start=["speech-secret"])})
    assert not answer.is_success, "runs of another team were copied into a study of one's own"
    assert str(SECRET) not in answer.text
    assert [entry.study.name for entry in running_server.store.list_studies()] == ["speech-secret"]


def test_an_agent_for_some_studies_trains_for_no_others(running_server: RunningServer, secret: int) -> None:
    agent = HttpAgent(running_server, token=running_server.new_token("agent", studies="vision-"))
    agent_fields = {"study": "speech-secret", "agent": agent.name, "session": agent.session}
    response = agent.http.post("/api/agents/join", json=agent_fields)
    assert response.status_code == 404
    study = running_server.store.load_study("speech-secret")
    body = {**agent_fields, "study_id": study.id, "take": {"number": 1}}
    assert agent.http.post("/api/agents/sync", json=body).status_code == 404
    assert (
        agent.http.post("/api/agents/leave", json={**agent_fields, "study_id": study.id}).status_code == 404
    )
    for path in ("/api/studies", "/api/audit", "/api/tokens"):
        assert agent.http.get(path).status_code == 403
    agent.http.close()


def test_a_study_that_is_not_there_is_refused_without_the_names_of_others(
    running_server: RunningServer, secret: int, team: httpx.Client
) -> None:
    agent = HttpAgent(running_server, token=running_server.new_token("agent", studies="vision-"))
    file = "/api/checkpoints/vision-none/search-0000/step-1-1.ckpt"
    body = {"study": "vision-none", "run": "search-0000", "file": "step-1-1.ckpt", "purpose": "get"}
    upload = {"upload": "0" * 32, "offset": 0, "total": 1}
    spec = _spec("vision-b", warm_start=["vision-none"])
    answers = [
        agent.http.get(file),
        agent.http.put(file, params=upload, content=b"x"),
        agent.http.post("/api/checkpoints/where", json=body),
        team.post("/api/studies", json={"spec": spec}),
    ]
    agent.http.close()
    for answer in answers:
        assert "speech" not in answer.text and "sqlite" not in answer.text
    assert [response.status_code for response in answers[:3]] == [404] * 3
    assert "there is no study" in answers[3].text and "vision-none" in answers[3].text
