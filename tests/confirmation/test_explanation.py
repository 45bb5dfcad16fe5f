"""Which parts a winner is taken apart into, which simpler plan is tried, and what both come to."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.confirmation.explanation import ablated, explanation_tickets, simpler_plans, simplest
from tempopt.confirmation.pairs import more_pairs
from tempopt.confirmation.verdict import Verdict, conclude
from tempopt.records.rows import TicketRow
from tempopt.records.tickets import Arm, arms_of
from tempopt.temperature import active_groups, neutral, training_key
from tests.simulated import SPACE, Simulated

ALPHA = 0.04
WINNER = {
    "temperature_init": 4.0,
    "temperature_final": 1.0,
    "schedule": "exponential",
    "length_scaling": "log_n",
    "n0": 32.0,
    "lr": 0.3,
}
LEVEL = 2.5
ARMS: dict[Arm, dict[str, Any]] = {
    "search": WINNER,
    "baseline": {"temperature_init": 1.0, "lr": 0.5},
    "twin": neutral(WINNER),
    "constant": {"temperature_init": 2.0, "lr": 0.4},
    "constant_twin": {
        "temperature_init": LEVEL,
        "schedule": "constant",
        "length_scaling": "log_n",
        "n0": 32.0,
        "lr": 0.3,
    },
}


def worth_by_part(**parts: float) -> Callable[[TicketRow], float]:
    """Return a world in which each part of a plan is worth something of its own, and a seed a little."""

    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        rng = np.random.default_rng([t.seed % 2**32, len(str(t.parameters))])
        return float(sum(parts.get(part, 0.0) for part in active_groups(t.parameters)) + rng.normal(0, 0.01))

    return worth


def over(make_spec: Any, worth: Any, space: Any = SPACE, **study: Any) -> tuple[Simulated, Verdict]:
    found = Simulated(make_spec({"search": space}, trials=6, **study), worth).run()
    verdict = conclude(found.rows, [], found.spec)
    assert verdict is not None
    return found, verdict


# ---- which parts


def test_each_part_that_is_not_neutral_is_taken_away_by_itself(make_spec: Any) -> None:
    found = ablated(make_spec({"search": SPACE}), ARMS)
    assert list(found) == ["schedule", "level", "length_scaling"]
    # without its schedule the winner has the best constant in its place
    assert training_key(found["schedule"]) == training_key(ARMS["constant_twin"])
    # from 4 to 1 by equal ratios: the middle is 2
    assert found["level"]["temperature_init"] == pytest.approx(2.0)
    assert found["level"]["temperature_final"] == pytest.approx(0.5)
    assert found["level"]["length_scaling"] == "log_n"
    assert found["length_scaling"]["length_scaling"] == "none"
    assert all(parameters["lr"] == 0.3 for parameters in found.values())


def test_what_is_no_temperature_and_has_a_baseline_is_a_part_too(make_spec: Any) -> None:
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
    arms: dict[Arm, dict[str, Any]] = {"search": winner, "twin": neutral(winner), "baseline": {"lr": 0.3}}
    spec = make_spec({"search": space})
    found = ablated(spec, arms)
    assert set(found) >= {"level", "normaliser", "label_smoothing", "heads"}
    assert "lr" not in found and "schedule" not in found
    assert found["label_smoothing"] == {**winner, "label_smoothing": 0.0}
    assert found["heads"] == {**winner, "heads": None}
    assert found["normaliser"] == {n: v for n, v in winner.items() if n != "top_k"} | {
        "normaliser": "softmax"
    }
    at_baseline = {**winner, "label_smoothing": 0.0, "heads": None, "normaliser": "softmax"}
    del at_baseline["top_k"]
    assert list(ablated(spec, {**arms, "search": at_baseline})) == ["level"]


def test_simpler_plans_keep_one_part_or_all_but_one(make_spec: Any) -> None:
    found = simpler_plans(ARMS)
    assert [plan.parts for plan in found] == [
        ("schedule",),
        ("level",),
        ("length_scaling",),
        ("schedule", "level"),
        ("schedule", "length_scaling"),
        ("level", "length_scaling"),
    ]
    by_parts = {plan.parts: plan.parameters for plan in found}
    assert training_key(by_parts["level", "length_scaling"]) == training_key(ARMS["constant_twin"])
    assert by_parts["level",]["temperature_init"] == LEVEL
    assert set(active_groups(by_parts["schedule", "level"])) == {"schedule", "level"}
    assert all(plan.parameters["lr"] == 0.3 for plan in found)
    assert len({training_key(plan.parameters) for plan in found}) == len(found)


def test_a_winner_of_one_part_has_no_simpler_plan() -> None:
    one: dict[str, Any] = {"temperature_init": 3.0, "lr": 0.3}
    assert simpler_plans({"search": one, "baseline": neutral(one), "twin": neutral(one)}) == []


# ---- which runs


def test_a_winner_is_taken_apart_on_the_confirming_seeds_and_ordered_on_those_of_choosing(
    make_spec: Any,
) -> None:
    study, _ = over(make_spec, worth_by_part(schedule=0.3, level=0.2, length_scaling=1.0))
    confirm = {t.pair: t.seed for t in study.of("confirm")}
    parts = study.of("ablation")
    assert {t.pair for t in parts} == set(range(8))
    assert all(t.seed == confirm[t.pair] for t in parts)
    assert [t.number for t in parts] == list(range(len(parts)))
    arms = {arm for t in parts for arm in arms_of(t)}
    # the winner without its schedule is the constant of its own, which is confirmed anyway
    assert arms == {"without_level", "without_length_scaling", "simplest"}
    confirmed = {training_key(t.parameters or {}) for t in study.of("confirm")}
    assert confirmed.isdisjoint(training_key(t.parameters or {}) for t in parts)
    ordered = study.of("choose", "simpler")
    choosing = {t.pair: t.seed for t in study.of("choose") if t.arm != "simpler"}
    assert all(t.seed == choosing[t.pair] for t in ordered if t.pair in choosing)
    runs = [(training_key(t.parameters or {}), t.seed) for t in study.of("choose")]
    assert len(set(runs)) == len(runs)
    assert study.kinds()[-3:] == ["confirm", "choose", "ablation"]


def test_parts_that_come_to_the_same_plan_share_a_run(make_spec: Any) -> None:
    # of two parts to be without one is to have the other alone: the simplest plan has runs already
    space = {"temperature_init": {"low": 2.0, "high": 4.0}, "length_scaling": ["log_n"]}
    study, verdict = over(make_spec, worth_by_part(level=0.1, length_scaling=1.0), space)
    assert {t.arm for t in study.of("ablation")} == {"without_level+simplest", "without_length_scaling"}
    assert verdict.simplest is not None and verdict.simplest.parts == ("length_scaling",)
    [part] = [part for part in verdict.parts if part.name == "level"]
    assert part.answer == verdict.simplest.lost


def test_added_pairs_rest_on_the_parts_of_the_round_that_they_were_added_to(make_spec: Any) -> None:
    study, before = over(make_spec, worth_by_part(schedule=0.3, length_scaling=1.0))
    study.do(more_pairs(study.rows, study.spec, 4))
    assert study.step() == []
    after = conclude(study.rows, [], study.spec)
    assert after is not None and after.round == 1 and after.total.paired.n_pairs == 12
    assert [part.name for part in after.parts] == [part.name for part in before.parts]
    assert all(part.answer.paired.n_pairs == 8 for part in after.parts)


def test_a_gain_that_only_added_pairs_show_is_taken_apart_on_them(make_spec: Any) -> None:
    def worth(t: TicketRow) -> float:
        late = 3.0 if t.round else 0.0
        noise = np.random.default_rng([t.seed % 2**32, t.arm == "search"]).normal(0, 0.3)
        assert t.parameters is not None
        return float((0.15 + late) * bool(active_groups(t.parameters)) + noise)

    study, verdict = over(make_spec, worth)
    assert not verdict.total.significant and study.of("ablation") == []
    study.do(more_pairs(study.rows, study.spec, 8))
    study.run()
    later = conclude(study.rows, [], study.spec)
    assert later is not None and later.total.significant
    assert {t.round for t in study.of("ablation")} == {1} and later.parts


def test_a_winner_at_one_is_never_taken_apart(make_spec: Any) -> None:
    study, verdict = over(
        make_spec, lambda t: 0.5, {"temperature_init": [1.0], "lr": [0.1, 0.2]}, ablation="full"
    )
    assert verdict.at_one and study.of("ablation") == [] and verdict.parts == ()


# ---- what they come to


def test_what_is_lost_without_a_part_is_a_paired_comparison_with_the_winner(make_spec: Any) -> None:
    study, verdict = over(make_spec, worth_by_part(schedule=0.3, level=0.2, length_scaling=1.0))
    lost = {part.name: part.answer.paired.gain for part in verdict.parts}
    assert lost == {
        "schedule": pytest.approx(0.3, abs=0.03),
        "level": pytest.approx(0.2, abs=0.03),
        "length_scaling": pytest.approx(1.0, abs=0.03),
    }
    [part] = [part for part in verdict.parts if part.name == "length_scaling"]
    winner, without = (
        [t.value for t in study.of(kind, arm)]
        for kind, arm in (("confirm", "search"), ("ablation", "without_length_scaling"))
    )
    expected = stats.ttest_rel(winner, without)
    interval = expected.confidence_interval(1 - ALPHA)
    test = part.answer.paired
    assert (test.ci_low, test.ci_high) == pytest.approx((interval.low, interval.high))
    assert test.p_value == pytest.approx(expected.pvalue * 0.05 / ALPHA)


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        ({"length_scaling": 1.0, "level": 0.05, "schedule": 0.05}, ("length_scaling",)),
        ({"length_scaling": 0.4, "level": 0.1, "schedule": 0.4}, ("schedule", "length_scaling")),
        ({"schedule": 1.0}, ("schedule",)),
    ],
)
def test_the_simplest_plan_that_keeps_most_of_the_gain_is_recommended(
    make_spec: Any, parts: dict[str, float], kept: tuple[str, ...]
) -> None:
    study, verdict = over(make_spec, worth_by_part(**parts))
    assert verdict.simplest is not None
    assert verdict.simplest.parts == kept and verdict.simplest.holds
    arm = "simplest" if study.of("ablation", "simplest") else None
    if arm:
        simple = np.array([t.value for t in study.of("ablation", arm)])
        winner, baseline = (
            np.array([t.value for t in study.of("confirm", each)]) for each in ("search", "baseline")
        )
        rest = stats.ttest_1samp(simple - 0.5 * winner - 0.5 * baseline, 0)
        assert verdict.simplest.kept.p_value == pytest.approx(rest.pvalue * 0.05 / ALPHA)
        assert verdict.simplest.lost.paired.gain == pytest.approx(np.mean(winner - simple))


def test_how_much_a_simpler_plan_has_to_keep_is_the_specs_to_say(make_spec: Any) -> None:
    # the length scaling alone keeps seven tenths
    parts = {"length_scaling": 0.7, "schedule": 0.3}
    for share, kept in ((0.3, ("length_scaling",)), (0.9, ("schedule", "length_scaling"))):
        _, verdict = over(make_spec, worth_by_part(**parts), keep_share=share)
        assert verdict.simplest is not None and verdict.simplest.parts == kept


def test_where_no_simpler_plan_seems_to_do_none_is_trained(make_spec: Any) -> None:
    def worth(t: TicketRow) -> float:
        assert t.parameters is not None
        whole = len(active_groups(t.parameters)) == 3
        return float(whole + np.random.default_rng(t.seed % 2**32).normal(0, 0.01))

    study, verdict = over(make_spec, worth)
    assert study.of("choose", "simpler") and study.of("ablation")
    assert "simplest" not in {arm for t in study.of("ablation") for arm in arms_of(t)}
    assert verdict.simplest is None and len(verdict.parts) == 3


def test_a_plan_that_was_lost_while_it_was_ordered_is_not_tried(make_spec: Any) -> None:
    study = Simulated(make_spec({"search": SPACE}, trials=6), worth_by_part(length_scaling=1.0))
    study.search()
    while not study.of("choose", "simpler"):
        assert study.step()
    arms: dict[Any, Any] = {arm: t.parameters for t in study.of("confirm") for arm in arms_of(t)}
    first = simplest(study.rows, study.spec, arms, 0)
    assert first is not None and first.parts == ("length_scaling",)
    lost = next(
        t
        for t in study.of("choose", "simpler")
        if training_key(t.parameters or {}) == training_key(first.parameters)
    )
    rows = [
        dataclasses.replace(t, outcome="diverged", value=None) if t.id == lost.id else t for t in study.rows
    ]
    second = simplest(rows, study.spec, arms, 0)
    assert second is not None and len(second.parts) == 2 and "length_scaling" in second.parts
    assert {t.kind for t in explanation_tickets(rows, study.spec)} == {"ablation"}


def test_there_are_no_parts_before_all_of_their_runs_are_over(make_spec: Any) -> None:
    study, verdict = over(make_spec, worth_by_part(schedule=0.3, length_scaling=1.0))
    assert verdict.parts
    last = study.of("ablation")[-1]
    rows = [
        dataclasses.replace(t, state="running", outcome=None, value=None) if t.id == last.id else t
        for t in study.rows
    ]
    early = conclude(rows, [], study.spec)
    assert early is not None and early.parts == () and early.simplest is None
    assert early.total == verdict.total


def test_a_simpler_plan_that_diverges_is_not_recommended_for_the_seeds_on_which_it_does_not(
    make_spec: Any,
) -> None:
    study, verdict = over(make_spec, worth_by_part(length_scaling=1.0, level=0.05, schedule=0.05))
    assert verdict.simplest is not None and verdict.simplest.holds
    rows = [
        dataclasses.replace(t, outcome="diverged", value=None)
        if t.kind == "ablation" and "simplest" in arms_of(t) and t.pair == 0
        else t
        for t in study.rows
    ]
    once = conclude(rows, [], study.spec)
    assert once is not None and once.simplest is not None
    assert (once.simplest.kept.n_pairs, once.simplest.lost.reference_diverged) == (8, 1)
    assert once.simplest.kept.gain < verdict.simplest.kept.gain - 0.05
    assert not once.simplest.holds
