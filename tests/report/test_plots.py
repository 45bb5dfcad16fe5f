"""What each plot shows, checked against the rows that it was made of; drawings only as far as marks go."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass, replace
from statistics import fmean
from typing import Any

import numpy as np
import pytest
from scipy import stats

from tempopt.errors import NothingToPlot
from tempopt.report.formatting import duration
from tempopt.report.plots import PLOTS
from tempopt.report.plots.style import DARK, temperature_ticks
from tempopt.report.study_result import StudyResult
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import TemperatureParameters
from tests.report.made_study import World, make, runs_of


@pytest.mark.parametrize("key", PLOTS)
def test_every_plot_of_a_whole_study_has_marks_words_and_numbers(
    key: str, confirmed_result: StudyResult
) -> None:
    data = PLOTS[key].data(confirmed_result)
    assert is_dataclass(data)
    assert data.caption().endswith(".")
    table = data.table()
    assert table.rows
    assert {len(row) for row in table.rows} == {len(table.columns)}
    figure = json.loads(PLOTS[key].figure(data).to_json())
    assert any(_marks(trace) for trace in figure["data"])
    # each of its colours has one for dark ground
    assert _colours(figure) <= set(DARK)


def _marks(trace: Mapping[str, Any]) -> int:
    return sum(len(trace[axis]) for axis in ("x", "y", "z") if trace.get(axis) is not None)


def _colours(value: object) -> set[str]:
    if isinstance(value, str):
        return {value} if value.startswith(("#", "rgb")) and value != "rgba(0,0,0,0)" else set()
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return set().union(*map(_colours, children))


@pytest.mark.parametrize("key", PLOTS)
def test_what_has_not_been_measured_is_told_and_not_drawn(key: str, untouched_result: StudyResult) -> None:
    with pytest.raises(NothingToPlot, match=r"\w+ \w+.*\.$"):
        PLOTS[key].data(untouched_result)


@pytest.mark.parametrize("role", ["recommended", "winner"])
def test_the_plan_is_what_is_recommended_or_else_the_winners_at_every_layer(
    role: str, confirmed_result: StudyResult
) -> None:
    result = confirmed_result if role == "recommended" else replace(confirmed_result, verdict=None)
    data = PLOTS["schedule"].data(result)
    assert (data.role, result.plan[0]) == (role, role) and result.plan[1] is not None
    assert confirmed_result.winner != confirmed_result.plan[1]
    plan = TemperatureParameters.from_mapping(result.plan[1]).plan(3)
    assert len(data.temperatures) == 3
    assert data.confirmed == (role == "recommended")
    for index in (0, 100, 200):
        column = tuple(layer[index] for layer in data.temperatures)
        assert column == plan.temperatures(data.progress[index])
        assert data.level[index] == pytest.approx(float(stats.gmean(column)))


def test_the_history_has_every_trial_and_each_record(confirmed_result: StudyResult) -> None:
    data = PLOTS["history"].data(confirmed_result)
    search = runs_of(confirmed_result, "search")
    assert [trial.number for trial in data.trials] == [run.number for run in search]
    values = [
        run.value if run.outcome == "complete" and run.value is not None else -math.inf for run in search
    ]
    records = np.maximum.accumulate(values)
    assert [number for number, _ in data.best] == [
        i for i, value in enumerate(values) if value == records[i] and value > max([-math.inf, *values[:i]])
    ]
    assert data.constant == max(
        run.value for run in runs_of(confirmed_result, "constant") if run.value is not None
    )
    assert data.baseline == confirmed_result.baseline


def test_the_landscape_has_each_trials_ends_and_the_constants_on_the_diagonal(
    confirmed_result: StudyResult,
) -> None:
    data = PLOTS["landscape"].data(confirmed_result)
    assert len(data.points) == confirmed_result.trials["complete"]
    assert data.points[-1][3] == max(point[3] for point in data.points)
    assert data.constants and all(first == last for _, first, last, _, _ in data.constants)


def test_what_made_the_difference_is_found(confirmed_result: StudyResult) -> None:
    data = PLOTS["importance"].data(make(World(trials=200, confirmed=False, reports=0)).result())
    assert sum(share for _, share in data.shares) == pytest.approx(1)
    # the made-up world knows the late temperature above all
    assert data.shares[0][0] == "temperature_final"
    assert {name for name, _ in data.shares} | set(data.unread) == set(confirmed_result.spec.search)


def test_a_value_that_the_plan_does_not_read_makes_no_difference(confirmed_result: StudyResult) -> None:
    # sampled at random beside a constant schedule, and read by no trial
    runs = [
        replace(
            run,
            parameters={"temperature_init": 0.5 + run.number / 100, "schedule": "constant"},
            sampled={**(run.sampled or {}), "temperature_final": 9.0 + run.number},
        )
        if run.kind == "search"
        else run
        for run in confirmed_result.runs
    ]
    data = PLOTS["importance"].data(replace(confirmed_result, runs=tuple(runs)))
    shares = dict(data.shares)
    assert data.unread == ("layer_pattern", "layer_ratio")
    assert shares["temperature_final"] == pytest.approx(shares["temperature_init"])
    assert (
        "Left out, since most of the trials do not read them: layer_pattern, layer_ratio." in data.caption()
    )


def test_many_trials_are_thinned_no_record_is_lost_and_the_best_tenth_is_that_of_all() -> None:
    result = make(World(trials=2500, confirmed=False, reports=0, ends=["complete"])).result()
    history, landscape = (PLOTS[key].data(result) for key in ("history", "landscape"))
    assert history.out_of == landscape.out_of == 2500 > len(landscape.points)
    assert 2000 <= len(history.trials) <= 2000 + len(history.best)
    assert {number for number, _ in history.best} <= {trial.number for trial in history.trials}
    best = sorted(runs_of(result, "search"), key=lambda run: -(run.value or 0.0))[:250]
    ends = [TemperatureParameters.from_mapping(run.parameters or {}).plan(1).schedule for run in best]
    assert landscape.best == (sum(schedule(0.0) > schedule(1.0) for schedule in ends), 250)
    assert f"{len(history.trials)} of 2500 trials are drawn" in history.caption()
    assert f"{len(landscape.points)} of 2500 trials are drawn" in landscape.caption()


def test_a_trial_that_is_far_off_is_drawn_at_the_edge_with_its_value(confirmed_result: StudyResult) -> None:
    data = PLOTS["history"].data(confirmed_result)
    trial_index, first = next((i, trial) for i, trial in enumerate(data.trials) if trial.outcome == "pruned")
    outlier = replace(first, value=-50.0)
    data = replace(data, trials=(*data.trials[:trial_index], outlier, *data.trials[trial_index + 1 :]))
    figure = PLOTS["history"].figure(data)
    low, high = figure.layout.yaxis.range
    pruned_trace = next(trace for trace in figure.data if trace.name == "pruned")
    outlier_index = list(pruned_trace.x).index(outlier.number)
    assert all(low < value < high for trace in figure.data[:3] for value in trace.y)
    assert figure.data[2].name == "diverged or lost"
    assert pruned_trace.customdata[outlier_index] == -50.0
    assert "customdata" in pruned_trace.hovertemplate
    assert "1 far outside of the plot is drawn at its edge" in data.caption()


@pytest.mark.parametrize(
    ("world", "reason"),
    [
        (World(trials=5, confirmed=False), "5 search trials are complete; 8 at least"),
        (World(trials=20, confirmed=False, ends=["pruned"]), "0 search trials are complete"),
    ],
)
def test_too_few_trials_to_tell_what_mattered_are_told(world: World, reason: str) -> None:
    if world.ends is None:
        world = replace(world, ends=["complete"])
    with pytest.raises(NothingToPlot, match=reason):
        PLOTS["importance"].data(make(world).result())


def test_entropies_are_means_over_the_confirming_runs(confirmed_result: StudyResult) -> None:
    data = PLOTS["entropy"].data(confirmed_result)
    assert data.layers == (0, 1, 2)
    curves = [
        dict(confirmed_result.measured[run.id]["entropy/1/2"])
        for run in runs_of(confirmed_result, "confirm", "baseline")
    ]
    step = data.steps[5]
    step_index = data.steps.index(step)
    assert data.shares_by_arm["baseline"][1, 2][step_index] == pytest.approx(
        fmean(points[step] for points in curves)
    )
    head_shares = [data.shares_by_arm["search"][0, head][step_index] for head in range(4)]
    assert data.layer("search", 0)[step_index] == pytest.approx(fmean(head_shares))


def test_entropies_that_are_no_numbers_are_not_there(confirmed_result: StudyResult) -> None:
    def drop_entropies(arm: str, heads: set[str] | None) -> StudyResult:
        ids = {run.id for run in runs_of(confirmed_result, "confirm", arm)}
        measured_curves = {
            run: {
                name: tuple((step, math.nan) for step, _ in curve)
                if run in ids and (heads is None or name in heads)
                else curve
                for name, curve in curves.items()
            }
            for run, curves in confirmed_result.measured.items()
        }
        return replace(confirmed_result, measured=measured_curves)

    data = PLOTS["entropy"].data(drop_entropies("baseline", {"entropy/0/1"}))
    assert (0, 1) not in data.shares_by_arm["baseline"] and (0, 1) in data.shares_by_arm["search"]
    partial_result = drop_entropies("baseline", {f"entropy/2/{head}" for head in range(4)})
    assert len(PLOTS["entropy"].figure(PLOTS["entropy"].data(partial_result)).data) == 5 + 2
    single_data = PLOTS["entropy"].data(drop_entropies("baseline", None))
    assert list(single_data.shares_by_arm) == ["search"]
    for caption in (data.caption(), single_data.caption()):
        assert "nan" not in caption and "-100" not in caption


def test_heads_that_are_unusual_are_told_by_arm_with_the_rate_of_false_alarms(
    confirmed_result: StudyResult,
) -> None:
    entropies = PLOTS["entropy"].data(confirmed_result)
    steady = {(layer, head): (0.5 + 0.02 * head,) * 24 for layer in range(3) for head in range(4)}
    shares_by_arm = {"search": {**steady, (1, 2): (0.995,) * 24}, "baseline": steady}
    data = replace(entropies, steps=tuple(range(24)), shares_by_arm=shares_by_arm)
    assert data.findings()["baseline"] == []
    (finding,) = data.findings()["search"]
    assert (finding.kind, finding.layer, finding.head) == ("dead_head", 1, 2)
    assert f"Worth a look: winner: {finding.evidence} {finding.advice} Of models" in data.caption()
    healthy = replace(data, shares_by_arm={"baseline": steady})
    assert healthy.caption().endswith(
        "No layer and no head is unusual. "
        "Of models in which no head is unusual, about 1 % are said to have one."
    )


def test_pruned_trials_end_where_they_were_cut(confirmed_result: StudyResult) -> None:
    data = PLOTS["curves"].data(confirmed_result)
    cut = [run for run in runs_of(confirmed_result, "search") if run.outcome == "pruned"]
    assert {trial: curve[-1][0] for trial, curve in data.pruned} == {run.number: run.steps for run in cut}
    assert data.counts == (len(cut), 40)
    figure = PLOTS["curves"].figure(data).data
    lines = {trace.name: trace.line.dash for trace in figure if trace.mode == "lines+markers"}
    assert lines["pruned"] == "dot" != lines["complete"]


def test_a_curve_has_marks_and_ends_with_the_final_value() -> None:
    study = make(World(trials=3, ends=["complete"], confirmed=False, reports=1))
    search = runs_of(study.result(), "search")
    # the second validates at the last step and at none before, the others in the middle and at the end
    moved = [
        replace(row, step=500) if row.ticket_id != search[1].id and row.name == "report" else row
        for row in study.measurements
    ]
    data = PLOTS["curves"].data(replace(study, measurements=moved).result())
    assert [len(curve) for _, curve in data.complete] == [2, 1, 2]
    for run, (_, curve) in zip(search, data.complete, strict=True):
        assert curve[-1][0] == run.steps == 1000
        if len(curve) > 1:
            assert curve[-1][1] == run.value
    (trace,) = PLOTS["curves"].figure(data).data
    assert "markers" in trace.mode and trace.marker.size >= 4
    assert data.table().rows[0][3] == search[0].value


def test_cost_is_added_up_by_machine(confirmed_result: StudyResult) -> None:
    data = PLOTS["cost"].data(confirmed_result)
    total, rows = confirmed_result.cost.train_seconds, {row[0]: row for row in data.table().rows}
    assert rows.keys() == {"node-a", "node-b", "laptop"}
    assert data.caption().startswith(f"{duration(total)} of training on 3 machines")
    for name, (_, _, num_runs, hours, gpu_hours) in rows.items():
        runs = [run for run in confirmed_result.runs if run.machine == name]
        assert num_runs == len(runs)
        assert hours == pytest.approx(sum(run.seconds for run in runs) / 3600)
        assert gpu_hours == pytest.approx(sum(run.gpu_seconds for run in runs) / 3600)


@pytest.mark.parametrize(
    ("low", "high"), [(0.24, 4.2), (0.52, 1.1), (0.9, 1.12), (0.01, 100.0), (1.19, 1.21), (3.0, 3.1)]
)
def test_ticks_of_temperatures_are_few_and_round(low: float, high: float) -> None:
    ticks = temperature_ticks(low, high)
    assert 2 <= len(ticks) <= 13
    assert all(low <= tick <= high and len(f"{tick:g}") <= 5 for tick in ticks)
    assert ticks == sorted(set(ticks))


@pytest.mark.parametrize(
    ("noted", "role", "dash", "words"),
    [
        ("both", "recommended", "solid", "the geometric mean of 8 runs."),
        ("winner", "winner", "solid", "8 runs of the winner, with the same target as what is recommended"),
        ("ends", "recommended", "dot", "the dotted line joins its ends and is not its path."),
        ("nothing", "recommended", "dot", "which was not measured: the line is only the start."),
        ("another target", "recommended", "dot", "the dotted line joins its ends and is not its path."),
    ],
)
def test_under_control_the_measured_path_is_drawn_or_the_line_is_said_to_be_none(
    noted: str, role: str, dash: str, words: str, confirmed_result: StudyResult
) -> None:
    plan = {
        "temperature_init": 1.5,
        "schedule": "constant",
        "entropy_control": "hold",
        "control_level": 0.5,
    }
    winner = {**plan, "entropy_lambda": 0.03}
    if noted == "another target":
        winner["control_level"] = 0.4
    path, ends = ((0, 1.5), (500, 0.06), (1000, 0.2)), ((0, 1.5), (1000, 0.3))
    runs, measured = [], {}
    for run in confirmed_result.runs:
        if run.kind == "confirm" and "search" in arms_of(run):
            run = replace(run, parameters=winner)
            curve = path if noted not in ("ends", "nothing") else ends
            measured[run.id] = {} if noted == "nothing" else {"controlled/0": curve}
        elif run.kind == "ablation":
            run = replace(run, parameters=plan)
            is_path = noted == "both" and "simplest" in arms_of(run)
            measured[run.id] = {} if noted == "nothing" else {"controlled/0": path if is_path else ends}
        runs.append(run)
    verdict = confirmed_result.verdict
    assert verdict is not None and verdict.recommendation is not None
    advice = replace(verdict.recommendation, action_without_training="train_with_control", params=plan)
    result = replace(
        confirmed_result,
        runs=tuple(runs),
        measured=measured,
        winner=winner,
        verdict=replace(verdict, recommendation=advice),
    )
    data = PLOTS["schedule"].data(result)
    line = next(trace for trace in PLOTS["schedule"].figure(data).data if trace.name == role)
    assert (data.role, line.line.dash) == (role, dash)
    assert words in data.caption()
    middle = {"solid": 0.06, "dot": math.sqrt(1.5 * 0.3)}[dash] if noted != "nothing" else 1.5
    assert data.level[100] == pytest.approx(middle)
    assert ("starts at 1.5;" in data.caption()) == (noted == "nothing")
