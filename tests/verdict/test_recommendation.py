"""What is recommended: the order of precedence, what is worth having, and how many pairs would decide."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tempopt.report.findings import find
from tempopt.report.recommendation_text import recommendation_text, widen_command
from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import active_groups
from tempopt.verdict.statistics.paired_tests import StageDifferences, paired_test, pairs_to_add
from tempopt.verdict.widening import find_params_at_range_ends
from tests.simulated import SPACE, SimulatedStudy
from tests.verdict.verdicts import noisy_gains, worth_by_part

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
FINAL = {"temperature_final": [2.0, 3.0]}
CHOICE = {"temperature_init": [1.0, 2.0]}
WIDE = {"search": {"temperature_init": {"low": 0.05, "high": 80.0}}}
AT_ONE = {"temperature_init": 1.0}


@pytest.fixture
def recommend(judge: Any) -> Any:
    """Return what says what is recommended by tickets and measurements; ``study``: keys of the section."""

    def compute(tickets: list[TicketRow], measurements: Any = (), **study: Any) -> Any:
        return judge(tickets, measurements, WIDE, **study).recommendation

    return compute


def with_gains(tickets: list[TicketRow], gains: list[float]) -> list[TicketRow]:
    """Return the tickets with the winner's confirm runs ``gains`` away from those at tau = 1."""
    return [
        dataclasses.replace(t, value=0.5 + gains[t.pair])
        if t.kind == "confirm" and "search" in arms_of(t) and t.pair is not None
        else t
        for t in tickets
    ]


def at_half(gain: float) -> dict[str, float]:
    """Return what evaluating at half of the temperature adds, on both data."""
    return {"validate:constant=0.5": gain, "test:constant=0.5": gain}


def test_a_winner_that_nothing_simpler_equals_is_to_be_trained_with(
    recommend: Any, whole_study: list[TicketRow], measure_baseline: Any
) -> None:
    recommendation = recommend(whole_study, measure_baseline(whole_study))
    assert recommendation.action == recommendation.action_without_training == "train_at_constant"
    assert recommendation.params == {"temperature_init": 4.0} and recommendation.at_inference is None
    assert recommendation.gain.paired.gain == pytest.approx(0.1035)
    assert (
        recommendation.winner_over_it is None
        and recommendation.more_pairs is None
        and recommendation.widen == ()
    )


def test_inference_is_enough_where_training_is_not_shown_to_be_worth_more(
    recommend: Any, whole_study: list[TicketRow], measure_baseline: Any
) -> None:
    recommendation = recommend(whole_study, measure_baseline(whole_study, at_half(0.11)))
    assert recommendation.action == recommendation.action_without_training == "inference_only"
    assert recommendation.plan_name == "constant=0.5"
    assert (recommendation.at_inference, recommendation.params) == ({"temperature_init": 0.5}, AT_ONE)
    assert recommendation.gain.paired.gain == pytest.approx(0.11)


@pytest.mark.parametrize(
    ("gain", "min_gain", "action"),
    [
        (0.07, None, "train_at_constant"),
        (0.07, 0.05, "inference_only"),
        # what keeps less than half is never enough
        (0.04, 0.03, "train_at_constant"),
    ],
)
def test_how_much_the_winner_has_to_be_better_by_is_what_is_worth_having(
    gain: float,
    min_gain: float | None,
    action: str,
    recommend: Any,
    whole_study: list[TicketRow],
    measure_baseline: Any,
) -> None:
    measurements = measure_baseline(whole_study, at_half(gain))
    assert recommend(whole_study, measurements, min_gain=min_gain).action == action


def test_inference_alone_is_recommended_without_a_gain_only_where_it_is_beyond_doubt(
    recommend: Any, judge: Any, fixed_spec: Any, whole_study: list[TicketRow], measure: Any, result_of: Any
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    sure_gains = measure(null_study, baseline=at_half(0.03))
    verdict = judge(null_study, sure_gains, WIDE)
    assert not verdict.primary.significant
    assert verdict.recommendation.action == "inference_only" and verdict.recommendation.excluded is not None
    # too small to be worth it
    assert recommend(null_study, sure_gains, min_gain=0.2).action == "change_nothing"

    def with_spread(spread: float) -> Any:
        draws = iter(noisy_gains(0.03, spread))
        baseline_ids = {t.id for t in null_study if "baseline" in arms_of(t)}
        return [
            dataclasses.replace(m, value=0.5 + next(draws))
            if m.name == "test:constant=0.5" and m.ticket_id in baseline_ids
            else m
            for m in measure(null_study, baseline={"validate:constant=0.5": 0.03})
        ]

    unsure = with_spread(0.029)
    verdict = judge(null_study, unsure, WIDE)
    assert 0.0125 < verdict.inference_only.answer.paired.p_value < 0.05
    assert verdict.recommendation.action == "change_nothing"
    result = result_of(fixed_spec(WIDE), null_study, unsure, state="done")
    labels = [finding.text for finding in find(result) if finding.kind == "inference"]
    assert labels and all(
        ": shown at its level, 5 %, but not recommended: where" in label for label in labels
    )
    verdict = judge(null_study, with_spread(0.019), WIDE)
    assert verdict.inference_only.answer.paired.p_value < 0.0125
    assert verdict.recommendation.action == "inference_only"


def test_without_a_gain_nothing_is_to_be_changed_and_what_is_excluded_is_said(
    recommend: Any, judge: Any, whole_study: list[TicketRow]
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    verdict = judge(null_study, (), WIDE)
    recommendation = verdict.recommendation
    assert (recommendation.action, recommendation.params) == ("change_nothing", AT_ONE)
    assert recommendation.excluded == verdict.primary.paired.ci_high
    assert recommendation.gain is None and recommendation.min_gain == 0.0
    # all that is worth having is excluded
    assert recommend(null_study, min_gain=0.2).action == "change_nothing"


@pytest.mark.parametrize(
    ("min_gain", "amount", "is_enough"), [(0.11, 0.11, False), ("25%", 0.125, False), ("20%", 0.1, True)]
)
def test_a_gain_that_is_not_worth_having_changes_nothing(
    min_gain: Any, amount: float, is_enough: bool, recommend: Any, whole_study: list[TicketRow]
) -> None:
    recommendation = recommend(whole_study, min_gain=min_gain)
    assert recommendation.action == ("train_at_constant" if is_enough else "change_nothing")
    assert (recommendation.params == AT_ONE) == (not is_enough)
    assert recommendation.min_gain == pytest.approx(amount)


def spread_out(tickets: list[TicketRow], spread: float) -> list[TicketRow]:
    """Return the tickets with what seeds do to all arms alike: eight values with that standard deviation."""
    shifts = noisy_gains(0.0, spread)
    return [
        dataclasses.replace(t, value=t.value + shifts[t.pair])
        if t.kind == "confirm" and t.value is not None and t.pair is not None
        else t
        for t in tickets
    ]


@pytest.mark.parametrize(
    ("min_gain", "expected"), [(None, 0.2), ("0.5 sd", 0.5), ("0.4 sd", 0.4), (0.07, 0.07 / 0.2), (0, 0.0)]
)
def test_the_smallest_gain_is_a_fifth_of_the_deviation_between_seeds_unless_the_spec_says_more(
    min_gain: Any, expected: float, judge: Any, whole_study: list[TicketRow]
) -> None:
    # the gain of 0.1035 is half of the deviation and a little more, and shown
    verdict = judge(spread_out(whole_study, 0.2), (), WIDE, min_gain=min_gain)
    assert verdict.primary.significant
    assert verdict.recommendation.min_gain == pytest.approx(expected * 0.2)
    assert verdict.recommendation.reason == "gain"
    assert verdict.recommendation.action_without_training == "train_at_constant"


def test_a_shown_gain_below_a_fifth_of_the_deviation_changes_nothing(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    tickets = spread_out(whole_study, 1.0)
    verdict = judge(tickets, (), WIDE)
    assert verdict.primary.significant
    recommendation = verdict.recommendation
    assert (recommendation.action_without_training, recommendation.reason) == ("change_nothing", None)
    assert recommendation.min_gain == pytest.approx(0.2)
    # the amount changes the recommendation and no test
    verdict_without = judge(tickets, (), WIDE, min_gain=0)
    assert verdict_without.primary == verdict.primary
    assert verdict_without.recommendation.action_without_training == "train_at_constant"


def test_pairs_are_added_only_for_a_smallest_gain_that_the_spec_gives(
    recommend: Any, whole_study: list[TicketRow]
) -> None:
    tickets = spread_out(with_gains(whole_study, noisy_gains(0.02)), 0.3)
    default, deviations, zero = (recommend(tickets, min_gain=amount) for amount in (None, "0.2 sd", 0))
    assert default.action == zero.action == "change_nothing" and deviations.action == "more_pairs"
    assert default.min_gain == deviations.min_gain > 0


def test_more_pairs_are_as_many_as_show_what_is_worth_having_in_four_of_five_studies(
    recommend: Any, whole_study: list[TicketRow]
) -> None:
    gains = noisy_gains(0.02)
    recommendation = recommend(with_gains(whole_study, gains), min_gain=0.06)
    assert recommendation.action == "more_pairs"
    assert recommendation.action_without_training == "change_nothing"
    more_pairs = recommendation.more_pairs
    draw = np.random.default_rng(1)
    options: dict[str, Any] = {"direction": "maximize", "alpha": alpha_for_verdict(2)}
    earlier = [StageDifferences(differences=tuple(gains))]
    tests = [
        paired_test(draw.normal(0.06, 0.1, more_pairs.pairs).tolist(), earlier=earlier, **options)
        for _ in range(300)
    ]
    assert np.mean([test.significant for test in tests]) == pytest.approx(0.8, abs=0.07)
    # the winner's and those at tau = 1
    assert more_pairs.runs == 2 * more_pairs.pairs
    assert more_pairs.seconds == pytest.approx(2.0 * more_pairs.runs)
    # what was seen is no reason to expect it: only the level that is left to reach moves with it
    worse_stage = StageDifferences(differences=tuple(noisy_gains(-0.02)))
    assert more_pairs.pairs < pairs_to_add([worse_stage], 0.06, **options)


def test_where_pairs_do_not_differ_at_all_no_number_of_them_is_given() -> None:
    equal_stages = [StageDifferences(differences=(0.0, 0.0, 0.0))]
    assert pairs_to_add(equal_stages, 0.1, direction="maximize", alpha=0.005) is None


@pytest.mark.parametrize(
    ("space", "parameters", "expected"),
    [
        (TAU, {"temperature_init": 4.0}, ("temperature_init", 0.25, 16.0)),
        (TAU, {"temperature_init": 0.26}, ("temperature_init", 0.0625, 4.0)),
        (TAU, {"temperature_init": 3.5}, None),
        (
            {"entropy_lambda": {"low": -0.01, "high": 0.01}, "temperature_init": [1.0, 2.0]},
            {"entropy_lambda": 0.01, "temperature_init": 2.0},
            ("entropy_lambda", -0.01, 0.02),
        ),
        # half as wide again would be below 0, where there is no temperature
        (
            {"temperature_init": {"low": 0.25, "high": 4.0, "log": False}},
            {"temperature_init": 0.25},
            ("temperature_init", 0.0625, 4.0),
        ),
        # as far as is allowed, and no farther
        (
            {"temperature_init": {"low": 2e-6, "high": 4.0}},
            {"temperature_init": 2e-6},
            ("temperature_init", 1e-6, 4.0),
        ),
        ({"temperature_init": {"low": 1e-6, "high": 4.0}}, {"temperature_init": 1e-6}, None),
        (
            {"length_power": {"low": 0.1, "high": 1.0}, "length_scaling": ["log_n_power"], **CHOICE},
            {"temperature_init": 2.0, "length_scaling": "log_n_power", "length_power": 0.1},
            ("length_power", 0.0316, 1.0),
        ),
        # in whole steps, and at least one of them
        (
            {"temperature_init": {"low": 0.5, "high": 1.0, "step": 0.5}},
            {"temperature_init": 1.0},
            ("temperature_init", 0.5, 1.5),
        ),
        # what only shapes a schedule, and what is no temperature
        (
            {**FINAL, "schedule": ["hold_anneal"], "hold_fraction": {"low": 0.1, "high": 0.5}},
            {"schedule": "hold_anneal", "hold_fraction": 0.5, "temperature_final": 2.0},
            None,
        ),
        ({**CHOICE, "lr": {"low": 0.1, "high": 1.0}}, {"temperature_init": 2.0, "lr": 1.0}, None),
    ],
)
def test_the_ends_of_ranges_of_temperatures_are_seen(
    space: dict[str, Any], parameters: dict[str, Any], expected: Any, fixed_spec: Any
) -> None:
    range_ends = [
        (range_end.name, range_end.to_low, range_end.to_high)
        for range_end in find_params_at_range_ends(parameters, fixed_spec({"search": space}))
    ]
    assert range_ends == ([] if expected is None else [expected])


def test_a_winner_at_the_end_of_its_range_says_to_widen_it_and_what_to_do_until_then(
    judge: Any, whole_study: list[TicketRow]
) -> None:
    space = {"temperature_init": {"low": 1.0, "high": 4.0}}
    recommendation = judge(whole_study, (), {"search": space}).recommendation
    assert recommendation.action == "widen_range"
    assert recommendation.action_without_training == "train_at_constant"
    (widening,) = recommendation.widen
    assert (widening.name, widening.value, widening.to_high) == ("temperature_init", 4.0, 8.0)


def test_the_widened_range_is_one_that_a_spec_accepts_with_all_else_as_it_was(fixed_spec: Any) -> None:
    spec = fixed_spec({"search": {"temperature_init": {"low": 0.3, "high": 4.0, "log": False}}})
    (range_end,) = find_params_at_range_ends({"temperature_init": 0.3}, spec)
    command = widen_command("pairs", (range_end,))
    settings = "--set search.temperature_init.low=0.0822 --set 'study.warm_start=[pairs]'"
    assert command == f"tempopt search SPEC --name pairs_wider {settings}"
    wider = spec.with_overrides(["search.temperature_init.low=0.0822"]).search["temperature_init"]
    assert (wider.low, wider.high, wider.log) == (0.0822, 4.0, False)


def test_a_comparison_whose_pairs_gain_all_alike_leaves_the_number_of_pairs_to_the_other(
    judge: Any, make_confirm_rows: Any
) -> None:
    gains = noisy_gains(0.02)
    sections = {"search": {**TAU, "lr": {"low": 0.1, "high": 1.0}}}
    params = {"search": {"temperature_init": 2.0, "lr": 0.1}}

    def recommend(twin: list[float]) -> Any:
        arms = {"search": [0.5 + gain for gain in gains], "baseline": [0.5] * 8, "twin": twin}
        return judge(make_confirm_rows(params, **arms), (), sections, min_gain=0.05).recommendation

    alone, beside = recommend([0.5] * 8), recommend([0.49 + gain for gain in gains])
    assert alone.action == beside.action == "more_pairs"
    assert alone.more_pairs.pairs == beside.more_pairs.pairs
    # the twin is as good on every pair: no number of pairs shows a gain over it
    assert recommend([0.5 + gain for gain in gains]).action == "change_nothing"


@pytest.mark.parametrize(
    ("parts", "action", "groups"),
    [
        ({"length_scaling": 1.0}, "train_at_constant", ("length_scaling",)),
        ({"schedule": 1.0}, "train_with_schedule", ("schedule",)),
        (
            {"length_scaling": 0.5, "schedule": 0.5, "level": 0.5},
            "train_with_schedule",
            ("schedule", "level", "length_scaling"),
        ),
    ],
)
def test_of_configurations_that_do_as_well_the_one_with_the_fewest_parts_is_recommended(
    parts: dict[str, float], action: str, groups: tuple[str, ...], fixed_spec: Any, judge: Any
) -> None:
    spec = fixed_spec({"search": SPACE}, trials=6, explain=True)
    study = SimulatedStudy(spec, worth_by_part(**parts)).run()
    recommendation = judge(study.rows, spec=spec).recommendation
    assert recommendation.action_without_training == action
    assert active_groups(recommendation.params) == groups


@pytest.mark.parametrize(("ahead", "best_temperature"), [(0.05, 0.4), (0.0, 0.8), (-0.05, 0.8)])
def test_a_constant_that_is_shown_to_be_better_than_the_winner_is_recommended(
    ahead: float, best_temperature: float, judge: Any, fixed_spec: Any, make_confirm_rows: Any, result_of: Any
) -> None:
    search = [0.5 + gain for gain in noisy_gains(0.2, 0.02)]
    # with one part each, neither of the two is simpler
    tickets = make_confirm_rows(
        {
            "search": {"temperature_init": 0.8},
            "constant": {"temperature_init": 0.4},
            "baseline": AT_ONE,
            "twin": AT_ONE,
        },
        search=search,
        baseline=[0.5] * 8,
        twin=[0.5] * 8,
        constant=np.add(search, noisy_gains(ahead, 0.01)[::-1]),
    )
    spec = fixed_spec({"search": {"temperature_init": {"low": 0.1, "high": 4.0}}})
    recommendation = judge(tickets, spec=spec).recommendation
    assert recommendation.action_without_training == "train_at_constant"
    assert recommendation.params == {"temperature_init": best_temperature}
    text = recommendation_text(result_of(spec, tickets, [], state="done"))
    if ahead > 0:
        assert recommendation.winner_over_it.paired.gain == pytest.approx(-ahead)
        assert recommendation.gain.paired.gain == pytest.approx(0.25)
        assert "The winner (τ = 0.8) is worse than this, whose gain is +0.25" in text
    else:
        assert recommendation.winner_over_it is None and "The winner" not in text
