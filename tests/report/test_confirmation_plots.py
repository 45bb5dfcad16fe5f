"""What the confirmation's plots show: the winner beside what it is compared with, and other temperatures."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import fmean

import pytest
from scipy import stats

from tempopt.report.plots import PLOTS
from tempopt.report.study_result import StudyResult
from tempopt.storage.ticket_queries import arms_of
from tests.report.made_study import SyntheticStudy, World, finish, make, runs_of


def _values(synthetic: SyntheticStudy, arm: str) -> dict[int | None, float | None]:
    return {t.pair: t.value for t in synthetic.tickets if t.kind == "confirm" and arm in arms_of(t)}


def test_the_differences_are_those_of_the_pairs(confirmed_result: StudyResult) -> None:
    data = PLOTS["differences"].data(confirmed_result)
    winner = {run.pair: run.value for run in runs_of(confirmed_result, "confirm", "search")}
    baseline = {run.pair: run.value for run in runs_of(confirmed_result, "confirm", "baseline")}
    expected = {pair: winner[pair] - baseline[pair] for pair in baseline}  # type: ignore[operator]
    assert dict(data.pairs) == pytest.approx(expected)
    assert data.mean.test.gain == pytest.approx(fmean(expected.values()))
    assert data.mean.test.confidence == pytest.approx(0.95)
    interval = stats.ttest_1samp(list(expected.values()), 0).confidence_interval(0.95)
    assert (data.mean.test.ci_low, data.mean.test.ci_high) == pytest.approx(interval)
    assert [row.name for row in data.others] == [
        "against the best constant",
        "against a constant of its own",
        "inference only",
        "winner over inference only",
        "learned, against τ = 1",
        "without schedule",
        "without level",
        "without layer pattern",
        "over the simplest plan",
    ]
    assert data.twin == ()
    assert "Bars are 95 % intervals: wholly" in data.caption()
    sentence = '"inference only" and "learned, against τ = 1" are without the winner: that '
    assert f"{sentence}minus τ = 1." in data.caption()
    short_caption = replace(data, others=(replace(data.others[0], name="learned, against τ = 1"),)).caption()
    assert '"learned, against τ = 1" is without the winner: that minus τ = 1.' in short_caption
    assert '"without ..." is by how much the winner is better than itself' in data.caption()


@pytest.fixture(scope="module")
def tuned_result() -> StudyResult:
    """A study that searched a learning rate and a length scaling, too."""
    search = {"lr": {"low": 0.001, "high": 0.1, "log": True}, "length_scaling": ["none", "log_n"]}
    return make(World(trials=44, search=search, study={"failure": 0.6})).result()


def test_a_gain_is_shown_against_the_baseline_and_against_the_twin(tuned_result: StudyResult) -> None:
    data = PLOTS["differences"].data(tuned_result)
    winner, baseline, twin = (
        {run.pair: run.value for run in runs_of(tuned_result, "confirm", arm)}
        for arm in ("search", "baseline", "twin")
    )
    assert dict(data.pairs) == pytest.approx({p: winner[p] - baseline[p] for p in baseline})  # type: ignore[operator]
    assert dict(data.twin) == pytest.approx({p: winner[p] - twin[p] for p in twin})  # type: ignore[operator]
    assert baseline != twin
    rows_by_name = {row.name: row for row in data.others}
    baseline, twin_row = rows_by_name["against τ = 1, tuned again"], rows_by_name["against its twin at τ = 1"]
    assert baseline.test.gain == pytest.approx(fmean(gain for _, gain in data.pairs))
    assert twin_row.test.gain == pytest.approx(fmean(gain for _, gain in data.twin))
    assert data.mean.name == "against τ = 1, both"
    assert data.mean.test.gain == min(baseline.test.gain, twin_row.test.gain)
    assert data.mean.test.ci_low == min(baseline.test.ci_low, twin_row.test.ci_low)
    assert data.mean.test.ci_high == max(baseline.test.ci_high, twin_row.test.ci_high)
    assert "each stroke the winner minus its twin" in data.caption()
    assert "A gain has to hold against both; " in data.caption()
    figure = PLOTS["differences"].figure(data)
    strokes = next(trace for trace in figure.data if trace.name == "minus its twin")
    assert list(strokes.x) == [gain for _, gain in data.twin]
    assert figure.layout.showlegend


def test_a_search_that_has_chosen_one_is_said_to_have_nothing_to_compare() -> None:
    fixed_params = {"temperature_init": 1.0, "schedule": "constant", "layer_pattern": "uniform"}
    synthetic = make(World(trials=6, confirmed=False))
    for index, ticket in enumerate(synthetic.tickets):
        if ticket.kind == "search":
            synthetic.tickets[index] = replace(ticket, parameters=fixed_params, outcome="complete", value=0.7)
    result = finish(World(trials=6), synthetic).result()
    assert result.verdict is not None and result.verdict.at_one
    data = PLOTS["differences"].data(result)
    assert data.at_one and {gain for _, gain in data.pairs} == {0.0}
    assert "has chosen τ = 1 itself" in data.caption()
    assert (data.mean.test.gain, data.mean.test.ci_low, data.mean.test.ci_high) == (0.0, -math.inf, math.inf)
    assert list(PLOTS["constant"].data(result).arms) == ["baseline"]
    entropies = PLOTS["entropy"].data(result)
    assert entropies.shares_by_arm["search"] == entropies.shares_by_arm["baseline"]


def test_each_temperature_at_inference_has_its_mean(tuned_result: StudyResult) -> None:
    data = PLOTS["constant"].data(tuned_result)
    assert tuned_result.verdict is not None and tuned_result.verdict.inference_only is not None
    for arm, inference in (
        ("baseline", tuned_result.verdict.inference_only.baseline),
        ("search", tuned_result.verdict.inference_only.winner),
    ):
        assert inference is not None
        models, runs = data.arms[arm], runs_of(tuned_result, "confirm", arm)
        for (name, scaling), points in models.curves.items():
            assert not name
            label = "" if scaling == "none" else f",length_scaling={scaling}"
            for tau, value in points:
                if (arm, scaling, tau) == ("baseline", "none", 1.0):
                    assert value == models.as_trained
                    continue
                plan = f"validate:constant={tau:.4g}{label}"
                assert value == pytest.approx(
                    fmean(tuned_result.measured[run.id][plan][0][1] for run in runs)
                )
        mean_value = fmean(tuned_result.measured[run.id]["validate"][0][1] for run in runs)
        assert models.as_trained == pytest.approx(mean_value)
        winners = 0.0 if models.winners is None else models.winners[1]
        best = max(models.as_trained, winners, *(v for p in models.curves.values() for _, v in p))
        assert models.picked[2] == best == inference.curve[inference.plan_name]
    assert data.arms["search"].winners is None and data.arms["baseline"].winners is not None
    taus = [tau for tau, _ in data.arms["baseline"].curves["", "none"]]
    assert 1.0 in taus and taus == sorted(taus)
    assert set(data.arms["baseline"].curves) == {("", "none"), ("", "log_n")}
    assert "What that gains is counted on the test data." in data.caption()
    assert "Dotted lines have length scaling as well (log_n)." in data.caption()


def test_less_of_a_loss_is_drawn_as_a_gain() -> None:
    synthetic = make(World(gain=-0.12, study={"direction": "minimize", "metric": "val_loss"}))
    data = PLOTS["differences"].data(synthetic.result())
    winner, baseline = _values(synthetic, "search"), _values(synthetic, "baseline")
    assert dict(data.pairs) == pytest.approx({p: baseline[p] - winner[p] for p in baseline})  # type: ignore[operator]
    best = PLOTS["history"].data(synthetic.result()).best
    assert all(earlier[1] > later_point[1] for earlier, later_point in pairwise(best))


def test_a_run_that_diverged_is_marked_and_counts_as_the_worst() -> None:
    synthetic = make(World())
    search_index = next(
        i for i, t in enumerate(synthetic.tickets) if (t.kind, t.arm) == ("confirm", "search")
    )
    synthetic.tickets[search_index] = replace(synthetic.tickets[search_index], outcome="diverged", value=None)
    data = PLOTS["differences"].data(synthetic.result())
    pair = synthetic.tickets[search_index].pair
    assert data.diverged == {pair}
    baseline = _values(synthetic, "baseline")
    values = [
        value for value in (*baseline.values(), *_values(synthetic, "search").values()) if value is not None
    ]
    assert dict(data.pairs)[pair] == pytest.approx(min(values) - baseline[pair])  # type: ignore[operator]


def test_intervals_are_read_as_gain_and_loss_and_divergence_forbids_a_gain() -> None:
    synthetic = make(World(gain=0.3))
    data = PLOTS["differences"].data(synthetic.result())
    assert data.forbidden == ()
    assert "wholly right of zero is a gain, wholly left of it a loss." in data.caption()
    assert "diverged" not in data.caption()
    for index, ticket in enumerate(synthetic.tickets):
        if (ticket.kind, ticket.arm) == ("confirm", "search"):
            synthetic.tickets[index] = replace(ticket, value=(ticket.value or 0.0) + 1.0)
            last = index
    synthetic.tickets[last] = replace(synthetic.tickets[last], outcome="diverged", value=None)
    # the worst value that was reached is still a gain on this seed
    pair = synthetic.tickets[last].pair
    for index, ticket in enumerate(synthetic.tickets):
        if ticket.kind == "confirm" and "baseline" in arms_of(ticket) and ticket.pair == pair:
            synthetic.tickets[index] = replace(ticket, value=-0.5)
    data = PLOTS["differences"].data(synthetic.result())
    assert data.mean.test.ci_low > 0
    assert data.forbidden[0] == data.mean.name
    assert f"Not so for {data.mean.name}" in data.caption()
    assert "so the gain does not count" in data.caption()
