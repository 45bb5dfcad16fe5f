"""What one agent of the pool is told, by any of several dispatchers on one database."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt.pool.dispatcher import Dispatcher, picture
from tempopt.records.pool import PoolAgent
from tempopt.records.rows import NewTicket, Pooled
from tempopt.store import Store


def begun(store: Store, name: str, tickets: int = 1, **pooled: object) -> int:
    row = store.create_study(name, {}, "hash", pooled=dataclasses.replace(Pooled(parallel=8), **pooled))  # type: ignore[arg-type]
    new = [NewTicket(kind="search", arm="search", number=each, seed=each) for each in range(tickets)]
    store.add_tickets(row.id, new)
    return row.id


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two ways into one database, as two servers have them."""
    url = f"sqlite:///{tmp_path / 'pool.db'}"
    with Store.open(url) as one, Store.open(url) as other:
        yield one, other


def test_an_agent_is_sent_to_a_study_and_the_next_one_to_what_is_left(stores: tuple[Store, Store]) -> None:
    first, second = begun(stores[0], "first"), begun(stores[0], "second", owner="bob")
    one, other = map(Dispatcher, stores)
    sent = one.hear(PoolAgent(name="a"))
    assert sent.name in ("first", "second") and sent.assignment.order == "serve" and sent.mark
    # it has not come there yet, and counts there for every dispatcher
    also = other.hear(PoolAgent(name="b"))
    assert {sent.assignment.study_id, also.assignment.study_id} == {first, second}
    assert other.hear(PoolAgent(name="c")).name is None


def test_dispatchers_decide_alike(stores: tuple[Store, Store]) -> None:
    for number in range(4):
        begun(stores[0], f"study{number}", owner=f"user{number % 2}", priority=number % 2)
    for name in "abc":
        stores[0].pool.hear(PoolAgent(name=name))
    seen = [picture(store).allocation for store in stores]
    assert seen[0] == seen[1]
    assert len({each.study_id for each in seen[0].assignments}) == 3


def test_a_study_with_a_higher_priority_takes_the_agent_at_its_next_checkpoint(
    stores: tuple[Store, Store],
) -> None:
    low = begun(stores[0], "low")
    dispatcher = Dispatcher(stores[0])
    assert dispatcher.hear(PoolAgent(name="a")).name == "low"
    agent = PoolAgent(name="a", study_id=low)
    assert dispatcher.hear(agent).assignment.order == "serve"
    high = begun(stores[1], "high", priority=1)
    told = dispatcher.hear(agent)
    assert (told.assignment.study_id, told.assignment.order) == (high, "preempt")
    # the mark is that of the study that it serves, until it has left
    marks = {each.study_id: each.mark for each in stores[0].pool.read().demands}
    assert told.mark == marks[low]
    assert dispatcher.hear(dataclasses.replace(agent, study_id=None, leaving=False)).name == "high"


def test_an_agent_that_serves_a_study_which_is_no_more_leaves_it(stores: tuple[Store, Store]) -> None:
    id = begun(stores[0], "mine")
    dispatcher = Dispatcher(stores[0])
    dispatcher.hear(PoolAgent(name="a"))
    stores[1].delete_study("mine")
    told = dispatcher.hear(PoolAgent(name="a", study_id=id))
    assert told.name is None and told.assignment.order == "finish" and told.mark == ""


def test_who_was_not_heard_goes_on_with_what_it_does(stores: tuple[Store, Store]) -> None:
    id = begun(stores[0], "mine")
    told = Dispatcher(stores[0]).look(PoolAgent(name="unheard of", study_id=id))
    assert (told.assignment.study_id, told.assignment.order) == (id, "serve")


def test_looking_is_as_of_a_moment_ago_and_hearing_is_as_of_now(
    stores: tuple[Store, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.pool.dispatcher._FRESH_SECONDS", 3600.0)
    dispatcher, agent = Dispatcher(stores[0]), PoolAgent(name="a")
    assert dispatcher.hear(agent).name is None
    begun(stores[1], "mine")
    assert dispatcher.look(agent).name is None
    assert dispatcher.hear(agent).name == "mine"


def test_only_another_order_is_news_and_no_mark_is(stores: tuple[Store, Store]) -> None:
    id = begun(stores[0], "mine", tickets=2)
    dispatcher, agent = Dispatcher(stores[0]), PoolAgent(name="a", study_id=id)
    before = dispatcher.hear(agent)
    stores[0].withdraw(id, ["search"])
    after = dispatcher.hear(agent)
    assert after.mark != before.mark and after.same_as(before) and not after.same_as(None)
