"""``tempopt agent --any`` on the command line: what it refuses, what it prints, and its exit code."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt import cli
from tempopt.agent import any_agent
from tempopt.agent.study_creation import ensure_study_exists
from tempopt.service.extend import extend_for_search
from tempopt.service.requests import SearchRequest
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tests.toy_study import SMALL, TOYS, begin, toy_spec


@pytest.fixture(autouse=True)
def speed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_agent, "LOOK_SECONDS", 0.05)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["toy", "--any"], "Give either the name of a study"),
        ([], "Give either the name of a study"),
        (["toy", "--until-idle"], "--until-idle is for an agent of every study"),
        (["--any", "--token-file", "a"], "--token-file is for a server"),
        (["--any", "--server", "http://127.0.0.1:1", "--storage", "sqlite:///a.db"], "Give one of them"),
        (["--any", "--server", "http://127.0.0.1:1", "--checkpoints", "runs"], "Leave out --checkpoints"),
        (["--any", "--until-idle", "0"], '"0" is not a number of seconds'),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["agent", *words]) == cli.USAGE_EXIT_CODE
    assert message in " ".join(capsys.readouterr().err.split())


def test_it_ends_well_when_no_study_is_unfinished(capsys: pytest.CaptureFixture[str]) -> None:
    open_store("sqlite:///tempopt.db").close()
    assert cli.main(["agent", "--any", "--until-idle"]) == cli.EXIT_OK
    serves, end = capsys.readouterr().out.splitlines()
    assert "Serves every study of sqlite:///" in serves and "No run is left to begin." in end


def test_an_empty_database_has_no_study_yet_and_a_missing_file_is_refused(folder: Path) -> None:
    command = ["agent", "--any", "--until-idle", "0.2", "--storage", "sqlite:///first.db"]
    assert cli.main(command) == cli.USAGE_EXIT_CODE and not (folder / "first.db").exists()
    (folder / "first.db").touch()
    assert cli.main(command) == cli.EXIT_OK
    with open_store("sqlite:///first.db", create=False) as store:
        assert store.list_studies() == []


def test_an_unfinished_study_that_failed_here_is_named_and_in_the_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = {"class_path": "elsewhere.Toy"}
    with open_store("sqlite:///tempopt.db") as store:
        spec = StudySpec.parse(toy_spec(**SMALL) | {"model": model}, source="the test")
        ensure_study_exists(store, spec, None, checkpoints=str(Path("runs").absolute()))
    assert cli.main(["agent", "--any", "--until-idle", "0.2", "--workers", "1"]) == cli.EXIT_FAILED
    stdout = capsys.readouterr().out
    assert "Skips toy for 15 s: model.class_path: " in stdout and "elsewhere" in stdout
    assert stdout.rstrip().endswith("Not done, failed on this machine: toy.")


def test_a_study_that_is_submitted_again_gets_its_new_priority(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(TOYS)
    with open_store("sqlite:///tempopt.db") as store:
        begin(store, "toy")
        spec = StudySpec.parse(toy_spec(name="toy", **SMALL, priority=7), source="the test")
        extend_for_search(store, SearchRequest(spec=spec))
        assert [study.priority for study in store.open_studies()] == [7]
