"""How much of each budget is used."""

from __future__ import annotations

from tempopt.records.pool import Quota, Usage
from tempopt.scheduling.limits import budgets


def test_a_budget_counts_what_it_holds_for_within_its_days() -> None:
    usage = [
        Usage(user="ada", queue="vision", hour=100, seconds=3600.0),
        Usage(user="ada", queue="text", hour=100, seconds=7200.0),
        Usage(user="bob", queue="vision", hour=100, seconds=1800.0),
        Usage(user="ada", queue="vision", hour=10, seconds=36000.0),
    ]
    of_ada = Quota(user="ada", gpu_hours=5.0, days=1.0)
    of_vision = Quota(queue="vision", gpu_hours=8.0)
    unlimited = Quota(user="bob", agents=2)
    found = budgets([of_ada, of_vision, unlimited], usage, now=101 * 3600.0)
    assert found == [(of_ada, 3.0), (of_vision, 11.5)]
