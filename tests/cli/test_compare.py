"""``tempopt compare`` as a gate: exit codes that a script acts on, real trainings, and what is resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import tempopt
from tempopt import cli
from tempopt.agent.observer import NullObserver
from tempopt.cli import agent_entrypoint
from tempopt.report.study_result import StudyResult
from tempopt.service import studies
from tempopt.spec.study_spec import StudySpec
from tempopt.verdict.paired_evidence import PairedResult
from tempopt.verdict.set_comparison import Comparison, Variant
from tempopt.verdict.statistics.paired_tests import paired_test
from tests.toy_study import URL, Watcher, facts, tickets, toy_spec

SPEC = """\
study: {name: toy, metric: val_loss, direction: minimize, seeds: {confirm: 5}}
model: {class_path: toy_modules.Toy}
data: {class_path: toy_modules.ToyData}
trainer: {max_steps: 12, val_check_interval: 12, check_val_every_n_epoch: null, accelerator: cpu}
"""
NAME = ["--name", "toy"]


@pytest.fixture
def folder(tmp_path: Path, toy_folder: None) -> Path:
    """The folder of a person with a plain config that has a section study: and no search:."""
    (tmp_path / "toy.yaml").write_text(SPEC, encoding="utf-8")
    return tmp_path


# ---- workers that train nothing


def compare(*words: str) -> int:
    return cli.main(["compare", "toy.yaml", *words, "--workers", "1", "--no-report"])


def test_the_same_command_again_prints_the_same_result_and_trains_nothing(
    folder: Path, fake_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    codes = [compare("{}", "{temperature_init: 4}", *NAME)]
    first = capsys.readouterr().out
    rows_before = tickets()
    codes.append(compare("{}", "{temperature_init: 4}", *NAME))
    assert codes[0] == codes[1] and "confirm: 10 trainings over\n" in first
    assert first.split("\n\n")[1] == capsys.readouterr().out.strip().split("\n\n")[0]
    assert tickets() == rows_before
    # another question of that name
    assert compare("{}", "{temperature_init: 3}", *NAME) == 2
    assert "compare: was" in capsys.readouterr().err


def test_json_is_all_that_stands_on_standard_output(
    folder: Path, fake_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compare("{}", "{temperature_init: 4}", "--json")
    captured_output = capsys.readouterr()
    comparison = json.loads(captured_output.out)["comparison"]
    assert {"better": 0, "not_shown": 3, "worse": 4}[comparison["outcome"]] == code
    assert "confirm: 10 trainings over\n" in captured_output.err
    assert compare("{}", "{lr: 1}", "--json", "--detach", "--launcher", "ray") == 2
    assert "--detach does not wait" in capsys.readouterr().err


def test_more_pairs_are_added_and_more_trials_refused(
    folder: Path, fake_workers: None, capsys: pytest.CaptureFixture[str]
) -> None:
    first = compare("{}", "{temperature_init: 4}", *NAME)
    assert first in (0, 3, 4)
    capsys.readouterr()
    assert cli.main(["resume", "toy", "--pairs", "+3", "--no-report"]) in (0, 3, 4)
    assert "verdict 2 of this study" in capsys.readouterr().out
    assert cli.main(["resume", "toy", "--trials", "+3"]) == 2
    assert "which has no trials" in capsys.readouterr().err
    assert cli.main(["show", "toy", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["comparison"]["variants"][0]["n_pairs"] == 8 and report["tickets"]["confirm"]["done"] == 16


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "No parameter sets were given"),
        (["{}"], "Give the reference and at least one variant"),
        (["{}", "{temperature_init: 1}"], "B trains the same as A"),
        (["{}", "{lr: 0.1}", "--max-runs", "7"], "3 pairs fit: --pairs 3"),
        (["{}", "{lr: 0.1}", "--detach"], "--detach is for a launcher"),
    ],
)
def test_what_cannot_be_compared_is_told_and_nothing_is_stored(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare(*words) == 2
    assert message in capsys.readouterr().err
    assert not (folder / "tempopt.db").exists()


def test_a_spec_that_compares_is_not_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sets = "compare: [{name: a, parameters: {}}, {name: b, parameters: {lr: 0.1}}]\n"
    Path("both.yaml").write_text(SPEC + sets, encoding="utf-8")
    for words in ([], ["--launcher", "local"]):
        assert cli.main(["search", "both.yaml", *words]) == 2
        assert "Carry it out with tempopt compare SPEC" in capsys.readouterr().err


# ---- interruption


SPEC_DATA = toy_spec(seeds={"confirm": 4})


def interrupt_after(num_done: int) -> NullObserver:
    def leave() -> None:
        raise KeyboardInterrupt

    return Watcher(lambda snapshot: snapshot.done["confirm"] >= num_done, leave)


def test_a_comparison_that_is_interrupted_is_resumed_to_the_same_result(
    folder: Path,
    fake_workers: None,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sets = [{}, {"temperature_init": 4.0}, {"lr": 0.1}]
    with pytest.raises(KeyboardInterrupt):
        tempopt.compare(SPEC_DATA, sets, storage=URL, name="toy", workers=2, observer=interrupt_after(3))
    result = tempopt.resume("toy", storage=URL, workers=1)
    assert result.state == "done" and result.comparison is not None
    facts_resumed, comparison = facts(), result.comparison
    monkeypatch.chdir(tmp_path_factory.mktemp("undisturbed"))
    whole_result = tempopt.compare(SPEC_DATA, sets, storage=URL, name="toy", workers=1)
    assert (facts_resumed, comparison) == (facts(), whole_result.comparison)


# ---- what is said at the end


@pytest.fixture
def make_result(make_spec: Callable[..., StudySpec]) -> Any:
    def make(*differences: list[float] | None) -> Any:
        variants = tuple(
            Variant(name=f"v{index}", params={}, answer=answer and PairedResult(paired=answer))
            for index, answer in enumerate(
                differences_of and paired_test(differences_of, direction="maximize", alpha=0.04)
                for differences_of in differences
            )
        )
        comparison = Comparison(
            reference="A",
            reference_params={},
            variants=variants,
            confirmed_on="test",
            round=0,
            verdict_number=1,
            alpha=0.04,
            means={"A": 0.0} if any(differences) else {},
        )
        spec = SimpleNamespace(compare=[1])
        return SimpleNamespace(state="done", spec=spec, comparison=comparison, name="gate", best=None)

    return make


UP, DOWN, OPEN = [1.0, 1.01, 0.99], [-1.0, -1.01, -0.99], [1.0, -1.0, 0.5]


@pytest.mark.parametrize(
    ("command", "differences", "code"),
    [
        ("compare", [UP], 0),
        ("compare", [OPEN], 3),
        ("compare", [DOWN, UP], 0),
        ("compare", [OPEN, DOWN], 4),
        ("compare", [None, UP], 0),
        ("compare", [None, None], 1),
        ("resume", [DOWN], 4),
        ("agent", [OPEN, OPEN], 3),
    ],
)
def test_the_exit_code_says_what_was_found(
    command: str,
    differences: list[Any],
    code: int,
    make_result: Any,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = make_result(*differences)
    for name in ("carry_out", "run_agent"):
        monkeypatch.setattr(studies, name, lambda *words, **options: result)
    monkeypatch.setattr("tempopt.report.study_lines.screen_lines", lambda *words: ["the verdict"])
    words = ["toy.yaml", "{}", "{lr: 0.1}"] if command == "compare" else ["gate"]
    report = ["--no-report"] if command != "agent" else []
    assert cli.main([command, *words, *report]) == code
    out = capsys.readouterr().out
    assert "the verdict" in out and "Look again:       tempopt show gate" in out
    assert ("tempopt export gate" in out) == (code == 0)


def test_an_agent_that_a_launcher_has_started_has_done_its_work_whatever_was_found(
    make_result: Any, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.report.study_lines.screen_lines", lambda *words: ["the verdict"])
    task = {"study": "gate", "storage": URL, "spec": None, "options": ["--no-report"], "workers": 1}
    for differences, code in ((OPEN, 0), (DOWN, 0), (UP, 0), (None, 1)):
        result: StudyResult = make_result(differences)
        monkeypatch.setattr(studies, "run_launched_agent", lambda *words, result=result, **options: result)
        assert agent_entrypoint._work(task) == code
