"""A search whose trials have one beginning: it is trained once for each seed, and nothing else changes."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.observer import Unobserved
from tempopt.records.rows import TicketRow
from tempopt.study.api import resume, search
from tests.toy_study import URL, start, tickets, toy_spec, wait_until

STEPS, TRIALS = 24, 4
# progress is step / 23, and 16 / 23 the last one that is not beyond 0.7
HELD = 17
SPACE: dict[str, Any] = {
    "schedule": ["piecewise"],
    "temperature_init": [2.0],
    "hold_fraction": [0.7],
    "temperature_knot_1": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 4.0},
}


def spec(quota: str | None, **study: Any) -> dict[str, Any]:
    options: dict[str, Any] = {"trials": TRIALS, "arms": {"baseline": 1, "constant": 1}, "candidates": 1}
    options |= {"seeds": {"search": 2, "choose": 1, "confirm": 2}, "pruner": "none", "validate_at": "current"}
    # no checkpoint comes by the clock, or by a validation
    options |= {"checkpoint_every": 3600, "checkpoint_quota": quota, **study}
    return toy_spec(space=SPACE, **options)


class Searched(Unobserved):
    """Ends a study when its search is over."""

    def finished(self, ticket: TicketRow) -> None:
        if (ticket.kind, ticket.number) == ("search", TRIALS - 1):
            raise KeyboardInterrupt


def searched(quota: str | None) -> list[TicketRow]:
    """Return the search tickets, by number."""
    with pytest.raises(KeyboardInterrupt):
        search(spec(quota), storage=URL, workers=1, observer=Searched())
    return trials()


def trials() -> list[TicketRow]:
    """Return the search tickets, by number, and forget the study."""
    found = sorted((t for t in tickets() if t.kind == "search"), key=lambda t: t.number)
    for path in Path.cwd().glob("tempopt.db*"):
        path.unlink()
    return found


def trained(rows: list[TicketRow]) -> list[tuple[Any, ...]]:
    """Return what was trained, and to which values."""
    return [(row.parameters, row.seed, row.outcome, row.steps, row.value) for row in rows]


@pytest.mark.long
@pytest.mark.usefixtures("toy_folder")
def test_the_first_trial_of_each_seed_trains_the_beginning_and_the_others_what_is_left() -> None:
    alone = searched(None)
    assert {row.steps_trained for row in alone} == {STEPS}
    shared = searched("1GB")
    assert trained(shared) == trained(alone)
    begun = set[int]()
    for row in shared:
        assert row.steps == STEPS
        assert row.steps_trained == (STEPS - HELD if row.seed in begun else STEPS)
        begun.add(row.seed)
    assert len(begun) == 2 and len(shared) == TRIALS


@pytest.mark.long
@pytest.mark.usefixtures("toy_folder")
@pytest.mark.parametrize("number", [1, 2])
def test_a_search_that_is_killed_ends_with_the_values_of_trainings_from_the_first_step(number: int) -> None:
    """Killed are agent and workers while a beginning, or an end, is trained."""
    alone = searched(None)
    process = start(spec("1GB"), Path.cwd())
    wait_until(
        lambda rows: any((t.kind, t.number) == ("search", number) and t.parameters is not None for t in rows)
    )
    process.send_signal(signal.SIGKILL)
    process.wait(timeout=240)
    with pytest.raises(KeyboardInterrupt):
        resume("toy", storage=URL, workers=1, observer=Searched())
    shared = trials()
    assert trained(shared) == trained(alone)
    assert any(row.forked_from is not None for row in shared)
    assert sum(row.steps_trained for row in shared) < TRIALS * STEPS
