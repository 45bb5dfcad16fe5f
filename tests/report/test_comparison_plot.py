"""A comparison in the report and on the dashboard's page: what is shown of it, and that nothing else is."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest

from tempopt.errors import NothingToPlot
from tempopt.report.plots import PLOTS
from tempopt.report.plots.confirmation import ComparisonData
from tempopt.report.plots.style import DARK
from tempopt.report.study_result import StudyResult


@pytest.fixture(scope="module")
def make_result(make_comparison: Any) -> Any:
    def make(gain: float = 0.2, *, waiting: bool = False) -> StudyResult:
        def worth(arm: str, pair: int) -> float:
            return 0.5 + random.Random(f"{pair} {arm}").gauss(0, 0.01) + gain * (arm == "B")

        sets = ({}, {"lr": 1}, "C={lr: 2}")
        result: StudyResult = make_comparison(worth, *sets, waiting=waiting, study__seeds={"confirm": 8})
        return result

    return make


def test_each_variant_is_drawn_with_its_seeds_and_its_interval(make_result: Any) -> None:
    result = make_result()
    data = PLOTS["differences"].data(result)
    assert isinstance(data, ComparisonData)
    assert [(variant.name, variant.is_different) for variant in data.variants] == [("B", True), ("C", False)]
    for plot_variant, variant in zip(data.variants, result.comparison.variants, strict=True):
        test = variant.answer.paired
        assert plot_variant.test == test
        assert fmean(gain for _, gain in plot_variant.pairs) == pytest.approx(test.gain)
        values = {arm: [r.value for r in result.runs if r.arm == arm] for arm in ("A", plot_variant.name)}
        expected = [
            value - reference_value
            for value, reference_value in zip(values[plot_variant.name], values["A"], strict=True)
        ]
        assert [gain for _, gain in plot_variant.pairs] == pytest.approx(expected)
    table = data.table()
    assert len(table.rows) == 2 + 16 and {len(row) for row in table.rows} == {len(table.columns)}
    assert data.caption().endswith("They hold together: the variants share the error rate.")
    figure = PLOTS["differences"](result).to_plotly_json()
    assert sum(len(trace["x"]) for trace in figure["data"]) == 2 + 16
    colours = {trace["marker"]["color"] for trace in figure["data"]}
    assert colours <= set(DARK)


def test_no_plot_of_a_search_is_drawn_of_a_comparison(make_result: Any) -> None:
    for key, plot in PLOTS.items():
        if key not in ("differences", "cost"):
            with pytest.raises(NothingToPlot):
                plot.data(make_result())
    with pytest.raises(NothingToPlot, match="is not over"):
        PLOTS["differences"].data(make_result(waiting=True))
