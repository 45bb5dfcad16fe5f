"""What a study decides, as values and as the few lines of a screen."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tempopt.report.decision import Decision, decide
from tempopt.report.finding import GAIN
from tempopt.report.findings import find
from tempopt.report.study_lines import decision_lines, outcome_label, screen_lines
from tempopt.report.study_result import StudyResult
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import active_groups
from tempopt.verdict.guards import GuardResult
from tests.report.full_text import full_lines
from tests.simulated import SPACE, SimulatedStudy, Worth

LEVEL = {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}}
Carry = Callable[..., StudyResult]


@pytest.fixture
def carry_out(make_spec: Any, result_of: Any) -> Carry:
    """Return what carries out a study whose runs are worth so much; keyword arguments go to ``study:``."""

    def carry_out(worth: Worth, search: Any = LEVEL, measure: Any = None, **study: Any) -> StudyResult:
        simulation = SimulatedStudy(make_spec({"search": search}, trials=6, **study), worth).run()
        measurements = [] if measure is None else measure(simulation.rows)
        result: StudyResult = result_of(simulation.spec, simulation.rows, measurements, state="done")
        return result

    return carry_out


def noise(t: TicketRow, deviation: float = 0.01) -> float:
    return float(np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, deviation))


def is_at_one(t: TicketRow) -> bool:
    assert t.parameters is not None
    return not active_groups(t.parameters)


def tempered_worth(gain: float) -> Worth:
    """Return what a run is worth where any other temperature than 1 gains so much."""
    return lambda t: 0.5 + noise(t) + gain * (not is_at_one(t))


def level_worth(t: TicketRow) -> float:
    """Return what a run is worth where differences have no mean."""
    return 0.5 if is_at_one(t) else 0.5 + 0.02 * (-1.0) ** (t.pair or 0)


def by_parts(**worth_of_part: float) -> Worth:
    """Return what a run is worth where each of its parts is worth so much."""

    def worth(t: TicketRow) -> float:
        return (
            0.5
            + noise(t, 0.002)
            + sum(worth_of_part.get(part, 0.0) for part in active_groups(t.parameters or {}))
        )

    return worth


def decision_of(result: StudyResult) -> Decision:
    decision = decide(result)
    assert decision is not None
    return decision


def labels(result: StudyResult) -> list[str]:
    """Return what the lines of a screen begin with."""
    return [line[:10].strip() if line.startswith("  ") else "" for line in screen_lines(result)]


def test_a_gain_of_the_winner_is_decided_in_five_lines(carry_out: Carry) -> None:
    result = carry_out(tempered_worth(0.1))
    decision, (headline, *lines) = decision_of(result), screen_lines(result)
    assert result.verdict is not None
    test = result.verdict.primary.paired
    assert (decision.outcome, decision.is_change, decision.metric) == ("gain", True, "val_accuracy")
    assert (decision.change, decision.low, decision.high) == (test.gain, test.ci_low, test.ci_high)
    assert (decision.p_value, decision.seeds, decision.confidence) == (test.p_value, test.n_pairs, "95 %")
    assert decision.params == result.verdict.params
    assert headline == decision.headline and headline.startswith("Gain shown: val_accuracy 0.")
    assert lines[0] == f"  use     {decision.use}" and decision.use.startswith("τ = ")
    assert lines[1] == "  now     τ = 1"
    assert lines[-1].endswith("; details: tempopt show pairs --full; as code: tempopt export pairs")
    assert 4 <= len(lines) + 1 <= 6


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("gain", [0.1, -0.1])
def test_before_and_after_differ_by_a_change_of_natural_sign(
    direction: str, gain: float, carry_out: Carry
) -> None:
    result = carry_out(tempered_worth(gain), direction=direction)
    decision = decision_of(result)
    assert result.verdict is not None and decision.before is not None and decision.after is not None
    assert decision.before == pytest.approx(0.5, abs=0.02)
    assert decision.after - decision.before == pytest.approx(decision.change)
    assert decision.low <= decision.change <= decision.high
    # a gain is positive in the verdict, whatever is minimized
    sign = 1 if direction == "maximize" else -1
    assert decision.change == sign * result.verdict.primary.paired.gain
    assert f"val_accuracy {decision.before:.2f}" in decision.headline


def test_a_simpler_constant_is_recommended_beside_a_schedule(carry_out: Carry) -> None:
    result = carry_out(by_parts(length_scaling=1.0), {name: SPACE[name] for name in SPACE if name != "lr"})
    decision = decision_of(result)
    assert result.verdict is not None and decision.params != result.verdict.params
    advice = result.verdict.recommendation
    assert (
        advice is not None
        and advice.gain is not None
        and advice.action_without_training == "train_at_constant"
    )
    # the numbers are those of what was tested: what is recommended was picked on the same seeds
    assert decision.outcome == "gain" and decision.change == result.verdict.primary.paired.gain
    assert "from" not in decision.use and "length_scaling=log_n" in decision.use
    assert decision.also[0].startswith("the winner (τ from ")
    assert "is not shown to be better than this, whose gain is +" in decision.also[0]
    # the numbers are labelled with what they are of, here and in the full list
    assert decision.about == "winner" and decision.headline.endswith(", of the winner")
    assert find(result)[0].text == decision.headline


def test_what_is_not_shown_beside_a_constant_stays_once_the_winner_is_explained(carry_out: Carry) -> None:
    space = {name: SPACE[name] for name in SPACE if name not in ("lr", "length_scaling", "n0")}

    def worth(t: TicketRow) -> float | None:
        schedule = 0.5 + (-1.0) ** (t.pair or 0) * 0.5 * (t.kind in ("confirm", "ablation"))
        return by_parts(level=0.2, layers=0.0, schedule=schedule)(t)

    result = carry_out(worth, space)
    verdict, advice = result.verdict, result.recommendation
    assert (
        verdict is not None and advice is not None and advice.action_without_training == "train_with_schedule"
    )
    (text,) = decision_of(result).also
    assert text.startswith("not shown to be worth more than a constant: +")
    # a plan with fewer parts takes the winner's place, which no constant was compared with
    simpler = dataclasses.replace(
        advice, params={**advice.params, "n0": 1}, winner_over_it=verdict.over_constant
    )
    explained = dataclasses.replace(result, verdict=dataclasses.replace(verdict, recommendation=simpler))
    first, second = decision_of(explained).also
    assert first == f"the winner is {text}" and " is not shown to be better than this" in second


@pytest.mark.parametrize(("schedule", "begins"), [(0.5, "worth more than a constant: +"), (0.0, None)])
def test_a_schedule_is_told_beside_the_closest_constant(
    schedule: float, begins: str | None, carry_out: Carry
) -> None:
    space = {name: SPACE[name] for name in ("temperature_init", "temperature_final", "schedule")}
    decision = decision_of(carry_out(by_parts(level=0.5, schedule=schedule), space))
    assert any(text.startswith(begins or "the winner (") for text in decision.also)


def test_inference_only_is_a_change_that_trains_as_before(carry_out: Carry) -> None:
    def measure(tickets: list[TicketRow]) -> list[Measurement]:
        gains = {"constant=0.5": 0.3, "as trained": 0.0}
        names = [f"{data}:{plan}" for data in ("validate", "test") for plan in gains]
        return [
            Measurement(
                ticket_id=t.id,
                step=10,
                name=name,
                value=t.value + gains[name.partition(":")[2]] + t.pair / 1000
                if name.endswith("0.5")
                else t.value,
            )
            for t in tickets
            if t.kind == "confirm" and "baseline" in arms_of(t) and t.value is not None and t.pair is not None
            for name in names
        ]

    result = carry_out(level_worth, measure=measure)
    decision = decision_of(result)
    assert (
        result.recommendation is not None
        and result.recommendation.action_without_training == "inference_only"
    )
    assert (decision.outcome, decision.is_change) == ("gain_at_inference", True)
    assert decision.use == "τ = 1, evaluated at τ = 0.5"
    assert decision.change == pytest.approx(0.3, abs=0.02)
    assert result.plan[0] == "winner"


def test_stability_is_a_decision_of_its_own(carry_out: Carry) -> None:
    def worth(t: TicketRow) -> float | None:
        # most runs at τ = 1 diverge, and the others are a little better
        if not is_at_one(t) or t.pair is None:
            return 0.4
        return (0.41, 0.43, 0.4)[t.pair] if t.pair < 3 else None

    result = carry_out(worth)
    decision = decision_of(result)
    assert result.recommendation is not None and result.recommendation.reason == "stability"
    assert (decision.outcome, decision.is_change) == ("more_stable", True)
    assert screen_lines(result)[0].startswith("More stable: val_accuracy ")
    (text,) = [text for text in decision.also if "trainings failed" in text]
    assert text.startswith("13 of 16 trainings failed at τ = 1, 0 with this (p ")


def test_no_gain_says_what_was_tried_and_what_is_excluded(carry_out: Carry) -> None:
    result = carry_out(level_worth, min_gain=0)
    decision = decision_of(result)
    assert result.verdict is not None
    assert (decision.outcome, decision.is_change, decision.use) == ("no_gain", False, "τ = 1, as now")
    assert decision.headline.startswith("No gain shown: val_accuracy 0.5")
    search_text, bound_text, *_ = decision.also
    assert search_text.startswith("the winner was τ = ") and search_text.endswith(", the best of the search")
    # what no run of the search trained with, its model has proposed
    confirming_runs = tuple(t for t in result.runs if t.kind in ("choose", "confirm"))
    assert decision_of(dataclasses.replace(result, runs=confirming_runs)).also[0] == search_text.replace(
        "the best of the search", "proposed by the search's model"
    )
    assert bound_text.startswith("a gain above 0.") and bound_text.endswith(" is excluded (95 %)")
    assert labels(result) == ["", "use", "also", "", ""]
    assert "export" not in screen_lines(result)[-1]


def test_ordinary_parameters_that_were_tuned_are_told_beside_the_temperature_as_now(carry_out: Carry) -> None:
    result = carry_out(lambda t: t.seed % 997 / 997, {"temperature_init": [1.0], "lr": [0.1, 0.2, 0.3]})
    decision = decision_of(result)
    assert (decision.outcome, decision.is_change) == ("no_gain", False)
    tuned = "(at its default in the spec; not tested against it)"
    assert decision.use.startswith("τ = 1, as now, with lr = 0.") and decision.use.endswith(tuned)
    assert decision.headline.startswith("No gain of temperature shown: val_accuracy ")
    assert decision.to_json()["untested"] == {"lr": {"value": decision.params["lr"], "spec": None}}
    assert screen_lines(result)[-1].endswith("; as code: tempopt export pairs")
    # with the value that the spec trains with; one that is the spec's is no change
    assert result.recommendation is not None and result.recommendation.params["lr"] == 0.1
    for lr, text in ((0.1, ""), (0.7, ", with lr = 0.1 (0.7 in the spec; not tested against it)")):
        model = {**result.spec.model, "init_args": {"lr": lr}}
        with_rate = dataclasses.replace(result, spec=result.spec.model_copy(update={"model": model}))
        assert decision_of(with_rate).use == f"τ = 1, as now{text}"
    first, todo, *_ = lines = full_lines(result)
    assert first == decision.headline and todo.startswith("  What to do: use τ = 1, as now, with lr = 0.")
    assert len(lines) == 5
    assert math.isinf(decision.low) and "(no interval, 4 fresh seeds)" in decision.headline
    assert decision.also == () and "now" not in labels(result)


def test_an_interval_without_ends_is_not_printed_and_null_for_programs(
    make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    lost_rows = [
        dataclasses.replace(t, state="failed", outcome="failed", value=None) if t.pair else t
        for t in whole_study
        if t.kind != "choose"
    ] + [t for t in whole_study if t.kind == "choose"]
    decision = decision_of(result_of(make_spec(seeds={"confirm": 4}), lost_rows, state="done"))
    assert (decision.low, decision.high, decision.seeds) == (-math.inf, math.inf, 1)
    assert decision.headline.endswith("(no interval, 1 fresh seed)") and "inf" not in decision.headline
    data = json.loads(json.dumps(decision.to_json(), allow_nan=False))
    assert (data["low"], data["high"], data["outcome"]) == (None, None, "no_gain")


def test_what_plots_show_is_what_is_recommended_then_the_winner_then_the_best_trial(
    carry_out: Carry, make_spec: Any, result_of: Any, whole_study: list[TicketRow]
) -> None:
    gaining, level = carry_out(tempered_worth(0.1)), carry_out(level_worth)
    assert gaining.recommendation is not None
    assert gaining.plan == ("recommended", gaining.recommendation.params)
    assert level.plan == ("winner", level.winner)
    search_rows = [t for t in whole_study if t.kind not in ("choose", "confirm")]
    assert result_of(make_spec(), search_rows).plan == ("best trial", {"temperature_init": 6.0})
    assert result_of(make_spec(), []).plan == ("best trial", None)


def test_a_gain_whose_winner_breaks_a_guard_is_not_said_without_it(confirmed_result: StudyResult) -> None:
    assert confirmed_result.verdict is not None
    assert outcome_label(confirmed_result) == GAIN
    guard = GuardResult(
        name="val_loss", text="no worse than 5%", state="broken", side="most", margin=0.05, why="it diverged"
    )
    broken_result = dataclasses.replace(
        confirmed_result, verdict=dataclasses.replace(confirmed_result.verdict, guards=(guard,))
    )
    assert outcome_label(broken_result) == "Gain shown, but a guard is not kept"
    assert decision_lines(broken_result)[0].startswith("Gain shown: val_accuracy 0.")
