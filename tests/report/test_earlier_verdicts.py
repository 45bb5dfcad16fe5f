"""The verdicts of a study before its latest: shown as they were, and not undone by one that shows nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tempopt.report.decision import decide
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import TicketRow
from tempopt.verdict.pairs import more_pairs
from tempopt.verdict.recommendation import Recommendation
from tempopt.verdict.verdict import Verdict, find_valid_earlier_verdict
from tests.report.full_text import full_lines
from tests.simulated import SimulatedStudy, Worth

GAIN = 0.1


def gaining_worth(*rounds: int) -> Worth:
    """Return what a run is worth if any other temperature than 1 gains in these rounds, and in no other."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters)), 1]).normal(0, 0.01)
        return float(noise + GAIN * (t.parameters["temperature_init"] != 1.0) * (t.round in rounds))

    return worth


@pytest.fixture
def two_rounds(make_spec: Any, result_of: Any) -> Any:
    """Return a maker of a study before and after a second round."""

    def make(*rounds: int, **settings: Any) -> tuple[StudyResult, StudyResult]:
        study = SimulatedStudy(make_spec(trials=6, **settings), gaining_worth(*rounds)).run()
        first_result = result_of(study.spec, list(study.rows), state="done")
        study.add_trials(4)
        return first_result, result_of(study.spec, study.rows, state="done")

    return make


def recommendation_of(verdict: Verdict | None) -> Recommendation:
    assert verdict is not None and verdict.recommendation is not None
    return verdict.recommendation


def test_a_gain_that_an_earlier_verdict_showed_still_holds_and_is_what_to_do(two_rounds: Any) -> None:
    first_result, second_result = two_rounds(0)
    assert first_result.verdict.primary.significant and not second_result.verdict.primary.significant
    # to the bit what it was, whatever was trained since
    assert (
        second_result.earlier_verdicts == (first_result.verdict,)
        and second_result.valid_earlier_verdict == first_result.verdict
    )
    first, todo, *other_lines = full_lines(second_result)
    assert first == full_lines(first_result)[0] and first.startswith("Gain shown: ")
    tau = recommendation_of(first_result.verdict).params["temperature_init"]
    assert todo.startswith(
        f"  What to do: use τ = {tau:.4g}. This is what verdict 1 recommends; verdict 2 takes nothing back."
    )
    (line,) = [line for line in other_lines if line.startswith("  verdict 1 (round 0): gain shown, +0.")]
    assert "95 % interval" in line and "p = " in line and line.endswith(f"; it recommended: τ = {tau:.4g}.")
    (line,) = [line for line in other_lines if line.startswith("  verdict 2 (round 1): no gain shown, ")]
    assert line.endswith("; it recommended: τ = 1, as now.")
    # what the latest verdict does not show is a statement of its own
    assert any(line.startswith("  the winner of the search over τ = 1: ") for line in other_lines)
    # what the latest verdict excludes is told all the same
    assert any("a gain of the winner above" in line and "97.5 %" in line for line in other_lines)


def test_earlier_verdicts_are_data_for_programs(two_rounds: Any) -> None:
    first_result, second_result = two_rounds(0)
    first_verdict, (earlier,) = first_result.to_json()["verdict"], second_result.to_json()["earlier_verdicts"]
    assert (
        first_result.to_json()["earlier_verdicts"] == []
        and first_verdict["recommendation"]["stays_valid"] is None
    )
    keys = ("gain", "ci_low", "ci_high", "p_value", "significant", "confidence", "n_pairs", "params", "alpha")
    assert {name: earlier[name] for name in keys} == {name: first_verdict[name] for name in keys}
    assert (earlier["verdict"], earlier["round"], earlier["stands"]) == (1, 0, True)
    for name in ("action", "now", "params", "at_inference", "gain"):
        assert earlier["recommendation"][name] == first_verdict["recommendation"][name]
    latest = second_result.to_json()["verdict"]["recommendation"]
    assert (latest["now"], latest["stays_valid"]) == ("change_nothing", 1)


def test_pairs_that_are_added_leave_the_verdict_that_they_are_added_to_as_it_was(
    make_spec: Any, result_of: Any
) -> None:
    study = SimulatedStudy(make_spec(trials=6), gaining_worth(0, 1)).run()
    first_result = result_of(study.spec, list(study.rows), state="done")
    study.do(more_pairs(study.rows, study.spec, 8))
    second_result = result_of(study.spec, study.rows, state="done")
    assert second_result.verdict.verdict_number == 2 and second_result.earlier_verdicts == (
        first_result.verdict,
    )
    assert second_result.verdict.primary.paired.n_pairs == first_result.verdict.primary.paired.n_pairs + 8
    assert second_result.verdict.params == first_result.verdict.params
    # not all of its seeds are fresh, and the interval is that of the combined test
    num_seeds = second_result.verdict.primary.paired.n_pairs
    num_earlier = first_result.verdict.primary.paired.n_pairs
    seeds = f"{num_seeds} seeds ({num_earlier} of the verdict before)"
    decision = decide(second_result)
    assert decision is not None and f", {seeds}, " in decision.headline
    assert (decision.seeds, decision.earlier_seeds) == (num_seeds, num_earlier)
    weights = "combine 2 rounds of pairs with squared weights 1:2"
    assert any(weights in line for line in full_lines(second_result))
    assert f"{num_earlier} fresh seeds" in full_lines(first_result)[0]


def test_what_is_shown_of_the_same_parameters_takes_a_recommendation_back(two_rounds: Any) -> None:
    first_result, second_result = two_rounds(0)
    earlier, latest = first_result.verdict, second_result.verdict
    test = dataclasses.replace(latest.primary.paired, gain=-GAIN, p_value=0.001)
    worse_total = dataclasses.replace(latest.primary, paired=test, component_results=())
    other_verdict, same_verdict = (
        dataclasses.replace(latest, primary=worse_total, params=params)
        for params in ({"temperature_init": 1.7}, earlier.params)
    )
    assert (
        find_valid_earlier_verdict(other_verdict, [earlier]) == earlier
        and find_valid_earlier_verdict(same_verdict, [earlier]) is None
    )
    decision = decide(dataclasses.replace(second_result, verdict=same_verdict))
    assert decision is not None and decision.outcome == "worse"
    small = dataclasses.replace(
        earlier, recommendation=dataclasses.replace(recommendation_of(latest), min_gain=1.0)
    )
    assert find_valid_earlier_verdict(small, [earlier]) is None
    # the winner says nothing of inference alone
    inference_advice = dataclasses.replace(
        recommendation_of(earlier), action_without_training="inference_only", plan_name="constant=0.5"
    )
    of_inference = dataclasses.replace(earlier, recommendation=inference_advice)
    assert find_valid_earlier_verdict(same_verdict, [of_inference]) == of_inference
