"""Who is given up while candidates are tried, against SciPy's tests and by what a race must never do."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from tempopt.storage.racing import ALPHA, next_pairs, surviving_candidates
from tempopt.storage.rows import TicketRow
from tempopt.storage.ticket_queries import pairs_of
from tempopt.verdict.pairs import select_arm_params
from tempopt.verdict.stages import next_tickets

MakeRows = Callable[..., list[TicketRow]]


@pytest.fixture(scope="module")
def make_rows(make_ticket: Callable[..., TicketRow]) -> MakeRows:
    """Return a maker of the tickets of candidates (rows) on pairs (columns); infinite: not tried there."""

    def make(table_CP: Any, *, diverged_pairs: Collection[tuple[int, int]] = ()) -> list[TicketRow]:
        return [
            make_ticket(
                "choose",
                value=None if (candidate, pair) in diverged_pairs else float(value),
                candidate=candidate,
                pair=pair,
                outcome="diverged" if (candidate, pair) in diverged_pairs else "complete",
            )
            for candidate, values in enumerate(np.asarray(table_CP))
            for pair, value in enumerate(values)
            if not np.isinf(value)
        ]

    return make


def test_candidates_are_compared_after_two_four_and_eight_pairs() -> None:
    assert [list(next_pairs(num_done, 12)) for num_done in (0, 2, 4, 8, 12)] == [
        [0, 1],
        [2, 3],
        [4, 5, 6, 7],
        [8, 9, 10, 11],
        [],
    ]
    assert list(next_pairs(0, 1)) == [0]
    assert list(next_pairs(2, 3)) == [2]


def test_two_candidates_are_compared_by_the_paired_t_test(make_rows: MakeRows) -> None:
    rng = np.random.default_rng(0)
    counts = set()
    for _ in range(200):
        table = rng.normal(size=(2, 4)) + np.array([[1.0], [0.0]])
        leader = int(table.mean(axis=1).argmax())
        p = stats.ttest_rel(table[leader], table[1 - leader], alternative="greater").pvalue
        remaining = surviving_candidates(make_rows(table), "maximize")
        assert remaining == ([leader] if p < ALPHA else [0, 1])
        counts.add(len(remaining))
    assert counts == {1, 2}


def test_several_are_compared_with_the_variance_of_a_two_way_layout(make_rows: MakeRows) -> None:
    rng = np.random.default_rng(1)
    table = rng.normal(size=(4, 4), scale=0.4) + rng.normal(size=4) + np.array([[0.0], [0.3], [1.0], [1.1]])
    # an independent way to the residuals: least squares on indicators of candidate and pair
    indicators = np.array(
        [np.r_[np.eye(4)[c], np.eye(4)[p]] for c in range(4) for p in range(4)], dtype=float
    )
    fitted_values = indicators @ np.linalg.lstsq(indicators, table.ravel(), rcond=None)[0]
    deviation = np.sqrt(((table.ravel() - fitted_values) ** 2).sum() / 9 * 2 / 4)
    deficits = table.mean(axis=1).max() - table.mean(axis=1)
    expected = [c for c in range(4) if stats.t.sf(deficits[c] / deviation, 9) >= ALPHA]
    assert 1 < len(expected) < 4
    assert surviving_candidates(make_rows(table), "maximize") == expected
    assert surviving_candidates(make_rows(-table), "minimize") == expected


@given(
    st.integers(1, 5).flatmap(
        lambda pairs: st.lists(
            st.lists(st.floats(-1e6, 1e6), min_size=pairs, max_size=pairs), min_size=1, max_size=5
        )
    ),
    st.sampled_from(["maximize", "minimize"]),
)
def test_the_best_mean_is_never_given_up(
    make_rows: MakeRows, table: list[list[float]], direction: Any
) -> None:
    remaining = surviving_candidates(make_rows(table), direction)
    means = np.mean(table, axis=1) * (1 if direction == "maximize" else -1)
    assert remaining == sorted(remaining)
    assert max(means[remaining]) == pytest.approx(max(means), rel=1e-9, abs=1e-6)


def test_who_was_lost_is_out_of_it_and_who_was_given_up_stays_out(make_rows: MakeRows) -> None:
    equal_table = [[1.0, 1.1], [1.1, 1.0], [1.05, 1.0]]
    assert surviving_candidates(make_rows(equal_table), "maximize") == [0, 1, 2]
    assert surviving_candidates(make_rows(equal_table, diverged_pairs={(1, 0)}), "maximize") == [0, 2]
    all_cells = {(c, p) for c in range(3) for p in range(2)}
    assert surviving_candidates(make_rows(equal_table, diverged_pairs=all_cells), "maximize") == [0, 1, 2]
    rows = make_rows([[1.0, 1.1, 1.0, 1.1], [9.0, 9.0, np.inf, np.inf], [1.05, 1.0, 1.1, 1.0]])
    assert pairs_of(rows) == 4
    assert surviving_candidates(rows, "maximize") == [0, 2]


def test_a_clear_choice_takes_half_of_the_seeds(make_spec: Any, make_ticket: Any, run_ticket: Any) -> None:
    spec = make_spec(candidates=3, seeds={"choose": 4}, learned=False)
    search_rows = [
        make_ticket("baseline", 0, 0.5, parameters={"temperature_init": 1.0}),
        *(make_ticket("search", n, 0.6, parameters={"temperature_init": 2.0 + n}) for n in range(3)),
    ]
    worth = {2.0: 0.5, 3.0: 0.9, 4.0: 0.89}
    jitter = [0.0, 0.03, -0.03, 0.0, -0.03, 0.03]
    runs: list[TicketRow] = []
    rounds = []
    while (new_tickets := next_tickets([*search_rows, *runs], spec))[0].kind == "choose":
        rounds.append([(t.pair, t.candidate) for t in new_tickets])
        assert select_arm_params([*search_rows, *runs], spec) == {}
        runs += [
            run_ticket(t, worth[t.parameters["temperature_init"]] + jitter[(3 * t.pair + t.candidate) % 6])
            for t in new_tickets
        ]
    assert rounds == [[(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)], [(2, 1), (2, 2), (3, 1), (3, 2)]]
    assert len({t.number for t in runs}) == 10
    assert select_arm_params([*search_rows, *runs], spec)["search"] == {"temperature_init": 3.0}
