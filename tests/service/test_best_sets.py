"""The best sets of a finished study: which they are, in which order, and what they are refused for."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import tempopt
from tempopt.cli import main
from tempopt.errors import SpecError, StudyFailed, StudyNotFound, UsageError
from tempopt.report.study_result import StudyResult
from tempopt.service.best_sets import best_sets
from tempopt.training.messages import Failed, RunRequest
from tests import fake_worker
from tests.toy_study import URL, toy_spec, work_in

SPACE = {"temperature_init": {"low": 0.25, "high": 4.0}, "lr": {"low": 0.001, "high": 0.1, "log": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a finished study that trained nothing."""
    folder = tmp_path_factory.mktemp("small")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        fake_worker.install(patch, pace=0.0)
        tempopt.search(toy_spec(space=SPACE, pruner="none"), storage=URL, workers=1, progress=False)
    return folder


@pytest.fixture
def result(folder: Path, monkeypatch: pytest.MonkeyPatch) -> StudyResult:
    work_in(folder, monkeypatch)
    return tempopt.load_study(URL, "toy")


def big(**changes: Any) -> dict[str, Any]:
    spec = toy_spec(trainer={"max_steps": 48})
    spec["study"] |= {"name": "big", "seeds": {"confirm": 2}, **changes}
    return spec


def test_the_baseline_goes_first_then_the_winner_then_what_the_surrogate_ranks(result: StudyResult) -> None:
    sets = best_sets(result, top=3)
    assert list(sets) == ["baseline", "best1", "best2", "best3"]
    assert result.verdict is not None
    assert sets["baseline"] == result.verdict.baseline_params
    recommendation = result.recommendation
    assert recommendation is not None
    is_changed = recommendation.action_without_training != "change_nothing"
    assert sets["best1"] == (recommendation.params if is_changed else result.winner)
    trained_sets = [run.parameters for run in result.runs if run.kind in ("search", "constant")]
    assert all(sets[name] in [*trained_sets, result.winner] for name in ("best2", "best3"))
    assert len({str(parameters) for parameters in sets.values()}) == 4
    assert best_sets(result, top=1) == {name: sets[name] for name in ("baseline", "best1")}
    # there are eight trials and three constants
    assert len(best_sets(result, top=50)) <= 1 + 8 + 3 + 1


def test_parameters_can_be_left_out(result: StudyResult) -> None:
    sets = best_sets(result, without=["lr"])
    assert "lr" not in sets["baseline"] and all("lr" not in params for params in sets.values())
    with pytest.raises(
        UsageError, match=r"--without dropout: no parameter set of toy has it\. They have: lr"
    ):
        best_sets(result, without=["dropout"])
    with pytest.raises(StudyFailed, match="differs from its baseline"):
        best_sets(result, without=["lr", "temperature_init"])


def test_what_is_no_finished_search_is_refused(result: StudyResult) -> None:
    with pytest.raises(UsageError, match="is not finished: it is paused. Continue it: tempopt resume toy"):
        best_sets(dataclasses.replace(result, state="paused"))
    with pytest.raises(UsageError, match="--top 0"):
        best_sets(result, top=0)
    with pytest.raises(StudyNotFound):
        tempopt.compare(big(), from_study="other", storage=URL)
    with pytest.raises(UsageError, match="Give no SET"):
        tempopt.compare(big(), [{}], from_study="toy", storage=URL)


def test_a_parameter_that_the_other_model_lacks_is_named_with_the_way_out(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raise_missing(self: Any, request: RunRequest) -> None:
        fault = 'compare.lr: Unknown argument of big.Big "lr".'
        self._say(Failed(ticket=request.ticket, attempt=request.attempt, kind="usage", message=fault))

    fake_worker.install(monkeypatch, pace=0.0)
    monkeypatch.setattr(fake_worker.FakeWorker, "_answer", raise_missing)
    with pytest.raises(SpecError, match=r"compare\.lr: (.|\n)*--without lr"):
        tempopt.compare(big(), from_study="toy", storage=URL, workers=1)
    Path("big.yaml").write_text(yaml.safe_dump(big()))
    command = ["compare", "big.yaml", "--from", "toy", "--no-report", "--storage", URL, "--workers", "1"]
    assert main(command) == 2
    assert "--without lr" in capsys.readouterr().err


def test_the_command_compares_them_at_the_other_size(
    result: StudyResult, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    fake_worker.install(monkeypatch, pace=0.0)
    Path("big.yaml").write_text(yaml.safe_dump(big()))
    command = ["compare", "big.yaml", "--from", "toy", "--top", "2", "--no-report", "--storage"]
    other_url = f"sqlite:///{tmp_path / 'other.db'}"
    assert main([*command, other_url, "--from-storage", URL, "--name", "scaled", "--workers", "1"]) in (
        0,
        3,
        4,
    )
    captured_output = capsys.readouterr()
    assert ", the reference." in captured_output.out and "--top" not in captured_output.err
    scaled_result = tempopt.load_study(other_url, "scaled")
    assert scaled_result.comparison is not None
    assert list(scaled_result.comparison.params_by_name) == ["baseline", "best1", "best2"]
    assert main([*command[:5], "500", *command[6:], other_url, "--from-storage", URL, "--max-runs", "2"]) == 2
    assert re.search(r"--top 500: toy has \d+ different sets beside", capsys.readouterr().err)
    assert main(["compare", "big.yaml", "--top", "2", "--storage", URL]) == 2
    assert "--top: give the study as well, as in --from STUDY." in capsys.readouterr().err
