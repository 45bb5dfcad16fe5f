"""Studies of a pool push each other out, in peace and under attack, and come to their own values.

The larger scenes, and how long a study waits for its first step, are ``python -m tests.cluster.pool``.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cluster.pool import Pool, attacked, comes_first, flips, in_peace, requests_of_idle
from tests.cluster.studies import Record
from tests.servers import why_not

PLACES = [Pool(), Pool(servers=1), Pool(backend="postgresql", servers=2)]
NAMES = ["a database", "a server on SQLite", "two servers on PostgreSQL"]
AGAIN = [pytest.param(each, marks=pytest.mark.nightly) for each in PLACES[:2]]


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Record]:
    """Return what gives the record of a study of runs of so many steps that nobody disturbs."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    return in_peace(shared / "pool-in-peace")


def can_be(pool: Pool) -> None:
    if pool.backend != "sqlite" and (reason := why_not(pool.backend)):
        pytest.skip(reason)


@pytest.mark.long
@pytest.mark.parametrize("pool", [*AGAIN, PLACES[2]], ids=NAMES)
def test_a_study_with_a_higher_priority_comes_first_and_no_step_is_trained_twice(
    pool: Pool, tmp_path: Path, alone: Callable[[int], Record]
) -> None:
    can_be(pool)
    comes_first(pool, tmp_path, alone, print)


@pytest.mark.long
@pytest.mark.nightly
def test_a_study_that_is_pushed_out_thirty_times_comes_to_the_same_values(
    tmp_path: Path, alone: Callable[[int], Record]
) -> None:
    flips(Pool(), tmp_path, alone, print, times=30)


@pytest.mark.long
@pytest.mark.parametrize("pool", [*AGAIN, PLACES[2]], ids=NAMES)
def test_whatever_is_done_to_agents_and_servers_nothing_is_lost_and_nothing_done_twice(
    pool: Pool, tmp_path: Path, alone: Callable[[int], Record]
) -> None:
    can_be(pool)
    attacked(pool, tmp_path, alone, print, seconds=60.0)


@pytest.mark.long
def test_agents_that_have_nothing_to_do_ask_rarely(tmp_path: Path) -> None:
    found = requests_of_idle(Pool(servers=1), tmp_path, 60.0)
    assert sum(found.values()) <= 6.0, found
