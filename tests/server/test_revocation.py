"""A token that is revoked while a request of it is open: the stream ends, and no ticket is given."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tempopt.records.rows import TicketRow
from tempopt.server import auth, events
from tests.server.conftest import Served
from tests.server.test_agents import Agent
from tests.server.test_agents import agent as agent


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken for fresh, and a stream that goes on without end says nothing until it times out."""
    monkeypatch.setattr(auth, "FRESH_SECONDS", -1.0)
    monkeypatch.setattr(events, "INTERVAL", 0.02)
    monkeypatch.setattr(events, "HEARTBEAT", 600.0)


def _id(token: str) -> str:
    return token.split("_")[1]


def test_a_stream_ends_with_its_token(served: Served, agent: Agent) -> None:
    token = served.new_token("view")
    headers = {"authorization": f"Bearer {token}"}
    with (
        httpx.Client(base_url=served.url, headers=headers, timeout=60) as client,
        client.stream("GET", "/api/studies/toy/events") as answer,
    ):
        lines = answer.iter_lines()
        assert any(line == "event: state" for line in lines)
        served.store.revoke_token(_id(token))
        for _ in lines:
            pass
        again = client.get("/api/studies/toy/events")
    assert (again.status_code, again.json()["error"]["code"]) == (401, "token_revoked")


def test_who_waits_for_a_ticket_with_a_token_that_is_revoked_gets_none(served: Served, agent: Agent) -> None:
    held: list[TicketRow] = []
    while (ticket := agent.take([each.id for each in held])) is not None:
        held.append(ticket)
    token = served.new_token("agent")
    waiting = Agent(served, "there:2:m:1.1", token)
    waiting.join()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(waiting.take, None, 2.0)
        while len(served.app.state.tempopt.desks.of("toy").listeners) == 0:
            assert not answer.done()
            threading.Event().wait(0.01)
        served.store.revoke_token(_id(token))
        agent.trained(next(each for each in held if each.kind == "search"), [3.0, 2.0, 1.0])
        assert answer.result() is None
    assert waiting.said().status_code == 401
    waiting.http.close()
