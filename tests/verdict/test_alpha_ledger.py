"""What each verdict of a study may spend of its level, and which verdict a round has."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tempopt.spec.alpha_levels import alpha_for_verdict
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import is_round_of_added_pairs, rounds_of_verdict, verdicts


@given(st.integers(1, 60))
def test_the_first_verdict_has_the_level_of_one_test_and_each_later_one_half_of_the_last(
    verdict: int,
) -> None:
    assert alpha_for_verdict(1) == 0.05
    assert alpha_for_verdict(verdict + 1) == alpha_for_verdict(verdict) / 2
    # of all verdicts together, twice that of the first
    assert sum(alpha_for_verdict(k) for k in range(1, verdict + 1)) <= 2 * 0.05


def test_all_verdicts_of_a_study_of_nothing_show_a_gain_in_a_twentieth_of_the_studies_at_most() -> None:
    # each of them shows a gain, which is one side, with half of its level
    draws = np.random.default_rng(0).uniform(size=(40_000, 12))
    shown_SK = draws < [alpha_for_verdict(k) / 2 for k in range(1, 13)]
    assert 0.023 < shown_SK[:, 0].mean() < 0.027
    assert 0.045 < shown_SK.any(axis=1).mean() <= 0.05


def test_a_round_whose_confirmation_never_began_spends_no_alpha(make_ticket: Any) -> None:
    def confirm(of_round: int, attempt: int) -> TicketRow:
        ticket: TicketRow = make_ticket("confirm", 10 * of_round, 0.5, round=of_round, attempt=attempt)
        return ticket

    search_tickets = [make_ticket("search", n, 0.5, round=n) for n in range(4)]
    assert verdicts(search_tickets, 3) == 1
    tickets = [*search_tickets, confirm(0, 1), confirm(1, 0), confirm(2, 2)]
    assert [verdicts(tickets, of_round) for of_round in range(4)] == [1, 2, 2, 3]


@given(st.lists(st.booleans(), max_size=6))
def test_a_verdict_rests_on_its_round_and_on_those_that_it_was_added_to(
    make_ticket: Any, is_added_pairs: list[bool]
) -> None:
    kinds = ["search", *("confirm" if is_added else "search" for is_added in is_added_pairs)]
    tickets = [make_ticket(kind, n, 0.5, round=n) for n, kind in enumerate(kinds)]
    assert [is_round_of_added_pairs(tickets, n) for n in range(len(kinds))] == [False, *is_added_pairs]
    for last in range(len(kinds)):
        previous_rounds = [*itertools.takewhile(lambda n: kinds[n] == "confirm", range(last, -1, -1))]
        expected = sorted({last, *previous_rounds, *(n - 1 for n in previous_rounds)})
        assert rounds_of_verdict(tickets, last) == expected
