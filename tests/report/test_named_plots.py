"""What report and plots show of a study with named temperatures, alone and beside attention's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from statistics import fmean
from typing import Any

import pytest

from tempopt.report.page.sections import pictures, stat_tiles
from tempopt.report.plots import PLOTS
from tempopt.report.study_result import StudyResult
from tests.report.made_study import World, make

AS_FOUND = {"contrast": 0.5, "head": 2.0}
SEARCH: dict[str, Any] = {}
for name, default_tau in AS_FOUND.items():
    ends = {"low": default_tau / 10, "high": default_tau * 2}
    SEARCH |= {f"{name}.temperature_init": ends, f"{name}.temperature_final": ends}
    SEARCH[f"{name}.schedule"] = ["constant", "linear"]


@pytest.fixture(scope="module", params=[False, True], ids=["named", "beside attention"])
def result(request: pytest.FixtureRequest) -> StudyResult:
    """A study of two named temperatures that is over."""
    temperatures = {
        name: {"value": f"{name}.tau", "as_found": temperature} for name, temperature in AS_FOUND.items()
    }
    layers = 3 if request.param else 0
    world = World(search=SEARCH, temperatures=temperatures, attends=request.param, layers=layers)
    return make(world).result()


def titles(key: str, result: StudyResult) -> list[str]:
    """Return the titles of the panels of a plot."""
    return [annotation.text for annotation in PLOTS[key](result).layout.annotations]


def temperature_names(result: StudyResult) -> list[str]:
    """Return the names of the temperatures of a study, attention's first."""
    return [*(["attention, τ"] if result.spec.attends else []), *AS_FOUND]


@pytest.mark.parametrize("key", ["schedule", "landscape"])
def test_each_temperature_has_a_panel_with_an_axis_of_its_own(key: str, result: StudyResult) -> None:
    figure = PLOTS[key](result)
    assert titles(key, result) == temperature_names(result)
    axes = [
        figure.layout[f"yaxis{index or ''}"] for index in (0, *range(2, len(temperature_names(result)) + 1))
    ]
    ranges = [axis.range for axis in axes]
    assert len(set(ranges)) == len(ranges) and all(axis.matches is None for axis in axes)


def test_baselines_of_panels_are_the_temperatures_as_found(result: StudyResult) -> None:
    lines = [trace for trace in PLOTS["schedule"](result).data if trace.name == "baseline"]
    expected = [*([1.0] if result.spec.attends else []), *AS_FOUND.values()]
    assert [line.y for line in lines] == [(level, level) for level in expected]


def test_heads_of_a_layer_that_attends_late_are_told_from_where_they_began(result: StudyResult) -> None:
    late = {
        run: {**curves, "learned/1.0": curves["learned/contrast"][5:]}
        if "learned/contrast" in curves
        else curves
        for run, curves in result.measured.items()
    }
    data = PLOTS["constant"].data(replace(result, measured=late))
    late_path = next(path for path in data.paths if path.name == "τ of layer 1, head 0")
    contrast_path = next(path for path in data.paths if path.name == "contrast")
    assert late_path.first == contrast_path.mean[5] and late_path.mean[-1] == contrast_path.mean[-1]
    assert "nan" not in data.caption()
    rows = [row for row in data.table().rows if row[1] == late_path.name]
    assert rows and all(value == value for row in rows for value in row)


def test_learned_temperatures_end_in_the_plot_where_the_verdict_says(result: StudyResult) -> None:
    assert result.verdict is not None and result.verdict.learned is not None
    data = PLOTS["constant"].data(result)
    paths_by_name = {path.name.removeprefix("τ of layer "): path for path in data.paths}
    assert paths_by_name.keys() == result.verdict.learned.ends.keys()
    for name, ends in result.verdict.learned.ends.items():
        values = [
            run[f"learned/{name}"][-1][1] for run in result.measured.values() if f"learned/{name}" in run
        ]
        mean = math.exp(fmean(map(math.log, values)))
        assert mean != pytest.approx(fmean(values), rel=1e-6)
        assert ends == pytest.approx((mean, min(values), max(values)))
        assert paths_by_name[name].mean[-1] == pytest.approx(ends[0])
    assert "in the geometric mean" in data.caption()
    # named temperatures share one axis, each relative to its baseline
    line = next(trace for trace in PLOTS["constant"].figure(data).data if trace.name == "contrast")
    assert line.y[0] == pytest.approx(paths_by_name["contrast"].mean[0] / AS_FOUND["contrast"])


def test_a_temperature_without_a_searched_end_has_no_panel_of_first_and_last() -> None:
    level = {"low": 0.2, "high": 4.0}
    search = {name: domain for name, domain in SEARCH.items() if name.startswith("contrast.")}
    two_temperatures = {
        name: {"value": f"{name}.tau", "as_found": temperature} for name, temperature in AS_FOUND.items()
    }
    world = World(
        search={"head.temperature_init": level} | search, temperatures=two_temperatures, attends=False
    )
    data = PLOTS["landscape"].data(make(world).result())
    assert (data.temperature.name, data.others) == ("contrast", ())
    assert data.caption().startswith("The temperature contrast. Each circle is a trial")
    # where none changes the diagonal is all that there is to see
    single_world = World(
        search={"head.temperature_init": level},
        temperatures={"head": two_temperatures["head"]},
        attends=False,
    )
    assert PLOTS["landscape"].data(make(single_world).result()).temperature.name == "head"


def test_no_text_speaks_of_attention_or_of_one_where_its_temperature_is_not_searched(
    result: StudyResult,
) -> None:
    all_pictures = pictures(result)
    assert ("entropy" in {picture.key for picture in all_pictures}) == result.spec.attends
    if result.spec.attends:
        return
    texts = [
        text
        for picture in all_pictures
        for text in (picture.title, picture.caption, picture.absent, json.dumps(picture.figure))
    ]
    texts += [text for tile in stat_tiles(result) for text in tile]
    texts += [column for picture in all_pictures if picture.table for column in picture.table.columns]
    for text in texts:
        assert "τ" not in text and "\\u03c4" not in text and "ttention" not in text, text
