"""Worlds made of recorded trainings: their trainings are possible ones, and as noisy as those recorded."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import ExtraTreesRegressor

from benchmarks.recorded.make import recorded_rows, table_path
from benchmarks.recorded.tasks import SEEDS, TASKS
from benchmarks.recorded.world import RecordedWorld, SingleSampleForest, Training
from benchmarks.simulated import table
from benchmarks.simulated.clock import Job, simulate
from benchmarks.simulated.table import (
    crossing,
    curve,
    end_of_best_peer,
    interval,
    ratio,
    share_at,
)

_CONFIGURATIONS = 400


@pytest.fixture(scope="module", params=TASKS)
def world(request: pytest.FixtureRequest) -> RecordedWorld:
    if not table_path(request.param).exists():
        pytest.skip(f"NOT TESTED: nothing was recorded of {request.param} yet.")
    return RecordedWorld(request.param)


def test_no_training_comes_to_what_none_can(world: RecordedWorld) -> None:
    for seed, parameters in enumerate(world.draw_sets(4)[:_CONFIGURATIONS]):
        training = world.train(parameters, seed)
        for values in (training.final, training.current, training.test):
            assert np.all((np.asarray(values) > 0) & (np.asarray(values) < 1))


def test_a_training_is_reproducible(world: RecordedWorld) -> None:
    parameters = world.draw_sets(4)[0]
    training, other_training = world.train(parameters, 7), RecordedWorld(world.task).train(parameters, 7)
    np.testing.assert_array_equal(training.final, other_training.final)
    assert training.test == other_training.test


def test_the_truth_is_the_mean_over_seeds(world: RecordedWorld) -> None:
    sets = world.draw_sets(4)[:_CONFIGURATIONS]
    truth = world.truth(sets)
    # a seed of a world is a recorded one by chance, so each configuration is given others
    errors = [
        world.train(params, 10 * index + seed).test - true_value
        for index, (params, true_value) in enumerate(zip(sets, truth, strict=True))
        for seed in range(10)
    ]
    assert abs(np.mean(errors)) < 0.1 * np.std(errors)


def test_good_and_poor_configurations_are_as_noisy_as_those_recorded(world: RecordedWorld) -> None:
    sets = world.draw_sets(4)[:_CONFIGURATIONS]
    truth = world.truth(sets)
    simulated_values = np.array(
        [[world.train(params, seed).test for seed in range(k, k + SEEDS)] for k, params in enumerate(sets)]
    )
    rows = sorted(
        (row for row in recorded_rows(world.task) if row["outcome"] == "complete"), key=_configuration
    )
    runs = [[row["test"] for row in group] for _, group in itertools.groupby(rows, _configuration)]
    recorded_values = np.array([run_values for run_values in runs if len(run_values) == SEEDS])
    for low, high in ((0, 1 / 3), (1 / 3, 2 / 3), (2 / 3, 1)):
        bounds = np.quantile(truth, [low, high])
        simulated_subset = simulated_values[(truth >= bounds[0]) & (truth <= bounds[1])]
        mean = recorded_values.mean(axis=1)
        recorded_subset = recorded_values[(mean >= bounds[0]) & (mean <= bounds[1])]
        assert len(recorded_subset) >= 10
        ratio = _deviation(simulated_subset) / _deviation(recorded_subset)
        # where hardly any seed learns, runs of configurations that are less alike add to the noise
        assert 0.5 < ratio < 4.0, (low, high, ratio)


def _configuration(row: dict[str, int]) -> int:
    return row["configuration"]


def _deviation(runs: np.ndarray) -> float:
    """Return the standard deviation of a run about its configuration's mean."""
    return float(np.sqrt(runs.var(axis=1, ddof=1).mean()))


# ---- Recorded trainings: the designs can grow, the tables hold what they ask for, validations alternate


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


# ---- The simulated clock counts every step once


class FakeWorld:
    """A world of three rungs in which a training's value is its parameter, whatever the seed."""

    rungs = (10, 30, 60)

    def train(self, parameters: Any, seed: int) -> Training:
        value = float(parameters["x"])
        return Training(final=np.array([value / 4, value / 2, value]), current=np.array([0.0, 0.0, value]))


class Halving:
    """Ends every second training at its second rung, and continues it as its next one if it may."""

    def __init__(self, *, resumes: bool) -> None:
        self.resumes = resumes
        self.number = 0
        self.reports: list[tuple[int, int, float]] = []
        self.ends: dict[int, float | None] = {}
        self.paused: list[int] = []

    def ask(self) -> Job | None:
        if self.resumes and self.paused:
            number = self.paused.pop()
            return Job((number, True), {"x": number}, seed=number, trained_rungs=2)
        self.number += 1
        return Job((self.number, False), {"x": self.number}, seed=self.number)

    def report(self, job: Job, step: int, value: float) -> Any:
        number, is_retry = job.handle
        self.reports.append((number, step, value))
        return "end" if number % 2 and step == 30 and not is_retry else "go on"

    def end(self, job: Job, value: float | None) -> None:
        self.ends[job.handle[0]] = value
        if value is None:
            self.paused.append(job.handle[0])

    def best_set(self) -> Any:
        complete = [number for number, value in self.ends.items() if value is not None]
        return {"x": max(complete)} if complete else None


@pytest.mark.parametrize("workers", [1, 3])
def test_a_search_pays_for_the_steps_that_it_trains(workers: int) -> None:
    strategies: list[Halving] = []

    def make() -> Halving:
        strategies.append(Halving(resumes=False))
        return strategies[-1]

    trace = simulate(FakeWorld(), make, budget=600, workers=workers, seed=0)  # type: ignore[arg-type]
    ends = strategies[0].ends
    assert all(value == (None if number % 2 else number) for number, value in ends.items())
    num_steps = sum(30 if number % 2 else 60 for number in ends)
    assert 600 <= num_steps < 600 + 60 * workers
    assert trace.steps[-1] <= num_steps
    assert trace.ended_early == [bool(params["x"] % 2) for params in trace.parameter_sets]
    assert (1, 10, 0.25) in strategies[0].reports and (1, 30, 0.5) in strategies[0].reports


def test_what_was_trained_before_is_paid_for_once() -> None:
    tuner = Halving(resumes=True)
    trace = simulate(FakeWorld(), lambda: tuner, budget=600, workers=1, seed=0)  # type: ignore[arg-type]
    complete = [number for number, value in tuner.ends.items() if value is not None]
    # one at a time: each is trained to its end before the next one is begun
    assert complete == list(range(1, len(complete) + 1))
    assert trace.steps[-1] == 60 * len(complete)


# ---- The comparison of searches: which results count, and what is read off the curves


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
