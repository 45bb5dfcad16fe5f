"""A token that is revoked while a request of it is open: no ticket is given."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tempopt.server import authenticator
from tempopt.storage.rows import TicketRow
from tests.server.http_agent import HttpAgent
from tests.server.http_server import RunningServer


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are read from the store at each request."""
    monkeypatch.setattr(authenticator, "FRESH_SECONDS", -1.0)


def _id(token: str) -> str:
    return token.split("_")[1]


def test_who_waits_for_a_ticket_with_a_token_that_is_revoked_gets_none(
    running_server: RunningServer, agent: HttpAgent
) -> None:
    tickets: list[TicketRow] = []
    while (ticket := agent.take([row.id for row in tickets])) is not None:
        tickets.append(ticket)
    # with the last run of the first design the search begins
    *earlier, last = tickets
    for ticket in earlier:
        agent.report_training(ticket, [3.0, 2.0, 1.0])
    token = running_server.new_token("agent")
    waiting = HttpAgent(running_server, "there:2:m:1.1", token)
    waiting.join()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(waiting.take, None, 2.0)
        while len(running_server.app.state.tempopt.study_sessions.get("toy").listeners) == 0:
            assert not answer.done()
            threading.Event().wait(0.01)
        running_server.store.revoke_token(_id(token))
        agent.report_training(last, [3.0, 2.0, 1.0])
        assert answer.result() is None
    assert waiting.sync_response().status_code == 401
    waiting.http.close()
