"""A search ends in time for what proves it, by the clock and by what was spent of cards."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.agent.stop_conditions import find_convergence_reason, find_stop_reason
from tempopt.errors import SpecError
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import gpu_seconds_of
from tempopt.verdict.stages import count_tickets_to_come


def cache(rows: list[TicketRow], *, hours: float = 0.0) -> Any:
    """Return as much of a cache as is asked for."""
    return SimpleNamespace(
        tickets={row.id: row for row in rows},
        tickets_of_kind=lambda kind: [row for row in rows if row.kind == kind],
        gpu_seconds=sum(gpu_seconds_of(row) for row in rows),
        age=3600.0 * hours,
    )


@pytest.mark.parametrize(
    ("gpu_seconds", "limit", "ends"),
    [
        # an hour of training on half a card counts as half an hour, on four as four
        (1800.0, 0.45, True),
        (1800.0, 1e9, False),
        (14400.0, 3.9, True),
        # without cards, what counts is training
        (0.0, 0.9, True),
        (0.0, 1e9, False),
    ],
)
def test_hours_of_cards_are_counted_where_there_are_cards_and_hours_of_training_where_not(
    make_spec: Any, make_ticket: Any, gpu_seconds: float, limit: float, ends: bool
) -> None:
    rows = [
        make_ticket("search", 0, 0.5, seconds=3600.0, gpu_seconds=gpu_seconds),
        make_ticket("search", 1, state="waiting", seconds=0.0),
    ]
    spec = make_spec(limits={"gpu_hours": limit})
    reason = find_stop_reason(spec, cache(rows), workers=1)
    assert (reason is not None) == ends
    if reason is not None:
        hours_used = (gpu_seconds or 3600.0) / 3600
        hours_to_come = hours_used * count_tickets_to_come(rows, spec)
        assert f"{hours_used:.3g} are used and confirming takes about {hours_to_come:.3g} more" in reason


def test_hours_by_the_clock_leave_room_for_the_confirmation(make_spec: Any, make_ticket: Any) -> None:
    rows = [make_ticket("search", 0, 0.5, seconds=3600.0), make_ticket("search", 1, state="waiting")]
    spec = make_spec(limits={"hours": 100.0})
    num_to_come = count_tickets_to_come(rows, spec)
    assert find_stop_reason(spec, cache(rows, hours=100.5 - num_to_come / 2), workers=2) is not None
    assert find_stop_reason(spec, cache(rows, hours=99.5 - num_to_come / 2), workers=2) is None


@pytest.mark.parametrize(("limit", "ends"), [(3.9 + 4, False), (2.9 + 4, True)])
def test_the_next_run_and_those_at_work_have_to_fit(
    make_spec: Any, make_ticket: Any, limit: float, ends: bool
) -> None:
    numbers = {"trials": 4, "candidates": 1, "seeds": {"choose": 1, "confirm": 2}, "arms": {"constant": 1}}
    spec = make_spec(limits={"gpu_hours": limit}, **numbers)
    rows = [
        make_ticket("search", 0, 0.5, seconds=3600.0),
        # has trained half of what it takes
        make_ticket("search", 1, state="running", seconds=1800.0),
        make_ticket("search", 2, state="waiting", seconds=0.0),
    ]
    # two pairs of the winner and the baseline
    assert count_tickets_to_come(rows, spec) == 4
    # one and a half hours are used, half an hour is left of the second run, and the third one takes one
    assert (find_stop_reason(spec, cache(rows), workers=1) is not None) == ends
    # a run that takes longer than the others has nothing left that could be foreseen
    rows[1] = make_ticket("search", 1, state="running", seconds=7200.0)
    assert (find_stop_reason(spec, cache(rows), workers=1) is None) == (limit >= 1 + 2 + 1 + 4)


def test_runs_that_cost_unlike_amounts_leave_room_for_dearer_ones(make_spec: Any, make_ticket: Any) -> None:
    spec = make_spec(limits={"gpu_hours": 100.0})
    even_rows, uneven = (
        [
            *(make_ticket("search", n, 0.5, seconds=3600.0 + (-1) ** n * spread) for n in range(4)),
            make_ticket("search", 4, state="waiting", seconds=0.0),
        ]
        for spread in (0.0, 1800.0)
    )
    num_to_come = count_tickets_to_come(even_rows, spec)
    # the standard deviation of four costs, one half above and below the mean of one hour
    deviation = math.sqrt(4 * 0.25 / 3)
    margin = 2 * deviation * math.sqrt(num_to_come + num_to_come**2 / 4)
    for rows, extra_hours in ((even_rows, 0.0), (uneven, margin)):
        for slack, ends in ((0.01, False), (-0.01, True)):
            limited = make_spec(limits={"gpu_hours": 4 + 1 + num_to_come + extra_hours + slack})
            assert (find_stop_reason(limited, cache(rows), workers=1) is not None) == ends


@pytest.mark.parametrize(
    ("num_left", "rise", "limit", "ends"),
    [
        # eight pairs, each with a noise of 0.2 in both runs: a standard error of 0.1
        (10, 0.0049, 0.5, True),
        (10, 0.0051, 0.5, False),
        (1, 0.0051, 0.5, True),
        (10, 0.0051, 0.6, True),
        (10, 0.0, None, False),
    ],
)
def test_what_is_left_is_weighed_against_what_the_confirmation_can_see(
    make_spec: Any, make_ticket: Any, num_left: int, rise: float, limit: float | None, ends: bool
) -> None:
    spec = make_spec(limits={"standard_errors": limit}, seeds={"confirm": 8})
    arms: Any = SimpleNamespace(expected_improvement=lambda ticket: (rise, 0.2))
    ticket = make_ticket("search", 30, state="waiting")
    reason = find_convergence_reason(spec, ticket, arms, num_left=num_left)
    assert (reason is not None) == ends
    if reason is not None:
        assert f"all {num_left} that are left {num_left * rise:.2g}" in reason
        assert "standard error of 0.1." in reason
    silent_arms: Any = SimpleNamespace(expected_improvement=lambda ticket: None)
    for kind, search_arms in (("search", silent_arms), ("constant", arms)):
        ticket = make_ticket(kind, 9, state="waiting")
        assert find_convergence_reason(spec, ticket, search_arms, num_left=num_left) is None


def test_only_a_sampler_that_knows_what_trials_are_worth_ends_a_search_for_it(make_spec: Any) -> None:
    with pytest.raises(SpecError, match="sampler: tpe, which does not value further trials"):
        make_spec(limits={"standard_errors": 0.5}, sampler="tpe")
