"""Weeks of a simulated pool: shares, waits and idle agents."""

from __future__ import annotations

import math

import pytest

from benchmarks.fair_share import agents, fifty_studies, three
from benchmarks.simulated.pool import DAY, HOUR, Length, Person, Pool, heavy, short
from tempopt.scheduling.shares import SHORT_HALF_LIFE

LONGEST = 4 * HOUR
"""No run of ``short`` takes longer."""


@pytest.mark.parametrize(("count", "length", "days"), [(1, short, 7), (8, heavy, 4)])
def test_three_users_of_two_queues_get_their_shares(count: int, length: Length, days: int) -> None:
    pool = Pool(three(length), agents(count), queues={"research": 2.0, "class": 1.0})
    pool.run(days * DAY)
    for name, share in {"ada": 4 / 9, "bob": 2 / 9, "cleo": 1 / 3}.items():
        seen = pool.seen[name]
        assert seen.seconds / (count * days * DAY) == pytest.approx(share, rel=0.05)
        # the bound that docs/fair-share.md states
        bound = SHORT_HALF_LIFE / math.log(2) * (math.log(4 / share) + 1) + 3 * LONGEST
        assert count > 1 or 0.0 < seen.wait < bound
    assert pool.preempted == 0
    assert pool.idle == 0.0


def test_a_newcomer_is_repaid_and_who_was_there_before_keeps_half_of_its_share() -> None:
    came = 3 * DAY
    people = [Person(name="ada"), Person(name="bob", present=[(came, 5 * DAY)])]
    pool = Pool(people, agents(8))
    pool.run(came)
    assert pool.seen["ada"].seconds == pytest.approx(8 * came)
    pool.run(5 * DAY)
    had = sum(pool.seen["bob"].daily[day] for day in (3, 4)) / (8 * 2 * DAY)
    assert 0.55 < had < 0.75
    assert pool.seen["bob"].wait < LONGEST


def test_splitting_a_study_into_fifty_gains_nothing_over_days() -> None:
    pool = Pool(fifty_studies(short), agents(1))
    pool.run(3 * DAY)
    assert pool.seen["ada"].seconds == pytest.approx(pool.seen["bob"].seconds, rel=0.1)
