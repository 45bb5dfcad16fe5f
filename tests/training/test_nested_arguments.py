"""What is inside of an init argument is searched, trained with and exported as LightningCLI names it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightning.pytorch.cli import LightningCLI

from tempopt.errors import SpecError
from tempopt.report.export import to_python, to_yaml
from tempopt.spec.program import Program
from tempopt.training.build import build, check_space
from tempopt.training.describe import inspect_module

MODULE = """
from dataclasses import dataclass, field
from typing import Any

import lightning as L


@dataclass
class Inner:
    rate: float = 0.5


@dataclass
class Config:
    dropout: float = 0.0
    width: int = 32
    inner: Inner = field(default_factory=Inner)


class Part:
    def __init__(self, size: int = 1) -> None:
        self.size = size


class Model(L.LightningModule):
    def __init__(
        self,
        config: Config = Config(dropout=0.1, width=64),
        options: dict[str, Any] = {"alpha": 1.0, "beta": 2},
        part: Part | None = None,
    ) -> None:
        super().__init__()
        self.config, self.options, self.part = config, options, part

    def train_dataloader(self): ...
    def val_dataloader(self): ...
"""
OPTIONS = {"alpha": 3.0, "beta": 4}


@pytest.fixture(autouse=True)
def nested_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    (tmp_path / "nested_module.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module("nested_module")
    sys.modules.pop("nested_module", None)


def program(**init_args: Any) -> Program:
    return Program(
        model={"class_path": "nested_module.Model", "init_args": init_args},
        data=None,
        trainer={"max_steps": 2},
        attach={"layers": "auto"},
        metric="val_loss",
        validate_at="final",
        data_seed=0,
    )


def test_a_run_trains_with_what_is_inside_of_arguments() -> None:
    params = {"model.config.dropout": 0.3, "model.config.inner.rate": 0.7}
    config: Any = build(program(), params).module.config
    assert (config.dropout, config.width, config.inner.rate) == (0.3, 64, 0.7)
    configured_program = program(
        config={"width": 16}, options=OPTIONS, part={"class_path": "nested_module.Part"}
    )
    module: Any = build(
        configured_program, {"model.config.dropout": 0.3, "model.options.alpha": 9.0, "model.part.size": 5}
    ).module
    assert (module.config.dropout, module.config.width) == (0.3, 16)
    assert module.options == {"alpha": 9.0, "beta": 4}
    assert module.part.size == 5


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.config.dropuot", 0.1, 'Unknown key of model.config "dropuot". Did you mean "dropout"'),
        ("model.config.inner.rat", 0.1, 'Unknown key of model.config.inner "rat". Did you mean "rate"'),
        ("model.options.alhpa", 0.1, 'Unknown key of model.options "alhpa". Did you mean "alpha"'),
        ("model.config.dropout", "high", "model.config"),
        (
            "model.confg.dropout",
            0.1,
            'Unknown argument of nested_module.Model "confg". Did you mean "config"',
        ),
        ("model.part.size", 3, 'goes below "part".*no class_path and no mapping. Write its values under'),
    ],
)
def test_what_is_not_there_is_refused_by_its_name(name: str, value: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        check_space(program(options=OPTIONS), {"temperature_init": [1.0], name: [value]})


def test_a_mapping_that_only_the_class_knows_has_to_be_written() -> None:
    with pytest.raises(SpecError, match="Write its values under model.init_args"):
        check_space(program(), {"temperature_init": [1.0], "model.options.alpha": [1.0]})


def test_init_writes_defaults_inside_of_arguments_as_a_mapping() -> None:
    defaults = {
        argument.name: argument.default for argument in inspect_module("nested_module.Model").arguments
    }
    assert defaults["config"] == {"dropout": 0.1, "width": 64, "inner": {"rate": 0.5}}


SEARCHED = {
    "temperature_init": {"low": 0.25, "high": 4.0},
    "model.config.dropout": {"low": 0.0, "high": 0.5},
    "model.options.alpha": {"low": 0.0, "high": 9.0},
    "model.part.size": {"choices": [1, 2, 3]},
}
TRIAL_PARAMS = {
    "temperature_init": 2.0,
    "model.config.dropout": 0.25,
    "model.options.alpha": 5.0,
    "model.part.size": 3,
}
INIT = {"options": OPTIONS, "part": {"class_path": "nested_module.Part", "init_args": {}}}


@pytest.fixture
def result(make_spec: Any, make_ticket: Any, result_of: Any) -> Any:
    sections = {
        "model": {"class_path": "nested_module.Model", "init_args": INIT},
        "data": None,
        "search": SEARCHED,
        "attach": {"layers": "auto"},
    }
    return result_of(make_spec(sections), [make_ticket("search", 0, 0.5, parameters=TRIAL_PARAMS)])


def assert_found(module: Any) -> None:
    assert (module.config.dropout, module.config.width) == (0.25, 64)
    assert module.options == {"alpha": 5.0, "beta": 4}
    assert module.part.size == 3


# Lightning uses what jsonargparse deprecates.
@pytest.mark.filterwarnings("ignore")
def test_lightning_cli_trains_what_is_exported(
    result: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["train.py"])
    text = to_yaml(result)
    arguments = yaml.safe_load(text)["model"]["init_args"]
    assert arguments["config"] == {"dropout": 0.25}
    assert arguments["part"]["init_args"] == {"size": 3}
    (tmp_path / "found.yaml").write_text(text, encoding="utf-8")
    cli = LightningCLI(
        run=False,
        save_config_callback=None,
        seed_everything_default=False,
        args=["--config", str(tmp_path / "found.yaml")],
    )
    assert_found(cli.model)


def test_the_script_makes_what_was_found(result: Any) -> None:
    namespace: dict[str, Any] = {}
    lines = to_python(result).splitlines()
    assert "".join(lines).count("Arguments('model', Model,") == 1
    exec("\n".join(line for line in lines if line.startswith(("from ", "import ", "model = "))), namespace)
    assert_found(namespace["model"])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.lr", 'write "lr", not "model.lr"'),
        ("model.init_args.config.dropout", 'leave init_args out: write "model.config.dropout"'),
        ("config.dropout", "written model.ARGUMENT.KEY: model.config.dropout"),
        ("model.schedule_args.knee", 'write "schedule_args.knee"'),
    ],
)
def test_a_name_that_is_written_otherwise_is_told_how(name: str, message: str, make_spec: Any) -> None:
    with pytest.raises(SpecError, match=message):
        make_spec({"search": {"temperature_init": [1.0, 2.0], name: [1, 2]}})


def test_one_argument_under_two_names_is_refused(make_spec: Any) -> None:
    model = {"class_path": "nested_module.Model", "init_args": {"options": OPTIONS}}
    space = {name: [1, 2] for name in ("options.beta", "model.options.beta")}
    with pytest.raises(SpecError, match='"options.beta" and "model.options.beta" are the same'):
        make_spec({"model": model, "search": {"temperature_init": [1.0, 2.0], **space}})
