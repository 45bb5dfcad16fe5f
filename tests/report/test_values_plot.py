"""Compared values in the report and in the note of the dashboard."""

from __future__ import annotations

import random
from statistics import fmean
from typing import Any

import pytest

from tempopt.errors import NothingToPlot
from tempopt.records.rows import TicketRow
from tempopt.report.dashboard.note import written
from tempopt.report.headline import answer, in_short, verdict, what_to_do
from tempopt.report.page.html import render_report
from tempopt.report.page.sections import sections, tiles
from tempopt.report.plots import PLOTS, ComparedShown
from tempopt.results.study_result import StudyResult
from tests.simulated import Simulated
from tests.specs import make


@pytest.fixture(scope="module")
def make_result(result_of: Any) -> Any:
    spec = make(
        search={"num_heads": [1, 2, 4], "lr": {"low": 0.1, "high": 1.0}},
        study__compare="num_heads",
        study__trials=9,
        study__seeds={"choose": 2, "confirm": 6},
    )

    def worth(ticket: TicketRow) -> float:
        own = (ticket.parameters or {})["num_heads"]
        return 0.5 + 0.2 * (own > 1) + random.Random(f"{ticket.seed} {own}").gauss(0, 0.01)

    def made(*, searched: bool = False) -> StudyResult:
        study = Simulated(spec, worth)
        study.search()
        if not searched:
            study.run()
        found: StudyResult = result_of(spec, study.rows, state="running" if searched else "done")
        return found

    return made


def test_each_two_values_are_drawn_with_their_seeds_and_their_interval(make_result: Any) -> None:
    result = make_result()
    data = PLOTS["differences"].data(result)
    assert isinstance(data, ComparedShown) and data.reference is None
    assert [(each.name, each.shown) for each in data.variants] == [
        ("num_heads=2 − num_heads=1", True),
        ("num_heads=4 − num_heads=1", True),
        ("num_heads=4 − num_heads=2", False),
    ]
    for each, pair in zip(data.variants, result.values_compared.pairs, strict=True):
        own, other = (
            [run.value for run in result.runs if (run.kind, run.arm) == ("confirm", arm)]
            for arm in (pair.name, pair.reference)
        )
        expected = [one - two for one, two in zip(own, other, strict=True)]
        assert [gain for _, gain in each.pairs] == pytest.approx(expected)
        assert each.gain == pytest.approx(fmean(expected))
        assert (each.ci_low, each.ci_high) == (pair.answer.paired.ci_low, pair.answer.paired.ci_high)
    assert data.caption().endswith("They hold together: the comparisons share the error rate.")
    assert len(data.table().rows) == 3 + 3 * 6
    assert PLOTS["differences"](result).layout.xaxis.title.text == "gain in val_accuracy"


def test_before_they_are_confirmed_there_is_nothing_to_draw(make_result: Any) -> None:
    with pytest.raises(NothingToPlot, match="have not been compared"):
        PLOTS["differences"].data(make_result(searched=True))


def test_the_report_leads_with_the_recommended_value_and_shows_no_temperature_plots(make_result: Any) -> None:
    result = make_result()
    assert answer(result) == "Difference shown" and in_short(result) == "take num_heads=2"
    assert verdict(result)[0].startswith("Take num_heads=2, the smallest value of which no other")
    assert what_to_do(result).startswith("Train with ") and "num_heads=2" in what_to_do(result)
    found = {section.key: section for section in sections(result, "")}
    assert list(found) == ["confirmation", "use", "history", "importance", "pruning", "cost", "reproduce"]
    assert any("num_heads: 2" in code.text for code in found["use"].codes)
    shown = [name for name, *_ in tiles(result)]
    assert shown[:4] == ["recommended", "num_heads=1", "num_heads=2", "num_heads=4"]
    assert "Take num_heads=2" in render_report(result)


def test_the_report_of_a_search_that_goes_on_can_be_read(make_result: Any) -> None:
    result = make_result(searched=True)
    assert answer(result) == "No verdict yet" and in_short(result) == what_to_do(result) == ""
    page = render_report(result)
    assert "The values have not been compared on fresh seeds yet." in page


def test_the_note_says_which_value_is_recommended(make_result: Any) -> None:
    note = written(make_result())
    found, used = (note.index(text) for text in ("take num", "What is recommended"))
    assert found < used
    assert "| num\\_heads | 2 |" in note
