"""What is recommended: the order of precedence, what is worth having, and how many pairs would decide."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tempopt.report.findings import find
from tempopt.report.recommendation_text import recommendation_text, widen_command
from tempopt.spec.alpha_ledger import alpha_for_verdict
from tempopt.storage.rows import Measurement, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import active_groups
from tempopt.verdict.recommendation import Recommendation
from tempopt.verdict.statistics.paired_tests import StageDifferences, paired_test, pairs_to_add
from tempopt.verdict.verdict import Verdict, compute_verdict
from tempopt.verdict.widening import find_params_at_range_ends
from tests.simulated import SPACE, SimulatedStudy

TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
FINAL = {"temperature_final": [2.0, 3.0]}
CHOICE = {"temperature_init": [1.0, 2.0]}
WIDE = {"search": {"temperature_init": {"low": 0.05, "high": 80.0}}}


def recommendation_of(verdict: Verdict | None) -> Recommendation:
    assert verdict is not None and verdict.recommendation is not None
    return verdict.recommendation


def with_gains(tickets: list[TicketRow], gains: list[float]) -> list[TicketRow]:
    """Return the tickets with the winner's confirm runs ``gains`` away from those at tau = 1."""
    return [
        dataclasses.replace(t, value=0.5 + gains[t.pair])
        if t.kind == "confirm" and "search" in arms_of(t) and t.pair is not None
        else t
        for t in tickets
    ]


def noisy_gains(mean: float, spread: float = 0.1) -> list[float]:
    """Return eight gains with exactly that mean and standard deviation."""
    draws = np.random.default_rng(0).normal(size=8)
    return [float(value) for value in mean + spread * (draws - draws.mean()) / draws.std(ddof=1)]


def test_a_winner_that_nothing_simpler_equals_is_to_be_trained_with(
    fixed_spec: Any, whole_study: list[TicketRow], measure_baseline: Any
) -> None:
    recommendation = recommendation_of(
        compute_verdict(whole_study, measure_baseline(whole_study), fixed_spec(WIDE))
    )
    assert (recommendation.action, recommendation.action_without_training) == (
        "train_at_constant",
        "train_at_constant",
    )
    assert recommendation.parameters == {"temperature_init": 4.0} and recommendation.at_inference is None
    assert recommendation.gain is not None and recommendation.gain.paired.gain == pytest.approx(0.1035)
    assert recommendation.winner is None and recommendation.pairs is None and recommendation.widen == ()


def test_inference_is_enough_where_training_is_not_shown_to_be_worth_more(
    fixed_spec: Any, whole_study: list[TicketRow], measure_baseline: Any
) -> None:
    at_half = {"validate:constant=0.5": 0.11, "test:constant=0.5": 0.11}
    recommendation = recommendation_of(
        compute_verdict(whole_study, measure_baseline(whole_study, at_half), fixed_spec(WIDE))
    )
    assert (
        recommendation.action == recommendation.action_without_training == "inference_only"
        and recommendation.plan == "constant=0.5"
    )
    assert recommendation.at_inference == {"temperature_init": 0.5} and recommendation.parameters == {
        "temperature_init": 1.0
    }
    assert recommendation.gain is not None and recommendation.gain.paired.gain == pytest.approx(0.11)


@pytest.mark.parametrize(("min_gain", "action"), [(None, "train_at_constant"), (0.05, "inference_only")])
def test_how_much_the_winner_has_to_be_better_by_is_what_is_worth_having(
    min_gain: float | None,
    action: str,
    fixed_spec: Any,
    whole_study: list[TicketRow],
    measure_baseline: Any,
) -> None:
    at_half = {"validate:constant=0.5": 0.07, "test:constant=0.5": 0.07}
    spec = fixed_spec(WIDE, min_gain=min_gain)
    recommendation = recommendation_of(
        compute_verdict(whole_study, measure_baseline(whole_study, at_half), spec)
    )
    assert recommendation.action == action
    # what keeps less than half is never enough
    third = {"validate:constant=0.5": 0.04, "test:constant=0.5": 0.04}
    recommendation_kept = recommendation_of(
        compute_verdict(whole_study, measure_baseline(whole_study, third), fixed_spec(WIDE, min_gain=0.03))
    )
    assert recommendation_kept.action == "train_at_constant"


def test_inference_alone_is_recommended_without_a_gain_only_where_it_is_beyond_doubt(
    fixed_spec: Any, whole_study: list[TicketRow], measure: Any, result_of: Any
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    sure_gains = {"validate:constant=0.5": 0.03, "test:constant=0.5": 0.03}
    verdict = compute_verdict(null_study, measure(null_study, baseline=sure_gains), fixed_spec(WIDE))
    assert verdict is not None and not verdict.total.significant
    assert (
        recommendation_of(verdict).action == "inference_only"
        and recommendation_of(verdict).excluded is not None
    )
    # too small to be worth it
    small = compute_verdict(
        null_study, measure(null_study, baseline=sure_gains), fixed_spec(WIDE, min_gain=0.2)
    )
    assert recommendation_of(small).action == "change_nothing"

    last: list[Measurement] = []

    def with_p(p_of_spread: float) -> tuple[float, Recommendation]:
        measurements = measure(null_study, baseline={"validate:constant=0.5": 0.03})
        draws = iter(noisy_gains(0.03, p_of_spread))
        uncertain = [
            dataclasses.replace(m, value=0.5 + next(draws))
            if m.name == "test:constant=0.5" and _is_baseline(null_study, m.ticket_id)
            else m
            for m in measurements
        ]
        last[:] = uncertain
        verdict = compute_verdict(null_study, uncertain, fixed_spec(WIDE))
        assert verdict is not None and verdict.inference_only is not None
        return verdict.inference_only.answer.paired.p_value, recommendation_of(verdict)

    p, found_at_p = with_p(0.029)
    assert 0.0125 < p < 0.05 and found_at_p.action == "change_nothing"
    text = recommendation_text(result_of(fixed_spec(WIDE), null_study, last, state="done"))
    assert "Evaluating the same models at τ = 0.5 gains 0.03" in text
    labels = [f.text for f in find(result_of(fixed_spec(WIDE), null_study, last)) if f.kind == "inference"]
    assert all(": shown at its level, 5 %, but not recommended: where no gain" in text for text in labels)
    assert labels
    assert "but not recommended: where no gain of the winner is shown, p has to be below 0.0125" in text
    p, found_at_p = with_p(0.019)
    assert p < 0.0125 and found_at_p.action == "inference_only"


def _is_baseline(tickets: list[TicketRow], id: int) -> bool:
    return any(t.id == id and "baseline" in arms_of(t) for t in tickets)


def test_without_a_gain_nothing_is_to_be_changed_and_what_is_excluded_is_said(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    null_study = with_gains(whole_study, noisy_gains(0.0))
    verdict = compute_verdict(null_study, [], fixed_spec(WIDE))
    recommendation = recommendation_of(verdict)
    assert (recommendation.action, recommendation.parameters) == ("change_nothing", {"temperature_init": 1.0})
    assert verdict is not None and recommendation.excluded == verdict.total.paired.ci_high
    assert recommendation.gain is None and recommendation.min_gain == 0.0
    # all that is worth having is excluded
    assert (
        recommendation_of(compute_verdict(null_study, [], fixed_spec(WIDE, min_gain=0.2))).action
        == "change_nothing"
    )


def test_a_gain_that_is_not_worth_having_changes_nothing(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    for min_gain in (0.11, "25%"):
        recommendation = recommendation_of(
            compute_verdict(whole_study, [], fixed_spec(WIDE, min_gain=min_gain))
        )
        assert recommendation.action == "change_nothing" and recommendation.parameters == {
            "temperature_init": 1.0
        }
    assert recommendation.min_gain == pytest.approx(0.125)
    assert (
        recommendation_of(compute_verdict(whole_study, [], fixed_spec(WIDE, min_gain="20%"))).action
        == "train_at_constant"
    )


def confirm_rows(
    make_ticket: Any, arm: str, number: int, values: list[float], **parameters: float
) -> list[TicketRow]:
    return [
        make_ticket("confirm", 10 * number + pair, value, arm=arm, pair=pair, parameters=parameters)
        for pair, value in enumerate(values)
    ]


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
    min_gain: Any, expected: float, fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    # the gain of 0.1035 is half of the deviation and a little more, and shown
    tickets = spread_out(whole_study, 0.2)
    verdict = compute_verdict(tickets, [], fixed_spec(WIDE, min_gain=min_gain))
    assert verdict is not None and verdict.total.significant
    assert recommendation_of(verdict).min_gain == pytest.approx(expected * 0.2)
    assert (
        recommendation_of(verdict).reason == "gain"
        and recommendation_of(verdict).action_without_training == "train_at_constant"
    )


def test_a_shown_gain_below_a_fifth_of_the_deviation_changes_nothing(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    tickets = spread_out(whole_study, 1.0)
    verdict = compute_verdict(tickets, [], fixed_spec(WIDE))
    assert verdict is not None and verdict.total.significant
    recommendation = recommendation_of(verdict)
    assert (recommendation.action_without_training, recommendation.reason, recommendation.min_gain) == (
        "change_nothing",
        None,
        pytest.approx(0.2),
    )
    # the amount changes the recommendation and no test
    verdict_without = compute_verdict(tickets, [], fixed_spec(WIDE, min_gain=0))
    assert verdict_without is not None and verdict_without.total == verdict.total
    assert recommendation_of(verdict_without).action_without_training == "train_at_constant"


def test_pairs_are_added_only_for_a_smallest_gain_that_the_spec_gives(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    tickets = spread_out(with_gains(whole_study, noisy_gains(0.02)), 0.3)
    actions = {
        amount: recommendation_of(compute_verdict(tickets, [], fixed_spec(WIDE, min_gain=amount)))
        for amount in (None, "0.2 sd", 0)
    }
    assert {amount: recommendation.action for amount, recommendation in actions.items()} == {
        None: "change_nothing",
        "0.2 sd": "more_pairs",
        0: "change_nothing",
    }
    assert actions[None].min_gain == actions["0.2 sd"].min_gain > 0


def test_more_pairs_are_as_many_as_show_what_is_worth_having_in_four_of_five_studies(
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    gains = noisy_gains(0.02)
    null_study = with_gains(whole_study, gains)
    recommendation = recommendation_of(compute_verdict(null_study, [], fixed_spec(WIDE, min_gain=0.06)))
    assert (recommendation.action, recommendation.action_without_training) == (
        "more_pairs",
        "change_nothing",
    ) and recommendation.pairs is not None
    draw = np.random.default_rng(1)
    stage = StageDifferences(differences=tuple(gains))

    def share_shown(pairs: int) -> float:
        tests = (
            paired_test(
                [float(gain) for gain in draw.normal(0.06, 0.1, pairs)],
                test="t",
                direction="maximize",
                alpha=alpha_for_verdict(2),
                earlier=[stage],
            )
            for _ in range(600)
        )
        return float(np.mean([test.significant for test in tests]))

    assert share_shown(recommendation.pairs.pairs) == pytest.approx(0.8, abs=0.05)
    # the winner's and those at tau = 1
    assert recommendation.pairs.runs == 2 * recommendation.pairs.pairs
    assert recommendation.pairs.seconds == pytest.approx(2.0 * recommendation.pairs.runs)
    # what was seen is no reason to expect it: only the level that is left to reach moves with it
    assert recommendation.pairs.pairs < pairs_to_add(
        [StageDifferences(differences=tuple(noisy_gains(-0.02)))],
        0.06,
        test="t",
        direction="maximize",
        alpha=alpha_for_verdict(2),
    )


def test_where_pairs_do_not_differ_at_all_no_number_of_them_is_given() -> None:
    equal_stages = [StageDifferences(differences=(0.0, 0.0, 0.0))]
    assert pairs_to_add(equal_stages, 0.1, test="t", direction="maximize", alpha=0.005) is None


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
            ("length_power", 0.0, 1.0),
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
    fixed_spec: Any, whole_study: list[TicketRow]
) -> None:
    spec = fixed_spec({"search": {"temperature_init": {"low": 1.0, "high": 4.0}}})
    recommendation = recommendation_of(compute_verdict(whole_study, [], spec))
    assert (recommendation.action, recommendation.action_without_training) == (
        "widen_range",
        "train_at_constant",
    )
    assert [(widening.name, widening.value, widening.to_high) for widening in recommendation.widen] == [
        ("temperature_init", 4.0, 8.0)
    ]


def test_the_widened_range_is_one_that_a_spec_accepts_with_all_else_as_it_was(fixed_spec: Any) -> None:
    spec = fixed_spec({"search": {"temperature_init": {"low": 0.3, "high": 4.0, "log": False}}})
    (range_end,) = find_params_at_range_ends({"temperature_init": 0.3}, spec)
    command = widen_command("pairs", (range_end,))
    settings = "--set search.temperature_init.low=0.0822 --set 'study.warm_start=[pairs]'"
    assert command == f"tempopt search SPEC --name pairs_wider {settings}"
    wider = spec.with_overrides(["search.temperature_init.low=0.0822"]).search["temperature_init"]
    assert (wider.low, wider.high, wider.log) == (0.0822, 4.0, False)


def test_a_comparison_whose_pairs_gain_all_alike_leaves_the_number_of_pairs_to_the_other(
    fixed_spec: Any, make_ticket: Any
) -> None:
    gains = noisy_gains(0.02)

    def recommendation_with(twin: list[float]) -> Recommendation:
        tickets = [
            make_ticket("search", 0, 0.5, parameters={"temperature_init": 2.0, "lr": 0.1}),
            *confirm_rows(
                make_ticket, "search", 0, [0.5 + gain for gain in gains], temperature_init=2.0, lr=0.1
            ),
            *confirm_rows(make_ticket, "baseline", 1, [0.5] * 8, temperature_init=1.0, lr=0.2),
            *confirm_rows(make_ticket, "twin", 2, twin, temperature_init=1.0, lr=0.1),
        ]
        space = {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 0.1, "high": 1.0}}
        return recommendation_of(compute_verdict(tickets, [], fixed_spec({"search": space}, min_gain=0.05)))

    recommendation_alone = recommendation_with([0.5] * 8)
    recommendation_beside = recommendation_with([0.49 + gain for gain in gains])
    assert recommendation_alone.action == recommendation_beside.action == "more_pairs"
    assert (
        recommendation_alone.pairs is not None
        and recommendation_beside.pairs is not None
        and recommendation_alone.pairs.pairs == recommendation_beside.pairs.pairs
    )
    # the twin is as good on every pair: no number of pairs shows a gain over it
    assert recommendation_with([0.5 + gain for gain in gains]).action == "change_nothing"


def by_part(t: TicketRow, parts: dict[str, float]) -> float:
    assert t.parameters is not None
    noise = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))]).normal(0, 0.01)
    return float(sum(parts[part] for part in active_groups(t.parameters)) + noise)


@pytest.mark.parametrize(
    ("parts", "action", "groups"),
    [
        ({"length_scaling": 1.0, "schedule": 0.0, "level": 0.0}, "train_at_constant", ("length_scaling",)),
        ({"length_scaling": 0.0, "schedule": 1.0, "level": 0.0}, "train_with_schedule", ("schedule",)),
        (
            {"length_scaling": 0.5, "schedule": 0.5, "level": 0.5},
            "train_with_schedule",
            ("schedule", "level", "length_scaling"),
        ),
    ],
)
def test_of_configurations_that_do_as_well_the_one_with_the_fewest_parts_is_recommended(
    parts: dict[str, float], action: str, groups: tuple[str, ...], fixed_spec: Any
) -> None:
    study = SimulatedStudy(
        fixed_spec({"search": SPACE}, trials=6, explain=True), lambda t: by_part(t, parts)
    ).run()
    recommendation = recommendation_of(compute_verdict(study.rows, [], study.spec))
    assert recommendation.action_without_training == action
    assert active_groups(recommendation.parameters) == groups


@pytest.mark.parametrize(("ahead", "best_temperature"), [(0.05, 0.4), (0.0, 0.8), (-0.05, 0.8)])
def test_a_constant_that_is_shown_to_be_better_than_the_winner_is_recommended(
    ahead: float, best_temperature: float, fixed_spec: Any, make_ticket: Any, result_of: Any
) -> None:
    gains = noisy_gains(0.2, 0.02)
    constants = [
        0.5 + gain + ahead + extra for gain, extra in zip(gains, noisy_gains(0.0, 0.01)[::-1], strict=True)
    ]

    # with one part each, neither of the two is simpler
    tickets = [
        make_ticket("search", 0, 0.5, parameters={"temperature_init": 0.8}),
        *confirm_rows(make_ticket, "search", 0, [0.5 + gain for gain in gains], temperature_init=0.8),
        *confirm_rows(make_ticket, "baseline", 1, [0.5] * 8, temperature_init=1.0),
        *confirm_rows(make_ticket, "twin", 2, [0.5] * 8, temperature_init=1.0),
        *confirm_rows(make_ticket, "constant", 3, constants, temperature_init=0.4),
    ]
    spec = fixed_spec({"search": {"temperature_init": {"low": 0.1, "high": 4.0}}})
    recommendation = recommendation_of(compute_verdict(tickets, [], spec))
    assert (recommendation.action_without_training, recommendation.parameters) == (
        "train_at_constant",
        {"temperature_init": best_temperature},
    )
    text = recommendation_text(result_of(spec, tickets, [], state="done"))
    if ahead > 0:
        assert recommendation.winner is not None and recommendation.winner.paired.gain == pytest.approx(
            -ahead
        )
        assert recommendation.gain is not None and recommendation.gain.paired.gain == pytest.approx(0.25)
        assert "is shown to be worse than this (winner less this: −0.05" in text
        assert "simpler" not in text
    else:
        assert recommendation.winner is None and "That is the winner of the search." in text
