"""The searches of compared values: each by itself, and decided alike by whoever looks."""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest

from tempopt.confirmation.stages import first_tickets
from tempopt.records.rows import Measurement, TicketRow
from tempopt.sampling.arms import Arms
from tempopt.spec.study_spec import StudySpec
from tests.simulated import row
from tests.specs import make

HEADS = [1, 2, 4]


def spec(**study: Any) -> StudySpec:
    settings = {"compare": "num_heads", "trials": 24, "seeds": {"confirm": 12}, "parallel": 4, **study}
    return make(
        search={
            "num_heads": HEADS,
            "lr": {"low": 0.001, "high": 1.0, "log": True},
            "temperature_init": {"low": 0.25, "high": 4.0},
        },
        **{f"study__{name}": value for name, value in settings.items()},
    )


def worth(ticket: TicketRow) -> float:
    """Return a value that is best at another learning rate for each number of heads; 4 heads are worst."""
    own = ticket.parameters or {}
    best = {1: 0.003, 2: 0.03, 4: 0.3}[own["num_heads"]]
    noise = random.Random(f"{ticket.seed} {own}").gauss(0, 0.002)
    return -(math.log(own["lr"] / best) ** 2) / 20 - 0.5 * (own["num_heads"] == 4) + noise


def begun(arms: Arms, ticket: TicketRow, of: StudySpec) -> TicketRow:
    sampled = arms.ask(ticket)
    ticket = dataclasses.replace(ticket, sampled=sampled, parameters=of.parameters("search", sampled))
    arms.asked(ticket)
    return ticket


def over(arms: Arms, ticket: TicketRow) -> TicketRow:
    done = dataclasses.replace(ticket, state="done", outcome="complete", value=worth(ticket), total_steps=10)
    arms.told(done, {10: done.value or 0.0})
    return done


def search(of: StudySpec, *, in_flight: int) -> list[TicketRow]:
    """Return the search of a study of which so many trials are always in progress."""
    waiting = [row(ticket, number) for number, ticket in enumerate(first_tickets(of))]
    arms, rows = Arms(of, waiting, []), list(waiting)
    for number in range(len(rows) + in_flight - 1):
        if number < len(rows):
            rows[number] = begun(arms, rows[number], of)
        if number >= in_flight - 1:
            last = number - in_flight + 1
            rows[last] = over(arms, rows[last])
    return rows


def reports(rows: Sequence[TicketRow]) -> list[Measurement]:
    return [
        Measurement(ticket_id=t.id, step=10, name="report", value=t.value)
        for t in rows
        if t.value is not None
    ]


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "tpe", "random"])
def test_the_search_is_the_same_however_many_trials_are_in_progress(sampler: str) -> None:
    of = spec(sampler=sampler)
    alone, together = (search(of, in_flight=count) for count in (1, 4))
    assert [t.sampled for t in alone] == [t.sampled for t in together]
    assert [t.sampled["num_heads"] for t in alone if t.sampled] == HEADS * 8


@pytest.mark.parametrize("sampler", ["knowledge_gradient", "tpe"])
def test_an_agent_that_comes_later_decides_as_one_that_was_there(sampler: str) -> None:
    of = spec(sampler=sampler)
    rows = search(of, in_flight=4)
    for cut in (5, 13, 20):
        known = [t if t.number < cut else row(first_tickets(of)[t.number], t.id) for t in rows]
        arms = Arms(of, known, reports(known))
        assert begun(arms, known[cut], of).sampled == rows[cut].sampled


def test_values_begin_alike_and_each_finds_its_own_best() -> None:
    of = spec(trials=60)
    rows = search(of, in_flight=1)
    first = [{n: v for n, v in (t.sampled or {}).items() if n != "num_heads"} for t in rows[:3]]
    assert first[0] == first[1] == first[2]
    arms = Arms(of, rows, reports(rows))
    for heads, best in ((1, 0.003), (2, 0.03), (4, 0.3)):
        named = arms.recommend(f"num_heads={heads}", 3)
        assert len(named) == 3 and {each["num_heads"] for each in named} == {heads}
        assert abs(math.log10(named[0]["lr"] / best)) < 0.5


def test_a_trial_of_a_poor_value_is_pruned_for_what_others_of_its_value_reach_alone() -> None:
    of = spec(pruner={"name": "median", "n_startup_trials": 3}, trials=24)
    rows = search(of, in_flight=1)
    arms = Arms(of, rows[:-3], reports(rows[:-3]))
    last = {(t.sampled or {})["num_heads"]: t for t in rows[-3:]}
    for ticket in last.values():
        arms.asked(dataclasses.replace(ticket, state="running"))
    own = sorted(t.value or 0.0 for t in rows[:-3] if (t.sampled or {})["num_heads"] == 4)
    others = [t.value or 0.0 for t in rows[:-3] if (t.sampled or {})["num_heads"] != 4]
    good = own[-1]
    assert good < sorted(others)[len(others) // 2]
    assert not arms.prune(last[4], {10: good})
    assert arms.prune(last[4], {10: own[0] - 1.0})


def test_what_a_trial_may_know_is_over_once_it_may_begin() -> None:
    # as many tickets as may be in progress begin at once, over all values
    of = spec(parallel=5)
    waiting = [row(ticket, number) for number, ticket in enumerate(first_tickets(of))]
    arms = Arms(of, waiting, [])
    rows = [begun(arms, ticket, of) for ticket in waiting[:5]]
    for number in range(5, len(waiting)):
        over(arms, rows[number - 5])
        rows.append(begun(arms, waiting[number], of))
    assert [t.sampled["num_heads"] for t in rows if t.sampled] == HEADS * 8
