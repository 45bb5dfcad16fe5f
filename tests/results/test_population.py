"""Who went on from whom, as a study says it: beside the schedules that were trained, whatever happened."""

from __future__ import annotations

import dataclasses
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from tempopt.cli import main
from tempopt.records.rows import TicketRow
from tempopt.report.page.sections import sections, tiles
from tempopt.report.plots import PLOTS, history_data, population_data
from tempopt.report.plots.style import DARK
from tempopt.results import study_result
from tempopt.results.population import Member, ancestry, latest, lineage
from tempopt.results.study_result import StudyResult
from tempopt.store.store import Store
from tempopt.study.api import search
from tempopt.study.progress import outcome
from tempopt.temperature import TemperatureParameters
from tests import fake_worker
from tests.agent.test_population import ENDS, MEMBERS, spec
from tests.toy_study import URL, Watcher, begun, searched, work_in

TRIALS = MEMBERS * len(ENDS)


def loaded() -> StudyResult:
    with Store.open(URL, create=False) as store:
        return study_result.load(store, "toy", whole=True)


def temperature(run: TicketRow, progress: float) -> float:
    """Return what a run is trained at, by its parameters."""
    return TemperatureParameters.from_mapping(run.parameters or {}).plan(1).schedule(progress)


def inherits(result: StudyResult, members: list[Member]) -> None:
    """Check each parent by the schedules: all knots but the last are its own."""
    ends = (0.0, *ENDS)
    for each in members:
        interval = each.place.interval
        there = tuple(temperature(each.run, ends[interval + step]) for step in (0, 1))
        assert each.taus == pytest.approx(there)
        if interval == 0:
            assert each.parent is None
            continue
        assert each.parent is not None
        for place in range(20):
            progress = ends[interval] * place / 19
            assert temperature(each.run, progress) == pytest.approx(temperature(each.parent, progress))
        before = each.parent.number % TRIALS // MEMBERS
        assert (before, each.parent.number // TRIALS) == (interval - 1, each.run.number // TRIALS)
        assert each.took_over == (each.parent.number % MEMBERS != each.run.number % MEMBERS)
    assert {each.run.number for each in members} == {r.number for r in result.runs if r.kind == "search"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a study with two populations was carried out."""
    found = tmp_path_factory.mktemp("two")
    with pytest.MonkeyPatch.context() as patch:
        fake_worker.install(patch)
        work_in(found, patch)
        search(spec(trials=2 * TRIALS), storage=URL, workers=1)
    return found


@pytest.fixture
def two(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StudyResult:
    """The study with two populations, in the current folder."""
    monkeypatch.chdir(folder)
    return loaded()


def test_parents_are_those_whose_schedules_are_gone_on_with(two: StudyResult) -> None:
    members = lineage(two.runs, two.spec)
    inherits(two, members)
    assert any(each.took_over for each in members)
    # all populations have the one seed of the search
    assert len({each.run.seed for each in members}) == 1
    # with another number of forks it is the same
    alone = [dataclasses.replace(run, forked_from=None, forked_at=None) for run in two.runs]
    assert [each.parent and each.parent.number for each in lineage(alone, two.spec)] == [
        each.parent and each.parent.number for each in members
    ]
    told = two.to_json()["population"]
    assert json.loads(json.dumps(told)) == told
    by_name = {each["run"]: each for each in told["runs"]}
    assert len(by_name) == 2 * TRIALS
    for each in members:
        row = by_name[each.run.name]
        assert row["parent"] == (each.parent and each.parent.name)
        assert (row["population"], row["interval"], row["member"]) == tuple(
            1 + number for number in (each.place.population, each.place.interval, each.place.member)
        )


def test_a_trial_that_was_lost_and_trained_again_since_makes_nobody_anothers_child(two: StudyResult) -> None:
    members = lineage(two.runs, two.spec)
    luck = random.Random(0)
    for _ in range(20):
        # the values are others now, the schedules are those that were tried
        changed = [
            dataclasses.replace(run, value=luck.random())
            if run.kind == "search" and run.outcome == "pruned"
            else run
            for run in two.runs
        ]
        assert [each.parent and each.parent.number for each in lineage(changed, two.spec)] == [
            each.parent and each.parent.number for each in members
        ]


def test_the_ancestry_of_the_winner_is_said_in_one_line(
    two: StudyResult, capsys: pytest.CaptureFixture[str]
) -> None:
    assert two.winner is not None
    line = ancestry(lineage(two.runs, two.spec), two.winner, two.spec)
    assert [each.place.interval for each in line] == list(range(len(ENDS)))
    assert line[-1].run.parameters == two.winner
    assert [each.parent for each in line[1:]] == [each.run for each in line[:-1]]
    main(["show", "toy", "--storage", URL])
    [said] = [text for text in capsys.readouterr().out.splitlines() if "lineage of the winner" in text]
    assert all(f"search {each.run.number} (member {each.place.member + 1};" in said for each in line)
    assert ("taken over" in said) == any(each.took_over for each in line)


def test_show_has_a_row_for_each_member_and_interval(
    two: StudyResult, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["show", "toy", "--storage", URL])
    out = capsys.readouterr().out
    assert "of 2: 4 members, 3 intervals, which end at 21.1 %, 52.6 % and 100 % of training" in out
    rows = [line.split() for line in out.splitlines() if " search " in line and line.lstrip()[0].isdigit()]
    assert [(row[0], row[1]) for row in rows] == [
        (str(interval), str(member)) for interval in (1, 2, 3) for member in (1, 2, 3, 4)
    ]
    members = {str(each.run.number): each for each in lineage(two.runs, two.spec)}
    for row in rows:
        each, end = members[row[3]], " ".join(row[6:])
        if each.parent is None:
            assert end == "begins"
        elif each.took_over:
            assert end == f"took over search {each.parent.number} (member {each.parent.number % MEMBERS + 1})"
        else:
            assert end == f"continues search {each.parent.number}"


def test_a_narrow_terminal_cuts_off_no_member_that_was_taken_over(
    two: StudyResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "72")
    main(["show", "toy", "--storage", URL])
    _, table = capsys.readouterr().out.split("goes on from", 1)
    table = table.split("\n\n", 1)[0]
    assert table.count("took over") and "…" not in table
    assert table.count("(member") == table.count("took over")


def test_a_population_that_trains_says_how_far_it_is_and_nothing_is_pruned(
    fake_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    begun(spec(), when=searched(2 * MEMBERS))
    result = loaded()
    over = [r for r in result.runs if r.kind == "search" and r.outcome == "pruned"]
    assert len(over) == 2 * MEMBERS
    now = latest(result.runs, result.spec)
    assert now is not None and now.best is not None
    assert (now.now, now.after) == ("interval 3 of 3", "interval 2 of 3")
    values = [run.value for run in over if run.number >= MEMBERS and run.value is not None]
    assert now.best.value == min(values)
    main(["show", "toy", "--storage", URL])
    out = capsys.readouterr().out
    assert "Interval 3 of 3: no member has trained to its end yet." in out
    assert f"best after interval 2 (step 13): val_loss {min(values):.4g}, search {now.best.number}" in out
    assert "8 ended with an interval" in out and "pruned" not in out
    assert outcome(over[0], result.spec) == f"ended at step 5 (interval 1), {over[0].value:.4g}"
    assert ("search trials", "8", "4 members in 3 intervals") in tiles(result)
    shown = history_data(result)
    assert [each.interval for each in shown.trials] == [1] * MEMBERS + [2] * MEMBERS
    assert {row[1] for row in shown.table().rows} == {"interval 1, step 5", "interval 2, step 13"}
    # none of an earlier interval is before one of a later
    assert [each.interval for each in shown.ranked()] == [2] * MEMBERS + [1] * MEMBERS
    assert "best so far" not in {trace.name for trace in PLOTS["history"](result).data}


def test_the_report_has_the_population_in_place_of_pruning(two: StudyResult) -> None:
    found = {each.key: each for each in sections(two, "")}
    assert "pruning" not in found
    [picture] = found["population"].pictures
    assert picture.figure and "Search" not in picture.absent
    data = population_data(two)
    assert "not comparable" in data.caption() and "ineage of the winner" in data.caption()
    figure = PLOTS["population"](two)
    assert set(re.findall(r"#[0-9a-f]{6}\b", figure.to_json().split('"template"')[0])) <= set(DARK)
    marks = next(trace for trace in figure.data if trace.mode == "markers")
    assert len(marks.x) == TRIALS and list(marks.y) == [each.value for each in data.members]
    lines = {trace.name: trace for trace in figure.data if trace.mode == "lines"}
    # a line from each parent to its child
    ends = {
        (trace.x[i], trace.y[i], trace.y[i + 1])
        for trace in lines.values()
        for i in range(0, len(trace.x), 3)
    }
    before = {each.run.number: data.ends[each.place.interval] for each in data.members}
    assert ends == {
        (before[each.parent.number], each.parent.value, each.value) for each in data.members if each.parent
    }


def test_progress_lines_say_the_interval(fake_workers: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["search", _written(), "--storage", URL, "--workers", "1"])
    err = "".join(capsys.readouterr())
    for number in range(2 * MEMBERS):
        interval, step = (1, 5) if number < MEMBERS else (2, 13)
        assert f"search {number}: ended at step {step} (interval {interval}), " in err
    assert "pruned" not in err


def _written() -> str:
    Path("spec.yaml").write_text(json.dumps(spec()))
    return "spec.yaml"


def test_the_best_so_far_is_of_the_latest_interval_that_all_are_through(fake_workers: None) -> None:
    seen: list[tuple[int, str | None, str | None, bool]] = []

    class Seen(Watcher):
        def update(self, snapshot: Any) -> None:
            done = snapshot.done["search"]
            seen.append((done, snapshot.at_interval, snapshot.interval, snapshot.best is not None))

    search(spec(), storage=URL, workers=1, observer=Seen())
    for done, now, at, known in seen:
        interval = min(done // MEMBERS, 2)
        if now is not None:
            assert now == f"interval {interval + 1} of 3"
        # from the first whole run on it is that of whole runs
        assert at == (f"interval {interval} of 3" if 0 < interval and done <= 2 * MEMBERS else None)
        assert known == (interval > 0)
