"""The pool for people: what is shown of it, and where a study is put in it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from tempopt.errors import AccessDenied, StudyNotFound, UsageError
from tempopt.records.pool import PoolAgent, Quota
from tempopt.records.rows import NewTicket, Pooled, StudyRow
from tempopt.store import Store
from tempopt.study import pool


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(f"sqlite:///{tmp_path / 'studies.db'}")


def begun(store: Store, name: str, tickets: int = 3, **pooled: object) -> StudyRow:
    row = store.create_study(name, {}, "hash", pooled=dataclasses.replace(Pooled(parallel=2), **pooled))  # type: ignore[arg-type]
    new = [NewTicket(kind="search", arm="search", number=number, seed=1) for number in range(tickets)]
    store.add_tickets(row.id, new)
    return row


def test_the_pool_shows_what_studies_want_who_serves_them_and_why_others_wait(store: Store) -> None:
    first, second = begun(store, "first", owner="ada"), begun(store, "second", owner="bo", labels=("h100",))
    agent = PoolAgent(name="gpu1:17:abc:1.1@cluster", started_by="cluster", machine="gpu1", study_id=first.id)
    store.pool.hear(agent)
    seen = pool.pool(store)
    assert {each["study"]: (each["owner"], each["agents"], each["wanted"]) for each in seen["studies"]} == {
        "first": ("ada", 1, 2),
        "second": ("bo", 0, 2),
    }
    waiting = {each["study"]: each["waiting"] for each in seen["studies"]}
    assert "h100" in waiting["second"]
    (shown,) = seen["agents"]
    assert (shown["agent"], shown["study"], shown["token"]) == ("gpu1:17", "first", "cluster")
    assert {(each["queue"], each["user"], each["agents"]) for each in seen["users"]} == {
        ("default", "ada", 1),
        ("default", "bo", 0),
    }
    assert second.labels == ("h100",)


def test_an_agent_that_cannot_serve_a_study_says_why(store: Store) -> None:
    row = begun(store, "broken")
    store.pool.hear(PoolAgent(name="a:1:b:1.1", unable={row.id: "There is no module own."}))
    seen = pool.pool(store)
    assert seen["agents"][0]["unable"] == {"broken": "There is no module own."}
    assert "There is no module own." in seen["studies"][0]["waiting"]


def test_a_study_is_moved_and_its_tickets_stay(store: Store) -> None:
    row = begun(store, "mine")
    before = store.tickets(row.id)
    assert pool.place(store, "mine", priority=5) == ("default", 5)
    assert pool.place(store, "mine", queue="vision") == ("vision", 5)
    moved = store.load_study("mine")
    assert (moved.queue, moved.priority, moved.version) == ("vision", 5, store.load_study("mine").version)
    assert store.tickets(row.id) == before
    with pytest.raises(StudyNotFound, match='"yours"'):
        pool.place(store, "yours", priority=1)


def test_a_quota_is_set_replaced_listed_and_removed(store: Store) -> None:
    pool.set_quota(store, Quota(user="ada", weight=2.0))
    pool.set_quota(store, Quota(user="ada", gpu_hours=100.0, days=30.0))
    pool.set_quota(store, Quota(queue="vision", weight=3.0))
    assert pool.quotas(store) == [
        Quota(user="ada", gpu_hours=100.0, days=30.0),
        Quota(queue="vision", weight=3.0),
    ]
    pool.remove_quota(store, user="ada")
    assert [each.queue for each in pool.quotas(store)] == ["vision"]
    with pytest.raises(UsageError, match='no quota of the user "ada"'):
        pool.remove_quota(store, user="ada")


@pytest.mark.parametrize(
    ("quota", "told"),
    [
        (Quota(), "of nobody|--queue or --user"),
        (Quota(user="ada", weight=0.0), "above 0"),
        (Quota(user="ada", weight=float("nan")), "above 0"),
        (Quota(user="ada", gpu_hours=-1.0), "from 0"),
        (Quota(user="ada", days=3.0), "--gpu-hours with --days"),
        (Quota(user="ada", gpu_hours=1.0, days=0.0), "above 0"),
        (Quota(user="ada", agents=-1), "from 0"),
        (Quota(queue="vision", priority=3), "of a user"),
        (Quota(user="ada", priority=1001), "-1000 to 1000"),
    ],
)
def test_a_quota_that_means_nothing_is_refused(store: Store, quota: Quota, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        pool.set_quota(store, quota)
    assert pool.quotas(store) == []


def test_a_priority_above_what_a_user_may_give_is_refused() -> None:
    quotas = [Quota(user="ada", priority=2), Quota(user="ada", queue="vision", priority=7)]

    def given(user: str, queue: str, priority: int) -> None:
        pool.check_priority(quotas, user=user, queue=queue, priority=priority)

    given("bo", "vision", 0)
    given("ada", "default", 2)
    given("ada", "vision", 7)
    for user, queue, priority, most in (
        ("bo", "vision", 1, 0),
        ("ada", "default", 3, 2),
        ("ada", "vision", 8, 7),
    ):
        with pytest.raises(AccessDenied, match=f"at most {most}, and {priority} was given"):
            given(user, queue, priority)
