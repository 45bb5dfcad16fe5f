"""What ``tempopt plan`` prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt import cli
from tempopt.agent.machine import Machine
from tests.toy_study import toy_spec

pytestmark = pytest.mark.usefixtures("fake_workers")

SCHEDULE = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "temperature_final": {"low": 0.25, "high": 4.0},
    "schedule": ["constant", "cosine"],
}
TAU = {"temperature_init": {"low": 0.25, "high": 4.0}}
SMALL: dict[str, Any] = {
    "trials": 4,
    "arms": {"baseline": 3, "constant": 2},
    "candidates": 2,
    "seeds": {"choose": 2, "confirm": 3},
}


@pytest.fixture
def spec(tmp_path: Path) -> str:
    path = tmp_path / "toy.yaml"
    path.write_text(yaml.safe_dump(toy_spec(space=TAU, **SMALL)), encoding="utf-8")
    return str(path)


def test_it_says_how_many_runs_how_long_and_what_can_be_shown(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", spec, "--workers", "2"]) == 0
    out = capsys.readouterr().out
    # 9 searched, 4 to choose, 2 arms on 3 seeds
    assert out.startswith("toy: 19 runs\n")
    assert re.search(r"all( +\d+){6}\n", out) and "time on 2 workers" in out and "…" not in out
    # 0.5 s a step, 24 steps, 6 validations of 2 s
    assert "1 s to start, 24 steps of 500 ms, 6 validations of 2 s" in out
    assert "3 pairs show gains of" in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.yaml"]


def test_it_says_the_runs_with_a_gain_and_without_one_and_no_mean_of_both(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "toy.yaml"
    study = {**SMALL, "seeds": {"choose": 2, "confirm": {"min": 4, "max": 16}}}
    path.write_text(yaml.safe_dump(toy_spec(space=SCHEDULE, **study)), encoding="utf-8")
    words = ["plan", str(path), "--run-hours", "0.1"]
    assert cli.main(words) == cli.main([*words, "--json"]) == 0
    out, _, data = capsys.readouterr().out.partition("{")
    forecast = json.loads(f"{{{data}")
    gain, no_gain = (forecast["runs"][name] for name in ("gain", "no_gain"))
    headline = (
        f"toy: about {gain['typical']:.0f} runs with a gain of 2 sd, {no_gain['typical']:.0f} without a "
        f"gain; at most {max(gain['max'], no_gain['max']):.0f}\n"
    )
    assert out.startswith(headline)
    assert gain["typical"] != no_gain["typical"] and forecast["runs"].keys() == {"gain", "no_gain"}


@pytest.mark.parametrize(
    ("cards", "words", "hardware", "hours"),
    [
        ((), [], "2 workers", False),
        (("0",), [], "one GPU", True),
        ((), ["--set", "resources.gpus=1"], "one GPU", True),
    ],
)
def test_hours_that_are_given_are_on_gpus_only_where_the_machine_or_the_spec_has_some(
    cards: tuple[str, ...],
    words: list[str],
    hardware: str,
    hours: bool,
    spec: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = Machine(cores=2, memory=None, cards=cards, is_restricted=False, why="")
    monkeypatch.setattr("tempopt.service.forecast.this_machine", lambda: machine)
    accelerator = ["--set", "trainer.accelerator=auto"]
    assert cli.main(["plan", spec, "--run-hours", "0.01", *accelerator, *words]) == 0
    out = capsys.readouterr().out
    assert f"time on {hardware} " in out
    assert ("GPU-hours" in out) == hours


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "study.trials=0"], "study.trials"),
        (["--earlier", "toi"], "There is no file"),
        (["--workers", "9"], "study.parallel allows 1 to 4"),
        (["--trials", "+5"], '"+5" is not a whole number from 1 to 100000'),
        (["--run-hours", "0"], '"0" is not a number above 0'),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(
    spec: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", spec, *words]) == 2
    assert message in capsys.readouterr().err
