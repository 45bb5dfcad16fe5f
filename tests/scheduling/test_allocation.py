"""What every agent of the pool is told to do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tempopt.records.pool import PoolAgent, Quota, Usage
from tempopt.scheduling import allocate
from tests.scheduling.pools import HOUR, NOW, agents, counts, demand, told


def test_an_idle_agent_serves_the_study_that_wants_one() -> None:
    assert told(allocate([demand(1)], agents(2), [], [], now=NOW)) == [(1, "serve"), (None, "serve")]


def test_a_higher_priority_takes_the_agent_that_served_the_lowest_for_the_shortest_time() -> None:
    demands = [demand(1, wanted=2), demand(2, "bob", priority=-1, wanted=2), demand(3, "cleo", priority=1)]
    found = allocate(demands, agents(4, [2, 2, 1, 1]), [], [], now=NOW)
    assert told(found) == [(2, "serve"), (3, "preempt"), (1, "serve"), (1, "serve")]


def test_an_agent_changes_hands_within_a_priority_when_its_run_ends() -> None:
    demands = [demand(1, wanted=4), demand(2, "bob", wanted=4)]
    found = allocate(demands, agents(4, [1, 1, 1, 1]), [], [], now=NOW)
    assert told(found) == [(1, "serve"), (1, "serve"), (2, "finish"), (2, "finish")]


def test_a_study_whose_budget_is_used_up_loses_its_agents_until_there_is_budget_again() -> None:
    usage = [Usage(user="ada", queue="default", hour=HOUR - 1, seconds=3600 * 100.2)]
    quotas = [Quota(user="ada", gpu_hours=100, days=30)]
    found = allocate([demand(1)], agents(1, [1]), usage, quotas, now=NOW)
    assert told(found) == [(None, "preempt")]
    assert found.waiting == {1: "The budget of ada is used up: 100.2 of 100 GPU-hours in 30 days."}
    later = NOW + 30 * 24 * 3600
    assert told(allocate([demand(1)], agents(1), usage, quotas, now=later)) == [(1, "serve")]


def test_agents_on_their_way_are_not_counted_where_they_were_and_arrive() -> None:
    demands = [demand(1, wanted=2), demand(2, "bob", wanted=2)]
    rows = [*agents(2, [1, 1])]
    first = allocate(demands, rows, [], [], now=NOW)
    assert told(first) == [(1, "serve"), (2, "finish")]
    assert first.waiting == {
        1: "It waits for its share: ada is due 1.0 of 2 GPUs now, and has 1.",
        2: "It waits for its share: bob is due 1.0 of 2 GPUs now, and has 1.",
    }
    leaving = [rows[0], replace(rows[1], leaving=True)]
    assert told(allocate(demands, leaving, [], [], now=NOW)) == told(first)


def test_a_study_is_told_that_agents_are_on_their_way() -> None:
    demands = [demand(1, wanted=1), demand(2, "bob", wanted=1)]
    found = allocate(demands, agents(2, [1, 1]), [], [], now=NOW)
    assert told(found) == [(1, "serve"), (2, "finish")]
    assert found.waiting == {2: "It waits for 1 agent. It comes when it has left another study."}


def test_older_studies_of_a_user_come_first() -> None:
    demands = [demand(3, wanted=2), demand(1, wanted=2), demand(2, wanted=2)]
    found = allocate(demands, agents(3), [], [], now=NOW)
    assert [study for study, _ in told(found)] == [1, 1, 2]
    assert found.order == (2, 3)
    assert found.waiting == {2: "Older studies of ada come first.", 3: "Older studies of ada come first."}


def test_an_agent_that_only_one_study_can_use_is_left_to_it() -> None:
    wide, narrow = agents(2)
    rows = [wide, replace(narrow, queues=frozenset({"night"}))]
    demands = [demand(1, queue="night"), demand(2, "bob")]
    assert [study for study, _ in told(allocate(demands, rows, [], [], now=NOW))] == [2, 1]


def test_a_study_that_few_agents_can_serve_is_not_crowded_out() -> None:
    big, small = agents(2)
    rows = [replace(big, labels=frozenset({"big"})), small]
    demands = [demand(1, wanted=2), demand(2, "bob", labels=frozenset({"big"}))]
    assert [study for study, _ in told(allocate(demands, rows, [], [], now=NOW))] == [2, 1]
    serving = [replace(rows[0], study_id=1), rows[1]]
    assert told(allocate(demands, serving, [], [], now=NOW)) == [(2, "finish"), (1, "serve")]


def test_who_was_served_more_than_its_share_loses_its_agent_first() -> None:
    usage = [Usage(user="bob", queue="default", hour=HOUR - i, seconds=3600.0) for i in range(1, 9)]
    demands = [demand(1), demand(2, "bob"), demand(3, "cleo", priority=1)]
    assert told(allocate(demands, agents(2, [2, 1]), usage, [], now=NOW)) == [(3, "preempt"), (1, "serve")]


def test_a_study_that_is_gone_is_left() -> None:
    assert told(allocate([], agents(1, [7]), [], [], now=NOW)) == [(None, "finish")]


def test_the_most_specific_weight_counts_and_all_budgets_hold() -> None:
    demands = [demand(1, wanted=8), demand(2, "bob", wanted=8)]
    quotas = [Quota(user="ada", weight=7.0), Quota(queue="default", user="ada", weight=3.0)]
    assert counts(allocate(demands, agents(8), [], quotas, now=NOW)) == {1: 6, 2: 2}
    spent = [*quotas, Quota(gpu_hours=0.0)]
    found = allocate(demands, agents(8), [], spent, now=NOW)
    assert counts(found) == {}
    assert found.waiting[1] == "The budget of all users together is used up: 0 of 0 GPU-hours."


def test_a_study_without_agents_waits_until_a_hundredth_of_its_budget_is_free() -> None:
    usage = [Usage(user="ada", queue="default", hour=HOUR - 1, seconds=3600 * 99.5)]
    quotas = [Quota(user="ada", gpu_hours=100)]
    assert told(allocate([demand(1)], agents(1, [1]), usage, quotas, now=NOW)) == [(1, "serve")]
    found = allocate([demand(1)], agents(1), usage, quotas, now=NOW)
    assert told(found) == [(None, "serve")]
    used = "99.5 of 100 GPU-hours"
    assert found.waiting == {
        1: f"The budget of ada was used up, {used}: agents come when less than 99% is used."
    }


@pytest.mark.parametrize(
    ("asked", "rows", "reason"),
    [
        ({}, [], "The pool has no agents."),
        (
            {"queue": "day"},
            agents(1, queues=frozenset({"night", "dawn"})),
            "No agent serves the queue day: they serve only the queues dawn, night.",
        ),
        ({"labels": frozenset({"a", "b"})}, agents(1), "No agent has the labels a, b."),
        (
            {"labels": frozenset({"a", "b"})},
            [*agents(1, labels=frozenset("a")), *agents(1, labels=frozenset("b"))],
            "No agent has all of the labels a, b.",
        ),
        (
            {"gpus": 4.0},
            agents(1, gpus=1),
            "It needs 4 GPUs for a run, and agents have at most 1.",
        ),
        (
            {"gpus": 1.0, "on_cpu": False},
            agents(1),
            "It needs 1 GPU for a run, and agents have none.",
        ),
        ({}, agents(1, studies="team-"), "Agents may serve only studies with the name team-…."),
        (
            {},
            agents(1, unable={1: "No module named 'mine'."}),
            "No agent can serve it: No module named 'mine'.",
        ),
        (
            {"priority": -1},
            agents(1),
            "Studies with a higher priority have all agents that can serve it.",
        ),
    ],
)
def test_a_study_that_waits_is_told_why(
    asked: dict[str, Any], rows: Sequence[PoolAgent], reason: str
) -> None:
    rows = [replace(each, name=str(i)) for i, each in enumerate(rows)]
    found = allocate([demand(1, **asked), demand(2, "bob", len(rows))], rows, [], [], now=NOW)
    assert found.waiting[1] == reason


def test_a_study_whose_user_has_as_many_agents_as_it_may_is_told_so() -> None:
    quotas = [Quota(queue="default", user="ada", agents=1)]
    found = allocate([demand(1, wanted=3)], agents(3), [], quotas, now=NOW)
    assert counts(found) == {1: 1}
    reason = "At most 1 agent at a time may serve studies of ada in the queue default."
    assert found.waiting == {1: reason}


def test_queues_that_nobody_set_up_are_worth_no_more_than_one() -> None:
    own = [demand(2 + number, "bob", wanted=9, queue=f"q{number}") for number in range(9)]
    found = counts(allocate([demand(1, wanted=10), *own], agents(10), [], [], now=NOW))
    assert found[1] == 5
    # one that was set up has a share of its own
    found = counts(allocate([demand(1, wanted=10), *own], agents(10), [], [Quota(queue="q0")], now=NOW))
    assert found[2] >= 5 and found[1] >= 2


def test_an_agent_of_a_queue_that_nobody_set_up_serves_that_queue_alone() -> None:
    demands = [demand(1, wanted=2), demand(2, "bob", wanted=2, queue="vision")]
    rows = agents(2, queues=frozenset({"vision"}))
    found = allocate(demands, rows, [], [], now=NOW)
    assert counts(found) == {2: 2}
    assert found.waiting[1] == "No agent serves the queue default: they serve only the queue vision."


def test_an_idle_agent_comes_before_one_that_has_to_leave_a_study_that_was_paused() -> None:
    rows = agents(2, [7, None])
    assert told(allocate([demand(1)], rows, [], [], now=NOW)) == [(None, "finish"), (1, "serve")]
    assert told(allocate([demand(1, wanted=2)], rows, [], [], now=NOW)) == [(1, "finish"), (1, "serve")]
