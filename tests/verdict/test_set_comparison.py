"""A comparison of given sets: which runs it takes, and what it says, beside SciPy's own paired test."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.errors import SpecError, UsageError
from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.spec.comparison_spec import comparison_spec
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import Measurement, NewTicket, TicketRow
from tempopt.verdict.run_evaluations import evaluations
from tempopt.verdict.set_comparison import (
    SetPair,
    Variant,
    check_comparison,
    evaluate_comparison,
    gains_of_set,
    more_compare_pairs,
)
from tempopt.verdict.stages import (
    count_tickets_to_come,
    failed_runs_to_requeue,
    initial_tickets,
    next_tickets,
)
from tests.specs import change_spec
from tests.verdict.verdicts import numbers_of, scipys_numbers

Worth = Callable[[NewTicket], float | None]


THREE = ({}, {"lr": 1}, {"lr": 2})


def make_comparison(*sets: Any, pairs: Any = 6, all_pairs: bool = False, **settings: Any) -> StudySpec:
    data = change_spec(study__seeds={"confirm": pairs}, **settings)
    return comparison_spec(data, sets or ({}, {"lr": 0.1}), all_pairs=all_pairs)


@pytest.fixture(scope="session")
def carry_out(run_ticket: Any) -> Any:
    """Return what runs a comparison with values by ticket; None diverges, "lost" is lost."""

    def run(spec: StudySpec, worth: Any) -> list[TicketRow]:
        rows: list[TicketRow] = []
        new_tickets = initial_tickets(spec)
        while new_tickets:
            for ticket in new_tickets:
                value = worth(ticket)
                failed_fields = {"state": "failed", "outcome": "failed"} if value == "lost" else {}
                diverged_fields = {"outcome": "diverged"} if value is None else {}
                number = value if isinstance(value, float) else None
                rows.append(run_ticket(ticket, number, id=len(rows), **failed_fields, **diverged_fields))
            new_tickets = next_tickets(rows, spec)
        return rows

    return run


@pytest.fixture(scope="session")
def compare(carry_out: Any) -> Any:
    """Return what runs a comparison and says what it shows."""
    return lambda spec, worth: comparison_of(carry_out(spec, worth), spec)


def noisy_worth(**gains: float) -> Worth:
    """Return values with noise of a seed's and of a run's own, and what each set gains."""

    def worth(ticket: NewTicket) -> float:
        pair_rng, arm_rng = random.Random(ticket.seed), random.Random(f"{ticket.seed} {ticket.arm}")
        return 0.5 + pair_rng.gauss(0, 1) + arm_rng.gauss(0, 1) + gains.get(ticket.arm, 0.0)

    return worth


def values(rows: list[TicketRow], arm: str) -> list[float]:
    return [row.value for row in sorted(rows, key=lambda row: row.number) if row.arm == arm and row.value]


def comparison_of(rows: list[TicketRow], spec: StudySpec) -> Any:
    comparison = evaluate_comparison(rows, spec)
    assert comparison is not None
    return comparison


def differences(rows: list[TicketRow], compared: Variant | SetPair, reference: str = "A") -> Any:
    """Return the values of a set less those of its reference, by pair."""
    return np.subtract(values(rows, compared.name), values(rows, reference))


def test_every_set_is_trained_on_every_seed_and_nothing_else_is() -> None:
    spec = make_comparison({}, "hot={temperature_init: 2}", {"lr": 0.1}, pairs=3)
    tickets = initial_tickets(spec)
    assert [(t.kind, t.arm, t.pair, t.number) for t in tickets] == [
        ("confirm", arm, pair, 3 * pair + index)
        for pair in range(3)
        for index, arm in enumerate(["A", "hot", "C"])
    ]
    assert [t.parameters for t in tickets[:3]] == [{}, {"temperature_init": 2.0}, {"lr": 0.1}]
    assert len({t.seed for t in tickets}) == 3
    assert all(t.seed == tickets[3 * t.pair].seed for t in tickets if t.pair is not None)
    # the runs are measured on what they are compared on, and under no other temperature
    assert {plan.on for plan in evaluations("confirm", ("A",), spec, {}, {})} == {"test"}
    named_spec = make_comparison("search={}", "baseline={lr: 1}", study__confirm_on="validate")
    plans = evaluations("confirm", ("baseline",), named_spec, {}, {"lr": 1})
    assert [plan.name for plan in plans] == ["validate", "validate_current"]


def test_seeds_are_those_of_no_other_comparison_and_of_no_search() -> None:
    seed_sets = [
        {t.seed for t in initial_tickets(spec)}
        for spec in (
            make_comparison(),
            make_comparison({}, {"lr": 0.2}),
            make_comparison({}, {"lr": 0.1}, {"lr": 0.2}),
            make_comparison(study__seed=1),
        )
    ]
    assert len(set.union(*seed_sets)) == sum(map(len, seed_sets))
    # what the sets are called changes nothing
    assert {t.seed for t in initial_tickets(make_comparison("old={}", "new={lr: 0.1}"))} == seed_sets[0]


@pytest.mark.parametrize("direction", ["maximize", "minimize"])
@pytest.mark.parametrize("gain", [3.0, 0.0, -3.0])
def test_the_verdict_is_scipys_paired_t_test_at_five_percent(
    carry_out: Any, direction: str, gain: float
) -> None:
    spec = make_comparison(pairs=8, study__direction=direction)
    rows = carry_out(spec, noisy_worth(B=gain))
    comparison = comparison_of(rows, spec)
    (variant,) = comparison.variants
    sign = 1 if direction == "maximize" else -1
    paired_test = variant.answer.paired
    assert numbers_of(paired_test) == scipys_numbers(sign * differences(rows, variant))
    assert paired_test.n_pairs == 8 and paired_test.confidence == pytest.approx(0.95)
    is_significant = stats.ttest_rel(values(rows, "B"), values(rows, "A")).pvalue < 0.05
    assert variant.better == (is_significant and sign * gain > 0)
    assert variant.worse == (is_significant and sign * gain < 0)
    assert comparison.outcome == ("better" if variant.better else "worse" if variant.worse else "not_shown")
    assert comparison.best == (variant if variant.better else None)
    assert (comparison.reference, comparison.verdict_number, comparison.alpha, comparison.round) == (
        "A",
        1,
        0.05,
        0,
    )


def test_several_variants_share_the_level(carry_out: Any) -> None:
    spec = make_comparison(*THREE, {"lr": 3}, pairs=10)
    rows = carry_out(spec, noisy_worth(B=2.5, D=-4.0))
    comparison = comparison_of(rows, spec)
    for variant in comparison.variants:
        paired_test = variant.answer.paired
        assert numbers_of(paired_test) == scipys_numbers(differences(rows, variant), 0.05 / 3)
        assert variant.better == (paired_test.p_value < 0.05 / 3 and paired_test.gain > 0)
    assert [variant.better for variant in comparison.variants] == [True, False, False]
    assert [variant.worse for variant in comparison.variants] == [False, False, True]
    # one that is better is what counts, whatever the others are
    assert comparison.outcome == "better" and comparison.best.name == "B"


def test_the_best_of_several_that_are_better_is_that_with_the_largest_gain(compare: Any) -> None:
    comparison = compare(make_comparison(*THREE, pairs=8), noisy_worth(B=5.0, C=9.0))
    assert [variant.better for variant in comparison.variants] == [True, True]
    assert comparison.best.name == "C"


def test_nothing_is_said_before_the_last_pair(carry_out: Any, run_ticket: Any) -> None:
    spec = make_comparison(pairs=4)
    rows = [run_ticket(t, 0.5, id=t.number) for t in initial_tickets(spec)[:-1]]
    waiting = run_ticket(initial_tickets(spec)[-1], None, id=9, state="waiting")
    assert evaluate_comparison([], spec) is None and evaluate_comparison([*rows, waiting], spec) is None
    assert count_tickets_to_come([*rows, waiting], spec) == 0
    assert next_tickets([*rows, run_ticket(initial_tickets(spec)[-1], 0.5)], spec) == []


LOOKS = {"min": 4, "max": 16}


def test_a_variant_gets_no_more_pairs_once_it_is_shown_and_no_fewer_for_being_behind(carry_out: Any) -> None:
    spec = make_comparison({}, "good={lr: 1}", "bad={lr: 2}", "same={lr: 3}", pairs=LOOKS)
    rows = carry_out(spec, noisy_worth(good=50.0, bad=-50.0, same=-0.3))
    comparison = comparison_of(rows, spec)
    pairs = {arm: sum(row.arm == arm for row in rows) for arm in ("A", "good", "bad", "same")}
    assert pairs["good"] == pairs["bad"] == 4
    assert pairs["A"] == pairs["same"] == 16
    assert [variant.better for variant in comparison.variants] == [True, False, False]
    assert [variant.worse for variant in comparison.variants] == [False, True, False]
    assert [variant.answer.paired.n_pairs for variant in comparison.variants] == [4, 4, 16]
    # what was decided early is not judged again by the level of later looks
    first_rows = [row for row in rows if row.pair is not None and row.pair < 4]
    assert count_tickets_to_come(first_rows, spec) == 2 * 12
    good_rows = [row for row in rows if row.arm in ("A", "good")]
    assert gains_of_set(good_rows, spec, 0, "good", "A") == gains_of_set(rows, spec, 0, "good", "A")


def test_to_come_is_what_comes_at_most(carry_out: Any, run_ticket: Any) -> None:
    spec = make_comparison(pairs={"min": 2, "max": 8})
    tickets = initial_tickets(spec)
    assert len(tickets) == 4
    waiting_rows = [run_ticket(t, None, id=t.number, state="waiting") for t in tickets]
    assert count_tickets_to_come(waiting_rows, spec) == 2 * 6
    rows = carry_out(spec, noisy_worth())
    assert len(rows) <= 16 and count_tickets_to_come(rows, spec) == 0


def test_more_pairs_make_a_second_verdict_that_rests_on_all(carry_out: Any, run_ticket: Any) -> None:
    spec = make_comparison(*THREE)
    worth = noisy_worth(B=2.0)
    rows = carry_out(spec, worth)
    extra_tickets = more_compare_pairs(rows, spec, 4)
    assert [t.arm for t in extra_tickets[:3]] == ["A", "B", "C"] and len(extra_tickets) == 12
    assert {t.round for t in extra_tickets} == {1}
    assert {t.seed for t in extra_tickets}.isdisjoint(row.seed for row in rows)
    assert [t.number for t in extra_tickets] == list(range(18, 30))
    half = [*rows, *(run_ticket(t, worth(t), id=100 + t.number) for t in extra_tickets[:-1])]
    waiting = [*half, run_ticket(extra_tickets[-1], None, id=999, state="waiting")]
    assert comparison_of(waiting, spec).round == 0 and more_compare_pairs(waiting, spec, 2) == []
    all_rows = [*half, run_ticket(extra_tickets[-1], worth(extra_tickets[-1]), id=999)]
    assert next_tickets(all_rows, spec) == [] and count_tickets_to_come(all_rows, spec) == 0
    comparison = comparison_of(all_rows, spec)
    assert (comparison.round, comparison.verdict_number, comparison.alpha) == (1, 2, alpha_for_verdict(2))
    for variant in comparison.variants:
        assert variant.answer.paired.n_pairs == 10
        assert variant.answer.paired.confidence == pytest.approx(1 - 0.025 / 2)
        gains = gains_of_set(all_rows, spec, 1, variant.name, comparison.reference)
        assert [pair for pair, _ in gains] == list(range(10))
        assert variant.answer.paired.gain == pytest.approx(sum(gain for _, gain in gains) / 10)


@pytest.mark.parametrize(
    ("sets", "settings"),
    [
        ([{}, {"temperature_init": 1}], {}),
        # nothing reads it
        ([{}, {"temperature_final": 3.0}], {}),
        ([{"temperature_init": 2}, {"temperature_init": 2.0, "schedule": "constant"}], {}),
        ([{}, {"data.batch_size": 32.0}], {}),
        ([{}, {"trainer.max_steps": 100}], {}),
        ([{}, {"lr": 1}], {"model__init_args": {"lr": 1.0}}),
        ([{}, {"temperature_init": 2}], {"model__init_args": {"temperature_init": 2.0}}),
        ([{"optimizer.lr": 1}, {}], {"model__init_args": {"optimizer": {"lr": 1}}}),
    ],
)
def test_a_variant_that_trains_the_same_as_the_reference_is_refused(
    sets: list[Any], settings: dict[str, Any]
) -> None:
    with pytest.raises(SpecError, match="B trains the same as A, so there is nothing to compare"):
        check_comparison(make_comparison(*sets, **settings))


def test_variants_that_train_the_same_are_refused_and_others_are_not() -> None:
    with pytest.raises(SpecError, match="D trains the same as B"):
        check_comparison(make_comparison({}, {"lr": 1}, {"lr": 2}, {"lr": 1.0}))
    # true is not 1, and text is no number
    check_comparison(
        make_comparison({}, {"x": 1}, {"x": True}, {"x": "1"}, {"x": None}, {"x": [1, 2]}, {"x": [2]})
    )
    check_comparison(make_comparison({}, {"temperature_final": 3.0, "schedule": "linear"}))


def test_a_hard_limit_on_runs_is_refused_before_anything_with_what_fits() -> None:
    check_comparison(make_comparison(pairs=8), max_runs=16)
    with pytest.raises(UsageError, match=r"takes 2 sets × 8 pairs = 16 runs. 7 pairs fit: --pairs 7."):
        check_comparison(make_comparison(pairs=8), max_runs=15)
    with pytest.raises(UsageError, match="takes up to 2 sets × 16 pairs = 32 runs"):
        check_comparison(make_comparison(pairs=LOOKS), max_runs=31)
    with pytest.raises(UsageError, match="A single pair shows nothing: allow at least 4 runs"):
        check_comparison(make_comparison(pairs=8), max_runs=3)


# ---- sets that fail, and guards


def failing_worth(outcome: Any, pairs: set[int], arm: str) -> Any:
    """Return values by which B gains 5, and a set fails on some pairs."""
    worth = noisy_worth(B=5.0)
    return lambda t: outcome if t.arm == arm and t.pair in pairs else worth(t)


@pytest.mark.parametrize("outcome", [None, "lost"])
@pytest.mark.parametrize("num_failed", [1, 5, 6, 8])
def test_a_variant_that_fails_more_often_is_not_better_and_worse_only_by_a_test(
    num_failed: int, outcome: Any, compare: Any
) -> None:
    spec = make_comparison(pairs=8)
    comparison = compare(spec, failing_worth(outcome, set(range(num_failed)), "B"))
    (variant,) = comparison.variants
    assert (variant.failed, variant.reference_failed, variant.runs) == (num_failed, 0, 8)
    # McNemar's exact test: of the pairs on which one of the two fails, each is as likely
    pvalue = stats.binomtest(0, num_failed).pvalue
    assert variant.failures.p_value == pytest.approx(pvalue)
    assert variant.fails_more == (pvalue < 0.05)
    assert not variant.better and comparison.best is None
    assert variant.worse == (variant.fails_more or variant.answer.worse)
    # no number is made up for a set without any value
    assert (variant.answer is None) == (num_failed == 8) and variant.answer_by_values is None
    assert comparison.outcome == ("worse" if variant.worse else "not_shown")


def test_divergences_of_several_variants_share_the_level(compare: Any) -> None:
    assert 0.05 / 2 < stats.binomtest(0, 6).pvalue < 0.05
    comparison = compare(make_comparison(*THREE, pairs=8), failing_worth(None, set(range(6)), "B"))
    assert comparison.variants[0].failed == 6 and not comparison.variants[0].fails_more


@pytest.mark.parametrize("outcome", [None, "lost"])
def test_a_reference_that_fails_more_often_leaves_the_variant_its_gain(outcome: Any, compare: Any) -> None:
    comparison = compare(make_comparison(), failing_worth(outcome, {0}, "A"))
    assert (comparison.variants[0].failed, comparison.variants[0].reference_failed) == (0, 1)
    assert comparison.outcome == "better"


def test_sets_without_any_value_end_after_the_first_look_and_are_repeated_if_asked(carry_out: Any) -> None:
    spec = make_comparison(pairs=LOOKS)
    rows = carry_out(spec, lambda ticket: "lost")
    assert len(rows) == 2 * 4
    (variant,) = comparison_of(rows, spec).variants
    assert variant.answer is None and (variant.failed, variant.reference_failed) == (4, 4)
    assert failed_runs_to_requeue(rows, spec) == (rows, [])
    # beside values a failure is a result, which no repetition takes back
    rows = carry_out(spec, failing_worth("lost", {0, 1}, "A"))
    assert failed_runs_to_requeue(rows, spec) == ([], [])


def test_a_variant_without_any_effect_ends_after_the_first_look(carry_out: Any) -> None:
    spec = make_comparison(*THREE, pairs=LOOKS)
    noise = noisy_worth(C=0.01)
    rows = carry_out(spec, lambda t: noise(t) if t.arm == "C" else float(t.seed))
    num_runs = {arm: sum(row.arm == arm for row in rows) for arm in "ABC"}
    assert num_runs["B"] == 4 < num_runs["A"] == num_runs["C"]


def crashing_worth(repetition: int) -> Any:
    """Return equal values, but B has none where its own would be in the worst 30 %."""
    threshold = stats.norm.ppf(0.3)

    def value(ticket: NewTicket) -> Any:
        noise = random.Random(f"{repetition} {ticket.seed} {ticket.arm}").gauss(0, 1)
        return "lost" if ticket.arm == "B" and noise < threshold else noise

    return value


def test_a_variant_that_crashes_on_its_bad_seeds_shows_no_gain(compare: Any) -> None:
    spec = make_comparison(pairs=LOOKS)
    outcomes = [compare(spec, crashing_worth(repetition)).outcome for repetition in range(40)]
    # more than 4 of 40 would be at odds with a rate of 2.5 %
    assert outcomes.count("better") <= 4 and "worse" in outcomes


@pytest.mark.parametrize("arms", [("A",), ("B",), ("A", "B")])
def test_a_program_that_ignores_its_seed_shows_nothing(arms: tuple[str, ...], carry_out: Any) -> None:
    data = {
        "study": {"name": "gate", "metric": "loss", "direction": "maximize", "seeds": {"confirm": LOOKS}},
        "program": {"command": "python train.py {seed} {lr}", "metric": "loss"},
    }
    spec, noise = comparison_spec(data, [{"lr": 1}, {"lr": 2}]), noisy_worth(B=60.0)
    rows = carry_out(spec, lambda t: {"A": 0.5, "B": 60.5}[t.arm] if t.arm in arms else noise(t))
    comparison = comparison_of(rows, spec)
    assert comparison.outcome == "not_shown" and comparison.unvaried == list(arms)
    assert comparison.variants[0].answer.paired.p_value == 1
    assert len(rows) == (2 * 4 if len(arms) == 2 else 2 * 16)


@pytest.mark.parametrize(
    ("loss", "outcome", "state"),
    [(1.0, "better", "kept"), (1.05, "not_shown", "not_shown"), (1.5, "worse", "broken")],
)
def test_a_variant_is_tested_on_the_guards_against_the_reference(
    loss: float, outcome: str, state: str, carry_out: Any
) -> None:
    spec = make_comparison(study__guards={"val_loss": "<= +5%"})
    rows = carry_out(spec, noisy_worth(B=5.0))
    noise = [0.01, -0.01, 0.02, 0.0, -0.02, 0.0]
    measurements = [
        Measurement(ticket_id=t.id, step=10, name="test/guard:val_loss", value=mean + sign * noise[t.pair])
        for t in rows
        for mean, sign in [(loss, 1) if t.arm == "B" else (1.0, -1)]
    ]
    comparison = evaluate_comparison(rows, spec, measurements)
    assert comparison is not None and [guard.state for guard in comparison.variants[0].guards] == [state]
    assert comparison.variants[0].better and (comparison.best is not None) == (state == "kept")
    assert comparison.outcome == outcome


def in_pairs(*sets: Any, pairs: Any = 8, **settings: Any) -> StudySpec:
    compared_sets = sets or [{"lr": 0.1 * number} for number in range(1, 5)]
    return make_comparison(*compared_sets, pairs=pairs, all_pairs=True, **settings)


def test_every_two_sets_are_compared_at_an_even_share_of_the_level(carry_out: Any) -> None:
    spec = in_pairs()
    rows = carry_out(spec, noisy_worth(B=3.0, D=6.0))
    comparison = comparison_of(rows, spec)
    assert len(comparison.pairs) == 6
    for pair in comparison.pairs:
        paired_test = pair.answer.paired
        # Bonferroni: the six intervals hold together, and no step is larger than another
        assert paired_test.alpha == pytest.approx(0.05 / 6)
        assert numbers_of(paired_test) == scipys_numbers(differences(rows, pair, pair.reference), 0.05 / 6)
        assert (pair.winner is not None) == (paired_test.p_value < 0.05 / 6)
    assert comparison.outcome == "better"
    assert comparison.recommended_set == "D" and comparison.unbeaten == ["D"]
    assert [variant.answer for variant in comparison.variants] == [
        pair.answer for pair in comparison.pairs if pair.reference == "A"
    ]
    assert comparison.means["D"] == pytest.approx(sum(values(rows, "D")) / 8)


def test_the_first_set_that_none_is_shown_to_beat_is_taken_with_a_bound_on_its_loss(compare: Any) -> None:
    comparison = compare(in_pairs(), noisy_worth(A=-9.0))
    assert comparison.unbeaten == ["B", "C", "D"] and comparison.recommended_set == "B"
    bounds = [pair.upper_gain_over("B") for pair in comparison.pairs if "B" in (pair.name, pair.reference)]
    assert comparison.max_loss == max(bounds) > 0
    alike = in_pairs({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}, study__seed=3)
    null_comparison = compare(alike, noisy_worth())
    assert null_comparison.outcome == "not_shown" and null_comparison.recommended_set == "A"


def test_a_set_that_fails_on_more_seeds_is_passed_over_and_beats_none(compare: Any) -> None:
    spec = in_pairs(*THREE)
    for gain in (0.0, 60.0):
        worth = noisy_worth(A=gain)
        comparison = compare(spec, lambda t, worth=worth: None if (t.arm, t.pair) == ("A", 0) else worth(t))
        assert comparison.unbeaten == ["A", "B", "C"] and comparison.recommended_set == "B"


def test_all_sets_get_pairs_until_each_comparison_is_decided(carry_out: Any) -> None:
    spec = in_pairs({"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}, pairs=LOOKS)
    decided_rows = carry_out(spec, noisy_worth(B=60.0, C=120.0))
    assert len(decided_rows) == 3 * 4 and count_tickets_to_come(decided_rows, spec) == 0
    undecided_rows = carry_out(spec, noisy_worth(C=120.0))
    assert len(undecided_rows) == 3 * 16
    extra_tickets = more_compare_pairs(undecided_rows, spec, 3)
    assert len(extra_tickets) == 9


def test_guards_are_refused_where_no_set_is_the_reference() -> None:
    with pytest.raises(SpecError, match="study.all_pairs asks for no such one"):
        in_pairs(study__guards={"val_loss": "no worse than 1%"})


def test_all_pairs_without_sets_is_refused() -> None:
    with pytest.raises(SpecError, match="study.all_pairs: given true without parameter sets"):
        StudySpec.from_json(change_spec(study__all_pairs=True))
