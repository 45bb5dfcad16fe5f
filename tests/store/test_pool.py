"""The pool in the store: what studies want, who is there, what was used, on every kind of database."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest
from sqlalchemy import insert, text, update

from tempopt.errors import StudyNotFound
from tempopt.records import Ended, Outcomes, Returned, StudyRow, TicketRow
from tempopt.records.changes import MOST_SECONDS
from tempopt.records.pool import Demand, PoolAgent, Quota, Usage
from tempopt.records.rows import Pooled
from tempopt.store import Store
from tempopt.store.models import POOL_AGENT, TICKET, USAGE
from tempopt.store.pool import SILENT_SECONDS
from tests.store.scenes import HOUR, ended, new, take, taken


def begun(store: Store, name: str = "mine", tickets: int = 4, parallel: int = 8, **pooled: Any) -> StudyRow:
    row = store.create_study(name, {}, "hash", pooled=Pooled(parallel=parallel, **pooled))
    store.add_tickets(row.id, [new(number) for number in range(tickets)])
    return row


def demand(store: Store, id: int) -> Demand:
    return next(each for each in store.pool.read().demands if each.study_id == id)


def serving(store: Store, study_id: int | None, name: str = "a", **more: Any) -> PoolAgent:
    agent = PoolAgent(name=name, study_id=study_id, **more)
    store.pool.hear(agent)
    return agent


def given_back(store: Store, ticket: TicketRow) -> None:
    assert ticket.agent is not None
    store.write(
        ticket.study_id,
        [Returned(ticket_id=ticket.id, attempt=ticket.attempt, seconds=1.0)],
        agent=ticket.agent,
        lease=HOUR,
    )


def test_a_study_wants_an_agent_for_each_run_and_no_more_than_train_at_a_time(store: Store) -> None:
    assert demand(store, begun(store, "few", tickets=3).id).wanted == 3
    assert demand(store, begun(store, "narrow", tickets=9, parallel=2).id).wanted == 2


def test_a_study_stands_in_the_pool_as_it_was_begun(store: Store) -> None:
    row = begun(store, owner="ada", queue="vision", priority=3, labels=("h100",), gpus=2.0, on_cpu=False)
    found = demand(store, row.id)
    assert (found.name, found.owner, found.queue, found.priority) == ("mine", "ada", "vision", 3)
    assert (found.labels, found.gpus, found.on_cpu) == (frozenset({"h100"}), 2.0, False)


def test_agents_share_a_card_where_runs_take_a_part_of_it(store: Store) -> None:
    assert demand(store, begun(store, tickets=5, gpus=0.5).id).wanted == 3


def test_what_others_train_wants_no_agent_of_the_pool(store: Store) -> None:
    study = begun(store, tickets=3)
    taken(store, study, "of this study alone")
    assert demand(store, study.id).wanted == 2
    taken(store, study, "a")
    serving(store, study.id)
    assert demand(store, study.id).wanted == 2


def test_whoever_serves_a_study_is_wanted_there_until_it_leaves(store: Store) -> None:
    study = begun(store, tickets=1)
    for name in "abc":
        serving(store, study.id, name)
    assert demand(store, study.id).wanted == 3
    serving(store, study.id, "c", leaving=True)
    assert demand(store, study.id).wanted == 2


def test_a_study_whose_runs_are_over_wants_one_agent_that_opens_the_next_stage(store: Store) -> None:
    study = begun(store, tickets=1)
    ticket = taken(store, study)
    store.write(study.id, [ended(ticket)], agent="agent", lease=HOUR)
    assert demand(store, study.id).wanted == 1


@pytest.mark.parametrize("state", ["paused", "done"])
def test_a_study_that_does_not_run_wants_nothing(store: Store, state: Any) -> None:
    study = begun(store)
    store.set_state(study.id, state)
    assert store.pool.read().demands == ()


def test_nobody_is_sent_where_an_agent_found_nothing_until_something_has_changed(store: Store) -> None:
    study = begun(store, tickets=2)
    first = taken(store, study, "of this study alone")
    mark = demand(store, study.id).mark
    serving(store, None, idle_at={study.id: mark})
    assert demand(store, study.id).wanted == 0
    store.write(study.id, [ended(first)], agent="of this study alone", lease=HOUR)
    assert demand(store, study.id).wanted == 1


def test_a_run_that_was_taken_and_given_back_leaves_another_mark(store: Store) -> None:
    study = begun(store, tickets=1)
    before = demand(store, study.id).mark
    ticket = taken(store, study)
    between = demand(store, study.id).mark
    given_back(store, ticket)
    marks = {before, between, demand(store, study.id).mark}
    assert len(marks) == 3
    serving(store, None, idle_at={study.id: before})
    assert demand(store, study.id).wanted == 1


def test_a_run_whose_lease_is_over_waits_and_somebody_is_sent_whoever_found_nothing(store: Store) -> None:
    study = begun(store, tickets=1)
    ticket = taken(store, study, "gone")
    mark = demand(store, study.id).mark
    assert demand(store, study.id).wanted == 0
    expire(store, ticket)
    lost = demand(store, study.id)
    assert lost.mark != mark and lost.wanted == 1
    serving(store, None, idle_at={study.id: lost.mark})
    assert demand(store, study.id).wanted == 1
    # a server that has just begun leaves leases that are over to those who hold them
    assert take(store, study.id, "b", expired=False) is None
    assert taken(store, study, "b").id == ticket.id


def expire(store: Store, ticket: TicketRow) -> None:
    store._database.write(
        lambda c: c.execute(update(TICKET).where(TICKET.c.id == ticket.id).values(lease=1.0))
    )


def test_an_agent_says_what_it_is_and_is_known_by_that(store: Store) -> None:
    said = PoolAgent(
        name="gpu1:17:abc:1.1@cluster",
        machine="gpu1",
        started_by="cluster",
        queues=frozenset({"vision", "text"}),
        labels=frozenset({"h100"}),
        studies="team-",
        gpus=2,
        unable={7: 'no module "mine"\0 here'},
        idle_at={8: "1.2.3.4.5"},
    )
    store.pool.hear(said)
    (found,) = store.pool.read().agents
    assert found.unable == {7: 'no module "mine"\\0 here'}
    assert found.seen == pytest.approx(found.since) and found.seen == pytest.approx(time.time(), abs=60)
    for name in ("machine", "started_by", "queues", "labels", "studies", "gpus", "idle_at", "study_id"):
        assert getattr(found, name) == getattr(said, name)


def test_what_an_agent_says_of_studies_that_its_token_may_not_see_is_not_heard(store: Store) -> None:
    study = begun(store, "theirs")
    wanted, mark = demand(store, study.id).wanted, demand(store, study.id).mark
    store.pool.hear(
        PoolAgent(
            name="a", studies="mine-", study_id=study.id, unable={study.id: "no"}, idle_at={study.id: mark}
        )
    )
    assert demand(store, study.id).wanted == wanted > 0
    (found,) = store.pool.read().agents
    assert (found.study_id, found.unable, found.idle_at) == (None, {}, {})


def test_it_is_known_since_when_an_agent_serves_its_study(store: Store) -> None:
    study = begun(store)
    serving(store, study.id)
    (first,) = store.pool.read().agents
    time.sleep(0.02)
    serving(store, study.id)
    (again,) = store.pool.read().agents
    assert again.since == first.since and again.seen > first.seen
    serving(store, None)
    (left,) = store.pool.read().agents
    assert left.since > first.since and left.study_id is None


def test_an_agent_that_was_sent_to_a_study_counts_there_before_it_says_so(store: Store) -> None:
    study = begun(store)
    serving(store, None)
    store.pool.assign("a", study.id)
    (found,) = store.pool.read().agents
    assert found.study_id == study.id and not found.leaving
    store.pool.forget("a")
    assert store.pool.read().agents == ()


def test_an_agent_that_was_silent_for_too_long_is_gone_and_is_back_with_its_next_word(store: Store) -> None:
    study = begun(store, tickets=2)
    serving(store, study.id)
    silent(store, "a", SILENT_SECONDS + 1)
    assert store.pool.read().agents == ()
    serving(store, study.id)
    assert [each.name for each in store.pool.read().agents] == ["a"]
    silent(store, "a", SILENT_SECONDS - 5)
    assert [each.name for each in store.pool.read().agents] == ["a"]


def test_who_was_silent_for_very_long_is_forgotten_when_another_speaks(store: Store) -> None:
    serving(store, None)
    silent(store, "a", 20 * SILENT_SECONDS)
    serving(store, None, "b")
    names = store._database.read(lambda c: c.scalars(text("SELECT name FROM tempopt_agent")).all())
    assert names == ["b"]


def silent(store: Store, name: str, seconds: float) -> None:
    values = {"seen": POOL_AGENT.c.seen - seconds}
    store._database.write(
        lambda c: c.execute(update(POOL_AGENT).where(POOL_AGENT.c.name == name).values(values))
    )


def spent(store: Store, study: StudyRow, seconds: float, gpu_seconds: float = 0.0) -> None:
    ticket = taken(store, study)
    outcomes = Outcomes(outcome="complete", value=0.5, steps=1, seconds=seconds, gpu_seconds=gpu_seconds)
    told = [Ended(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes)]
    store.write(study.id, told, agent="agent", lease=HOUR)


def used(store: Store) -> dict[tuple[str, str], float]:
    hour = time.time() // 3600
    found: dict[tuple[str, str], float] = {}
    for each in store.pool.usage():
        assert isinstance(each, Usage) and hour - each.hour in (0, 1)
        found[each.user, each.queue] = found.get((each.user, each.queue), 0.0) + each.seconds
    return found


def test_what_users_have_used_is_told_by_queue_and_hour(store: Store) -> None:
    mine = begun(store, "mine", owner="ada", queue="vision")
    other = begun(store, "other", owner="ada", queue="vision")
    theirs = begun(store, "theirs", owner="bob")
    spent(store, mine, 10.0)
    spent(store, mine, 10.0, gpu_seconds=40.0)
    spent(store, other, 5.0)
    spent(store, theirs, 1.0)
    assert used(store) == {("ada", "vision"): 55.0, ("bob", "default"): 1.0}


def test_runs_in_progress_are_used_too_and_those_whose_lease_is_over_are_not(store: Store) -> None:
    study = begun(store, owner="ada", gpus=4.0)
    ticket = taken(store, study)
    time.sleep(0.05)
    (seconds,) = used(store).values()
    assert 0.0 < seconds < 4 * 600
    expire(store, ticket)
    assert used(store) == {}


def test_a_share_is_not_got_back_by_deleting_a_study(store: Store) -> None:
    for name in ("one", "two"):
        study = begun(store, name, owner="ada")
        spent(store, study, 10.0)
        store.delete_study(name)
    assert used(store) == {("ada", "default"): 20.0}


def test_what_was_used_in_a_queue_is_not_taken_along_into_another(store: Store) -> None:
    study = begun(store, "one", owner="ada", queue="vision")
    spent(store, study, 10.0)
    store.pool.place("one", queue="default")
    assert used(store) == {("ada", "vision"): 10.0, ("ada", "default"): 0.0}
    spent(store, study, 5.0)
    store.pool.place("one", queue="vision")
    store.pool.place("one", queue="vision", priority=3)
    assert used(store) == {("ada", "vision"): 10.0, ("ada", "default"): 5.0}
    spent(store, study, 1.0)
    store.delete_study("one")
    assert used(store) == {("ada", "vision"): 11.0, ("ada", "default"): 5.0}


def test_quotas_are_set_replaced_and_removed(store: Store) -> None:
    store.pool.set_quota(Quota(user="bob", gpu_hours=10.0, days=7.0))
    store.pool.set_quota(Quota(queue="vision", weight=2.0, agents=3))
    store.pool.set_quota(Quota(user="bob", priority=5))
    assert store.pool.quotas() == [Quota(user="bob", priority=5), Quota(queue="vision", weight=2.0, agents=3)]
    assert store.pool.read().quotas == tuple(store.pool.quotas())
    assert store.pool.remove_quota("", "bob") and not store.pool.remove_quota("", "bob")
    assert [each.queue for each in store.pool.quotas()] == ["vision"]


def test_a_study_is_moved_and_told_where_it_is(store: Store) -> None:
    study = begun(store)
    assert store.pool.place("mine", priority=7) == ("default", 7)
    assert store.pool.place("mine", queue="vision") == ("vision", 7)
    assert store.pool.place("mine") == ("vision", 7)
    found = demand(store, study.id)
    assert (found.queue, found.priority) == ("vision", 7)
    with pytest.raises(StudyNotFound, match='no study "yours"'):
        store.pool.place("yours", priority=1)


@pytest.mark.parametrize("forged", [math.inf, 1.7e308, -1.7e308])
def test_time_that_nobody_can_have_used_stops_neither_the_pool_nor_a_deletion(
    store: Store, forged: float
) -> None:
    if math.isinf(forged) and store.url.startswith("mysql"):
        pytest.skip("MySQL holds no infinity")
    study = begun(store, owner="ada")
    for _ in range(3):
        ticket = taken(store, study)
        assert not store.write(study.id, [ended(ticket)], agent="agent", lease=HOUR).refused
    over = TICKET.c.state == "done"
    store._database.write(
        lambda c: c.execute(update(TICKET).where(over).values(seconds=forged, gpu_seconds=forged))
    )
    assert all(0.0 <= each.seconds <= 3 * MOST_SECONDS for each in store.pool.usage())
    assert 0.0 <= store.totals()[study.id].gpu_seconds <= 3 * MOST_SECONDS
    assert all(0.0 <= each.gpu_seconds <= MOST_SECONDS for each in store.tickets(study.id))
    store.delete_study("mine")
    assert all(0.0 <= each.seconds <= 3 * MOST_SECONDS for each in store.pool.usage())


@pytest.mark.parametrize("forged", [math.inf, 1.7e308])
def test_use_of_a_deleted_study_that_nobody_can_have_had_does_not_stop_the_pool(
    store: Store, forged: float
) -> None:
    if math.isinf(forged) and store.url.startswith("mysql"):
        pytest.skip("MySQL holds no infinity")
    rows = [{"user": "ada", "queue": "default", "hour": 400_000, "seconds": forged} for _ in range(3)]
    store._database.write(lambda c: c.execute(insert(USAGE), rows))
    (used,) = store.pool.usage()
    assert (used.user, used.hour) == ("ada", 400_000) and 0.0 < used.seconds <= MOST_SECONDS
