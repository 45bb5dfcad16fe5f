"""What the administrator of a server watches."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tempopt.errors import StoreUnreachable
from tempopt.storage import Store
from tempopt.storage.rows import NewTicket
from tests.server.http_server import RunningServer


def read(server: RunningServer) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return every sample that Prometheus reads, by name and labels."""
    answer = httpx.get(f"{server.url}/metrics", headers={"authorization": f"Bearer {server.token}"})
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def test_a_server_that_lives_and_serves_says_so_without_a_token(running_server: RunningServer) -> None:
    for path, status in (("healthz", "ok"), ("readyz", "ready")):
        answer = httpx.get(f"{running_server.url}/{path}")
        assert (answer.status_code, answer.json()) == (200, {"status": status})


def test_a_server_without_its_database_lives_and_is_not_ready(
    running_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raise_unreachable(store: Store) -> None:
        raise StoreUnreachable("postgresql://team:hush@db is away.")

    monkeypatch.setattr(Store, "open_studies", raise_unreachable)
    assert httpx.get(f"{running_server.url}/healthz", timeout=30).status_code == 200
    answer = httpx.get(f"{running_server.url}/readyz", timeout=30)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "storage_away"
    assert "db" not in answer.text and "hush" not in answer.text


def test_a_server_whose_threads_are_all_busy_is_ready(running_server: RunningServer) -> None:
    finish = threading.Event()
    running_server.app.add_api_route("/busy", lambda: finish.wait(60))
    with ThreadPoolExecutor(60) as pool:
        busy = [pool.submit(httpx.get, f"{running_server.url}/busy", timeout=120) for _ in range(60)]
        try:
            assert httpx.get(f"{running_server.url}/readyz", timeout=30).status_code == 200
            assert not any(future.done() for future in busy)
        finally:
            finish.set()


def test_a_server_that_is_about_to_end_is_not_ready(running_server: RunningServer) -> None:
    running_server.app.state.tempopt.is_shutting_down.set()
    answer = httpx.get(f"{running_server.url}/readyz", timeout=30)
    assert answer.status_code == 503 and answer.json()["error"]["code"] == "leaving"


def test_metrics_count_studies_tickets_and_requests(running_server: RunningServer) -> None:
    row = running_server.store.create_study("mine", {}, "hash", owner="ada")
    running_server.store.add_tickets(
        row.id, [NewTicket(kind="search", arm="search", number=number, seed=1) for number in range(3)]
    )
    httpx.get(f"{running_server.url}/api/studies/mine", headers={"authorization": "Bearer wrong"})
    metrics = read(running_server)
    # no ticket has been taken yet
    assert metrics["tempopt_studies", (("state", "waiting"),)] == 1
    assert metrics["tempopt_studies", (("state", "running"),)] == 0
    assert metrics["tempopt_studies", (("state", "done"),)] == 0
    assert metrics["tempopt_tickets", (("state", "waiting"),)] == 3
    assert metrics["tempopt_gpu_hours", (("user", "ada"),)] == 0
    labels_401 = (("method", "GET"), ("route", "/api/studies/{name}"), ("status", "401"))
    assert metrics["tempopt_request_seconds_count", labels_401] == 1


def test_unknown_methods_share_one_label(running_server: RunningServer) -> None:
    for number in range(5):
        httpx.request(f"INVENTED{number}", f"{running_server.url}/healthz", timeout=30.0)
    label_sets = [
        dict(labels) for name, labels in read(running_server) if name == "tempopt_request_seconds_count"
    ]
    assert {labels["method"] for labels in label_sets} <= {"GET", "other"}


def test_metrics_are_for_those_who_may_see_every_study(running_server: RunningServer) -> None:
    for token, status in (
        (running_server.new_token("view"), 200),
        (running_server.new_token("agent"), 403),
        (running_server.new_token("view", studies="a-"), 403),
        ("wrong", 401),
    ):
        answer = httpx.get(f"{running_server.url}/metrics", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == status
