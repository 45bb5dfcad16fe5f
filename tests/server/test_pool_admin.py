"""The pool over HTTP for people: who sees what of it, and who may set what."""

from __future__ import annotations

import dataclasses

import pytest

import tempopt
from tempopt.errors import AccessDenied, StudyNotFound, UsageError
from tempopt.records.pool import PoolAgent, Quota
from tempopt.records.rows import NewTicket, Pooled
from tempopt.server.tokens import made
from tempopt.store import Store
from tempopt.study import pool
from tests.server.conftest import Served


def begun(store: Store, name: str, **pooled: object) -> int:
    row = store.create_study(name, {}, "hash", pooled=dataclasses.replace(Pooled(), **pooled))  # type: ignore[arg-type]
    store.add_tickets(row.id, [NewTicket(kind="search", arm="search", number=0, seed=1)])
    return row.id


def test_a_server_shows_the_pool_as_its_database_does(served: Served) -> None:
    id = begun(served.store, "mine", owner="ada")
    served.store.pool.hear(PoolAgent(name="gpu1:17:abc:1.1@cluster", study_id=id))
    with tempopt.connect(served.url) as server:
        seen, there = server.pool(), pool.pool(served.store)
    for each in (*seen["agents"], *there["agents"]):
        each.pop("seconds")
    assert seen == there
    assert seen["studies"][0]["study"] == "mine"


def test_a_study_is_moved_through_a_server(served: Served) -> None:
    begun(served.store, "mine")
    with tempopt.connect(served.url) as server:
        assert server.place("mine", queue="vision", priority=900) == ("vision", 900)
        with pytest.raises(StudyNotFound):
            server.place("yours", priority=1)


def test_a_user_gives_no_priority_above_the_quota_and_an_administrator_any(served: Served) -> None:
    begun(served.store, "mine")
    token, _ = made(served.store, name="laptop", user="ada", scopes=["submit"])
    with tempopt.connect(served.url, token) as server:
        assert server.place("mine", priority=-5) == ("default", -5)
        with pytest.raises(AccessDenied, match="ada may give .* at most 0"):
            server.place("mine", priority=1)
        served.store.pool.set_quota(Quota(user="ada", priority=3))
        assert server.place("mine", priority=3) == ("default", 3)
        with pytest.raises(AccessDenied, match="at most 3"):
            server.place("mine", priority=4)
    assert served.store.load_study("mine").priority == 3


def test_a_priority_that_one_queue_allows_is_not_carried_into_another(served: Served) -> None:
    begun(served.store, "mine", queue="vision")
    token, _ = made(served.store, name="laptop", user="ada", scopes=["submit"])
    served.store.pool.set_quota(Quota(user="ada", queue="vision", priority=10))
    with tempopt.connect(served.url, token) as server:
        assert server.place("mine", priority=10) == ("vision", 10)
        with pytest.raises(AccessDenied, match="queue default a priority of at most 0"):
            server.place("mine", queue="default")
        assert server.place("mine", queue="default", priority=0) == ("default", 0)


def test_quotas_are_set_by_administrators_alone(served: Served) -> None:
    token = served.new_token("submit")
    pool.set_quota(served.url, Quota(user="ada", gpu_hours=10.0, days=7.0))
    assert pool.quotas(served.url) == [Quota(user="ada", gpu_hours=10.0, days=7.0)]
    with tempopt.connect(served.url, token) as server:
        with pytest.raises(AccessDenied):
            pool.set_quota(server._store, Quota(user="ada", gpu_hours=1000.0))
        with pytest.raises(AccessDenied):
            pool.remove_quota(server._store, user="ada")
    assert served.store.pool.quotas() == [Quota(user="ada", gpu_hours=10.0, days=7.0)]
    pool.remove_quota(served.url, user="ada")
    with pytest.raises(UsageError, match="no quota"):
        pool.remove_quota(served.url, user="ada")


def test_who_has_a_part_of_the_studies_sees_that_part_of_the_pool(served: Served) -> None:
    mine, theirs = begun(served.store, "a-mine", owner="other"), begun(served.store, "b-theirs", owner="bo")
    served.store.pool.set_quota(Quota(user="bo", weight=2.0))
    for number, id in enumerate((mine, theirs)):
        name = f"gpu{number}:17:abc:1.1@cluster"
        served.store.pool.hear(PoolAgent(name=name, study_id=id, unable={theirs: "It has no module b."}))
    token = served.new_token("view", studies="a-")
    with tempopt.connect(served.url, token) as server:
        seen = server.pool()
        assert pool.quotas(server._store) == []
    assert [each["study"] for each in seen["studies"]] == ["a-mine"]
    assert "b-theirs" not in str(seen) and "'bo'" not in str(seen) and "module b" not in str(seen)
    assert [each["study"] for each in seen["agents"]] == ["a-mine"]


def test_what_a_token_begins_belongs_to_its_user(served: Served) -> None:
    token, row = made(served.store, name="laptop", user="ada@example.com", scopes=["submit"])
    assert row.user == "ada@example.com"
    spec = {
        "study": {"name": "asked", "metric": "val_accuracy", "direction": "maximize", "queue": "vision"},
        "model": {"class_path": "lightning_modules.MaxRetrieval"},
        "trainer": {"max_steps": 10},
        "search": {"temperature_init": {"low": 0.25, "high": 4}},
    }
    with tempopt.connect(served.url, token) as server:
        server._store.server.post("/api/studies", {"spec": spec})
        spec["study"] = {**spec["study"], "name": "urgent", "priority": 4}  # type: ignore[dict-item]
        with pytest.raises(AccessDenied, match=r"ada@example.com may give .* at most 0"):
            server._store.server.post("/api/studies", {"spec": spec})
    study = served.store.load_study("asked")
    assert (study.owner, study.queue, study.priority) == ("ada@example.com", "vision", 0)
    assert [each.study.name for each in served.store.list_studies()] == ["asked"]


def test_a_user_that_is_none_is_refused(served: Served) -> None:
    with pytest.raises(UsageError, match="cannot be a user"):
        made(served.store, name="laptop", user="ada lovelace", scopes=["submit"])
