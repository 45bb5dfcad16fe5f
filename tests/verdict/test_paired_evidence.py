"""Comparisons of arms: the more cautious of several, and looks at pairs of which some were lost."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.verdict.paired_evidence import (
    Evidence,
    PairedResult,
    PairedRuns,
    gain_over_baseline,
    gains_by_pair,
    is_confirmation_complete,
    most_conservative,
)
from tempopt.verdict.statistics.group_sequential import alpha_spending
from tempopt.verdict.statistics.paired_tests import StageDifferences, paired_test

differences = st.lists(st.integers(-50, 50).map(lambda n: n / 100), min_size=4, max_size=8)


def answer(values: list[float], num_diverged: int = 0, reference: int = 0) -> PairedResult:
    test = paired_test(values, direction="maximize", alpha=0.05)
    return PairedResult(paired=test, diverged=num_diverged, reference_diverged=reference)


@given(st.lists(differences, min_size=1, max_size=3), st.integers(0, 2), st.integers(0, 2))
def test_the_more_cautious_claims_what_each_claims_and_no_more(
    table: list[list[float]], num_diverged: int, reference: int
) -> None:
    answers = [answer(values, num_diverged, reference) for values in table]
    cautious_answer = most_conservative(answers)
    assert cautious_answer is not None
    tests = [answer_of.paired for answer_of in answers]
    assert cautious_answer.significant == all(answer_of.significant for answer_of in answers)
    assert cautious_answer.worse == all(answer_of.worse for answer_of in answers)
    assert cautious_answer.paired.gain == min(test.gain for test in tests)
    assert cautious_answer.paired.ci_low == min(test.ci_low for test in tests)
    assert cautious_answer.paired.ci_high == max(test.ci_high for test in tests)
    assert cautious_answer.paired.p_value >= max(test.p_value for test in tests)
    # what is said of the whole agrees with itself
    assert not cautious_answer.significant or (
        cautious_answer.paired.p_value < 0.05 and cautious_answer.paired.ci_low > 0
    )
    assert cautious_answer.paired.ci_low <= cautious_answer.paired.gain <= cautious_answer.paired.ci_high
    assert most_conservative(answers[:1]) == answers[0] and most_conservative([None]) is None
    # what cannot be compared with one of them has not beaten it
    half = most_conservative([*answers, None])
    assert half is not None and half.paired == cautious_answer.paired and not half.significant


LOOKS = {"confirm": {"min": 2, "max": 8}}


@given(st.lists(st.integers(-50, 50).map(float) | st.just("lost"), min_size=8, max_size=8))
def test_looks_count_the_pairs_that_could_be_used_and_spend_by_those_that_were_planned(
    make_spec: Any, make_confirm_rows: Any, values: list[Any]
) -> None:
    spec = make_spec(seeds=LOOKS)
    tickets = make_confirm_rows(baseline_and_twin=[0.0] * 8, search=values)
    measured_gain = gain_over_baseline(Evidence(tickets, spec, 0))
    usable_values = [value for value in values if value != "lost"]
    if not usable_values:
        assert measured_gain is None and is_confirmation_complete(tickets, spec, 0)
        return
    looks: dict[int, float] = {}
    for look in (2, 4, 6, 8):
        num_usable = sum(value != "lost" for value in values[:look])
        if num_usable > 1:
            looks[num_usable] = alpha_spending(look, 8)
    stage = StageDifferences(differences=tuple(usable_values), looks=tuple(looks.items()) or None)
    expected = paired_test(usable_values, direction="maximize", alpha=0.05, looks=stage.looks)
    assert measured_gain is not None and measured_gain.paired == expected
    assert measured_gain.dropped == 8 - len(usable_values)


@pytest.mark.parametrize(
    ("values", "is_over"),
    [
        ([1.0, 1.001], True),
        ([1.0, 0.1], False),
        ([-1.0, 0.1], True),
        ([0.0, 0.0], True),
        ([0.1, "lost"], False),
        (["lost", "lost"], False),
        ([None, 0.5], False),
        ([None, -0.5], True),
        ([1.0, 0.1] * 4, True),
    ],
)
def test_a_confirmation_is_decided_by_a_gain_by_being_behind_or_by_its_last_pair(
    make_spec: Any, make_confirm_rows: Any, values: list[Any], is_over: bool
) -> None:
    spec = make_spec(seeds=LOOKS)
    tickets = make_confirm_rows(baseline_and_twin=[0.0] * len(values), search=values)
    assert is_confirmation_complete(tickets, spec, 0) == is_over
    round_tickets = [dataclasses.replace(t, round=1) for t in tickets]
    assert is_confirmation_complete(round_tickets, spec, 1)


def test_a_look_has_to_beat_both_references_to_end_with_a_gain(
    make_spec: Any, make_confirm_rows: Any
) -> None:
    beaten, open_yet = [0.0, 0.0], [0.99, 0.5]
    for baseline, twin in ((beaten, beaten), (beaten, open_yet), (open_yet, beaten)):
        tickets = make_confirm_rows(baseline=baseline, twin=twin, search=[1.0, 1.0005])
        assert is_confirmation_complete(tickets, make_spec(seeds=LOOKS), 0) == (baseline == twin)


def test_gains_by_pair_are_what_the_verdict_counts(make_spec: Any, make_confirm_rows: Any) -> None:
    tickets = make_confirm_rows(
        baseline=[0.5, 0.4, "lost", None], twin=[0.2] * 4, search=[0.9, None, 0.8, 0.7]
    )
    gains = gains_by_pair(tickets, make_spec(), 0)
    # who diverged has the worst value that any of the two arms reached
    assert gains == {0: pytest.approx(0.4), 1: pytest.approx(0.0), 3: pytest.approx(0.3)}
    falling = gains_by_pair(tickets, make_spec(direction="minimize"), 0)
    assert falling == {0: pytest.approx(-0.4), 1: pytest.approx(-0.5), 3: pytest.approx(0.2)}


def test_what_was_lost_is_neither_a_value_nor_a_divergence(make_confirm_rows: Any) -> None:
    runs = PairedRuns.of(make_confirm_rows(search=[0.5, None, "lost", 0.7]))
    assert (runs.values, runs.diverged) == ({0: 0.5, 3: 0.7}, {1})
    assert runs.pairs == {0, 1, 3}
