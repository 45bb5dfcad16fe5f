"""The weight of the entropy term over progress, and which of its parameters count."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import SpecError, UsageError
from tempopt.temperature import NEUTRAL, SCHEDULES, EntropyParameters, drop_unused_params

WEIGHTS = st.floats(-10, 10)
MOVING = sorted(set(SCHEDULES) - {"constant", "warmup_anneal"})
GRID = [k / 16 for k in range(17)]


def test_the_neutral_parameters_are_no_term() -> None:
    neutral = EntropyParameters.from_mapping(NEUTRAL)
    assert not neutral.has_term
    assert {neutral.weight(t) for t in GRID} == {0.0}


@given(WEIGHTS)
def test_a_weight_without_a_final_one_stays(weight: float) -> None:
    assert {EntropyParameters(entropy_lambda=weight).weight(t) for t in GRID} == {weight}


@given(WEIGHTS, WEIGHTS, st.sampled_from(MOVING))
def test_the_weight_goes_from_its_first_to_its_final_value_and_stays_between(
    first: float, final: float, schedule: str
) -> None:
    term = EntropyParameters(entropy_lambda=first, entropy_lambda_final=final, entropy_schedule=schedule)
    low, high = min(first, final), max(first, final)
    slack = 1e-9 * max(1.0, high - low)
    assert math.isclose(term.weight(1.0), final, abs_tol=slack)
    if schedule not in ("step",):
        assert math.isclose(term.weight(0.0), first, abs_tol=slack)
    assert all(low - slack <= term.weight(t) <= high + slack for t in GRID)


def test_linear_and_cosine_are_what_their_formulas_say() -> None:
    for t in GRID:
        line = EntropyParameters(entropy_lambda=-0.2, entropy_lambda_final=0.6, entropy_schedule="linear")
        assert line.weight(t) == pytest.approx(-0.2 + 0.8 * t)
        wave = EntropyParameters(entropy_lambda=1.0, entropy_lambda_final=0.0, entropy_schedule="cosine")
        assert wave.weight(t) == pytest.approx((1 + math.cos(math.pi * t)) / 2)


def test_a_warm_up_begins_at_the_final_weight() -> None:
    term = EntropyParameters(entropy_lambda=0.3, entropy_lambda_final=0.0, entropy_schedule="warmup_anneal")
    assert term.weight(0.0) == pytest.approx(0.0)
    assert term.weight(0.1) == pytest.approx(0.3)
    assert term.weight(1.0) == pytest.approx(0.0)
    assert term.has_term


@pytest.mark.parametrize(
    ("entropy_params", "message"),
    [
        ({"entropy_target": 1.5}, "entropy_target=1.5 is out of range. Give a share of ln n"),
        ({"entropy_target": "high"}, "entropy_target='high' is a str"),
        ({"entropy_lambda": math.inf}, "entropy_lambda=inf is out of range. Give a finite number."),
        ({"entropy_schedule": "liner"}, 'did you mean "linear"'),
        ({"entropy_lambda": 0.1, "entropy_lambda_final": 0.2}, "entropy_lambda_final=0.2 has no effect"),
    ],
)
def test_what_cannot_be_is_refused(entropy_params: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as excinfo:
        EntropyParameters(**entropy_params)
    assert message.lower() in str(excinfo.value).lower()


def test_progress_beyond_the_end_is_refused() -> None:
    with pytest.raises(UsageError):
        EntropyParameters(entropy_lambda=1.0).weight(1.5)


@given(
    st.sampled_from([0.0, 0.1, -0.1]),
    st.sampled_from([None, 0.0, 0.1]),
    st.sampled_from(["constant", "linear"]),
    st.sampled_from([None, 0.5]),
)
def test_what_is_dropped_changes_nothing_and_what_is_kept_counts(
    first: float, final: float | None, schedule: str, target: float | None
) -> None:
    parameters = {
        "entropy_lambda": first,
        "entropy_lambda_final": final,
        "entropy_schedule": schedule,
        "entropy_target": target,
    }
    if schedule == "constant":
        parameters["entropy_lambda_final"] = None
    effective_params = drop_unused_params(parameters)
    full, short = EntropyParameters.from_mapping(parameters), EntropyParameters.from_mapping(effective_params)
    assert [full.weight(t) for t in GRID] == [short.weight(t) for t in GRID]
    assert not full.has_term or short.entropy_target == full.entropy_target
    assert full.has_term or effective_params == {"entropy_lambda": 0.0, "entropy_schedule": "constant"}


def test_there_is_no_term_of_another_normaliser() -> None:
    parameters = {"normaliser": "sparsemax", "entropy_lambda": 0.1, "entropy_target": 0.5}
    assert drop_unused_params(parameters) == {"normaliser": "sparsemax"}
