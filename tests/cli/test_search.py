"""What a search says when it ends, however it ends; the search itself is replaced by its outcome."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tempopt import cli
from tempopt.cli import report
from tempopt.cli import search as command
from tempopt.report import decision
from tempopt.service import studies
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.storage import urls
from tempopt.storage.opening import open_store
from tests.toy_study import toy_spec

Called = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Called:
    """Replace the search by one that notes what it was asked for and finds nothing."""
    called: Called = {}

    def load(spec: str, overrides: list[str]) -> SimpleNamespace:
        called.update(spec=spec, overrides=overrides)
        return SimpleNamespace(study=SimpleNamespace(name="pairs"), compare=None)

    def run(target: object, request: object = None, **settings: Any) -> SimpleNamespace:
        settings.pop("observer").note("a note")
        request = target if isinstance(target, SearchRequest) else request
        called.update(settings)
        if isinstance(request, SearchRequest | ResumeRequest):
            called.update({name: getattr(request, name) for name in request.__slots__ if name != "spec"})
        spec = SimpleNamespace(compare=None)
        return SimpleNamespace(
            best=called.get("best", "the best"), state=called.get("state", "done"), spec=spec
        )

    monkeypatch.setattr(command, "read_spec", load)
    monkeypatch.setattr(studies, "search", run)
    monkeypatch.setattr(studies, "resume", run)
    monkeypatch.setattr(studies, "run_agent", run)

    def screen_lines(result: object, storage: str, report: str) -> list[str]:
        return [
            "the verdict",
            f"details: tempopt show pairs{storage}",
            *([f"report: {report}"] if report else []),
        ]

    monkeypatch.setattr(decision, "screen_lines", screen_lines)
    return called


def test_the_default_storage_is_that_of_the_python_function() -> None:
    assert cli.DEFAULT_STORAGE == urls.DEFAULT_STORAGE


def test_search_hands_on_what_was_asked_and_ends_with_the_verdict(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "a.yaml", "--trials", "5", "--workers", "2", "--name", "3", "--checkpoints", "runs"]
    assert cli.main([*words, "--set", "data.root=/data", "--set", "study.seed=1"]) == 0
    assert carried_out == {
        "spec": "a.yaml",
        "overrides": ["data.root=/data", "study.seed=1", 'study.name="3"'],
        "storage": "sqlite:///tempopt.db",
        "workers": 2,
        "checkpoints": "runs",
        "trials": 5,
        "add_trials": 0,
        "enqueue": [],
        "version": None,
        "submit": False,
    }
    assert capsys.readouterr().out == ("a note\n\nthe verdict\ndetails: tempopt show pairs\n")


def test_a_search_ends_with_the_path_of_its_report_unless_none_is_wanted(
    carried_out: Called, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "write_final_report", lambda arguments, name: f"{name}.html")
    for words in (["search", "a.yaml"], ["resume", "pairs"], ["explain", "pairs"]):
        assert cli.main(words) == 0
        assert "report: pairs.html\n" in capsys.readouterr().out
    assert cli.main(["search", "a.yaml", "--no-report"]) == 0
    assert cli.main(["agent", "pairs"]) == 0
    assert "report" not in capsys.readouterr().out


def test_a_search_whose_report_cannot_be_written_has_not_failed(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["search", "a.yaml"]) == 0
    captured_output = capsys.readouterr()
    assert "the verdict" in captured_output.out and "report: " not in captured_output.out
    assert "the report could not be written" in captured_output.err
    assert "Try again: tempopt report pairs" in captured_output.err


@pytest.mark.parametrize(("best", "code"), [("the best", 0), (None, 1)])
def test_ctrl_c_while_the_report_is_written_ends_the_report_alone(
    best: str | None,
    code: int,
    carried_out: Called,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    carried_out["best"] = best
    monkeypatch.setattr(report, "write_final_report", interrupt)
    assert cli.main(["search", "a.yaml"]) == code
    captured_output = capsys.readouterr()
    assert "details: tempopt show pairs\n" in captured_output.out and "report: " not in captured_output.out
    assert "no report was written" in captured_output.err and "tempopt report pairs" in captured_output.err


def test_a_search_without_one_complete_trial_has_failed_and_offers_no_winner(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    carried_out["best"] = None
    assert cli.main(["search", "a.yaml"]) == 1
    assert "tempopt export" not in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--launcher", "local"]])
def test_an_empty_folder_for_checkpoints_is_refused(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.yaml").write_text(yaml.safe_dump(toy_spec()), encoding="utf-8")
    assert cli.main(["search", "a.yaml", "--checkpoints", "", *words]) == cli.USAGE
    assert "The folder for checkpoints is empty. Give a path" in capsys.readouterr().err
    assert not (folder / "tempopt-runs").exists()


def test_resume_needs_the_name_alone(carried_out: Called, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["resume", "pairs"]) == 0
    settings = {"storage": "sqlite:///tempopt.db", "workers": None, "checkpoints": None}
    resume_settings = {"add_trials": 0, "add_pairs": 0, "retry_failed": False, "version": None}
    assert carried_out == {**settings, **resume_settings, "explain": False}
    assert cli.main(["resume", "pairs", "--retry-failed"]) == 0
    assert carried_out["retry_failed"] is True
    assert "the verdict" in capsys.readouterr().out


def test_a_verdict_is_explained_by_a_command_of_its_own(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "pairs", "--workers", "2", "--checkpoints", "runs", "--storage", "sqlite:///x.db"]
    assert cli.main(words) == 0
    assert carried_out == {
        "storage": "sqlite:///x.db",
        "workers": 2,
        "checkpoints": "runs",
        "add_trials": 0,
        "add_pairs": 0,
        "retry_failed": False,
        "explain": True,
        "version": None,
    }
    assert "the verdict" in capsys.readouterr().out
    for options in (["--trials", "+3"], ["--pairs", "+3"], ["--retry-failed"]):
        assert cli.main(["explain", "pairs", *options]) == cli.USAGE


def test_more_trials_can_be_asked_for(carried_out: Called) -> None:
    assert cli.main(["resume", "pairs", "--trials", "+20"]) == 0
    assert carried_out["add_trials"] == 20
    assert cli.main(["search", "a.yaml", "--trials", "+3"]) == 0
    assert (carried_out["trials"], carried_out["add_trials"]) == (None, 3)


def test_more_pairs_can_be_asked_for_and_not_with_trials(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["resume", "pairs", "--pairs", "+8"]) == 0
    assert (carried_out["add_pairs"], carried_out["add_trials"]) == (8, 0)
    carried_out.clear()
    assert cli.main(["resume", "pairs", "--pairs", "+8", "--trials", "+8"]) == cli.USAGE
    assert "Give one of them." in capsys.readouterr().err
    assert carried_out == {}


def test_parameter_sets_to_try_are_read_from_a_file(carried_out: Called, folder: Path) -> None:
    (folder / "mine.yaml").write_text("- {temperature_init: 0.5}\n- {schedule: cosine}\n", encoding="utf-8")
    assert cli.main(["search", "a.yaml", "--enqueue", "mine.yaml"]) == 0
    assert carried_out["enqueue"] == [{"temperature_init": 0.5}, {"schedule": "cosine"}]


def test_an_agent_joins_and_ends_with_the_verdict(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["agent", "pairs", "--workers", "2", "--checkpoints", "s3://bucket/runs"]) == 0
    assert carried_out == {
        "storage": "sqlite:///tempopt.db",
        "workers": 2,
        "checkpoints": "s3://bucket/runs",
    }
    assert "the verdict" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["search", "a.yaml"], ["resume", "pairs"], ["agent", "pairs"]])
@pytest.mark.parametrize("state", ["paused", "running"])
def test_a_study_that_was_paused_says_how_to_go_on_and_claims_nothing(
    words: list[str], state: str, carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    carried_out["state"] = state
    assert cli.main([*words, "--storage", "sqlite:///a b.db"]) == 130
    assert capsys.readouterr().out == (
        "a note\n"
        "\n"
        "The study was paused. Everything that was reported is saved. To go on:\n"
        "  tempopt resume pairs --storage 'sqlite:///a b.db'\n"
    )


def test_the_hints_lead_to_the_same_store_without_its_password(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["search", "a.yaml", "--storage", "postgresql://me:hunter2@host/db"]) == 0
    out = capsys.readouterr().out
    assert "tempopt show pairs --storage 'postgresql://me:***@host/db'" in out
    assert "hunter2" not in out


@pytest.fixture
def interrupt_search(carried_out: Called, monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Make the search end by Ctrl-C, after it has written its study or before."""

    def arrange(is_begun: bool) -> None:
        def interrupt(spec_source: object, *, storage: str, **settings: Any) -> None:
            with open_store(storage, create=True) as store:
                if is_begun:
                    store.create_study("pairs", {"study": {"name": "pairs"}}, "0" * 64)
            raise KeyboardInterrupt

        monkeypatch.setattr(studies, "search", interrupt)

    return arrange


def test_an_interrupted_search_says_how_to_go_on(
    interrupt_search: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_search(True)
    words = [
        "search",
        "a.yaml",
        "--storage",
        "sqlite:///a b.db",
        "--checkpoints",
        "my runs",
        "--workers",
        "2",
    ]
    assert cli.main(words) == 130
    assert capsys.readouterr().out.endswith(
        "Interrupted. Everything that was reported is saved. To go on:\n"
        "  tempopt resume pairs --storage 'sqlite:///a b.db' --checkpoints 'my runs' --workers 2\n"
    )


def test_a_search_that_was_interrupted_before_it_began_does_not_offer_to_resume(
    interrupt_search: Callable[[bool], None], capsys: pytest.CaptureFixture[str]
) -> None:
    interrupt_search(False)
    assert cli.main(["search", "a.yaml"]) == 130
    assert "nothing was written" in capsys.readouterr().out
