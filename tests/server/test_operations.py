"""What whoever runs a server watches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import Request
from prometheus_client.parser import text_string_to_metric_families

from tempopt.errors import StoreUnreachable
from tempopt.records.pool import PoolAgent, Quota
from tempopt.records.rows import NewTicket, Pooled
from tempopt.remote.wire import PROTOCOL
from tempopt.server import operations, pool_routes
from tempopt.store.pool import Pool
from tests.server.conftest import Served


def read(served: Served) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample that Prometheus reads, by name and labels."""
    answer = httpx.get(f"{served.url}/metrics", headers={"authorization": f"Bearer {served.token}"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_server_that_lives_and_serves_says_so_without_a_token(served: Served) -> None:
    for path, status in (("healthz", "ok"), ("readyz", "ready")):
        answer = httpx.get(f"{served.url}/{path}")
        assert (answer.status_code, answer.json()) == (200, {"status": status})


def test_a_server_without_its_database_lives_and_is_not_ready(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(pool: Pool) -> None:
        raise StoreUnreachable("postgresql://team:hush@db is away.")

    monkeypatch.setattr(Pool, "quotas", away)
    assert httpx.get(f"{served.url}/healthz").status_code == 200
    answer = httpx.get(f"{served.url}/readyz")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "storage_away"
    assert "db" not in answer.text and "hush" not in answer.text


def test_a_server_whose_threads_are_all_busy_is_ready(served: Served) -> None:
    done = threading.Event()
    served.app.add_api_route("/busy", lambda: done.wait(60))
    with ThreadPoolExecutor(60) as pool:
        busy = [pool.submit(httpx.get, f"{served.url}/busy", timeout=120) for _ in range(60)]
        try:
            assert httpx.get(f"{served.url}/readyz", timeout=30).status_code == 200
            assert not any(each.done() for each in busy)
        finally:
            done.set()


def test_a_server_that_is_about_to_end_is_not_ready(served: Served) -> None:
    served.app.state.tempopt.leaving.set()
    answer = httpx.get(f"{served.url}/readyz")
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "leaving"


def test_metrics_count_studies_tickets_agents_and_requests(served: Served) -> None:
    row = served.store.create_study(
        "mine", {}, "hash", pooled=Pooled(owner="ada", queue="vision", parallel=2)
    )
    served.store.add_tickets(
        row.id, [NewTicket(kind="search", arm="search", number=number, seed=1) for number in range(3)]
    )
    served.store.pool.hear(PoolAgent(name="a:1:b:1.1", study_id=row.id))
    served.store.pool.hear(PoolAgent(name="a:2:b:1.1"))
    httpx.get(f"{served.url}/api/studies/mine", headers={"authorization": "Bearer wrong"})
    found = read(served)
    # nobody has taken a ticket yet
    assert found["tempopt_studies", (("state", "waiting"),)] == 1
    assert found["tempopt_studies", (("state", "running"),)] == 0
    assert found["tempopt_studies", (("state", "done"),)] == 0
    assert found["tempopt_tickets", (("state", "waiting"),)] == 3
    assert found["tempopt_pool_agents", (("state", "idle"),)] == 1
    assert found["tempopt_pool_agents", (("state", "serving"),)] == 1
    assert found["tempopt_pool_wanted", (("queue", "vision"),)] == 2
    refused = (("method", "GET"), ("route", "/api/studies/{name}"), ("status", "401"))
    assert found["tempopt_request_seconds_count", refused] == 1


def test_methods_that_somebody_invents_are_one(served: Served) -> None:
    for number in range(5):
        httpx.request(f"INVENTED{number}", f"{served.url}/healthz")
    counted = [dict(labels) for name, labels in read(served) if name == "tempopt_request_seconds_count"]
    assert {each["method"] for each in counted} <= {"GET", "other"}


def test_metrics_say_how_much_of_a_budget_is_used(served: Served) -> None:
    for quota in (
        Quota(user="ada", gpu_hours=2.0),
        Quota(queue="vision", gpu_hours=0.0),
        Quota(user="bob", weight=3.0),
    ):
        served.store.pool.set_quota(quota)
    found = {labels: value for (name, labels), value in read(served).items() if name == "tempopt_budget_used"}
    assert found == {(("queue", ""), ("user", "ada")): 0.0, (("queue", "vision"), ("user", "")): 1.0}


def test_the_time_that_an_answer_was_held_back_does_not_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def long(request: Request, seconds: float) -> None:
        operations.held(request, seconds + 1000.0)

    monkeypatch.setattr(pool_routes, "held", long)
    headers = {"authorization": f"Bearer {served.token}", "tempopt-protocol": str(PROTOCOL)}
    said = {"agent": "here:1:m:1.1"}
    httpx.post(f"{served.url}/api/pool/sync", json=said, headers=headers, timeout=60).raise_for_status()
    route = (("method", "POST"), ("route", "/api/pool/sync"), ("status", "200"))
    found = read(served)
    assert found["tempopt_request_seconds_count", route] == 1
    assert found["tempopt_request_seconds_sum", route] == 0.0


def test_metrics_are_for_those_who_may_see_every_study(served: Served) -> None:
    for token, status in (
        (served.new_token("view"), 200),
        (served.new_token("agent"), 403),
        (served.new_token("view", studies="a-"), 403),
        ("wrong", 401),
    ):
        answer = httpx.get(f"{served.url}/metrics", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == status
