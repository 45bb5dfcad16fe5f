"""The page of the pool: the queue with its reasons, agents, users' shares; and nothing of others' studies."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from tempopt.records.pool import PoolAgent, Quota
from tempopt.server.pages import pool, shown
from tests.server.conftest import Served
from tests.server.pages.conftest import Person
from tests.server.pages.made_studies import MARKUP, fill_pool
from tests.server.pages.test_studies_page import counted


def _section(text: str, name: str) -> str:
    """Return the words of one section."""
    part = text[text.index(f'aria-labelledby="h-{name}"') :]
    return " ".join(re.sub(r"<[^>]*>", " ", part[: part.index("</section>")]).split())


def test_an_empty_pool_says_how_an_agent_is_started(ada: Person) -> None:
    text = ada.get("/pool").text
    assert "tempopt agent --pool" in _section(text, "agents")
    assert "The pool has no agents." in _section(text, "queue")


def test_the_queue_says_why_a_study_waits_and_agents_what_they_serve(ada: Person, site: Served) -> None:
    fill_pool(site.store)
    text = ada.get("/pool").text
    queue, agents = _section(text, "queue"), _section(text, "agents")
    assert queue.index("searching") < queue.index("losing")
    for row in ada.get("/api/pool", headers={"accept": "*/*"}).json()["studies"]:
        assert f"{row['agents']} of {row['wanted']}" in queue
        assert (row["waiting"] or "") in queue
    assert "serves searching" in agents and "leaves searching" in agents and "idle" in agents
    assert "cannot serve losing: ModuleNotFoundError" in agents
    assert MARKUP not in text
    assert "3 agents, 2 at work" in " ".join(text.split())


def test_shares_are_of_a_queue_and_what_was_set_is_shown(ada: Person, site: Served) -> None:
    site.store.pool.set_quota(Quota(queue="default", user="ada", weight=3.0))
    site.store.pool.set_quota(Quota(queue="default", user="katherine.johnson@example.com", agents=4))
    site.store.set_state(site.store.load_study("pairs").id, "running")
    for name in ("pairs", "losing"):
        site.store.pool.place(name, queue="default")
    study = next(each.study for each in site.store.list_studies() if "katherine" in each.study.owner)
    site.store.set_state(study.id, "running")
    text = ada.get("/pool").text
    users, quotas = _section(text, "users"), _section(text, "quotas")
    assert "ada default 3 75 %" in users and "katherine.johnson@example.com default 1 25 %" in users
    assert "ada in default 3" in quotas and "katherine.johnson@example.com in default 1" in quotas


def test_nobody_sees_agents_at_studies_that_are_not_theirs(
    sign_in: Callable[..., Person], site: Served
) -> None:
    fill_pool(site.store)
    text = sign_in("view", studies="losing").get("/pool").text
    assert "searching" not in text and "grace" not in text
    assert "losing" in _section(text, "queue")
    assert "node-a" not in text and "laptop" in _section(text, "agents")


def test_many_studies_in_the_queue_are_cut_short(
    ada: Person, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "MOST", 1)
    text = ada.get("/pool").text
    assert _section(text, "queue").endswith("and 1 more, whose turn comes later")


def test_whoever_looks_within_seconds_costs_the_store_one_picture(
    ada: Person, site: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shown, "FRESH_SECONDS", 1e9)
    site.app.state.pages = shown.made(site.app.state.tempopt)
    first = ada.get("/fragments/pool")
    with counted() as said:
        again = ada.get("/fragments/pool", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304
    assert not [each for each in said if "tempopt_study" in each or "tempopt_agent" in each]
    site.store.pool.hear(PoolAgent(name="node-z:1:0:0.1", machine="node-z"))
    site.app.state.pages.pool.forget()
    assert "node-z" in ada.get("/fragments/pool").text
