"""What evaluating at another temperature gains, against plain arithmetic on the measurements."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tempopt.storage.rows import Measurement, TicketRow
from tempopt.verdict.inference import AS_TRAINED
from tests.verdict.verdicts import ALPHA, NOTHING, numbers_of, scipys_numbers

BASELINE = np.array([0.50, 0.52, 0.47, 0.55, 0.49, 0.51, 0.53, 0.48])
GAINS = np.array([0.10, 0.12, 0.08, 0.11, 0.09, 0.13, 0.07, 0.10])
NONE = np.zeros(8)
JITTER = np.array([1, -2, 3, -1, -3, 2, 1, -1]) / 1e3

Plans = Mapping[str, tuple[Any, Any]]
"""Plan to what it adds on the validation and on the test data, to what a run is worth there as trained."""


def plan_measurements(tickets: list[TicketRow], **arms: Plans) -> list[Measurement]:
    """Return measurements of runs: what they are worth as trained on both, and what plans add to it."""
    measurements = []
    for t in tickets:
        if t.value is None:
            continue
        assert t.pair is not None
        arm = next((arm_name for arm_name in arms if arm_name in t.arm.split("+")), None)
        plans: dict[str, tuple[Any, Any]] = {"": (NONE, NONE), **(arms[arm] if arm else {})}
        for plan, offsets in plans.items():
            for loader, offset in zip(("validate", "test"), offsets, strict=True):
                name = f"{loader}:{plan}" if plan else loader
                value = t.value + float(np.broadcast_to(offset, 8)[t.pair])
                measurements.append(Measurement(ticket_id=t.id, step=10, name=name, value=value))
    return measurements


@pytest.fixture(scope="session")
def inference_of(judge: Any, make_confirm_rows: Any) -> Any:
    """Return what says what inference gains, by what plans add to the runs of arms."""

    def compute(tickets: Any = None, study: dict[str, Any] | None = None, **arms: Plans) -> Any:
        tickets = tickets or make_confirm_rows(baseline_and_twin=BASELINE, search=BASELINE + GAINS)
        return judge(tickets, plan_measurements(tickets, **arms), **(study or {})).inference_only

    return compute


def test_the_plan_is_picked_on_validation_data_and_estimated_on_test_data(inference_of: Any) -> None:
    # 0.5 is the best on the validation data, so it counts although others are better on the test data
    plans = {
        "constant=0.5": (0.2, 0.06 + JITTER),
        "constant=2": (0.1, 0.09 + JITTER),
        "winner": (0.15, 0.2 + JITTER),
    }
    answer = inference_of(baseline=plans)
    assert answer.plan_name == "constant=0.5"
    assert numbers_of(answer.answer.paired) == scipys_numbers(0.06 + JITTER)
    added_by_plan = {AS_TRAINED: 0.0, "constant=0.5": 0.2, "constant=2": 0.1, "winner": 0.15}
    assert answer.baseline.curve == pytest.approx(
        {plan: BASELINE.mean() + added for plan, added in added_by_plan.items()}
    )


def test_models_stay_as_they_were_trained_unless_another_temperature_is_better(inference_of: Any) -> None:
    answer = inference_of(baseline={"constant=2": (0.0, 0.3)})
    assert answer.plan_name == AS_TRAINED
    assert numbers_of(answer.answer.paired) == NOTHING


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.integers(-9, 9), min_size=8, max_size=8), min_size=1, max_size=5),
    st.sampled_from(["maximize", "minimize"]),
)
def test_without_test_data_the_plan_is_picked_on_every_other_seed_and_counted_on_the_rest(
    inference_of: Any, make_confirm_rows: Any, table: list[list[int]], direction: str
) -> None:
    tickets = make_confirm_rows(baseline_and_twin=BASELINE, search=BASELINE + 0.5)
    table_PS = np.vstack([np.zeros(8), np.array(table)]) / 100
    plans = {f"constant={n + 2}": (row, row) for n, row in enumerate(table_PS[1:])}
    answer = inference_of(tickets, {"confirm_on": "validate", "direction": direction}, baseline=plans)
    sign = 1 if direction == "maximize" else -1
    worth = sign * table_PS[:, ::2].sum(axis=1).round(9)
    best = [plan for plan in range(len(table_PS)) if worth[plan] == worth.max()]
    # of plans that are equally good any may be taken
    allowed = {round(sign * float(table_PS[plan, 1::2].mean()), 9) for plan in best}
    assert round(answer.answer.paired.gain, 9) in allowed
    assert answer.answer.dropped == 0


def test_the_winners_models_are_tuned_at_inference_as_well(inference_of: Any) -> None:
    answer = inference_of(
        baseline={"constant=0.5": (0.2, 0.06 + JITTER[::-1])},
        search={"constant=0.5": (0.0, 0.3), "constant=8": (0.01, 0.02 + JITTER)},
    )
    assert answer.winner.plan_name == "constant=8"
    assert answer.winner.answer.paired.gain == pytest.approx(0.02)
    # both tuned, seed by seed: their gains and what the seeds share do not come into it twice
    difference = BASELINE + GAINS + 0.02 + JITTER - (BASELINE + 0.06 + JITTER[::-1])
    assert numbers_of(answer.difference.paired) == scipys_numbers(difference)


def test_the_share_is_the_twins_gain_at_inference_of_the_winners_over_it(
    inference_of: Any, make_confirm_rows: Any
) -> None:
    twin = BASELINE + 0.02 + 2 * JITTER[::-1]
    tickets = make_confirm_rows(baseline=BASELINE, twin=twin, search=BASELINE + GAINS)
    answer = inference_of(
        tickets, baseline={"constant=4": (0.2, 0.09)}, twin={"constant=0.5": (0.2, 0.03 + JITTER)}
    )
    numerator, denominator = 0.03 + JITTER, BASELINE + GAINS - twin
    assert answer.plan_name == "constant=4"
    assert answer.share.ratio == pytest.approx(numerator.mean() / denominator.mean())
    # Fieller's interval holds what a t test of the rest does not reject
    for end, beyond in ((answer.share.low, -1e-3), (answer.share.high, 1e-3)):
        assert stats.ttest_1samp(numerator - end * denominator, 0).pvalue == pytest.approx(ALPHA, rel=1e-3)
        assert stats.ttest_1samp(numerator - (end + beyond) * denominator, 0).pvalue < ALPHA


def test_there_is_no_share_of_a_gain_that_is_not_shown(inference_of: Any, make_confirm_rows: Any) -> None:
    tickets = make_confirm_rows(baseline_and_twin=BASELINE, search=BASELINE + 10 * JITTER)
    answer = inference_of(tickets, baseline={"constant=2": (0.1, 0.1)})
    assert answer.answer.significant and answer.share is None


@pytest.mark.parametrize("bad_value", [None, np.inf, np.nan])
def test_a_plan_that_not_all_models_have_a_value_under_is_not_picked(
    judge: Any, make_confirm_rows: Any, bad_value: float | None
) -> None:
    tickets = make_confirm_rows(baseline_and_twin=BASELINE, search=BASELINE + GAINS)
    measurements = plan_measurements(
        tickets, baseline={"constant=0.5": (0.2, 0.06), "constant=2": (0.1, 0.09)}
    )
    for name in ("test:constant=0.5", "validate:constant=0.5"):
        dropped_measurement = next(m for m in measurements if (m.name, m.ticket_id) == (name, tickets[3].id))
        other_measurements = [m for m in measurements if m is not dropped_measurement]
        if bad_value is not None:
            other_measurements.append(dataclasses.replace(dropped_measurement, value=bad_value))
        assert judge(tickets, other_measurements).inference_only.plan_name == "constant=2"


def test_models_that_diverged_count_as_they_do_in_the_verdict(
    inference_of: Any, make_confirm_rows: Any
) -> None:
    baseline = np.array([np.nan, *BASELINE[1:]])
    tickets = make_confirm_rows(baseline_and_twin=baseline, search=BASELINE + GAINS)
    answer = inference_of(tickets, baseline={"constant=2": (0.1, 0.08 + JITTER)}).answer
    # on the seed on which there is no model both are the worst that was reached, and so equal
    assert (answer.paired.n_pairs, answer.diverged, answer.reference_diverged) == (8, 1, 1)
    assert answer.paired.gain == pytest.approx((0.08 * 7 + JITTER[1:].sum()) / 8)


def test_without_measurements_of_the_baseline_there_is_no_answer(judge: Any, make_confirm_rows: Any) -> None:
    tickets = make_confirm_rows(baseline=BASELINE, twin=BASELINE, search=BASELINE + GAINS)
    plans = {"constant=2": (0.1, 0.1)}
    measurements = plan_measurements(tickets, twin=plans, search=plans)
    ids = {arm: {t.id for t in tickets if t.arm == arm} for arm in ("baseline", "search")}
    for subset in ([], [m for m in measurements if m.ticket_id not in ids["baseline"]]):
        assert judge(tickets, subset).inference_only is None
    answer = judge(tickets, [m for m in measurements if m.ticket_id not in ids["search"]]).inference_only
    assert answer.winner is None and answer.difference is None and answer.plan_name == AS_TRAINED


def test_added_pairs_are_part_of_what_is_picked_and_estimated_on(judge: Any, make_confirm_rows: Any) -> None:
    first = make_confirm_rows(baseline_and_twin=BASELINE, search=BASELINE + GAINS)
    second_round = [
        dataclasses.replace(t, round=1, id=t.id + 50, number=t.number + 50)
        for t in first
        if t.pair in (0, 1, 2)
    ]
    # by the first eight alone 0.5 would have been picked, by all eleven it is 2
    first_measurements, second_measurements = (
        plan_measurements(tickets, baseline={"constant=0.5": (at_half, 0.05), "constant=2": (0.01, 0.06)})
        for tickets, at_half in ((first, 0.02), (second_round, -0.5))
    )
    assert judge(first, first_measurements).inference_only.plan_name == "constant=0.5"
    verdict = judge([*first, *second_round], [*first_measurements, *second_measurements])
    answer = verdict.inference_only
    assert answer.plan_name == "constant=2"
    assert answer.answer.paired.n_pairs == 11 and answer.answer.paired.gain == pytest.approx(0.06)
