"""A study as pandas frames and as HTML in a notebook."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tempopt
from tempopt.errors import UsageError
from tempopt.report.export import to_python, to_yaml
from tempopt.report.page.html import render_report
from tempopt.report.plots import PLOTS
from tempopt.report.study_lines import screen_lines
from tempopt.report.study_result import StudyResult, load
from tempopt.storage.opening import open_store
from tests.report.made_study import SyntheticStudy, World, make, write


@pytest.fixture(scope="module")
def synthetic_study() -> SyntheticStudy:
    return make(World(trials=8, reports=4, layers=1, heads=2))


@pytest.fixture(scope="module")
def result(synthetic_study: SyntheticStudy) -> StudyResult:
    return synthetic_study.result()


def test_the_runs_are_a_row_each_with_their_parameters(
    synthetic_study: SyntheticStudy, result: StudyResult
) -> None:
    frame = result.runs_frame()
    assert list(frame.index) == [ticket.id for ticket in synthetic_study.tickets]
    assert list(frame["kind"]) == [ticket.kind for ticket in synthetic_study.tickets]
    best = frame[frame.kind == "search"].dropna(subset="value").sort_values("value").iloc[-1]
    ticket = next(t for t in synthetic_study.tickets if t.name == best["name"])
    assert ticket.parameters is not None
    assert best["param.temperature_init"] == ticket.parameters["temperature_init"]
    assert best["value"] == ticket.value


def test_without_pandas_a_report_is_drawn_and_a_frame_is_refused(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"Run: pip install 'pandas"):
        result.curves_frame()
    assert PLOTS["history"](result).data and "<html" in render_report(result, plotlyjs="cdn")


def test_curves_and_measurements_are_a_row_each(synthetic_study: SyntheticStudy, result: StudyResult) -> None:
    reports = [measurement for measurement in synthetic_study.measurements if measurement.name == "report"]
    frame = result.curves_frame()
    assert len(frame) == len(reports)
    assert frame["value"].sum() == pytest.approx(sum(measurement.value for measurement in reports))
    measurements = result.measurements_frame()
    assert len(measurements) == len(synthetic_study.measurements) - len(reports)
    assert "entropy/0/1" in set(measurements["measurement"])
    assert list(measurements.columns)[-3:] == ["measurement", "step", "value"]


def test_frames_of_a_study_that_has_measured_nothing_are_empty(result: StudyResult) -> None:
    empty_result = replace(result, runs=(), curves={}, measured={})
    frames = (empty_result.runs_frame(), empty_result.curves_frame(), empty_result.measurements_frame())
    assert all(len(frame) == 0 and "value" in frame.columns for frame in frames)


def test_a_notebook_shows_the_verdict_and_escapes_what_people_wrote(result: StudyResult) -> None:
    section = result.spec.study.model_copy(update={"name": "<i>pairs</i>", "metric": "$x_1$"})
    html = replace(result, spec=result.spec.model_copy(update={"study": section}))._repr_html_()
    assert "&lt;i&gt;pairs&lt;/i&gt;" in html
    assert "<i>" not in html and "$" not in html
    assert "fresh seeds" in html


def test_a_result_is_exported_as_the_command_does(result: StudyResult, tmp_path: Path) -> None:
    path = tmp_path / "winner.py"
    assert result.export() == to_yaml(result)
    text = result.export(path, winner=True, format="python")
    assert path.read_text(encoding="utf-8") == text == to_python(result, winner=True)
    with pytest.raises(UsageError, match="Unknown format 'json'. Known: yaml, python."):
        result.export(format="json")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="cannot be written: .* Give another path"):
        result.export(tmp_path / "none" / "winner.yaml")


def test_a_result_is_shown_in_a_line_and_printed_in_full(result: StudyResult) -> None:
    text = repr(result)
    assert text == f"StudyResult(name='pairs', state='done', headline={screen_lines(result)[0]!r})"
    assert str(result).splitlines() == screen_lines(result)


def test_a_report_is_written_where_it_was_asked_for(
    result: StudyResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tempopt.write_report(result, plotlyjs="cdn") == Path("pairs.html")
    path = tempopt.write_report(result, tmp_path / "mine.html", plotlyjs="cdn")
    assert "<!doctype html>" in path.read_text(encoding="utf-8").lower()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.html", "pairs.html"]


def test_a_study_is_loaded_as_a_whole_only_where_that_is_asked_for(
    synthetic_study: SyntheticStudy, result: StudyResult, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path / 'tempopt.db'}"
    write(url, synthetic_study)
    loaded_result = tempopt.load_study(url, "pairs")
    assert loaded_result.curves == result.curves
    assert loaded_result.measured == result.measured
    assert sorted(run.id for run in loaded_result.runs) == sorted(run.id for run in result.runs)
    with open_store(url, create=False) as store:
        light = load(store, "pairs")
    assert light.curves == {} and light.measured == {}
    assert light.verdict == loaded_result.verdict
    assert len(light.runs) == len(loaded_result.runs)
