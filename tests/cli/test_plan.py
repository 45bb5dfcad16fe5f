"""What ``tempopt plan`` prints, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tempopt import cli
from tests.toy_study import toy_spec

pytestmark = pytest.mark.usefixtures("fake_workers")

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
    # 9 searched, 12 to choose, 5 arms on 3 seeds: counted by hand in tests/forecast
    assert re.match(r"toy: 36 runs at most \(\d+ expected\): .* on 2 workers\n", out)
    assert re.search(r"all +20 +\d+ +36", out)
    # 0.5 s a step, 24 steps, 6 validations of 2 s
    assert "1 s to start, 24 steps of 500 ms, 6 validations of 2 s" in out
    assert "After three baseline runs the gain is known in units of val_loss." in " ".join(out.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["toy.yaml"]


def test_json_has_the_same_numbers(spec: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", spec, "--json", "--trials", "6", "--set", "study.seeds.confirm=5"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["by_kind"]["search"]["most"] == 6
    assert found["power"]["pairs"] == 5
    assert found["run"]["step"] == 0.5


def test_each_size_has_its_runs_and_its_price(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "toy.yaml"
    sets = [{"trainer.max_steps": 8}, {"trainer.max_steps": 16}]
    path.write_text(yaml.safe_dump(toy_spec(space=TAU, **SMALL, proxy={"set": sets})), encoding="utf-8")
    assert cli.main(["plan", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["proxies"]) == 2
    small, middle, full = found["by_size"]
    assert small["expected"] + middle["expected"] + full["expected"] == pytest.approx(
        found["runs"]["expected"]
    )
    # two candidates and τ = 1 on two seeds
    assert middle["most"] == 6
    assert cli.main(["plan", str(path)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "A run of proxy 2, measured on" in out and "A run at full size, measured on" in out
    assert "The search trains proxy 1 (trainer.max_steps=8)" in out
    assert re.search(r"Expected runs by size: \d+ of proxy 1, \d+ of proxy 2, \d+ of full size", out)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "study.trials=0"], "study.trials"),
        (["--earlier", "toi"], "There is no file"),
        (["--workers", "9"], "study.parallel allows 1 to 4"),
        (["--trials", "+5"], '"+5" is not a whole number from 1 to 100000'),
    ],
)
def test_what_cannot_be_planned_is_a_usage_error(
    spec: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", spec, *words]) == 2
    assert message in capsys.readouterr().err


@pytest.fixture
def budget(tmp_path: Path) -> Any:
    """Return what writes a spec whose budget decides what it does not say."""

    def write(hours: float) -> str:
        data = toy_spec(space=TAU, limits={"gpu_hours": hours})
        for name in ("trials", "arms", "candidates", "seeds"):
            del data["study"][name]
        path = tmp_path / "toy.yaml"
        path.write_text(yaml.safe_dump(data), encoding="utf-8")
        return str(path)

    return write


def test_it_says_how_a_budget_is_split_and_what_half_and_twice_of_it_are(
    budget: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", budget(0.5), "--workers", "1"]) == 0
    out = capsys.readouterr().out
    said = " ".join(out.split())
    assert re.search(
        r"Budget: 0\.5 GPU-hours, 0\.0\d+ a run: at most 0\.\d+ to search, [\d.]+ to choose", said
    )
    assert "With twice as much the winner's gain is expected to be" in said
    assert "study.limits.gpu_hours may end the search sooner" not in said
    rows = {line.split()[0]: line.split() for line in out.splitlines() if line.split()}
    (chosen,) = [line.split()[2:] for line in out.splitlines() if line.startswith("as given")]
    hours, trials = float(chosen[0]), int(chosen[1])
    assert hours <= 0.5 and rows["search"][-1] == str(trials)
    assert float(rows["twice"][1]) <= 1.0 and int(rows["twice"][2]) > trials
    assert set(rows["half"][1:]) == {"–"} and "Half of it proves nothing: that takes 0." in said
    assert "priced as study.limits states it" not in said
    assert cli.main(["plan", budget(60), "--workers", "1", "--set", "study.limits.run_gpu_hours=2"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert re.search(r"priced as study.limits states it\. Measured here it takes 0\.0\d+ GPU-hours", said)


def test_json_has_the_split(budget: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", budget(2.0), "--json", "--set", "study.limits.run_gpu_hours=0.02"]) == 0
    found = json.loads(capsys.readouterr().out)
    split = found["split"]
    assert (split["gpu_hours"], split["run_gpu_hours"]) == (2.0, 0.02)
    assert found["by_kind"]["search"]["most"] == split["chosen"]["trials"]
    assert found["power"]["pairs"] == split["chosen"]["pairs"]
    assert found["power"]["effect"] == split["chosen"]["effect"]
    assert split["half"]["trials"] < split["chosen"]["trials"] < split["twice"]["trials"]
    for factor, name in ((0.5, "half"), (1, "chosen"), (2, "twice")):
        assert sum(split[name]["gpu_hours"].values()) <= 2.0 * factor + 1e-9


def test_too_small_a_budget_says_how_much_is_needed(budget: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", budget(0.05)]) != 0
    said = " ".join(capsys.readouterr().err.split())
    needed = re.search(r"takes ([\d.]+) GPU-hours at most", said)
    assert needed is not None
    assert cli.main(["plan", budget(float(needed[1]))]) == 0
