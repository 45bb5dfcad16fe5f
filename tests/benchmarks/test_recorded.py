"""Recorded trainings: the designs can grow, the tables hold what they ask for, validations alternate."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.recorded.make import recorded_rows, table_path
from benchmarks.recorded.tasks import SEEDS, TASKS
from benchmarks.recorded.world import SingleSampleForest


@pytest.mark.parametrize("task", TASKS)
def test_a_longer_design_begins_with_the_shorter(task: str) -> None:
    longer = TASKS[task].configurations(130)
    assert len(longer) == 130
    assert TASKS[task].configurations(20) == longer[:20]
    assert len({json.dumps(params, sort_keys=True) for params in longer}) == 130


@pytest.mark.parametrize("task", TASKS)
def test_validations_divide_a_training(task: str) -> None:
    spec = TASKS[task].spec
    assert spec.trainer["max_steps"] % TASKS[task].every == 0
    assert spec.study.direction == "maximize", "the comparison has more of the metric better"


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.long
def test_a_table_holds_what_its_design_asks_for(task: str) -> None:
    if not table_path(task).exists():
        pytest.skip(f"NOT TESTED: nothing was recorded of {task} yet.")
    rows = recorded_rows(task)
    design = TASKS[task].configurations(1 + max(row["configuration"] for row in rows))
    assert len({(row["configuration"], row["seed"]) for row in rows}) == len(rows)
    for row in rows:
        assert json.loads(row["parameters"]) == design[row["configuration"]]
        assert row["seed"] in range(SEEDS)
        if row["outcome"] == "complete":
            _check_curves(row, TASKS[task].spec.trainer["max_steps"], TASKS[task].every)


def _check_curves(row: dict[str, Any], total: int, interval_steps: int) -> None:
    assert 0 <= row["test"] <= 1
    assert row["final_steps"][-1] == row["current_steps"][-1] == row["steps"] == total
    assert row["final_values"][-1] == row["current_values"][-1]
    assert all(math.isfinite(value) for value in row["final_values"] + row["current_values"])
    expected_steps = list(range(interval_steps, total + 1, interval_steps))
    if json.loads(row["parameters"])["schedule"] == "constant":
        assert row["final_steps"] == row["current_steps"] == expected_steps
    else:
        assert row["final_steps"] == expected_steps[::-1][::2][::-1]
        assert row["current_steps"] == [*expected_steps[::-1][1::2][::-1], total]


def test_one_sample_goes_through_a_forest_as_many_do() -> None:
    rng = np.random.default_rng(0)
    features, outputs = rng.random((200, 3)), rng.standard_normal((200, 4))
    forest = ExtraTreesRegressor(20, min_samples_leaf=4, random_state=0).fit(features, outputs)
    single_forest = SingleSampleForest(forest)
    queries = rng.random((50, 3)) * 1.5 - 0.25
    np.testing.assert_array_equal([single_forest(query) for query in queries], forest.predict(queries))
