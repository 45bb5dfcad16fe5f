"""What is told of a store that holds a study in the middle of its search, and of one that holds none."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.store.rows import NewTicket, Outcomes
from tempopt.store.store import Store
from tempopt.study.spec import StudySpec

URL = "sqlite:///tempopt.db"
SPEC = {
    "study": {"name": "pairs", "metric": "val_accuracy", "direction": "maximize", "trials": 3},
    "model": {"class_path": "package.module.Model", "init_args": {"d_model": 8}},
    "data": {"class_path": "package.module.Data"},
    "trainer": {"max_steps": 10},
    "search": {"temperature_init": {"low": 0.25, "high": 4.0, "log": True}},
}
DONE = [("unit", {}, 0.60), ("unit", {}, 0.62), ("search", {"temperature_init": 2.5}, 0.71239)]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def begun() -> Iterator[None]:
    """Write a study with two runs of τ = 1 and one of three search tickets done."""
    spec = StudySpec.parse(SPEC, source="the test")
    with Store.open(URL, create=True) as store:
        study = store.create_study("pairs", spec.to_json(), spec.identity())
        counts = {"unit": 2, "search": 3}
        tickets = [NewTicket(kind=k, arm=k, number=i, seed=i) for k, n in counts.items() for i in range(n)]
        store.add_tickets(study.id, tickets)
        for kind, parameters, value in DONE:
            ticket = store.take_ticket(study.id, "here:1", kinds=[kind])
            assert ticket is not None
            trial = ticket.number if kind == "search" else None
            store.set_parameters(ticket.id, ticket.attempt, parameters, trial)
            outcomes = Outcomes(outcome="complete", value=value, steps=10, seconds=2.0)
            store.finish(ticket.id, ticket.attempt, outcomes)
    yield


@pytest.mark.usefixtures("begun")
def test_list_has_a_line_for_each_study(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["study", "state", "metric", "direction", "tickets", "done", "begun", "(UTC)"]
    assert line.split()[:5] == ["pairs", "running", "val_accuracy", "maximize", "3/5"]


@pytest.mark.usefixtures("begun")
def test_list_as_json_is_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["list", "--json"]) == 0
    (told,) = json.loads(capsys.readouterr().out)
    assert told.pop("created").count(":") >= 2
    assert told == {
        "study": "pairs",
        "metric": "val_accuracy",
        "direction": "maximize",
        "state": "running",
        "tickets": {"requested": 5, "waiting": 2, "running": 0, "done": 3, "failed": 0},
    }


def test_an_empty_store_says_that_it_is_empty(capsys: pytest.CaptureFixture[str]) -> None:
    Store.open(URL, create=True).close()
    assert cli.main(["list"]) == 0
    assert capsys.readouterr().out == "No study in sqlite:///tempopt.db yet.\n"
    assert cli.main(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("words", [["list"], ["show", "pairs"], ["export", "pairs"], ["resume", "pairs"]])
def test_a_store_that_is_not_there_is_told_and_not_made(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    assert "tempopt.db" in capsys.readouterr().err
    assert list(folder.iterdir()) == []


@pytest.mark.usefixtures("begun")
def test_show_tells_how_far_a_study_is_and_claims_nothing_yet(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pairs"]) == 0
    out = capsys.readouterr().out
    rows = {line.split("  ")[0]: line.split() for line in out.splitlines()}
    assert rows["search"] == ["search", "3", "1", "0", "2", "0"]
    assert "τ = 1 during the search: 0.61 ± 0.01414 (2 runs)" in out
    assert "No verdict yet" in out


@pytest.mark.usefixtures("begun")
def test_show_as_json_has_the_documented_keys(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["show", "pairs", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    keys = [
        "study",
        "metric",
        "direction",
        "state",
        "tickets",
        "trials",
        "baseline",
        "best",
        "verdict",
        "cost",
    ]
    assert list(told) == keys
    assert told["best"] == {"number": 0, "value": 0.71239, "params": {"temperature_init": 2.5}}
    assert told["verdict"] is None


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize("command", ["show", "export", "resume"])
def test_a_name_that_is_not_in_the_store_is_told_the_nearest(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([command, "pears"]) == 2
    assert 'Unknown study "pears". Did you mean "pairs"?' in capsys.readouterr().err


@pytest.mark.usefixtures("begun")
def test_export_writes_a_file_or_prints(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", "pairs"]) == 0
    printed = capsys.readouterr().out
    assert "temperature_init: 2.5" in printed
    assert cli.main(["export", "pairs", "-o", "best.yaml"]) == 0
    assert (folder / "best.yaml").read_text(encoding="utf-8") == printed
    assert cli.main(["export", "pairs", "--format", "python", "--output", "best.py"]) == 0
    compile((folder / "best.py").read_text(encoding="utf-8"), "best.py", "exec")


_RUN_AND_LIST = """
import json, sys
from tempopt.cli import main
code = main(sys.argv[1:])
print(json.dumps([code, sorted({name.partition(".")[0] for name in sys.modules})]), file=sys.stderr)
"""


@pytest.mark.usefixtures("begun")
@pytest.mark.parametrize(
    "words", [["list"], ["show", "pairs"], ["show", "pairs", "--json"], ["export", "pairs"]], ids=" ".join
)
def test_looking_loads_neither_torch_nor_lightning(words: list[str]) -> None:
    runner = [sys.executable, "-c", _RUN_AND_LIST, *words]
    done = subprocess.run(runner, capture_output=True, text=True, check=True)
    code, loaded = json.loads(done.stderr.splitlines()[-1])
    assert code == 0
    assert not {"torch", "lightning", "torchmetrics", "jsonargparse"} & set(loaded)
