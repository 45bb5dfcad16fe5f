"""What agents of the pool may ask a server, and what they are told."""

from __future__ import annotations

import threading
import time
from typing import Any

import httpx
import pytest

from tempopt.records.rows import NewTicket, Pooled
from tempopt.remote.wire import PROTOCOL
from tempopt.server.tokens import made
from tempopt.store import Store
from tests.server.conftest import Served

NAME = "here:1:m:1.1-abc"


def begun(store: Store, name: str, **pooled: Any) -> int:
    row = store.create_study(name, {}, "hash", pooled=Pooled(**pooled))
    store.add_tickets(row.id, [NewTicket(kind="search", arm="search", number=0, seed=1)])
    return row.id


def asked(served: Served, token: str, path: str = "sync", **said: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {token}", "tempopt-protocol": str(PROTOCOL)}
    body = {"agent": NAME, **said}
    return httpx.post(f"{served.url}/api/pool/{path}", json=body, headers=headers, timeout=60)


def told(served: Served, token: str, **said: Any) -> dict[str, Any]:
    answer = asked(served, token, **said)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("scope", ["view", "submit"])
def test_only_agents_are_agents_of_the_pool(served: Served, scope: str) -> None:
    begun(served.store, "mine")
    token = served.new_token(scope)
    for path in ("sync", "leave"):
        answer = asked(served, token, path)
        assert answer.status_code == 403 and answer.json()["error"]["code"] == "forbidden"
    assert served.store.pool.read().agents == ()


def test_an_agent_is_known_by_its_token_and_nobody_else_speaks_for_it(served: Served) -> None:
    begun(served.store, "mine")
    one, _ = made(served.store, name="one", scopes=["agent"])
    other, _ = made(served.store, name="two", scopes=["agent"])
    told(served, one)
    told(served, other)
    assert [each.name for each in served.store.pool.read().agents] == [f"{NAME}@one", f"{NAME}@two"]
    assert asked(served, other, "leave").status_code == 200
    assert [each.started_by for each in served.store.pool.read().agents] == ["one"]


def test_a_token_for_some_studies_is_sent_to_these_alone(served: Served) -> None:
    begun(served.store, "other-study", priority=5)
    token = served.new_token("agent", studies="team-")
    assert told(served, token)["study"] is None
    id = begun(served.store, "team-study")
    found = told(served, token)
    assert (found["study"], found["study_id"], found["order"]) == ("team-study", id, "serve")
    assert told(served, served.new_token("agent"))["study"] == "other-study"


def test_what_a_token_is_for_counts_and_nothing_that_an_agent_says_of_it(served: Served) -> None:
    begun(served.store, "other-study")
    token = served.new_token("agent", studies="team-")
    answer = asked(served, token, studies="", started_by="admin")
    assert answer.status_code == 422
    told(served, token)
    (agent,) = served.store.pool.read().agents
    assert (agent.studies, agent.started_by) == ("team-", "other")


def test_a_token_that_is_revoked_gets_nothing_more(served: Served) -> None:
    begun(served.store, "mine")
    token, row = made(served.store, name="gone", scopes=["agent"])
    assert told(served, token)["study"] == "mine"
    served.store.revoke_token(row.id)
    until = time.monotonic() + 60
    while asked(served, token).status_code == 200:
        assert time.monotonic() < until, "the token is believed for ever"
        time.sleep(0.1)
    assert asked(served, token).status_code == 401


def test_one_that_is_revoked_while_its_agent_waits_is_sent_nowhere(served: Served) -> None:
    token, row = made(served.store, name="gone", scopes=["agent"])
    known = told(served, token)
    found: list[httpx.Response] = []
    waiting = threading.Thread(target=lambda: found.append(asked(served, token, known=known, wait=20.0)))
    waiting.start()
    until = time.monotonic() + 60
    while not served.store.pool.read().agents:
        assert time.monotonic() < until
        time.sleep(0.02)
    served.store.revoke_token(row.id)
    # longer than a token is believed without asking the store
    time.sleep(6.0)
    begun(served.store, "mine")
    waiting.join()
    assert found[0].status_code == 401 or found[0].json()["study"] is None


def test_an_answer_is_held_back_until_there_is_another_order(served: Served) -> None:
    token = served.new_token("agent")
    known = told(served, token)
    assert known == {"study_id": None, "study": None, "order": "serve", "mark": ""}
    begin = threading.Timer(0.5, lambda: begun(served.store, "mine"))
    begin.start()
    before = time.monotonic()
    assert told(served, token, known=known, wait=30.0)["study"] == "mine"
    assert time.monotonic() - before >= 0.4
    begin.join()


@pytest.mark.parametrize(
    "said",
    [
        {"agent": "no name"},
        {"wait": 1e6},
        {"idle_at": {"1": "m" * 101}},
        {"unable": {str(id): "x" for id in range(1001)}},
        {"queues": ["a queue\n"]},
        {"gpus": -1},
    ],
)
def test_what_is_not_as_documented_is_refused(served: Served, said: dict[str, Any]) -> None:
    assert asked(served, served.new_token("agent"), **said).status_code == 422
    assert served.store.pool.read().agents == ()
