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
from tempopt.verdict.verdict import Verdict, compute_verdict

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


def verdict_of(spec: Any, tickets: list[TicketRow], measurements: list[Measurement]) -> Verdict:
    verdict = compute_verdict(tickets, measurements, spec)
    assert verdict is not None
    return verdict


@pytest.mark.parametrize(
    ("winner", "state"), [(0.9, "kept"), (1.0, "kept"), (1.05, "not_shown"), (1.2, "broken")]
)
def test_a_guard_is_kept_broken_or_not_shown_by_the_paired_test_of_the_margin(
    fixed_spec: Any, whole_study: list[TicketRow], winner: float, state: str
) -> None:
    values = losses(winner)
    verdict = verdict_of(fixed_spec(guards=LOSS), whole_study, guard_measurements(whole_study, values))
    (guard,) = verdict.guards
    assert (guard.name, guard.state) == ("val_loss", state)
    assert verdict.guards_kept == (state == "kept")
    excess = np.array(values["search"]) - 1.05 * np.array(values["baseline"])
    test = stats.ttest_1samp(excess, 0.0)
    assert guard.answer is not None
    assert guard.answer.p_value == pytest.approx(test.pvalue)
    assert guard.relative(guard.change) == pytest.approx(winner - 1.0)
    interval = test.confidence_interval(0.95)
    assert guard.low == pytest.approx(interval.low + 0.05)
    assert guard.high == pytest.approx(interval.high + 0.05)


def test_a_guard_from_below_has_its_interval_about_the_change(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    values = losses(0.97)
    spec = fixed_spec(guards={"val_loss": ">= -0.1"})
    (guard,) = verdict_of(spec, whole_study, guard_measurements(whole_study, values)).guards
    difference = stats.ttest_rel(values["search"], values["baseline"]).confidence_interval(0.95)
    assert (guard.low, guard.high) == (pytest.approx(difference.low), pytest.approx(difference.high))
    assert guard.state == "kept"


def test_the_data_and_the_temperature_of_the_confirmation_count(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    good_losses, bad_losses = losses(1.0), losses(1.5)
    measurements = [
        *guard_measurements(whole_study, good_losses, "validate_current/guard:val_loss"),
        *guard_measurements(whole_study, bad_losses, "test/guard:val_loss"),
    ]
    assert verdict_of(fixed_spec(guards=LOSS), whole_study, measurements).guards[0].state == "broken"
    spec = fixed_spec(guards=LOSS, confirm_on="validate", validate_at="current")
    assert verdict_of(spec, whole_study, measurements).guards[0].state == "kept"


def test_a_run_without_a_finite_value_counts_with_the_worst_and_keeps_no_guard(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    values = losses(0.5)
    values["search"][3] = math.nan
    verdict = verdict_of(fixed_spec(guards=LOSS), whole_study, guard_measurements(whole_study, values))
    (guard,) = verdict.guards
    assert (guard.diverged, guard.reference_diverged, guard.state) == (1, 0, "not_shown")
    assert guard.answer is not None and guard.answer.n_pairs == 8
    worst = max(values["baseline"])
    assert guard.change == pytest.approx(
        np.mean([worst if math.isnan(v) else v for v in values["search"]]) - 1.0
    )


def test_a_pair_of_which_a_run_was_lost_is_left_out(fixed_spec: Any, whole_study: list[TicketRow]) -> None:
    tickets = [
        dataclasses.replace(t, state="failed", outcome="failed", value=None)
        if (t.kind, t.pair) == ("confirm", 2) and "search" in arms_of(t)
        else t
        for t in whole_study
    ]
    (guard,) = verdict_of(fixed_spec(guards=LOSS), tickets, guard_measurements(tickets, losses(1.0))).guards
    assert guard.answer is not None and guard.answer.n_pairs == 7


def test_a_metric_that_no_run_has_is_in_the_way(fixed_spec: Any, whole_study: list[TicketRow]) -> None:
    verdict = verdict_of(fixed_spec(guards=LOSS), whole_study, [])
    assert (verdict.guards[0].state, verdict.guards[0].diverged) == ("not_measured", 0)
    assert verdict.guards[0].why == NO_VALUE
    assert not verdict.guards_kept


def test_of_a_metric_that_is_nan_in_every_run_it_is_not_said_that_runs_failed(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    measurements = guard_measurements(whole_study, {arm: [math.nan] * 8 for arm in losses(1.0)})
    (guard,) = verdict_of(fixed_spec(guards=LOSS), whole_study, measurements).guards
    assert guard_line(guard).endswith("not measured, since no confirming run has a finite value of it.")


def test_an_arm_that_has_no_value_of_its_own_is_given_no_number(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    measurements = guard_measurements(whole_study, {**losses(1.0), "search": [math.nan] * 8})
    (guard,) = verdict_of(
        fixed_spec(guards={"val_loss": "no worse than 300%"}), whole_study, measurements
    ).guards
    assert guard_line(guard) == (
        "guard on val_loss (limit +300 %): not shown to be kept: the winner diverged on 8 of 8 seeds, "
        "the baseline on 0."
    )


def test_a_winner_that_is_tau_one_itself_has_nothing_to_guard(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    tickets = [
        dataclasses.replace(t, arm="search+baseline+twin", parameters={"temperature_init": 1.0})
        for t in whole_study
        if t.kind != "confirm" or "search" in arms_of(t)
    ]
    verdict = verdict_of(fixed_spec(guards=LOSS), tickets, [])
    assert verdict.guards == () and verdict.guards_kept


def test_a_study_without_guards_keeps_all_of_them(fixed_spec: Any, whole_study: list[TicketRow]) -> None:
    verdict = verdict_of(fixed_spec(), whole_study, [])
    assert verdict.guards == () and verdict.guards_kept
