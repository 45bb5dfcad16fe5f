"""A comparison in the report and on the dashboard's page: what is shown of it, and that nothing else is."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest
import yaml

from tempopt.errors import NothingToPlot
from tempopt.report.page.html import render_report
from tempopt.report.page.sections import codes_to_reproduce, plot_keys, stat_tiles
from tempopt.report.plots import PLOTS
from tempopt.report.plots.confirmation import ComparisonData
from tempopt.report.plots.style import DARK
from tempopt.report.study_lines import outcome_label
from tempopt.report.study_result import StudyResult
from tempopt.spec.comparison_spec import comparison_spec


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


def test_the_page_says_what_was_found_and_how_to_ask_again(make_result: Any) -> None:
    result = make_result()
    page = render_report(result, plotlyjs="cdn")
    assert outcome_label(result) == "Gain shown" and outcome_label(make_result(gain=0.0)) == "No gain shown"
    assert plot_keys(result) == ("differences", "cost")
    assert "B over A" in page and "97.5 % interval" in page and "search trials" not in page
    (spec,) = [code for code in codes_to_reproduce(result, "") if code.key == "spec"]
    # what is shown is the spec of the same comparison
    assert comparison_spec(yaml.safe_load(spec.text)).identity() == result.spec.identity()
    assert "tempopt compare gate.yaml --storage" in page
    assert [name for name, *_ in stat_tiles(result)] == ["B over A", "C over A", "training"]
    open_page = render_report(make_result(waiting=True), plotlyjs="cdn")
    assert "No verdict yet" in open_page
