"""What users are due, checked by other ways to compute it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tempopt.records.pool import Quota, Usage
from tempopt.scheduling.shares import HOUR, Claim, decayed, fair, filled, recent, repaid
from tests.scheduling.pools import HOUR as THIS_HOUR
from tests.scheduling.pools import NOW, Given, agents, counts, demand

WEIGHTS = st.floats(0.1, 10.0)
QUICK = settings(max_examples=60, deadline=None)


@pytest.mark.parametrize("age", [0, 1, 7, 24, 500])
def test_use_halves_in_value_with_every_half_life(age: int) -> None:
    half_life = 5 * HOUR
    row = Usage(user="ada", queue="default", hour=THIS_HOUR - age, seconds=1234.0)
    begin = row.hour * HOUR
    end = min(begin + HOUR, NOW)
    middles = [begin + (end - begin) * (i + 0.5) / 10_000 for i in range(10_000)]
    summed = sum(1234.0 / 10_000 * 0.5 ** ((NOW - each) / half_life) for each in middles)
    assert decayed([row], NOW, half_life) == {("default", "ada"): pytest.approx(summed, rel=1e-6)}


def test_use_of_an_hour_that_has_hardly_begun_or_that_a_clock_puts_into_the_future_counts_whole() -> None:
    rows = [Usage(user="ada", queue="default", hour=THIS_HOUR + i, seconds=10.0) for i in (0, 1)]
    assert decayed(rows, THIS_HOUR * HOUR, HOUR) == {("default", "ada"): 20.0}


@QUICK
@given(st.lists(st.tuples(WEIGHTS, st.floats(0.0, 20.0)), min_size=1, max_size=6), st.floats(0.0, 50.0))
def test_a_share_is_the_level_times_the_weight_or_all_that_is_wanted(
    given: list[tuple[float, float]], capacity: float
) -> None:
    claims = {str(i): Claim(weight, most) for i, (weight, most) in enumerate(given)}
    low, high = 0.0, 1e4
    for _ in range(200):  # the level at which as much is used as there is
        level = (low + high) / 2
        used = sum(min(each.most, level * each.weight) for each in claims.values())
        low, high = (level, high) if used < capacity else (low, level)
    shares = filled(capacity, claims)
    for key, each in claims.items():
        assert shares[key] == pytest.approx(min(each.most, high * each.weight), abs=1e-6)


@QUICK
@given(st.lists(st.tuples(WEIGHTS, st.floats(0.0, 1e7)), min_size=1, max_size=6))
def test_nobody_is_due_less_than_half_of_what_the_weights_say(given: list[tuple[float, float]]) -> None:
    users = {("default", str(i)): Claim(weight, 100.0) for i, (weight, _) in enumerate(given)}
    used = {("default", str(i)): seconds for i, (_, seconds) in enumerate(given)}
    due = fair(8.0, {"default": Claim(1.0, 100.0)}, {"default": users}, used)
    total = sum(each.weight for each in users.values())
    assert math.fsum(due.values()) == pytest.approx(8.0)
    for user, share in due.items():
        assert share >= 0.5 * 8.0 * users[user].weight / total


def test_who_had_less_than_its_share_is_due_more_and_who_had_its_share_is_due_that() -> None:
    weights = {"ada": 2.0, "bob": 1.0}
    even = repaid(weights, {"ada": 2e6, "bob": 1e6}, 3600.0)
    assert even == {"ada": pytest.approx(2.0), "bob": pytest.approx(1.0)}
    owed = repaid(weights, {"ada": 3e6, "bob": 0.0}, 3600.0)
    assert owed == {"ada": 1.0, "bob": 2.0}


def test_a_queue_is_due_its_weight_however_many_users_and_studies_it_has() -> None:
    demands = [demand(i, f"user{i}", 8, queue="many") for i in range(1, 6)]
    demands += [demand(9, "ada", 8, queue="one")]
    quotas = [Quota(queue="many", weight=1.0), Quota(queue="one", weight=3.0)]
    assert counts(Given(demands, agents(8), [], quotas).allocate())[9] == 6


def test_splitting_a_study_gains_nothing() -> None:
    demands = [demand(1, "ada", 8)] + [demand(i, "bob", 8) for i in range(2, 52)]
    assert counts(Given(demands, agents(8), [], []).allocate()) == {1: 4, 2: 4}


def test_what_was_had_of_late_adds_up_to_what_is_due() -> None:
    due = {"ada": 3.0, "bob": 1.0}
    second = math.log(2.0) / HOUR
    assert recent({}, due, HOUR) == pytest.approx(due)
    assert recent({"ada": 8 / second}, due, HOUR) == pytest.approx({"ada": 4.0, "bob": 0.0})
    assert recent({"bob": 2 / second}, due, HOUR) == pytest.approx({"ada": 1.5, "bob": 2.5})


@QUICK
@given(
    st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0, 3.0]), st.integers(0, 12)), min_size=1, max_size=5),
    st.integers(1, 12),
    st.data(),
)
def test_shares_are_fair_up_to_one_agent(
    users: list[tuple[float, int]], count: int, data: st.DataObject
) -> None:
    serving = data.draw(st.lists(st.one_of(st.none(), st.integers(1, len(users))), max_size=count))
    demands = [demand(i, f"user{i}", wanted) for i, (_, wanted) in enumerate(users, start=1)]
    quotas = [Quota(user=f"user{i}", weight=weight) for i, (weight, _) in enumerate(users, start=1)]
    had = counts(Given(demands, agents(count, serving), [], quotas).allocate())
    stays = 0.4 if serving else 0.0
    for i, (weight, wanted) in enumerate(users, start=1):
        if had[i] < wanted:
            for other, (weighing, _) in enumerate(users, start=1):
                assert (had[other] - 1 - stays) / weighing <= had[i] / weight + 1e-9


@pytest.mark.parametrize("stored", [math.inf, 1.7e308, -1.7e308, math.nan])
def test_use_that_nobody_can_have_had_leaves_everybody_a_share(stored: float) -> None:
    rows = [
        Usage(user="ada", queue="default", hour=THIS_HOUR - 1, seconds=stored),
        Usage(user="ada", queue="default", hour=THIS_HOUR - 2, seconds=stored),
        Usage(user="bob", queue="default", hour=THIS_HOUR - 1, seconds=3600.0),
    ]
    users = {"default": {("default", "ada"): Claim(1.0, 9.0), ("default", "bob"): Claim(1.0, 9.0)}}
    shares = fair(8.0, {"default": Claim(1.0, 18.0)}, users, decayed(rows, NOW, 24 * HOUR))
    assert math.fsum(shares.values()) == pytest.approx(8.0)
    # half of them by the weights alone, and at least a fifth of the rest
    assert all(each >= 8.0 * (0.25 + 0.1) for each in shares.values())
