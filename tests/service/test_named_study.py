"""Whole studies of a temperature that is not attention's, with real training, from dry run to export."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from tempopt.api.calls import compare, search
from tempopt.cli import main
from tempopt.errors import SpecError
from tempopt.report.export import to_yaml
from tempopt.report.study_lines import glossary
from tempopt.service.studies import load_study
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.ticket_queries import arms_of
from tempopt.temperature import TemperatureParameters, is_neutral, parameters_of_temperature
from tempopt.verdict.recommendation import Action
from tests.service.conftest import run_exported
from tests.toy_study import SMALL, TOYS, URL, tickets, toy_spec, work_in

RANGE = {"low": 0.05, "high": 2.0}
SPACE = {
    "contrast.temperature_init": RANGE,
    "contrast.temperature_final": RANGE,
    "contrast.schedule": ["constant", "linear", "cosine"],
}


def named_spec(
    module: str = "Contrast", *, space: dict[str, Any] | None = None, **study: Any
) -> dict[str, Any]:
    """Return the spec of a small study of a contrastive loss."""
    study_settings = {"metric": "val_gap", "direction": "maximize", **SMALL, **study}
    # Lightning's own logger warns where it would log nothing in so few steps
    spec = toy_spec(
        space=dict(SPACE if space is None else space), trainer={"log_every_n_steps": 1}, **study_settings
    )
    spec["model"] = {"class_path": f"contrast_modules.{module}"}
    spec["temperatures"] = {"contrast": {"value": "criterion.temperature"}}
    return spec


@pytest.fixture(scope="module")
def ended_study(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The folder and the result of a study of the temperature alone."""
    folder = tmp_path_factory.mktemp("named")
    with pytest.MonkeyPatch.context() as patch:
        work_in(folder, patch)
        return folder, search(named_spec(trials=4), storage=URL, workers=1)


def planned_temperatures(params: dict[str, Any]) -> list[float]:
    """Return the temperature of each of the 24 steps of a training with these parameters."""
    plan = TemperatureParameters.from_mapping(parameters_of_temperature(params, "contrast")).plan(1)
    return [plan.temperatures(step / 23)[0] for step in range(24)]


def test_a_search_ends_in_a_verdict_in_the_names_of_the_temperature(ended_result: Any) -> None:
    assert ended_result.state == "done"
    verdict = ended_result.verdict
    param_names = {
        f"contrast.{suffix}" for suffix in ("as_found", "temperature_init", "temperature_final", "schedule")
    }
    assert verdict is not None and set(verdict.params) <= param_names
    assert verdict.params["contrast.as_found"] == 0.5
    assert is_neutral(verdict.baseline_params)
    assert verdict.baseline_params["contrast.temperature_init"] == 0.5
    assert verdict.recommendation is not None
    assert verdict.recommendation.action in get_args(Action)
    assert load_study(URL, "toy").verdict == verdict


def test_the_temperature_as_found_is_stored_and_the_study_is_the_same_when_it_is_asked_again(
    ended_result: Any,
) -> None:
    with open_store(URL, create=False) as store:
        stored_spec = StudySpec.from_json(store.load_study("toy").spec)
    assert stored_spec.temperatures["contrast"].as_found == 0.5
    tickets_before = tickets()
    assert search(named_spec(trials=4), storage=URL, workers=1).verdict == ended_result.verdict
    assert tickets() == tickets_before


@pytest.mark.parametrize("winner", [False, True])
def test_what_is_exported_trains_at_the_temperatures_of_the_study(ended_result: Any, winner: bool) -> None:
    verdict = ended_result.verdict
    params = verdict.params if winner else verdict.recommendation.params
    exported_config = yaml.safe_load(to_yaml(ended_result, winner=winner))
    assert exported_config["model"]["class_path"] == "contrast_modules.Contrast"
    script_globals = run_exported(ended_result, winner=winner)
    trained_temperatures = [step_values[0] for step_values in script_globals["model"].trained]
    assert trained_temperatures == pytest.approx(planned_temperatures(params), rel=1e-9)


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_a_temperature_that_the_module_registers_is_searched_by_its_name_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOYS))
    spec = named_spec("Registered", trials=4)
    spec["temperatures"] = {"contrast": {}}
    result = search(spec, storage=URL, workers=1)
    assert result.state == "done" and result.verdict is not None
    assert result.verdict.params["contrast.as_found"] == 0.5
    assert any("contrast is the temperature at contrast_temperature" in term for term in glossary(result))
    (callback,) = yaml.safe_load(to_yaml(result, winner=True))["trainer"]["callbacks"]
    assert callback["init_args"]["path"] == "contrast_temperature"
    script_globals = run_exported(result, winner=True)
    trained_temperatures = [temperature for (temperature,) in script_globals["model"].trained]
    assert trained_temperatures == pytest.approx(planned_temperatures(result.verdict.params), rel=1e-6)


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_where_the_metric_reads_it_the_verdict_says_what_inference_alone_gains(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(TOYS))
    spec = named_spec(metric="val_loss", direction="minimize", metric_reads_temperature=True, trials=4)
    result = search(spec, storage=URL, workers=1)
    assert result.verdict is not None and result.spec.evaluated == ["contrast"]
    inference = result.verdict.inference_only
    assert inference is not None and inference.plan_name.startswith("contrast.constant=")
    curve = {plan: value for plan, value in inference.baseline.curve.items() if plan.startswith("contrast.")}
    # powers of two times 0.5 within 0.0125 and 8
    assert len(curve) == 9 and min(curve, key=curve.__getitem__) == inference.plan_name
    assert main(["show", "toy", "--full", "--storage", URL]) == 0
    stdout = capsys.readouterr().out
    tau = inference.plan_name.removeprefix("contrast.constant=")
    assert f"evaluated at contrast = {float(tau):.4g}" in stdout
    assert "a log-spaced grid of constants of contrast from 0.01562 to 8" in stdout
    # a winner whose models are better at another temperature is exported so
    advice = result.verdict.recommendation
    assert advice is not None
    both_actions = dataclasses.replace(
        advice,
        action_without_training="train_with_schedule",
        at_inference={"contrast.temperature_init": 0.25},
    )
    verdict = dataclasses.replace(result.verdict, recommendation=both_actions)
    script_globals = run_exported(dataclasses.replace(result, verdict=verdict))
    assert script_globals["model"].validated[-1] == (0.25, 2.0) and script_globals["model"].trained[0] != (
        0.25,
        2.0,
    )


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.long
def test_attention_and_a_named_temperature_are_searched_together() -> None:
    attention = {"temperature_init": {"low": 0.25, "high": 4.0}}
    spec = named_spec("Attending", space=SPACE | attention, trials=4)
    result = search(spec, storage=URL, workers=1)
    assert result.state == "done" and result.verdict is not None
    assert is_neutral(result.verdict.baseline_params)
    (constant,) = [t for t in tickets() if t.kind == "constant"]
    levels = {"temperature_init", "contrast.temperature_init"}
    assert constant.parameters is not None and levels <= constant.parameters.keys()


@pytest.mark.usefixtures("toy_folder")
@pytest.mark.parametrize("compares", [False, True])
def test_what_changes_the_temperature_as_found_is_refused_before_a_study_begins(compares: bool) -> None:
    with pytest.raises(SpecError, match="All runs of a study begin from one"):
        if compares:
            sets = {"found": {}, "other": {"temperature": 0.3}}
            compare(named_spec(), sets, storage=URL, workers=1, name="toy")
        else:
            spec = named_spec(space={**SPACE, "temperature": {"low": 0.2, "high": 0.9}})
            search(spec, storage=URL, workers=1)
    if Path("tempopt.db").exists():
        with open_store(URL, create=False) as store:
            assert store.list_studies() == []


def test_every_run_says_what_was_found_and_baselines_stay_there(ended_result: Any) -> None:
    rows = tickets()
    assert rows and all(t.parameters is not None for t in rows)
    assert {t.parameters["contrast.as_found"] for t in rows if t.parameters} == {0.5}
    baselines = [t for t in rows if "baseline" in (t.arm, *arms_of(t))]
    assert baselines and all(is_neutral(t.parameters or {"contrast.as_found": 1.0}) for t in baselines)
    # nothing of attention is trained: no parameters
    assert not any("temperature_init" in (t.parameters or {}) for t in rows)
