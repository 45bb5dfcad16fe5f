"""The comparison of searches: which results count, and what is read off the curves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.recorded.tasks import TASKS
from benchmarks.simulated import table
from benchmarks.simulated.table import (
    crossing,
    curve,
    end_of_best_peer,
    interval,
    ratio,
    share_at,
)


class _MarkedWorld:
    def __init__(self, mark: str) -> None:
        self.mark = mark


def _result(**fields: Any) -> dict[str, Any]:
    fields_base = {
        "task": "digits",
        "tuner": "a",
        "repetition": 0,
        "see": "final",
        "budget": 40,
        "workers": 4,
    }
    return {**fields_base, "world": "now", "steps": [1.0], "share": [0.5], **fields}


@pytest.fixture
def lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(table, "SEARCHES_PATH", tmp_path / "kept.parquet")
    return tmp_path / "new" / "lines.jsonl"


def test_what_is_packed_is_known_and_what_is_run_again_counts(lines: Path) -> None:
    worlds: Any = {"digits": _MarkedWorld("now")}
    table.keep(_result(), lines)
    table.keep(_result(repetition=1), lines)
    results_before = table.load_results(lines)
    table.pack(worlds, lines)
    assert not lines.exists()
    assert table.load_results(lines) == results_before
    table.keep(_result(share=[0.75]), lines)
    assert [result["share"] for result in table.load_results(lines)] == [[0.75], [0.5]]


def test_results_of_another_world_do_not_count(lines: Path) -> None:
    for world in ("before", "now"):
        table.keep(_result(world=world, tuner=world), lines)
    table.keep(_result(task="max_retrieval"), lines)
    worlds: Any = {"digits": _MarkedWorld("now")}
    assert [result["tuner"] for result in table.of_worlds(worlds, lines)] == ["now"]


def test_repetitions_that_chose_our_defaults_do_not_count_for_us(lines: Path) -> None:
    for tuner in ("Optuna TPE", "tempopt", "tempopt, no pruning"):
        for repetition in (0, table.CHOSEN_BY - 1, table.CHOSEN_BY):
            table.keep(_result(tuner=tuner, repetition=repetition), lines)
    worlds: Any = {"digits": _MarkedWorld("now")}
    counted_keys = {(result["tuner"], result["repetition"]) for result in table.of_worlds(worlds, lines)}
    peers = {("Optuna TPE", repetition) for repetition in (0, table.CHOSEN_BY - 1, table.CHOSEN_BY)}
    assert counted_keys == peers | {(tuner, table.CHOSEN_BY) for tuner in ("tempopt", "tempopt, no pruning")}
    assert len(table.of_worlds(worlds, lines, first=0)) == 9


def test_the_results_in_the_repository_are_of_tasks_that_there_are() -> None:
    rows = table.load_results(Path("nowhere"))
    assert {row["task"] for row in rows} <= set(TASKS)
    assert len({table.result_key(row) for row in rows}) == len(rows)
    assert all(r["repetition"] >= table.CHOSEN_BY for r in rows if r["tuner"].startswith(table.OURS))
    for row in rows:
        assert row["steps"] == sorted(row["steps"])
        assert len(row["steps"]) == len(row["share"])


def test_a_selection_counts_from_when_it_was_made() -> None:
    result = _result(steps=[1.5, 3.0], share=[0.25, 0.75])
    assert [share_at(result, cost) for cost in (1.0, 1.5, 2.5, 3.0, 9.0)] == [0.0, 0.25, 0.25, 0.75, 0.75]
    np.testing.assert_array_equal(curve([result], 2), [[0.0, 0.0, 0.25, 0.25]])


def test_a_level_is_crossed_where_the_mean_stays_above_it() -> None:
    shares = np.array([[0.0, 1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 1.0, 1.0]])
    assert crossing(shares, 0.75) == 2.0
    assert crossing(shares, 0.0) == 0.5
    assert crossing(shares, 1.1) == np.inf
    low, high = interval(shares, 0.75)
    assert low <= 2.0 <= high


def test_the_ratio_is_to_the_first_peer_that_has_what_the_best_one_has_in_the_end() -> None:
    curves = {
        "slow": np.array([[0.1, 0.2, 0.4, 0.8]]),
        "quick": np.array([[0.0, 0.1, 0.8, 0.8]]),
        "poor": np.array([[0.5, 0.5, 0.5, 0.5]]),
        "tempopt": np.array([[0.0, 0.9, 0.9, 0.9]]),
        "tempopt, no pruning": np.array([[0.0, 0.0, 0.0, 0.7]]),
    }
    assert end_of_best_peer(curves) == 0.8
    assert ratio("tempopt", curves) == 1.0 / 1.5
    assert ratio("tempopt, no pruning", curves) == np.inf
