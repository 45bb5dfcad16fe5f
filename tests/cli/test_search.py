"""What a search says when it ends, however it ends; the search itself is replaced by its outcome."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tempopt import cli
from tempopt.agent.observer import Observer
from tempopt.cli import report
from tempopt.cli import search as command
from tempopt.report import study_lines
from tempopt.service import studies
from tempopt.service.requests import ResumeRequest, SearchRequest
from tempopt.service.studies import RunOptions
from tempopt.storage.opening import open_store
from tests.cli.conftest import SECRET, holds_no_password
from tests.toy_study import toy_spec

Called = dict[str, Any]
URL = "sqlite:///tempopt.db"


@pytest.fixture
def carried_out(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Called:
    """Replace the search by one that notes what it was asked for and finds nothing."""
    called: Called = {}

    def load(spec: str, overrides: list[str]) -> SimpleNamespace:
        called.update(spec=spec, overrides=overrides)
        return SimpleNamespace(study=SimpleNamespace(name="pairs"), compare=None)

    def run(request: SearchRequest | ResumeRequest, options: RunOptions, observer: Observer) -> Any:
        observer.note("a note")
        called.update(request=request, options=options)
        best, state = called.get("best", "the best"), called.get("state", "done")
        spec = SimpleNamespace(compare=None, counts_failures=False)
        return SimpleNamespace(best=best, state=state, spec=spec, verdict=None)

    def run_agent(name: str, *, observer: Observer, **options: Any) -> Any:
        return run(ResumeRequest(study=name), RunOptions(**options), observer)

    monkeypatch.setattr(command, "read_spec", load)
    monkeypatch.setattr(studies, "carry_out", run)
    monkeypatch.setattr(studies, "run_agent", run_agent)

    def screen_lines(result: object, storage: str, report: str) -> list[str]:
        return [
            "the verdict",
            f"details: tempopt show pairs{storage}",
            *([f"report: {report}"] if report else []),
        ]

    monkeypatch.setattr(study_lines, "screen_lines", screen_lines)
    return called


def test_search_hands_on_what_was_asked_and_ends_with_the_verdict(
    carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search", "a.yaml", "--trials", "5", "--workers", "2", "--name", "3", "--checkpoints", "runs"]
    assert cli.main([*words, "--set", "data.root=/data", "--set", "study.seed=1"]) == 0
    assert carried_out["spec"] == "a.yaml"
    assert carried_out["overrides"] == ["data.root=/data", "study.seed=1", 'study.name="3"']
    assert carried_out["options"] == RunOptions(storage=URL, workers=2, checkpoints="runs")
    assert carried_out["request"].trials == 5
    assert capsys.readouterr().out == ("a note\n\nthe verdict\ndetails: tempopt show pairs\n")


def test_a_search_ends_with_the_path_of_its_report_unless_none_is_wanted(
    carried_out: Called, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(report, "write_final_report", lambda url, name: f"{name}.html")
    for words in (["search", "a.yaml"], ["resume", "pairs"], ["explain", "pairs"]):
        assert cli.main(words) == 0
        assert "report: pairs.html\n" in capsys.readouterr().out
    assert cli.main(["search", "a.yaml", "--no-report"]) == 0
    assert cli.main(["agent", "pairs"]) == 0
    assert "report" not in capsys.readouterr().out


@pytest.mark.parametrize(("best", "code"), [("the best", 0), (None, 1)])
@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(f"at postgresql://me:{SECRET}@host/db")])
def test_what_ends_the_report_ends_the_report_alone(
    error: BaseException,
    best: str | None,
    code: int,
    carried_out: Called,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object) -> None:
        raise error

    carried_out["best"] = best
    monkeypatch.setattr(report, "write_final_report", fail)
    assert cli.main(["search", "a.yaml"]) == code
    out, err = capsys.readouterr()
    assert "details: tempopt show pairs\n" in out and "report: " not in out and "tempopt export" not in out
    assert "tempopt report pairs" in err
    holds_no_password(err)


@pytest.mark.parametrize("words", [[], ["--launcher", "local"]])
def test_an_empty_folder_for_checkpoints_is_refused(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "a.yaml").write_text(yaml.safe_dump(toy_spec()), encoding="utf-8")
    assert cli.main(["search", "a.yaml", "--checkpoints", "", *words]) == cli.USAGE_EXIT_CODE
    assert "The folder for checkpoints is empty. Give a path" in capsys.readouterr().err
    assert not (folder / "tempopt-runs").exists()


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (["resume", "pairs"], {}),
        (["resume", "pairs", "--retry-failed"], {"retry_failed": True}),
        (["resume", "pairs", "--trials", "+20"], {"add_trials": 20}),
        (["resume", "pairs", "--pairs", "+8"], {"add_pairs": 8}),
        (["explain", "pairs"], {"explain": True}),
        (["agent", "pairs"], {}),
    ],
)
def test_a_study_is_continued_and_extended_by_its_name(
    words: list[str], changes: dict[str, Any], carried_out: Called, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 0
    assert carried_out["request"] == ResumeRequest(study="pairs", **changes)
    assert carried_out["options"] == RunOptions(storage=URL)
    assert "the verdict" in capsys.readouterr().out
    options: dict[str, Any] = {"storage": "sqlite:///x.db", "workers": 2, "checkpoints": "s3://bucket/runs"}
    assert cli.main([*words, *(word for name in options for word in (f"--{name}", str(options[name])))]) == 0
    assert carried_out["options"] == RunOptions(**options)


@pytest.mark.parametrize(
    "words",
    [
        ["resume", "pairs", "--pairs", "+8", "--trials", "+8"],
        ["explain", "pairs", "--trials", "+3"],
        ["explain", "pairs", "--retry-failed"],
    ],
)
def test_one_extension_is_requested_at_a_time(words: list[str], carried_out: Called) -> None:
    assert cli.main(words) == cli.USAGE_EXIT_CODE
    assert not carried_out


def test_parameter_sets_to_try_are_read_from_a_file(carried_out: Called, folder: Path) -> None:
    (folder / "mine.yaml").write_text("- {temperature_init: 0.5}\n- {schedule: cosine}\n", encoding="utf-8")
    assert cli.main(["search", "a.yaml", "--enqueue", "mine.yaml"]) == 0
    assert carried_out["request"].enqueue == [{"temperature_init": 0.5}, {"schedule": "cosine"}]


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
        "The study was paused. Everything that was reported is saved. To continue:\n"
        "  tempopt resume pairs --storage 'sqlite:///a b.db'\n"
    )


@pytest.mark.parametrize("is_begun", [True, False])
def test_an_interrupted_search_says_how_to_go_on_if_it_has_begun(
    is_begun: bool, carried_out: Called, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(request: object, options: RunOptions, observer: object) -> None:
        with open_store(str(options.storage), create=True) as store:
            if is_begun:
                store.create_study("pairs", {"study": {"name": "pairs"}}, "0" * 64)
        raise KeyboardInterrupt

    monkeypatch.setattr(studies, "carry_out", interrupt)
    words = ["search", "a.yaml", "--storage", "sqlite:///a b.db", "--checkpoints", "my runs"]
    assert cli.main([*words, "--workers", "2"]) == 130
    out = capsys.readouterr().out
    resume = "  tempopt resume pairs --storage 'sqlite:///a b.db' --checkpoints 'my runs' --workers 2\n"
    hint = f"Interrupted. Everything that was reported is saved. To continue:\n{resume}"
    assert out.endswith(hint) if is_begun else "nothing was written" in out and "resume" not in out
