"""The winner as YAML and as Python: valid, complete, and honest about what is not confirmed."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from tempopt.attention.attach.values import attach_value
from tempopt.errors import StudyFailed, TempoptError
from tempopt.report.export import VALUE, constants, to_python, to_yaml
from tempopt.storage.rows import TicketRow

SEARCHED = {
    "schedule": {"choices": ["constant", "linear"]},
    "temperature_init": {"low": 0.5, "high": 4.0},
    "temperature_final": {"low": 0.5, "high": 4.0},
    "lr": {"low": 0.001, "high": 0.1},
    "data.batch_size": {"choices": [4, 8]},
    "trainer.gradient_clip_val": {"choices": [0.5, 1.0]},
}
TRIAL_PARAMS = {
    "schedule": "linear",
    "temperature_init": 2.5,
    "temperature_final": 1.0,
    "lr": 1e-05,
    "data.batch_size": 8,
    "trainer.gradient_clip_val": 0.5,
}


@pytest.fixture
def best_of(make_spec: Any, make_ticket: Any, result_of: Any) -> Any:
    """Return a maker of a study whose one complete trial has the parameters TRIAL_PARAMS."""

    def make(sections: dict[str, Any], params: dict[str, Any] = TRIAL_PARAMS, **study: Any) -> Any:
        spec = make_spec({"search": SEARCHED, **sections}, **study)
        return result_of(spec, [make_ticket("search", 0, 0.5, parameters=params)])

    return make


def test_the_winners_parameters_stand_where_lightning_cli_reads_them(best_of: Any) -> None:
    config = yaml.safe_load(to_yaml(best_of({})))
    arguments = {"d_model": 8, "schedule": "linear", "temperature_init": 2.5, "temperature_final": 1.0}
    assert config == {
        "model": {"class_path": "package.module.Model", "init_args": {**arguments, "lr": 1e-05}},
        "data": {"class_path": "package.module.Data", "init_args": {"batch_size": 8}},
        "trainer": {"max_steps": 10, "gradient_clip_val": 0.5},
    }


def test_a_fixed_temperature_that_the_winner_does_not_read_is_taken_out(best_of: Any) -> None:
    model = {"class_path": "package.module.Model", "init_args": {"d_model": 8, "temperature_final": 0.5}}
    space = {name: domain for name, domain in SEARCHED.items() if name != "temperature_final"}
    params = {"schedule": "constant", "temperature_init": 2.0}
    result = best_of({"model": model, "search": space}, params)
    assert "temperature_final" not in to_yaml(result) + to_python(result)
    assert result.spec.model["init_args"]["temperature_final"] == 0.5


def test_python_is_the_call_that_trains_the_winner(best_of: Any) -> None:
    code = to_python(best_of({}))
    compile(code, "export", "exec")
    assert "from package.module import Data, Model\n" in code
    assert "temperature_init=2.5" in code and "lr=1e-05" in code
    assert "trainer = Trainer(max_steps=10, gradient_clip_val=0.5)\n" in code
    assert code.endswith("data = Data(batch_size=8)\ntrainer.fit(model, datamodule=data)\n")


def test_classes_within_classes_and_names_that_clash_become_calls(best_of: Any) -> None:
    sections = {
        "model": {"class_path": "one.Net", "init_args": {"head": {"class_path": "two.Net", "init_args": {}}}},
        "data": None,
        "trainer": {
            "max_steps": 10,
            "callbacks": {
                "class_path": "three.Callback",
                "init_args": {"limits": [1, {"a-b": None}]},
                "dict_kwargs": {"b": 2},
            },
        },
        "search": {"temperature_init": {"low": 0.5, "high": 4.0}},
    }
    code = to_python(best_of(sections, {"temperature_init": 2.0}))
    compile(code, "export", "exec")
    assert "from one import Net\n" in code and "from two import Net as Net2\n" in code
    assert "model = Net(head=Net2(), temperature_init=2.0)\n" in code
    assert "callbacks=[Callback(limits=[1, {'a-b': None}], b=2)]" in code
    assert code.endswith("trainer.fit(model)\n")


def test_loggers_are_left_out_and_one_that_is_switched_off_stays_so(best_of: Any) -> None:
    logger_spec = {"class_path": "CSVLogger", "init_args": {"save_dir": "logs"}, "dict_kwargs": {"flush": 1}}
    for logger in (logger_spec, [logger_spec], "CSVLogger", True):
        result = best_of({"trainer": {"max_steps": 10, "logger": logger}})
        code, config = to_python(result), to_yaml(result)
        compile(code, "export", "exec")
        assert "logger" not in yaml.safe_load(config)["trainer"]
        for text in (code, config):
            assert "CSVLogger" not in text and "# The study's loggers (trainer.logger) are left out" in text
    unlogged_result = best_of({"trainer": {"max_steps": 10, "logger": False}})
    assert yaml.safe_load(to_yaml(unlogged_result))["trainer"]["logger"] is False
    assert "logger=False" in to_python(unlogged_result) and "left out" not in to_python(unlogged_result)


def test_what_was_confirmed_is_exported_until_later_trials_are(
    make_spec: Any, whole_study: list[TicketRow], make_ticket: Any, result_of: Any
) -> None:
    later_ticket = make_ticket("search", 99, 9.0, round=1, parameters={"temperature_init": 0.3})
    text = to_yaml(result_of(make_spec(), [*whole_study, later_ticket]))
    assert yaml.safe_load(text)["model"]["init_args"]["temperature_init"] == 5.0
    assert "Gain shown" in text and "# this is from before the newest search trials were added" in text


def test_before_the_confirmation_the_best_trial_is_exported_and_called_unconfirmed(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    search_rows = [t for t in whole_study if t.kind in ("baseline", "constant", "search")]
    text = to_yaml(result_of(make_spec(), search_rows))
    assert "# The best trial of the search, but UNCONFIRMED" in text
    assert yaml.safe_load(text)["model"]["init_args"]["temperature_init"] == 6.0
    choose_rows = [t for t in whole_study if t.kind != "confirm"]
    text = to_python(result_of(make_spec(), choose_rows))
    assert "# Chosen on fresh seeds, but UNCONFIRMED" in text
    assert "temperature_init=5.0" in text


@pytest.mark.parametrize("export", [to_yaml, to_python])
def test_without_a_complete_trial_there_is_nothing_to_export(
    make_spec: Any, result_of: Any, export: Any
) -> None:
    with pytest.raises(StudyFailed, match=r'"pairs" has nothing to export.*tempopt resume pairs') as error:
        export(result_of(make_spec(), []))
    assert isinstance(error.value, TempoptError)


MODULE = """
import lightning as L, torch
from torch import nn

class Attends(L.LightningModule):
    def __init__(self, d_model: int = 8, lr: float = 0.1) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.attention = nn.MultiheadAttention(d_model, 2, batch_first=True)
        self.lr = lr

    def training_step(self, batch, index):
        return self.attention(batch, batch, batch, need_weights=False)[0].square().mean()

    def validation_step(self, batch, index):
        self.log("val_loss", self.training_step(batch, index))

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(4, 3, 8), batch_size=2)

    val_dataloader = train_dataloader

class Tempered(Attends):
    def __init__(self, d_model: int = 8, lr: float = 0.1, schedule: str = "constant",
                 temperature_init: float = 1.0, temperature_final: float = 1.0) -> None:
        super().__init__(d_model, lr)
        self.save_hyperparameters()
"""
QUIET = {
    "max_steps": 2,
    "logger": False,
    "accelerator": "cpu",
    "log_every_n_steps": 1,
}


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_module", raising=False)


def temperatures(space: dict[str, Any]) -> tuple[float, ...]:
    """Return those of the model that an exported script leaves."""
    (callback,) = [
        callback for callback in space["trainer"].callbacks if type(callback).__name__ == "AttachCallback"
    ]
    temperature_values: tuple[float, ...] = callback.attachment.temperatures
    return temperature_values


def attached_by(config: str) -> dict[str, Any]:
    """Return the arguments of the callback in an exported config."""
    *other_callbacks, callback = yaml.safe_load(config)["trainer"]["callbacks"]
    assert callback["class_path"] == "tempopt.AttachCallback"
    # what is attached to is loaded first
    assert [callback_spec["class_path"] for callback_spec in other_callbacks] in (
        [],
        ["tempopt.LoadCallback"],
    )
    init_args: dict[str, Any] = callback["init_args"]
    return init_args


def with_recommendation(result: Any, **fields: Any) -> Any:
    """Return a result whose verdict recommends so."""
    recommendation = dataclasses.replace(result.verdict.recommendation, **fields)
    verdict = dataclasses.replace(result.verdict, recommendation=recommendation)
    return dataclasses.replace(result, verdict=verdict)


def test_what_is_recommended_is_exported_and_the_winner_when_asked_for(
    make_spec: Any, whole_study: list[TicketRow], measure_baseline: Any, result_of: Any
) -> None:
    at_half = {"validate:constant=0.5": 0.2, "test:constant=0.5": 0.2}
    result = result_of(make_spec(), whole_study, measure_baseline(whole_study, at_half))
    config, code = to_yaml(result), to_python(result)
    compile(code, "export", "exec")
    for text in (config, code):
        assert "# What tempopt's study 'pairs' recommends" in text
        assert "# What to do: use τ = 1, evaluated at τ = 0.5. " in text
        assert "trained.ckpt" in text and "temperature_init=5" not in text
    assert yaml.safe_load(config)["model"]["init_args"]["temperature_init"] == 0.5
    assert "LoadCallback(path='trained.ckpt')" in code
    assert "trainer.validate(model" in code and "trainer.fit" not in code
    for text in (to_yaml(result, winner=True), to_python(result, winner=True)):
        assert "# The winner of the search of tempopt's study 'pairs'" in text
        assert "trained.ckpt" not in text and "# What to do: " in text
    assert yaml.safe_load(to_yaml(result, winner=True))["model"]["init_args"]["temperature_init"] == 5.0


def test_where_nothing_is_to_be_changed_the_baseline_is_exported(
    make_spec: Any, whole_study: list[TicketRow], result_of: Any
) -> None:
    result = with_recommendation(
        result_of(make_spec({"search": SEARCHED}, direction="minimize"), whole_study),
        params={"temperature_init": 1.0, "lr": 0.02},
    )
    assert yaml.safe_load(to_yaml(result))["model"]["init_args"] == {
        "d_model": 8,
        "temperature_init": 1.0,
        "lr": 0.02,
    }
    assert "lr=0.02" in to_python(result)


@pytest.mark.filterwarnings("ignore")
def test_an_attached_module_that_was_trained_gets_its_temperature_of_inference(
    make_spec: Any,
    whole_study: list[TicketRow],
    measure_baseline: Any,
    result_of: Any,
    own_module: None,
    tmp_path: Path,
) -> None:
    space: dict[str, Any] = {}
    exec(compile(MODULE, "module", "exec"), space)
    torch.save({"state_dict": space["Attends"]().state_dict()}, tmp_path / "trained.ckpt")
    sections = {
        "model": {"class_path": "own_module.Attends", "init_args": {}},
        "data": None,
        "trainer": QUIET,
        "attach": {"layers": "auto"},
    }
    at_half = {"temperature_init": 0.5}
    result = result_of(make_spec(sections), whole_study, measure_baseline(whole_study))
    result_inference = with_recommendation(
        result,
        action="inference_only",
        action_without_training="inference_only",
        params={},
        at_inference=at_half,
        plan_name="constant=0.5",
        gain=result.verdict.primary,
    )
    exec(compile(to_python(result_inference), "export", "exec"), space)
    assert temperatures(space) == (0.5,)
    assert space["trainer"].global_step == 0 and "val_loss" in space["trainer"].callback_metrics
    assert attached_by(to_yaml(result_inference)) == {
        "parameters": at_half, "layers": "auto", "validate_at": "final"
    }  # fmt: skip
    name = "attention.in_proj_weight"
    weights = [
        torch.load(tmp_path / file_name)["state_dict"][name]
        for file_name in ("trained.ckpt", "deployed.ckpt")
    ]
    assert torch.equal(weights[0][:8] * 2, weights[1][:8]) and torch.equal(weights[0][8:], weights[1][8:])
    # trained at one temperature, and evaluated at another
    result_both = with_recommendation(result, at_inference=at_half, plan_name="constant=0.5")
    exec(compile(to_python(result_both), "export", "exec"), space)
    assert temperatures(space) == (0.5,) and space["trainer"].global_step == 2
    assert attached_by(to_yaml(result_both))["at_inference"] == at_half
    # at τ = 1 there is nothing to attach
    result_unchanged = with_recommendation(
        result,
        action="change_nothing",
        action_without_training="change_nothing",
        params={"temperature_init": 1.0},
    )
    assert "attach" not in to_python(result_unchanged)


def test_the_schedule_of_an_attached_module_is_that_of_its_callback(best_of: Any) -> None:
    result = best_of({"attach": {"layers": "auto"}})
    config = to_yaml(result)
    assert yaml.safe_load(config)["model"]["init_args"] == {"d_model": 8, "lr": 1e-05}
    names = ("schedule", "temperature_init", "temperature_final")
    assert attached_by(config)["parameters"] == {name: TRIAL_PARAMS[name] for name in names}
    assert "# Checkpoints have the temperature in their weights" in config


def test_what_weights_cannot_hold_is_said_and_the_callbacks_of_the_study_stay(best_of: Any) -> None:
    callback = {"class_path": "three.Callback", "init_args": {}}
    sections = {
        "trainer": {"max_steps": 10, "callbacks": callback},
        "attach": {"layers": ["a.*"]},
        "search": {"temperature_init": {"low": 0.5, "high": 4.0}, "length_scaling": ["none", "log_n"]},
    }
    result = best_of(sections, {"temperature_init": 2.0, "length_scaling": "log_n", "n0": 16.0})
    for text in (to_yaml(result), to_python(result)):
        assert "# Weights cannot hold length_scaling, so checkpoints have the temperature beside them" in text
        assert "# load them with tempopt.load_checkpoint(model, path, example=" in text
    callbacks = yaml.safe_load(to_yaml(result))["trainer"]["callbacks"]
    assert callbacks[0] == callback and callbacks[1]["init_args"]["layers"] == ["a.*"]
    assert result.spec.trainer["callbacks"] == callback


@pytest.mark.parametrize("transform", ["identity", "inverse", "log_inverse"])
def test_a_constant_is_told_as_the_module_stores_it(transform: Any) -> None:
    init_args = {"path": "criterion.t", "transform": transform, "parameters": {"temperature_init": 0.1}}
    (line,) = constants([{"class_path": VALUE, "init_args": init_args}])
    match = re.search(r"made with criterion\.t = (\S+), and does not learn it", line)
    assert match is not None
    module = torch.nn.Module()
    module.criterion = torch.nn.Module()
    module.criterion.t = float(match[1])
    assert attach_value(module, "criterion.t", {}, transform=transform).temperatures == pytest.approx([0.1])


@pytest.mark.parametrize(
    "fields", [{"parameters": {"schedule": "linear", "temperature_final": 0.5}}, {"at_inference": 0.2}]
)
def test_what_changes_needs_its_callback(fields: dict[str, Any]) -> None:
    init_args = {"path": "criterion.t", "transform": "identity", "parameters": {"temperature_init": 0.1}}
    assert not list(constants([{"class_path": VALUE, "init_args": {**init_args, **fields}}]))
