"""Trained weights at other temperatures: what is searched, what is kept, what is said and refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import optuna
import pytest
import torch
import yaml

from tempopt.cli import main
from tempopt.errors import SpecError
from tempopt.service.evaluation.result import EvaluationResult, Gain
from tempopt.service.evaluation.space import evaluation_spec
from tempopt.verdict.statistics.bootstrap import Interval
from tests.toy_study import TOYS, URL, toy_spec, work_in

TAU = {"low": 0.5, "high": 2.0}


@pytest.mark.parametrize(
    "search",
    [
        {"temperature_init": TAU},
        {"output_temperature": TAU},
        {"temperature_init": TAU, "layer_pattern": ["uniform", "linear"], "layer_ratio": TAU},
        {"length_scaling": ["none", "log_n"], "n0": {"low": 8.0, "high": 64.0}},
        {"normaliser": ["softmax", "top_k"], "top_k": [4, 8]},
        {"context": {"choices": [64, 128], "baseline": 64}},
        {"sampling_temperature": TAU, "top_p": {"low": 0.5, "high": 1.0}},
        {"temperature_init": TAU, "top_k_tokens": [0, 20], "min_p": {"low": 0.0, "high": 0.2}},
    ],
)
def test_what_acts_in_an_evaluation_is_searched(search: dict[str, Any]) -> None:
    request = evaluation_spec(toy_spec(space=search))
    assert list(request.search) == list(request.distributions) == list(search) and not request.left_out


@pytest.mark.parametrize(
    "name",
    [
        *("temperature_final", "warmup_start", "schedule_args.knee", "entropy_lambda", "lr", "weight_decay"),
        *("attention_dropout", "trainer.max_steps", "data.batch_size"),
    ],
)
def test_what_acts_in_training_alone_is_left_out(name: str) -> None:
    request = evaluation_spec(toy_spec(space={name: [1, 2], "temperature_init": TAU}))
    assert list(request.search) == ["temperature_init"] and request.left_out == (name,)
    plain_request = evaluation_spec(toy_spec(space={name: [1, 2]}))
    assert list(plain_request.search) == ["temperature_init"]


@pytest.fixture
def folder(tmp_path: Path, toy_folder: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    work_in(tmp_path, monkeypatch)
    monkeypatch.syspath_prepend(str(TOYS))
    from toy_modules import Toy

    torch.manual_seed(0)
    torch.save(Toy().state_dict(), tmp_path / "trained.pt")
    spec = toy_spec(space={"temperature_init": {"low": 0.25, "high": 4.0, "log": True}, "lr": [0.1, 0.2]})
    (tmp_path / "toy.yaml").write_text(yaml.safe_dump(spec))
    return tmp_path


def test_evaluations_are_trials_that_optuna_shows_and_the_same_command_goes_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["evaluate", "toy.yaml", "--weights", "trained.pt", "--name", "tuned", "--storage", URL]
    command += ["--json"]
    assert main([*command, "--trials", "2"]) == 0
    captured_output = capsys.readouterr()
    assert json.loads(captured_output.out)["trials"] == 2
    assert re.findall(r"evaluation (\d) of 2", captured_output.err) == ["1", "2"]
    assert main([*command, "--trials", "4"]) == 0
    captured_output = capsys.readouterr()
    report = json.loads(captured_output.out)
    assert report["trials"] == 4 and report["left_out"] == ["lr"]
    assert (
        "evaluation 4 of 4: val_loss" in captured_output.err
        and "evaluation 2 of 4" not in captured_output.err
    )
    study = optuna.load_study(study_name="tuned", storage=URL)
    values = [trial.value for trial in study.trials]
    assert len(values) == 4 and report["validate"]["value"] == min(value or 0.0 for value in values)
    assert report["validate"]["reference_value"] == values[0] and study.trials[0].params == {}
    page = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")
    table = page.partition("### The evaluation as JSON\n")[2].partition("\n## ")[0]
    assert {*report, *report["total"]} <= set(re.findall(r"`(\w+)`", table))
    assert main(["list", "--storage", URL]) == 0
    assert "tuned" not in capsys.readouterr().out


def test_what_cannot_be_evaluated_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refusal(*words: str) -> str:
        assert main(["evaluate", "toy.yaml", *words, "--trials", "2", "--storage", URL]) == 2
        return capsys.readouterr().err

    assert f"there is no file {folder / 'other.pt'}" in refusal("--weights", "other.pt")
    assert "works on a database" in _of_server(capsys)
    torch.save({"weight": torch.ones(2)}, "other.pt")
    assert "other.pt is of another model than" in refusal("--weights", "other.pt")
    assert main(["evaluate", "toy.yaml", "--weights", "trained.pt", "--trials", "2", "--name", "a"]) == 0
    capsys.readouterr()
    message = refusal("--weights", "trained.pt", "--name", "a", "--set", "study.seed=4")
    assert 'The Optuna study "a" evaluates other weights' in message


def _of_server(capsys: pytest.CaptureFixture[str]) -> str:
    words = ["evaluate", "toy.yaml", "--weights", "trained.pt", "--storage", "https://tempopt.example"]
    assert main(words) == 2
    return capsys.readouterr().err


def gain(value: float, interval: tuple[float, float] | None, **changes: Any) -> Gain:
    gain_interval = (
        None if interval is None else Interval(difference=value, low=interval[0], high=interval[1])
    )
    values = {"unit": "items", "num_units": 100, "num_items": 100, "num_changed": 50, **changes}
    return Gain(value=0.5 + value, reference_value=0.5, gain=value, interval=gain_interval, **values)


def result_of(total: Gain, **changes: Any) -> EvaluationResult:
    values: dict[str, Any] = {
        "name": "tuned",
        "metric": "val_accuracy",
        "direction": "maximize",
        "params": {"temperature_init": 0.5},
        "reference_params": {},
        "is_reference": False,
        "chosen_value": 0.6,
        "chosen_reference": 0.5,
        "on": "test",
        "gain": total,
        "generation": None,
        "temperature": None,
        "trials": 9,
        "left_out": (),
        **changes,
    }
    return EvaluationResult(**values)


@pytest.mark.parametrize(
    ("result", "headline", "fragment"),
    [
        (result_of(gain(0.1, (0.05, 0.15))), "Gain shown: ", "paired bootstrap over 100 items"),
        (result_of(gain(0.1, (-0.05, 0.15))), "No gain shown: ", "which chose nothing"),
        (result_of(gain(0.1, (0.05, 0.15)), on="validate"), "No gain shown: ", "optimistic"),
        (result_of(gain(0.1, None, unit=None)), "No gain shown: ", "is not the mean of what is logged"),
        (result_of(gain(0.1, None, num_units=4)), "No gain shown: ", "there are 4"),
        (result_of(gain(0.1, None, num_changed=3)), "No gain shown: ", "3 of 100 items changes"),
        (result_of(gain(0.1, None, num_changed=None)), "No gain shown: ", "in the same order"),
        (
            result_of(gain(0.0, None), is_reference=True),
            "No gain shown: of 9 evaluations",
            "as the spec stands",
        ),
        (
            result_of(gain(0.1, (0.05, 0.15)), generation=gain(0.06, None), temperature=gain(0.04, None)),
            "Gain shown: ",
            "its generation alone, with all else as the spec stands: +0.06",
        ),
    ],
)
def test_what_was_found_is_said_with_its_interval_or_why_there_is_none(
    result: EvaluationResult, headline: str, fragment: str
) -> None:
    assert result.lines()[0].startswith(headline)
    assert fragment in str(result)


def test_a_spec_of_a_search_needs_no_length_and_no_other_key() -> None:
    spec = toy_spec()
    spec |= {"trainer": {"accelerator": "cpu"}, "temperatures": {"loss": {"value": "criterion.tau"}}}
    spec["search"]["loss.temperature_init"] = TAU
    request = evaluation_spec(spec, trials=7, overrides=["study.seed=3"])
    assert request.trials == 7 and request.spec.study.seed == 3
    assert "loss.temperature_init" in request.left_out
    with pytest.raises(SpecError, match="study.trials: given 1"):
        evaluation_spec(spec, trials=1)
    with pytest.raises(SpecError, match="search.temperature_init: .*low"):
        evaluation_spec(toy_spec(space={"temperature_init": {"low": 2.0}}))
