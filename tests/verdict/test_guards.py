"""What a verdict says of guards, by the pairs of the confirmation: kept, broken, not shown, not measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.report.guard_text import guard_line
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.verdict.guards import NO_VALUE

LOSS = {"val_loss": "no worse than 5%"}
NOISE = [0.01, -0.01, 0.02, 0.0, -0.02, 0.01, -0.01, 0.0]


def guard_measurements(
    tickets: list[TicketRow], by_arm: Mapping[str, list[float]], name: str = "test/guard:val_loss"
) -> list[Measurement]:
    return [
        Measurement(ticket_id=t.id, step=10, name=name, value=by_arm[arm][t.pair])
        for t in tickets
        if t.kind == "confirm" and t.pair is not None and t.state == "done"
        for arm in arms_of(t)
        if arm in by_arm
    ]


def losses(winner: float) -> dict[str, list[float]]:
    """Return losses by pair, the baseline's about 1."""
    return {
        "search": [winner + 2 * noise for noise in NOISE],
        "baseline": [1.0 - noise for noise in NOISE],
    }


@pytest.mark.parametrize(
    ("winner", "state"), [(0.9, "kept"), (1.0, "kept"), (1.05, "not_shown"), (1.2, "broken")]
)
def test_a_guard_is_kept_broken_or_not_shown_by_the_paired_test_of_the_margin(
    judge: Any, whole_study: list[TicketRow], winner: float, state: str
) -> None:
    values = losses(winner)
    verdict = judge(whole_study, guard_measurements(whole_study, values), guards=LOSS)
    (guard,) = verdict.guards
    assert (guard.name, guard.state) == ("val_loss", state)
    assert verdict.guards_kept == (state == "kept")
    test = stats.ttest_1samp(np.array(values["search"]) - 1.05 * np.array(values["baseline"]), 0.0)
    assert guard.answer.p_value == pytest.approx(test.pvalue)
    assert guard.relative(guard.change) == pytest.approx(winner - 1.0)
    interval = test.confidence_interval(0.95)
    assert (guard.low, guard.high) == pytest.approx((interval.low + 0.05, interval.high + 0.05))


def test_a_guard_from_below_has_its_interval_about_the_change(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    values = losses(0.97)
    measurements = guard_measurements(whole_study, values)
    (guard,) = judge(whole_study, measurements, guards={"val_loss": ">= -0.1"}).guards
    difference = stats.ttest_rel(values["search"], values["baseline"]).confidence_interval(0.95)
    assert (guard.low, guard.high) == pytest.approx((difference.low, difference.high))
    assert guard.state == "kept"


def test_the_data_and_the_temperature_of_the_confirmation_count(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    measurements = [
        *guard_measurements(whole_study, losses(1.0), "validate_current/guard:val_loss"),
        *guard_measurements(whole_study, losses(1.5), "test/guard:val_loss"),
    ]
    for keys, state in (({}, "broken"), ({"confirm_on": "validate", "validate_at": "current"}, "kept")):
        assert judge(whole_study, measurements, guards=LOSS, **keys).guards[0].state == state


def test_a_run_without_a_finite_value_counts_with_the_worst_and_keeps_no_guard(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    values = losses(0.5)
    values["search"][3] = math.nan
    (guard,) = judge(whole_study, guard_measurements(whole_study, values), guards=LOSS).guards
    assert (guard.diverged, guard.reference_diverged, guard.state) == (1, 0, "not_shown")
    assert guard.answer.n_pairs == 8
    worst = max(values["baseline"])
    assert guard.change == pytest.approx(np.mean(np.nan_to_num(values["search"], nan=worst)) - 1.0)


def test_a_pair_of_which_a_run_was_lost_is_left_out(judge: Any, whole_study: list[TicketRow]) -> None:
    tickets = [
        dataclasses.replace(t, state="failed", outcome="failed", value=None)
        if (t.kind, t.pair) == ("confirm", 2) and "search" in arms_of(t)
        else t
        for t in whole_study
    ]
    (guard,) = judge(tickets, guard_measurements(tickets, losses(1.0)), guards=LOSS).guards
    assert guard.answer.n_pairs == 7


@pytest.mark.parametrize("is_measured", [False, True])
def test_a_metric_of_which_no_run_has_a_number_is_in_the_way(
    judge: Any, whole_study: list[TicketRow], is_measured: bool
) -> None:
    values = {arm: [math.nan] * 8 for arm in losses(1.0)} if is_measured else {}
    verdict = judge(whole_study, guard_measurements(whole_study, values), guards=LOSS)
    (guard,) = verdict.guards
    # it is not said that runs failed
    assert (guard.state, guard.diverged, guard.why) == ("not_measured", 0, NO_VALUE)
    assert not verdict.guards_kept


def test_an_arm_that_has_no_value_of_its_own_is_given_no_number(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    measurements = guard_measurements(whole_study, {**losses(1.0), "search": [math.nan] * 8})
    (guard,) = judge(whole_study, measurements, guards={"val_loss": "no worse than 300%"}).guards
    assert guard_line(guard) == (
        "guard on val_loss (limit +300 %): not shown to be kept: the winner diverged on 8 of 8 seeds, "
        "the baseline on 0."
    )


def test_a_winner_that_is_tau_one_itself_has_nothing_to_guard_nor_has_a_study_without_guards(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    tickets = [
        dataclasses.replace(t, arm="search+baseline+twin", parameters={"temperature_init": 1.0})
        for t in whole_study
        if t.kind != "confirm" or "search" in arms_of(t)
    ]
    for verdict in (judge(tickets, guards=LOSS), judge(whole_study)):
        assert verdict.guards == () and verdict.guards_kept
