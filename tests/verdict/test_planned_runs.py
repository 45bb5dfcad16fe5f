"""How many runs a study takes, beside numbers counted by hand and studies whose runs are made up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import active_groups, is_neutral
from tempopt.verdict.planned_runs import planned_runs
from tests.simulated import SimulatedStudy

TAU = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}}}
SMALL = {"trials": 4, "arms": {"baseline": 3, "constant": 2}, "candidates": 2}
SCALED = {"search": {"temperature_init": {"low": 0.5, "high": 2.0}, "length_scaling": ["log_n"]}}


TUNED_LR = {"search": {**TAU["search"], "lr": {"low": 0.1, "high": 1.0}}}
SCHEDULED = {
    "search": {**TAU["search"], "schedule": ["linear"], "temperature_final": {"low": 0.5, "high": 2.0}}
}


@pytest.mark.parametrize(
    ("sections", "study", "min_runs", "max_runs"),
    [
        # 9 searched, 2 candidates on 2 seeds, then winner and baseline 3 times. A winner at τ = 1 shares its
        # runs with what it is compared with, but tempopt's sampler names none.
        (TAU, {"seeds": {"choose": 2, "confirm": 3}}, 9 + 4 + 2 * 3, 9 + 4 + 2 * 3),
        # one look at 2 pairs may end it, or all 6 are needed
        (TAU, {"seeds": {"choose": 2, "confirm": {"min": 2, "max": 6}}}, 9 + 4 + 2 * 2, 9 + 4 + 2 * 6),
        # one candidate: nothing to choose among
        (TAU, {"candidates": 1, "seeds": {"choose": 2, "confirm": 3}}, 9 + 2 * 3, 9 + 2 * 3),
        # a learning rate is tuned by 4 + 2 runs at τ = 1 and may be exchanged; the twin is confirmed, too
        (
            TUNED_LR,
            {"seeds": {"choose": 2, "confirm": 3}},
            9 + 6 + 4 + 2 * 3,
            9 + 6 + 4 + 2 * 2 + 3 * 3,
        ),
        # a schedule that gains is compared with two constants on the same pairs
        (SCHEDULED, {"seeds": {"choose": 2, "confirm": 3}}, 9 + 4 + 2 * 3, 9 + 4 + (2 + 2) * 3),
    ],
)
def test_the_fewest_and_the_most_runs_are_those_counted_by_hand(
    make_spec: Any, sections: dict[str, Any], study: dict[str, Any], min_runs: int, max_runs: int
) -> None:
    runs = planned_runs(make_spec(sections, **{**SMALL, **study}))
    totals = [runs.total(gain=gain) for gain in (True, False)]
    assert (min(span.min for span in totals), runs.max_total()) == (min_runs, max_runs)
    assert all(span.min <= span.typical <= span.max for span in totals)


def test_constants_are_expected_with_a_gain_alone(make_spec: Any) -> None:
    plan = planned_runs(make_spec(SCHEDULED, **SMALL, seeds={"choose": 2, "confirm": 3}))
    assert (plan.no_gain["confirm"].max, plan.gain["confirm"].max) == (2 * 3, 4 * 3)
    plain = planned_runs(make_spec(TAU, **SMALL, seeds={"choose": 2, "confirm": 3}))
    assert plain.no_gain["confirm"] == plain.gain["confirm"]


def test_an_explanation_adds_its_runs(make_spec: Any) -> None:
    plain_plan, explained_plan = (
        planned_runs(make_spec(SCALED, **SMALL, seeds={"choose": 2, "confirm": 3}, explain=explain))
        for explain in (False, True)
    )
    assert "ablation" not in plain_plan.gain
    # two parts are taken away, and a simpler plan and learned temperatures confirmed: 4 x 3; on the choosing
    # seeds two plans, two learning rates of the temperatures, winner and baseline: 6 x 2
    assert explained_plan.gain["ablation"].max == 4 * 3
    assert explained_plan.max_total() == plain_plan.max_total() + 4 * 3 + 6 * 2
    assert explained_plan.total(gain=True).min == plain_plan.total(gain=True).min


def test_looks_on_the_way_end_a_confirmation_sooner(make_spec: Any) -> None:
    fixed_plan, looked_at = (
        planned_runs(make_spec(TAU, **SMALL, seeds={"choose": 2, "confirm": confirm}))
        for confirm in (12, {"min": 4, "max": 12})
    )
    # ahead at 0, 1 and 2 equally spaced looks of noise: 1, 1/2 and 3/8
    assert looked_at.no_gain["confirm"].typical == pytest.approx(2 * 4 * (1 + 1 / 2 + 3 / 8))
    assert looked_at.gain["confirm"].typical < fixed_plan.gain["confirm"].typical == 2 * 12


def worth_of(number: int) -> Any:
    """Return a world: noise and gain, or parts that are worth something each, and runs that may fail."""
    draw = random.Random(number)
    gain, noise = draw.choice([-1.0, 0.0, 0.0, 1.0, 4.0, 4.0]), draw.choice([0.0, 1.0])
    fails, by_part = draw.choice([0.0, 0.0, 0.2]), draw.choice([False, True])

    def worth(row: TicketRow) -> float | None:
        if draw.random() < fails:
            return None
        parameters = row.parameters or {}
        parts = len(active_groups(parameters))
        return gain * (parts if by_part else not is_neutral(parameters)) + noise * draw.gauss(0.0, 1.0)

    return worth


PARTS = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 4.0},
    "schedule": ["constant", "linear"],
    "length_scaling": ["none", "log_n"],
    "layer_pattern": ["uniform", "linear"],
    "layer_ratio": {"low": 0.5, "high": 2.0},
    "entropy_lambda": [0.0, 0.01],
    "normaliser": ["softmax", "sparsemax"],
    "output_temperature": {"low": 0.5, "high": 2.0},
    "dropout": {"choices": [0.0, 0.1], "baseline": 0.0},
    "lr": {"low": 0.001, "high": 0.1},
}
_ALONE = {"temperature_final": "schedule", "schedule": "temperature_final"}
_ALONE |= {"layer_pattern": "layer_ratio", "layer_ratio": "layer_pattern"}


def drawn_spec(make_spec: Any, number: int, **study: Any) -> StudySpec:
    """Return a spec that is drawn at random, another for each number."""
    draw = random.Random(number)
    names = {"temperature_init", *draw.sample(sorted(PARTS), draw.randint(1, 8))}
    names |= {_ALONE[name] for name in names if name in _ALONE}
    search = {name: domain for name, domain in PARTS.items() if name in names}
    if draw.random() < 0.3:
        search["temperature_init"] = [0.5, 1.0, 2.0]
    confirm = draw.choice([6, {"min": 2, "max": 7}])
    return make_spec(  # type: ignore[no-any-return]
        {"search": search},
        trials=draw.randint(1, 8),
        candidates=draw.randint(1, 4),
        seeds={"choose": draw.randint(1, 4), "confirm": confirm},
        arms=draw.choice([{}, {"baseline": 1}, {"constant": 1}]),
        enqueue=draw.choice([[], [{"temperature_init": 1.0}]]),
        **{"explain": draw.choice([False, True]), **study},
    )


@pytest.mark.parametrize("start", [0, 12, 24])
def test_no_study_has_more_runs_than_are_said_and_none_that_ends_well_fewer(
    start: int, make_spec: Any
) -> None:
    for number in range(start, start + 12):
        spec = drawn_spec(make_spec, number)
        runs = planned_runs(spec)
        rows = SimulatedStudy(spec, worth_of(number)).run().rows
        assert len(rows) <= runs.max_total(), number
        has_failed = any(row.outcome != "complete" for row in rows)
        # a winner at τ = 1, which tempopt's sampler never names, shares its runs with its references
        confirm_rows = (row for row in rows if row.kind == "confirm" and "search" in arms_of(row))
        winner = next((row.parameters or {} for row in confirm_rows), {})
        min_runs = min(runs.total(gain=gain).min for gain in (True, False))
        assert has_failed or is_neutral(winner) or len(rows) >= min_runs, number
