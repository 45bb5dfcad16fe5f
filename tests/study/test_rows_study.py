"""Whole studies of temperatures that divide outputs of projections, from dry run to the exported training."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, get_args

import lightning as L
import pytest
import torch
import yaml

from tempopt.cli import main
from tempopt.confirmation.recommendation import Action
from tempopt.records.tickets import arms_of
from tempopt.report.dashboard.note import written
from tempopt.results.export import to_python, to_yaml
from tempopt.spec.study_spec import StudySpec
from tempopt.study.api import compare, load_study, search
from tempopt.temperature import TemperatureParameters, is_neutral, own_parameters
from tempopt.training.run import Run
from tempopt.workers.messages import Evaluation, RunRequest
from tests.toy_study import SMALL, TOYS, URL, tickets, toy_spec, work_in

PLACES = {"gate": "mixed.gate", "head": "head"}
STEPS = 60


pytestmark = pytest.mark.long


def rows_spec(**study: Any) -> dict[str, Any]:
    """Return the spec of a small study of digits: temperatures of a router and of the classifier."""
    space: dict[str, Any] = {}
    for name in PLACES:
        space[f"{name}.temperature_init"] = {"low": 0.25, "high": 4.0}
        space[f"{name}.temperature_final"] = {"low": 0.25, "high": 4.0}
        space[f"{name}.schedule"] = ["linear", "cosine"]
    given = {"metric": "val_accuracy", "direction": "maximize", **SMALL, **study}
    trainer = {"log_every_n_steps": 1, "max_steps": STEPS, "val_check_interval": 12}
    spec = toy_spec(space=space, trainer=trainer, **given)
    spec["model"] = {"class_path": "routed_modules.RoutedDigits"}
    spec["data"] = {"class_path": "routed_modules.Digits"}
    spec["temperatures"] = {name: {"rows": pattern} for name, pattern in PLACES.items()}
    return spec


def plan(parameters: dict[str, Any], name: str) -> Any:
    """Return the plan of one temperature of a parameter set."""
    return TemperatureParameters.from_mapping(own_parameters(parameters, name)).plan(1)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder and the result of the study."""
    folder = tmp_path_factory.mktemp("rows")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return folder, search(rows_spec(trials=4, arms={"constant": 2}), storage=URL, workers=1)


def test_a_search_ends_in_a_verdict_on_both_temperatures(there: Any) -> None:
    verdict = there.verdict
    assert there.state == "done" and verdict is not None
    assert {verdict.params[f"{name}.as_found"] for name in PLACES} == {1.0}
    assert is_neutral(verdict.baseline_params)
    assert verdict.recommendation.action in get_args(Action)
    assert load_study(URL, "toy").verdict == verdict
    rows = [t for t in tickets() if t.parameters is not None]
    assert all(is_neutral(t.parameters or {}) for t in rows if "baseline" in (t.arm, *arms_of(t)))
    assert any(not is_neutral(t.parameters or {}) for t in rows)
    # accuracy reads the router's temperature, and not the classifier's
    assert {name: each.evaluated for name, each in there.spec.temperatures.items()} == {
        "gate": True,
        "head": False,
    }
    assert verdict.inference_only is not None and verdict.inference_only.plan


def validated(module: Any, data: L.LightningDataModule, metric: str = "val_accuracy") -> float:
    """Return the metric of a module by a plain Trainer."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = L.Trainer(accelerator="cpu", enable_checkpointing=False, **quiet)
    (logged,) = trainer.validate(module, datamodule=data, verbose=False)
    return float(logged[metric])


WITHOUT_TEMPOPT = """
import sys
sys.modules["tempopt"] = None
import lightning as L, torch
from torch import nn
from routed_plain import RoutedDigits, Digits
model = RoutedDigits.load_from_checkpoint("deployed.ckpt", weights_only=True)
trainer = L.Trainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_checkpointing=False)
print("accuracy", trainer.validate(model, datamodule=Digits(), verbose=False)[0]["val_accuracy"])
"""


def test_the_exported_script_trains_at_the_temperatures_found_and_saves_what_the_study_evaluates(
    there: Any, listener: Any
) -> None:
    ran = exported(there, winner=True)
    model, found = ran["model"], there.verdict.params
    for which, name in enumerate(PLACES):
        expected = [plan(found, name).temperatures(step / (STEPS - 1))[0] for step in range(STEPS)]
        assert [each[which] for each in model.seen] == pytest.approx(expected, rel=1e-5)
        assert expected[-1] != pytest.approx(1.0, rel=1e-3)
    accuracy = float(ran["trainer"].callback_metrics["val_accuracy"])
    # the checkpoint loads with its temperatures, in a process that has no tempopt, too
    loaded = type(model).load_from_checkpoint("deployed.ckpt", weights_only=True)
    assert validated(loaded, ran["data"]) == accuracy
    Path("routed_plain.py").write_text((TOYS / "routed_modules.py").read_text())
    done = subprocess.run([sys.executable, "-c", WITHOUT_TEMPOPT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert float(done.stdout.split()[-1]) == accuracy
    # and a run of the study measures the same of these weights as they were trained
    spec = StudySpec.parse(rows_spec(), source="the test")
    request = RunRequest(ticket=1, attempt=1, program=spec.program(), parameters=found, seed=5)
    run = Run(request, listener())
    run.module.load_state_dict(model.state_dict())
    assert run.evaluate(Evaluation(name="validate", on="validate"))["val_accuracy"] == accuracy
    assert not torch.equal(loaded.head.weight, run.module.head._parameters["weight"])


def recommended(result: Any, now: str, **parameters: Any) -> Any:
    """Return the study as if the verdict said to evaluate at a temperature of the gate of 0.5."""
    at_half = {"gate.temperature_init": 0.5}
    advice = dataclasses.replace(
        result.verdict.recommendation,
        now=now,
        at_inference=at_half,
        plan="gate.constant=0.5",
        gain=result.verdict.total,
        parameters=parameters,
    )
    return dataclasses.replace(result, verdict=dataclasses.replace(result.verdict, recommendation=advice))


def exported(result: Any, *, winner: bool = False) -> dict[str, Any]:
    """Run the script that is exported, and return its names."""
    Path("exported.py").write_text(to_python(result, winner=winner))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return runpy.run_path("exported.py")


def test_another_temperature_of_inference_is_exported_and_saved(there: Any) -> None:
    ran = exported(recommended(there, "train_with_schedule", **there.verdict.params))
    assert ran["model"].validated[-1][0] == pytest.approx(0.5) and ran["model"].seen
    loaded = type(ran["model"]).load_from_checkpoint("deployed.ckpt", weights_only=True)
    accuracy = float(ran["trainer"].callback_metrics["val_accuracy"])
    assert validated(loaded, ran["data"]) == accuracy
    # and a model that was trained without is evaluated so
    torch.save({"state_dict": ran["model"].state_dict()}, "trained.ckpt")
    alone = recommended(there, "inference_only")
    assert "divides outputs by a temperature, so evaluating needs tempopt" in to_yaml(alone)
    other = exported(alone)
    assert other["model"].validated == [pytest.approx((0.5, 1.0))] and not other["model"].seen
    kept = torch.load("deployed.ckpt", weights_only=True)["state_dict"]["mixed.gate.weight"]
    assert torch.equal(kept, 2 * ran["model"].state_dict()["mixed.gate.weight"])


def test_lightning_cli_trains_what_is_exported(there: Any) -> None:
    Path("winner.yaml").write_text(to_yaml(there, winner=True))
    code = (
        "from lightning.pytorch.cli import LightningCLI\n"
        "cli = LightningCLI(save_config_callback=None)\n"
        "import json; print(json.dumps([cli.model.seen[-1], cli.model.validated[-1]]))"
    )
    command = [sys.executable, "-c", code, "fit", "--config", "winner.yaml"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    last = [plan(there.verdict.params, name).temperatures(1.0)[0] for name in PLACES]
    seen, validating = json.loads(done.stdout.splitlines()[-1])
    assert seen == pytest.approx(last, rel=1e-5) and validating == pytest.approx(last, rel=1e-5)


def test_what_is_shown_names_the_temperatures(there: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*command: str) -> str:
        assert main([*command, "--storage", URL]) == 0
        return capsys.readouterr().out

    shown = json.loads(told("show", "toy", "--json"))
    assert "gate.as_found" in json.dumps(shown)
    assert "the temperatures as found" in told("show", "toy")
    told("report", "toy", "-o", "report.html")
    page = Path("report.html").read_text()
    assert "gate is the temperature by which the outputs of mixed.gate are divided; the module has 1." in page
    assert "temperature gate" in page and "head, 1 as found, goes from" in page
    assert "head.temperature_init" in written(there).replace("\\", "")


def test_a_plan_and_a_warm_start_know_the_temperatures(
    there: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = rows_spec(trials=4, warm_start=["toy"])
    spec["study"]["name"] = "again"
    Path("again.yaml").write_text(yaml.safe_dump(spec))
    assert main(["plan", "again.yaml", "--storage", URL, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    result = search(spec, storage=URL, workers=1)
    assert result.state == "done" and result.verdict is not None


@pytest.mark.usefixtures("toy_folder")
def test_sets_of_such_a_temperature_are_compared() -> None:
    sets = {"found": {}, "sharp": {"gate.temperature_init": 0.1, "head.temperature_init": 2.0}}
    result = compare(rows_spec(seeds={"confirm": 2}), sets, storage=URL, workers=1, name="toy")
    assert result.state == "done" and result.comparison is not None
    assert result.comparison.reference_params == {"gate.as_found": 1.0, "head.as_found": 1.0}
    (variant,) = result.comparison.variants
    assert variant.params["gate.temperature_init"] == 0.1


def mixtral_spec() -> dict[str, Any]:
    """Return the spec of a small study of a Mixtral: the temperatures of its attention and of its routers."""
    levels = {
        f"{name}{end}": {"low": 0.25, "high": 4.0}
        for name in ("", "gate.")
        for end in ("temperature_init", "temperature_final")
    }
    space = levels | {"schedule": ["linear"], "gate.schedule": ["linear"]}
    trainer = {"log_every_n_steps": 1, "max_steps": 12, "val_check_interval": 4}
    spec = toy_spec(space=space, trainer=trainer, metric="val_loss", direction="minimize", **SMALL)
    spec["model"] = {"class_path": "mixtral_modules.Mixtral"}
    spec["data"] = {"class_path": "mixtral_modules.Texts"}
    spec["temperatures"] = {
        "attention": {"layers": "auto"},
        "gate": {"rows": "model.model.layers.*.mlp.gate"},
    }
    return spec


@pytest.mark.usefixtures("toy_folder")
def test_a_mixtral_is_searched_with_attention_and_its_checkpoint_has_both_in_its_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("transformers", reason="NOT TESTED: models of transformers.")
    monkeypatch.syspath_prepend(str(TOYS))
    result = search(mixtral_spec(), storage=URL, workers=1)
    assert result.state == "done" and result.verdict is not None
    ran = exported(result, winner=True)
    loaded = type(ran["model"]).load_from_checkpoint("deployed.ckpt", weights_only=True)
    assert validated(loaded, ran["data"], "val_loss") == float(ran["trainer"].callback_metrics["val_loss"])
    last = plan(result.verdict.params, "gate").temperatures(1.0)[0]
    kept, plain = loaded.state_dict(), ran["model"].state_dict()
    changed = {name for name, value in plain.items() if not torch.equal(value, kept[name])}
    tempered = ("mlp.gate", "self_attn.q_proj")
    assert changed == {f"model.model.layers.{layer}.{name}.weight" for layer in (0, 1) for name in tempered}
    gate = "model.model.layers.0.mlp.gate.weight"
    torch.testing.assert_close(kept[gate] * last, plain[gate])
