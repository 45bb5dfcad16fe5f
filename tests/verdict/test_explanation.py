"""Which parts a winner is taken apart into, which simpler plan is tried, and what both are worth."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import ConfirmationArm, arms_of
from tempopt.temperature import LEARNED, LR_RATIOS, active_groups, to_neutral, training_key
from tempopt.verdict.explanation import ablate, explanation_tickets, simpler_plans, simplest
from tempopt.verdict.paired_evidence import is_confirmation_complete
from tempopt.verdict.pairs import more_pairs
from tempopt.verdict.verdict import Verdict
from tests.simulated import SPACE, SimulatedStudy
from tests.verdict.verdicts import numbers_of, scipys_numbers, worth_by_part

WINNER = {
    "temperature_init": 4.0,
    "temperature_final": 1.0,
    "schedule": "exponential",
    "length_scaling": "log_n",
    "n0": 32.0,
    "lr": 0.3,
}
LEVEL = 2.5
ARMS: dict[ConfirmationArm, dict[str, Any]] = {
    "search": WINNER,
    "baseline": {"temperature_init": 1.0, "lr": 0.5},
    "twin": to_neutral(WINNER),
    "constant": {"temperature_init": 2.0, "lr": 0.4},
    "constant_twin": {
        "temperature_init": LEVEL,
        "schedule": "constant",
        "length_scaling": "log_n",
        "n0": 32.0,
        "lr": 0.3,
    },
}


@pytest.fixture
def run_study(fixed_spec: Any, judge: Any) -> Any:
    """Return what simulates a study that is explained, and gives its verdict."""

    def run(worth: Any, space: Any = SPACE, **study: Any) -> tuple[SimulatedStudy, Verdict]:
        spec = fixed_spec({"search": space}, trials=6, **{"explain": True, **study})
        simulation = SimulatedStudy(spec, worth).run()
        return simulation, judge(simulation.rows, spec=spec)

    return run


# ---- which parts


def test_each_part_that_is_not_neutral_is_taken_away_by_itself(fixed_spec: Any) -> None:
    ablations = ablate(fixed_spec({"search": SPACE}), ARMS)
    assert list(ablations) == ["schedule", "level", "length_scaling"]
    # without its schedule the winner has the best constant in its place
    assert training_key(ablations["schedule"]) == training_key(ARMS["constant_twin"])
    # from 4 to 1 by equal ratios: the middle is 2
    assert ablations["level"]["temperature_init"] == pytest.approx(2.0)
    assert ablations["level"]["temperature_final"] == pytest.approx(0.5)
    assert ablations["level"]["length_scaling"] == "log_n"
    assert ablations["length_scaling"]["length_scaling"] == "none"
    assert all(parameters["lr"] == 0.3 for parameters in ablations.values())


def test_what_is_no_temperature_and_has_a_baseline_is_a_part_too(fixed_spec: Any) -> None:
    space = {
        "temperature_init": {"low": 0.5, "high": 4.0},
        "normaliser": ["softmax", "top_k"],
        "top_k": {"low": 2, "high": 8},
        "label_smoothing": {"low": 0.0, "high": 0.2},
        "heads": {"choices": [4, 8, None], "baseline": None},
        "lr": {"low": 0.1, "high": 1.0},
    }
    winner = {
        "temperature_init": 2.0,
        "normaliser": "top_k",
        "top_k": 4,
        "label_smoothing": 0.1,
        "heads": 8,
        "lr": 0.3,
    }
    arms: dict[ConfirmationArm, dict[str, Any]] = {
        "search": winner,
        "twin": to_neutral(winner),
        "baseline": {"lr": 0.3},
    }
    spec = fixed_spec({"search": space})
    ablations = ablate(spec, arms)
    assert set(ablations) >= {"level", "normaliser", "label_smoothing", "heads"}
    assert "lr" not in ablations and "schedule" not in ablations
    assert ablations["label_smoothing"] == {**winner, "label_smoothing": 0.0}
    assert ablations["heads"] == {**winner, "heads": None}
    assert ablations["normaliser"] == {n: v for n, v in winner.items() if n != "top_k"} | {
        "normaliser": "softmax"
    }
    at_baseline = {**winner, "label_smoothing": 0.0, "heads": None, "normaliser": "softmax"}
    del at_baseline["top_k"]
    assert list(ablate(spec, {**arms, "search": at_baseline})) == ["level"]


def test_simpler_plans_keep_one_part_or_all_but_one(fixed_spec: Any) -> None:
    plans = simpler_plans(ARMS)
    assert [plan.parts for plan in plans] == [
        ("schedule",),
        ("level",),
        ("length_scaling",),
        ("schedule", "level"),
        ("schedule", "length_scaling"),
        ("level", "length_scaling"),
    ]
    by_parts = {plan.parts: plan.params for plan in plans}
    assert training_key(by_parts["level", "length_scaling"]) == training_key(ARMS["constant_twin"])
    assert by_parts["level",]["temperature_init"] == LEVEL
    assert set(active_groups(by_parts["schedule", "level"])) == {"schedule", "level"}
    assert all(plan.params["lr"] == 0.3 for plan in plans)
    assert len({training_key(plan.params) for plan in plans}) == len(plans)


def test_a_winner_of_one_part_has_no_simpler_plan() -> None:
    params: dict[str, Any] = {"temperature_init": 3.0, "lr": 0.3}
    assert simpler_plans({"search": params, "baseline": to_neutral(params), "twin": to_neutral(params)}) == []


# ---- which runs


def test_a_winner_is_taken_apart_on_the_confirming_seeds_and_ordered_on_those_of_choosing(
    run_study: Any,
) -> None:
    study, _ = run_study(worth_by_part(schedule=0.3, level=0.2, length_scaling=1.0))
    confirm = {t.pair: t.seed for t in study.tickets_of("confirm")}
    parts = study.tickets_of("ablation")
    assert {t.pair for t in parts} == set(range(8))
    assert all(t.seed == confirm[t.pair] for t in parts)
    assert [t.number for t in parts] == list(range(len(parts)))
    arms = {arm for t in parts for arm in arms_of(t)}
    # the winner without its schedule is the constant of its own, which is confirmed anyway
    assert arms == {"without_level", "without_length_scaling", "simplest", "learned"}
    confirmed_keys = {training_key(t.parameters or {}) for t in study.tickets_of("confirm")}
    assert confirmed_keys.isdisjoint(training_key(t.parameters or {}) for t in parts)
    ordering_rows = study.tickets_of("choose", "simpler")
    choosing_seeds = {t.pair: t.seed for t in study.tickets_of("choose") if t.arm != "simpler"}
    assert all(t.seed == choosing_seeds[t.pair] for t in ordering_rows if t.pair in choosing_seeds)
    runs = [(training_key(t.parameters or {}), t.seed) for t in study.tickets_of("choose")]
    assert len(set(runs)) == len(runs)
    assert study.kinds()[-3:] == ["confirm", "choose", "ablation"]


def test_parts_that_come_to_the_same_plan_share_a_run(run_study: Any) -> None:
    # of two parts to be without one is to have the other alone: the simplest plan has runs already
    space = {"temperature_init": {"low": 2.0, "high": 4.0}, "length_scaling": ["log_n"]}
    study, verdict = run_study(worth_by_part(level=0.1, length_scaling=1.0), space)
    assert {t.arm for t in study.tickets_of("ablation")} == {
        "without_level+simplest",
        "without_length_scaling",
        "learned",
    }
    assert verdict.simplest.parts == ("length_scaling",)
    [part] = [part for part in verdict.parts if part.name == "level"]
    assert part.answer == verdict.simplest.lost


def test_added_pairs_rest_on_the_parts_of_the_round_that_they_were_added_to(
    run_study: Any, judge: Any
) -> None:
    study, first_verdict = run_study(worth_by_part(schedule=0.3, length_scaling=1.0))
    extra_rows = study.do(more_pairs(study.rows, study.spec, 4))
    assert {arm for t in extra_rows for arm in arms_of(t)} == {"search", "baseline", "twin"}
    # a gain is shown with them, too, so that the constants follow on the same pairs, and nothing else
    constants = study.step()
    assert {arm for t in constants for arm in arms_of(t)} == {"constant", "constant_twin"}
    assert {(t.pair, t.seed) for t in constants} == {(t.pair, t.seed) for t in extra_rows}
    assert study.step() == []
    second_verdict = judge(study.rows, spec=study.spec)
    assert second_verdict.round == 1 and second_verdict.primary.paired.n_pairs == 12
    assert [part.name for part in second_verdict.parts] == [part.name for part in first_verdict.parts]
    assert all(part.answer.paired.n_pairs == 8 for part in second_verdict.parts)


# ---- when


def test_an_explanation_on_request_trains_what_the_spec_would_have_asked_for(
    run_study: Any, judge: Any
) -> None:
    worth = worth_by_part(schedule=0.3, level=0.2, length_scaling=1.0)
    at_once, by_spec = run_study(worth)
    study, _ = run_study(worth, explain=False)
    assert explanation_tickets(study.rows, study.spec) == []
    assert study.do(explanation_tickets(study.rows, study.spec, is_requested=True))
    # a requested explanation continues without another request until no tickets follow
    study.run()
    assert study.step() == [] == explanation_tickets(study.rows, study.spec, is_requested=True)
    requested_trainings, trainings = (
        [
            (t.kind, t.arm, t.pair, t.seed, training_key(t.parameters or {}))
            for kind in ("choose", "ablation")
            for t in simulated.tickets_of(kind)
        ]
        for simulated in (study, at_once)
    )
    assert requested_trainings == trainings
    requested_verdict = judge(study.rows, spec=study.spec)
    assert (requested_verdict.parts, requested_verdict.simplest) == (by_spec.parts, by_spec.simplest)


def test_nothing_is_explained_before_the_confirmation_is_decided(fixed_spec: Any) -> None:
    study = SimulatedStudy(fixed_spec({"search": SPACE}, trials=6), worth_by_part(length_scaling=1.0))
    study.search()
    while not study.tickets_of("confirm"):
        assert explanation_tickets(study.rows, study.spec, is_requested=True) == []
        assert study.step()
    open_yet = SimulatedStudy(
        fixed_spec({"search": SPACE}, trials=6, seeds={"confirm": {"min": 2, "max": 16}}),
        worth_by_part(length_scaling=0.005),
    )
    open_yet.search()
    assert open_yet.run_until("confirm")
    num_open = 0
    while not is_confirmation_complete(open_yet.rows, open_yet.spec, 0):
        num_open += 1
        assert explanation_tickets(open_yet.rows, open_yet.spec, is_requested=True) == []
        assert open_yet.step()
    assert num_open
    open_yet.run()
    assert explanation_tickets(open_yet.rows, open_yet.spec, is_requested=True)


@pytest.mark.parametrize("is_learned", [True, False])
def test_learned_temperatures_are_part_of_an_explanation(run_study: Any, is_learned: bool) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        return worth_by_part(length_scaling=1.0)(t) + 0.3 * (LEARNED in t.parameters)

    study, verdict = run_study(worth, learned=is_learned)
    assert {t.kind for t in study.rows if LEARNED in (t.parameters or {})} == (
        {"choose", "ablation"} if is_learned else set()
    )
    if not is_learned:
        assert verdict.learned is None
        return
    simpler_params = [t.parameters or {} for t in study.tickets_of("choose", "simpler")]
    assert {params[LEARNED] for params in simpler_params if LEARNED in params} == set(LR_RATIOS)
    assert verdict.learned.answer.paired.gain == pytest.approx(0.3, abs=0.03)
    baseline = {name: value for name, value in verdict.learned.params.items() if name != LEARNED}
    assert training_key(baseline) == training_key(verdict.baseline_params)


def test_a_winner_at_one_is_never_taken_apart(run_study: Any) -> None:
    study, verdict = run_study(lambda t: 0.5, {"temperature_init": [1.0], "lr": [0.1, 0.2]})
    assert verdict.at_one and study.tickets_of("ablation") == [] and verdict.parts == ()


# ---- what they are worth


def test_what_is_lost_without_a_part_is_a_paired_comparison_with_the_winner(run_study: Any) -> None:
    study, verdict = run_study(worth_by_part(schedule=0.3, level=0.2, length_scaling=1.0))
    losses = {part.name: part.answer.paired.gain for part in verdict.parts}
    assert losses == pytest.approx({"schedule": 0.3, "level": 0.2, "length_scaling": 1.0}, abs=0.03)
    [part] = [part for part in verdict.parts if part.name == "length_scaling"]
    winner, ablated = (
        [t.value for t in study.tickets_of(kind, arm)]
        for kind, arm in (("confirm", "search"), ("ablation", "without_length_scaling"))
    )
    assert numbers_of(part.answer.paired) == scipys_numbers(np.subtract(winner, ablated))


@pytest.mark.parametrize(
    ("parts", "parts_kept"),
    [
        ({"length_scaling": 1.0, "level": 0.05, "schedule": 0.05}, ("length_scaling",)),
        ({"length_scaling": 0.4, "level": 0.1, "schedule": 0.4}, ("schedule", "length_scaling")),
        ({"schedule": 1.0}, ("schedule",)),
    ],
)
def test_the_simplest_plan_that_keeps_most_of_the_gain_is_recommended(
    run_study: Any, parts: dict[str, float], parts_kept: tuple[str, ...]
) -> None:
    study, verdict = run_study(worth_by_part(**parts))
    assert verdict.simplest.parts == parts_kept and verdict.simplest.holds
    if simplest_rows := study.tickets_of("ablation", "simplest"):
        simple = np.array([t.value for t in simplest_rows])
        winner, baseline = (
            np.array([t.value for t in study.tickets_of("confirm", arm)]) for arm in ("search", "baseline")
        )
        ratio_test = stats.ttest_1samp(simple - 0.5 * winner - 0.5 * baseline, 0)
        assert verdict.simplest.keep_share_test.p_value == pytest.approx(ratio_test.pvalue)
        assert verdict.simplest.lost.paired.gain == pytest.approx(np.mean(winner - simple))


def test_how_much_a_simpler_plan_has_to_keep_is_the_specs_to_say(run_study: Any) -> None:
    # the length scaling alone keeps seven tenths
    parts = {"length_scaling": 0.7, "schedule": 0.3}
    for share, parts_kept in ((0.3, ("length_scaling",)), (0.9, ("schedule", "length_scaling"))):
        _, verdict = run_study(worth_by_part(**parts), keep_share=share)
        assert verdict.simplest.parts == parts_kept


def test_where_no_simpler_plan_seems_to_do_none_is_trained(run_study: Any) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        is_whole = len(active_groups(t.parameters)) == 3
        return float(is_whole + np.random.default_rng(t.seed % 2**32).normal(0, 0.01))

    study, verdict = run_study(worth)
    assert study.tickets_of("choose", "simpler") and study.tickets_of("ablation")
    assert "simplest" not in {arm for t in study.tickets_of("ablation") for arm in arms_of(t)}
    assert verdict.simplest is None and len(verdict.parts) == 3


def test_a_plan_that_was_lost_while_it_was_ordered_is_not_tried(fixed_spec: Any) -> None:
    study = SimulatedStudy(
        fixed_spec({"search": SPACE}, trials=6, explain=True), worth_by_part(length_scaling=1.0)
    )
    study.search()
    while not study.tickets_of("choose", "simpler"):
        assert study.step()
    arms: dict[Any, Any] = {arm: t.parameters for t in study.tickets_of("confirm") for arm in arms_of(t)}
    first = simplest(study.rows, study.spec, arms, 0)
    assert first is not None and first.parts == ("length_scaling",)
    diverged_row = next(
        t
        for t in study.tickets_of("choose", "simpler")
        if training_key(t.parameters or {}) == training_key(first.params)
    )
    rows = [
        dataclasses.replace(t, outcome="diverged", value=None) if t.id == diverged_row.id else t
        for t in study.rows
    ]
    second = simplest(rows, study.spec, arms, 0)
    assert second is not None and len(second.parts) == 2 and "length_scaling" in second.parts
    assert {t.kind for t in explanation_tickets(rows, study.spec)} == {"ablation"}


def test_there_are_no_parts_before_all_of_their_runs_are_over(run_study: Any, judge: Any) -> None:
    study, verdict = run_study(worth_by_part(schedule=0.3, length_scaling=1.0))
    assert verdict.parts
    last = study.rows[-1]
    assert last.kind == "ablation"
    rows = [*study.rows[:-1], dataclasses.replace(last, state="running", outcome=None, value=None)]
    early_verdict = judge(rows, spec=study.spec)
    assert early_verdict.parts == () and early_verdict.simplest is None
    assert early_verdict.primary == verdict.primary


def test_a_simpler_plan_that_diverges_is_not_recommended_for_the_seeds_on_which_it_does_not(
    run_study: Any, judge: Any
) -> None:
    study, verdict = run_study(worth_by_part(length_scaling=1.0, level=0.05, schedule=0.05))
    assert verdict.simplest.holds
    rows = [
        dataclasses.replace(t, outcome="diverged", value=None)
        if t.kind == "ablation" and "simplest" in arms_of(t) and t.pair == 0
        else t
        for t in study.rows
    ]
    simplest = judge(rows, spec=study.spec).simplest
    assert (simplest.keep_share_test.n_pairs, simplest.lost.reference_diverged) == (8, 1)
    assert simplest.keep_share_test.gain < verdict.simplest.keep_share_test.gain - 0.05
    assert not simplest.holds
