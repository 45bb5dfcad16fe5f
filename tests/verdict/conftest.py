"""Studies whose confirmation has a fixed number of pairs, which tests compare with SciPy on all of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.stages import next_tickets
from tempopt.verdict.verdict import Verdict, compute_verdict
from tests.verdict.verdicts import PARAMETERS

NUM_PAIRS = 8


@pytest.fixture(scope="session")
def fixed_spec(make_spec: Callable[..., StudySpec]) -> Callable[..., StudySpec]:
    """Return a maker of specs as ``make_spec``, with eight pairs that are all trained at once."""

    def make(sections: dict[str, Any] | None = None, **study: Any) -> StudySpec:
        return make_spec(sections, **{"seeds": {"confirm": NUM_PAIRS}, **study})

    return make


@pytest.fixture(scope="session")
def judge(fixed_spec: Callable[..., StudySpec]) -> Callable[..., Verdict]:
    """Return what gives the verdict of tickets that have one; ``spec`` in place of one of eight pairs."""

    def compute(
        tickets: Sequence[TicketRow],
        measurements: Sequence[Measurement] = (),
        sections: dict[str, Any] | None = None,
        *,
        spec: StudySpec | None = None,
        **study: Any,
    ) -> Verdict:
        verdict = compute_verdict(tickets, measurements, spec or fixed_spec(sections, **study))
        assert verdict is not None
        return verdict

    return compute


@pytest.fixture(scope="session")
def whole_study(
    fixed_spec: Callable[..., StudySpec],
    make_ticket: Callable[..., TicketRow],
    run_ticket: Callable[..., TicketRow],
) -> list[TicketRow]:
    """The tickets of a study of eight pairs that is over: the search gains 0.1, later seeds a little more."""
    spec = fixed_spec(candidates=3)
    rows = [
        make_ticket(arm, number, 0.5 + number / 100, parameters={"temperature_init": tau + number})
        for arm, tau in (("baseline", 1.0), ("constant", 2.0), ("search", 3.0))
        for number in range(1 if arm == "baseline" else 4)
    ]
    gains = {"baseline": 0.0, "search": 0.1}
    while new_tickets := next_tickets(rows, spec):
        for ticket in new_tickets:
            value = 0.5 + gains[arms_of(ticket)[0]] * (1 + (ticket.pair or 0) / 100)
            if ticket.kind == "choose":
                value = 0.5 + (ticket.candidate or 0) / 100
            rows.append(run_ticket(ticket, value))
    return rows


@pytest.fixture(scope="session")
def make_confirm_rows(make_ticket: Callable[..., TicketRow]) -> Callable[..., list[TicketRow]]:
    """Return a maker of confirm runs: arm to value by pair; None or nan diverged, "lost" was lost.

    ``parameters``: those of arms, by the first of those that share a run, in place of ``PARAMETERS``.
    """

    def make(parameters: dict[str, dict[str, Any]] | None = None, **arms: Any) -> list[TicketRow]:
        rows = []
        for arm_index, (arm, values) in enumerate(arms.items()):
            first = arm.partition("_and_")[0]
            params = {**PARAMETERS, **(parameters or {})}[first]
            for pair, value in enumerate(values):
                fields: dict[str, Any] = {"arm": arm.replace("_and_", "+"), "pair": pair}
                if value == "lost":
                    value, fields = None, {**fields, "state": "failed", "outcome": "failed"}
                elif value is None or math.isnan(value):
                    value, fields = None, {**fields, "outcome": "diverged"}
                number = 100 * arm_index + pair
                rows.append(make_ticket("confirm", number, value, parameters=params, **fields))
        return rows

    return make
