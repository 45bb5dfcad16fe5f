"""What a program knows of its run, in a study and outside of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import tempopt
from tempopt.errors import UsageError
from tempopt.run_handle import RUN_FILE, Run, activate
from tempopt.temperature import TemperatureParameters


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"params": {"lr": 0.5}, "seed": 11, "folder": str(tmp_path / "files")}))
    monkeypatch.setenv(RUN_FILE, str(path))
    return path


def test_outside_of_a_study_a_run_has_what_it_is_given_and_reports_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = tempopt.current_run(params={"lr": 0.1}, seed=3)
    run.report(1.0, step=1)
    assert (run.params, run.seed, run.should_stop, run.folder) == ({"lr": 0.1}, 3, False, tmp_path)
    assert tempopt.current_run().params == {} and tempopt.current_run().seed == 0
    assert run.temperature(0, 10) == 1.0
    assert not list(tmp_path.iterdir())


def test_in_a_study_its_parameters_go_over_the_given_ones(run_file: Path) -> None:
    run = tempopt.current_run(params={"lr": 0.1, "width": 8}, seed=3)
    assert (run.params, run.seed, run.folder) == ({"lr": 0.5, "width": 8}, 11, run_file.parent / "files")
    run.report(2.5, step=4)
    tempopt.current_run().report(float("nan"))
    lines = [json.loads(line) for line in (run_file.parent / "reports.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "step" in line] == [4, 5]
    assert not run.should_stop
    (run_file.parent / "stop").touch()
    assert run.should_stop


@pytest.mark.parametrize("step", [4, 3, -1, 4.5, float("nan"), float("inf"), 2**31])
def test_a_step_that_does_not_ascend_or_is_no_whole_number_is_refused(run_file: Path, step: float) -> None:
    run = tempopt.current_run()
    run.report(1.0, step=0)
    run.report(1.0, step=4)
    with pytest.raises(UsageError, match=r"run\.report.*ascending.*from 5"):
        run.report(0.5, step=step)  # type: ignore[arg-type]
    run.report(0.25)
    lines = [json.loads(line) for line in (run_file.parent / "reports.jsonl").read_text().splitlines()]
    assert [(line["step"], line["value"]) for line in lines if "step" in line] == [
        (0, 1.0),
        (4, 1.0),
        (5, 0.25),
    ]


def test_of_the_processes_of_torchrun_the_first_one_reports(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in ("1", "0", "2"):
        monkeypatch.setenv("RANK", rank)
        tempopt.current_run().report(float(rank))
    lines = [json.loads(line) for line in (run_file.parent / "reports.jsonl").read_text().splitlines()]
    assert [line["value"] for line in lines if "value" in line] == [0.0]


def test_a_function_that_is_run_has_its_run_as_the_current_one(tmp_path: Path) -> None:
    run = Run({"lr": 2.0}, 5, tmp_path)
    with activate(run):
        assert tempopt.current_run(params={"lr": 1.0, "more": 1}).params == {"lr": 2.0, "more": 1}
    assert tempopt.current_run().params == {}


def test_the_temperature_follows_the_plan_of_the_temperature_parameters(tmp_path: Path) -> None:
    parameters = {"temperature_init": 2.0, "temperature_final": 0.5, "schedule": "cosine", "lr": 0.1}
    run, plan = Run(parameters, 0, tmp_path), TemperatureParameters.from_mapping(parameters).plan(1)
    assert [run.temperature(step, 11) for step in (0, 3, 10, 99)] == [
        plan.temperatures(progress)[0] for progress in (0.0, 0.3, 1.0, 1.0)
    ]


def test_a_layer_pattern_asks_for_a_layer(tmp_path: Path) -> None:
    parameters = {"temperature_init": 1.5, "layer_pattern": "linear", "layer_ratio": 4.0}
    run = Run(parameters, 0, tmp_path)
    temperatures = [run.temperature(0, 10, layer=layer, num_layers=3) for layer in range(3)]
    assert temperatures == list(TemperatureParameters.from_mapping(parameters).plan(3).temperatures(0.0))
    with pytest.raises(UsageError, match="layer=0"):
        run.temperature(0, 10)
    with pytest.raises(UsageError, match="from 0 to 2"):
        run.temperature(0, 10, layer=3, num_layers=3)


def test_what_one_number_cannot_say_is_left_to_attach(tmp_path: Path) -> None:
    run = Run({"head_pattern": "linear", "head_ratio": 2.0}, 0, tmp_path)
    with pytest.raises(UsageError, match=r"head_pattern='linear'.*tempopt\.attach"):
        run.temperature(0, 10)


def test_attach_takes_the_parameters_of_a_run_and_ignores_ordinary_ones(tmp_path: Path) -> None:
    from torch import nn

    run = Run({"temperature_init": 2.0, "lr": 0.1, "qk_gain": 3}, 0, tmp_path)
    attachment = tempopt.attach(nn.MultiheadAttention(8, 2), run.params, example=None)
    assert attachment.temperatures == (2.0,)
    attachment.use(Run({"temperature_init": 0.5, "lr": 1}, 0, tmp_path).params)
    assert attachment.temperatures == (0.5,)


def test_asking_for_the_run_loads_neither_torch_nor_lightning() -> None:
    code = (
        "import sys, tempopt; tempopt.current_run(); print({'torch', 'lightning', 'optuna'} & {*sys.modules})"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"
