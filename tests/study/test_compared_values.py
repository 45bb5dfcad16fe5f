"""Studies that compare values, in a database: the same whoever carries them out, and how they grow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tempopt.cli import main
from tempopt.errors import StudyChanged, UsageError
from tempopt.store.store import Store
from tempopt.study.api import load_study, resume, search
from tests.toy_study import (
    FAKED,
    URL,
    Ended,
    Watcher,
    begun,
    ended,
    facts,
    same,
    searched,
    tickets,
    toy_spec,
    undisturbed_study,
)

SPACE = {
    "dropout": [0.2, 0.0, 0.4],
    "lr": {"low": 0.001, "high": 0.1, "log": True},
    "temperature_init": {"low": 0.25, "high": 4.0},
}
VALUES = ["dropout=0.0", "dropout=0.2", "dropout=0.4"]

pytestmark = pytest.mark.usefixtures("fake_workers")


def spec_of_values(**study: Any) -> dict[str, Any]:
    seeds = {"choose": 2, "confirm": {"min": 2, "max": 4}}
    spec = toy_spec(space=SPACE, **{"compare": "dropout", "trials": 12, "seeds": seeds, **study})
    del spec["study"]["arms"]
    return spec


def small(**study: Any) -> dict[str, Any]:
    """Return a study that searches at random, which takes no time to decide."""
    seeds = {"choose": 1, "confirm": 3}
    return spec_of_values(**{"sampler": "random", "pruner": "none", "trials": 9, "seeds": seeds, **study})


@pytest.fixture(scope="module")
def undisturbed_values(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    from tests import fake_worker

    with pytest.MonkeyPatch.context() as patch:
        fake_worker.install(patch)
        return undisturbed_study(tmp_path_factory.mktemp("values"), spec_of_values)


def test_a_study_comes_to_a_recommended_value(undisturbed_values: Ended) -> None:
    result = undisturbed_values.result
    assert result.state == "done" and result.verdict is None and result.comparison is None
    assert [each.name for each in result.values_compared.values] == VALUES  # type: ignore[union-attr]
    assert {run.kind for run in result.runs} == {"search", "choose", "confirm"}
    assert {run.arm for run in result.runs if run.kind != "search"} == set(VALUES)


@pytest.mark.parametrize("kind", ["search", "choose", "confirm"])
def test_a_study_that_is_left_at_any_stage_goes_on_to_the_same_end(
    kind: str, undisturbed_values: Ended
) -> None:
    begun(spec_of_values(), when=lambda snapshot: snapshot.done[kind] >= 1)
    assert facts() != undisturbed_values.facts
    assert same(ended(resume("toy", storage=URL, workers=2)), undisturbed_values)


def test_agents_of_several_workers_decide_alike(undisturbed_values: Ended) -> None:
    assert same(ended(search(spec_of_values(), storage=URL, workers=3)), undisturbed_values)


@pytest.mark.long
def test_two_agents_at_once_decide_alike(undisturbed_values: Ended, tmp_path: Path) -> None:
    program = FAKED + f"from tempopt.study.api import join\njoin('toy', storage={URL!r}, workers=2)\n"
    others: list[subprocess.Popen[bytes]] = []

    def another() -> None:
        others.append(subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path))

    search(spec_of_values(), storage=URL, workers=1, observer=Watcher(searched(1), another))
    assert others[0].wait(timeout=240) == 0
    assert same(ended(load_study(URL, "toy")), undisturbed_values)


def test_pairs_are_added_to_the_comparison() -> None:
    search(small(), storage=URL, workers=2)
    before = len(tickets())
    notes = Watcher()
    result = resume("toy", storage=URL, workers=2, pairs=4, observer=notes)
    assert len(tickets()) == before + 3 * 4
    found = result.values_compared
    assert found is not None and (found.round, found.looks) == (1, 2)
    assert {each.runs for each in found.values} == {7}
    assert any("0.5 % of the 5 %" in note for note in notes.notes)


def test_trials_are_added_to_every_value() -> None:
    search(small(), storage=URL, workers=2)
    result = resume("toy", storage=URL, workers=2, more=6)
    added = [run for run in result.runs if run.kind == "search" and run.round == 1]
    assert sorted((run.parameters or {})["dropout"] for run in added) == [0.0, 0.0, 0.2, 0.2, 0.4, 0.4]
    assert result.values_compared is not None and result.values_compared.round == 1


def test_the_rest_of_the_space_can_be_amended_and_the_values_cannot() -> None:
    search(small(), storage=URL, workers=2)
    with pytest.raises(StudyChanged, match="compares the values of dropout, which it was begun with"):
        resume("toy", storage=URL, amend=["search.dropout=[0.0, 0.2]"])
    result = resume("toy", storage=URL, workers=2, amend=["search.lr={low: 0.001, high: 0.5, log: true}"])
    assert result.values_compared is not None and result.values_compared.round == 1
    added = [run for run in result.runs if run.kind == "search" and run.round == 1]
    # half as many as there were
    assert [(run.parameters or {})["dropout"] for run in added] == [0.0, 0.2, 0.4, 0.0, 0.2]


def test_parameter_sets_cannot_be_added() -> None:
    search(small(), storage=URL, workers=2)
    with pytest.raises(UsageError, match="each of which searches by itself"):
        search(small(), storage=URL, enqueue=[{"lr": 0.01}])


def test_fewer_pairs_than_all_comparisons_need_together_are_refused_for_another_verdict() -> None:
    # a second verdict may spend half a percent, a third of it on each of three comparisons: 2^(1 - 11)
    seeds = {"choose": 1, "confirm": 10}
    search(small(test="sign_flip", seeds=seeds), storage=URL, workers=2)
    with pytest.raises(UsageError, match=r"takes 11 pairs"):
        resume("toy", storage=URL, more=3)


def test_a_search_that_is_stopped_confirms_what_it_has_found() -> None:
    def stop() -> None:
        with Store.open(URL) as store:
            store.withdraw(store.load_study("toy").id, ["search"])

    result = search(small(), storage=URL, workers=1, observer=Watcher(searched(7), stop))
    assert result.state == "done" and result.values_compared is not None
    assert any(t.state == "withdrawn" for t in tickets())
    assert [each.name for each in result.values_compared.values] == VALUES


def test_the_command_line_shows_and_exports_the_recommended_value(capsys: pytest.CaptureFixture[str]) -> None:
    search(small(), storage=URL, workers=2)
    assert main(["show", "toy", "--storage", URL]) == 0
    shown = capsys.readouterr().out
    assert "take dropout=" in shown and "baseline" not in shown
    assert main(["export", "toy", "--storage", URL]) == 0
    assert "dropout:" in capsys.readouterr().out
