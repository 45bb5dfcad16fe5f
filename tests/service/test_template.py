from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tempopt.errors import SpecError
from tempopt.service.scenarios import SCENARIOS
from tempopt.service.template import ModuleArgument, ModuleInfo, inspect_module, render_spec_template
from tempopt.spec.collect_errors import find_all_faults
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import BLANK, parse
from tests.storage.scenes import assert_fields

THEIRS = """
import lightning as L
from typing import Any
from tempopt.training.module import TemperedModule

class Classifier(L.LightningModule):
    def __init__(self, classes: int, width: int = 8, lr: float = 0.02, sizes=(1, 2), act=print, top_p=1.0):
        super().__init__()

    def training_step(self, batch, batch_idx):
        self.log("train_loss", 0.0)
        self.log("val_strange", 0.0)

    def validation_step(self, batch, batch_idx):
        name = "x"
        self.log(name, 0.0)
        self.log("speed", 0.0)
        self.log_dict({"val_accuracy": 0.0, "val_loss": 0.0})

class ClassifierData(L.LightningDataModule):
    def __init__(self, root: str, batch_size: int = 4):
        super().__init__()

    def train_dataloader(self): ...
    def val_dataloader(self): ...
    def test_dataloader(self): ...

class Silent(TemperedModule):
    def __init__(self, width: int = 8, **temperature: Any):
        super().__init__(num_layers=1, **temperature)
"""


@pytest.fixture
def their_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "their_classes.py").write_text(THEIRS)
    importlib.invalidate_caches()
    yield
    del sys.modules["their_classes"]


def info(**changes: Any) -> ModuleInfo:
    """Return what is known of a module."""
    values: dict[str, Any] = {
        "class_path": "theirs.MyModule",
        "tempered": True,
        "arguments": [],
        "metrics": ["val_loss"],
        "data": "theirs.MyData",
        "data_arguments": [],
        "other_data": [],
        "loaders": ["test", "train", "val"],
    }
    return ModuleInfo(**{**values, **changes})


def _load(text: str) -> StudySpec:
    document = parse(text, source="mine.yaml")
    return StudySpec.parse(document.data, source=document)


@pytest.mark.usefixtures("their_classes")
def test_a_module_is_seen_from_outside() -> None:
    module_info = inspect_module("their_classes:Classifier")
    assert module_info.class_path == "their_classes.Classifier"
    assert not module_info.tempered
    assert module_info.arguments == [
        ModuleArgument(name="classes", annotation="int", required=True, default=None),
        ModuleArgument(name="width", annotation="int", required=False, default=8),
        ModuleArgument(name="lr", annotation="float", required=False, default=0.02),
        ModuleArgument(name="sizes", annotation="", required=False, default=[1, 2]),
        ModuleArgument(name="act", annotation="", required=False, default=repr(print)),
    ]
    assert module_info.temperature_arguments == ["top_p"]
    assert module_info.metrics == ["speed", "val_accuracy", "val_loss", "val_strange"]
    assert module_info.data == "their_classes.ClassifierData"
    assert [argument.name for argument in module_info.data_arguments] == ["root", "batch_size"]
    assert module_info.loaders == ["test", "train", "val"]
    assert json.loads(json.dumps(asdict(module_info))) == asdict(module_info)


def test_a_template_with_nothing_to_fill_in_is_a_spec() -> None:
    text = render_spec_template(info())
    assert "It can be run as it is:" in text
    spec = _load(text)
    assert spec.study.name == "my_module"
    assert spec.study.metric == "val_loss" and spec.study.direction == "minimize"
    assert spec.study.confirm_on == "test"
    assert list(spec.search) == ["temperature_init", "temperature_final", "schedule"]
    assert spec.data == {"class_path": "theirs.MyData", "init_args": {}}
    assert spec.attach is None
    assert spec.notes == []


def test_every_suggestion_in_a_comment_is_a_spec_too() -> None:
    rate = ModuleArgument(name="lr", annotation="float", required=False, default=0.02)
    text = render_spec_template(info(arguments=[rate]))
    for beginning, end in (("study:\n", "\n# A bare name"), ("search:\n", "model:\n")):
        section = text[text.index(beginning) : text.index(end)]
        # the entropy of a compiled model is not controlled
        text = text.replace(section, re.sub("(?m)^  # (?!compile: )", "  ", section))
    temperatures_block = text[text.index("# temperatures:") : text.index("\nmodel:")]
    text = text.replace(temperatures_block, re.sub("(?m)^# ", "", temperatures_block))
    text_before, _, resources = text.partition("# resources:")
    spec = _load(text_before + "resources:" + re.sub("(?m)^#   ", "  ", resources))
    enqueue, warm_start = [{"temperature_init": 0.5}], ["an_earlier_study"]
    assert_fields(spec.study, checkpoint_every=60, enqueue=enqueue, warm_start=warm_start)
    assert spec.study.pruner.name == "none" and spec.study.limits.hours == 8
    assert_fields(spec.resources, workers="auto", gpus=0.25, cpus=1, grace=20)
    strategies = {"layer_pattern", "layer_ratio", "length_scaling", "normaliser", "top_k"}
    assert strategies | {"entropy_lambda", "entropy_control", "lr"} <= set(spec.search)
    assert spec.temperatures["contrast"].value == "criterion.temperature"
    assert "contrast.temperature_init" in spec.search
    assert "NAME: {}" in text
    assert "attention" not in text[: text.index("study:")]


def test_a_module_that_is_not_ours_is_attached_to() -> None:
    text = render_spec_template(info(tempered=False))
    spec = _load(text)
    assert spec.attach is not None
    assert spec.attach.layers == "auto"
    assert "# entropy_lambda:" in text
    assert "# length_scaling:" in text


def test_blanks_are_marked_and_named_when_left() -> None:
    argument = ModuleArgument(name="classes", annotation="int", required=True, default=None)
    text = render_spec_template(info(arguments=[argument], metrics=[], data=None, loaders=[]))
    assert 'Fill in what is marked "<-- fill in"' in text
    assert "classes: ???  # <-- fill in: int" in text
    with pytest.raises(SpecError) as error:
        _load(text)
    blank_keys = [line.split(": ")[1] for line in str(error.value).splitlines()[1:]]
    assert blank_keys == ["study.metric", "study.direction", "model.init_args.classes", "data.class_path"]
    blank_lines = [number for number, line in enumerate(text.splitlines(), 1) if "???" in line]
    assert [f"mine.yaml:{number}: " in str(error.value) for number in blank_lines] == [True] * 4


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("is_tempered", [True, False])
def test_a_scenario_writes_ranges_and_a_first_set(scenario: str, is_tempered: bool) -> None:
    text = render_spec_template(info(tempered=is_tempered), scenario)
    advice = SCENARIOS[scenario]
    assert f"# Scenario {scenario}: {advice.about}." in text
    assert (BLANK in text) == advice.named
    spec = _load(text.replace(BLANK, "criterion.temperature"))
    domains = advice.ranges
    assert list(spec.search) == list(domains)
    assert spec.study.enqueue == [dict(advice.enqueue)]
    assert list(spec.temperatures) == ([scenario] if advice.named else [])
    assert (spec.attach is None) == (is_tempered or advice.named)
    assert spec.notes == []


def test_init_arguments_that_drawing_tokens_needs_are_marked_where_the_module_lacks_them() -> None:
    text = render_spec_template(info(tempered=False, temperature_arguments=["top_p"]), "generation")
    blank_keys = [line.split(":")[0].strip() for line in text.splitlines() if "# <-- fill in" in line]
    assert blank_keys == ["sampling_temperature", "min_p"]
    assert "It can be run as it is" not in text
    for module in (
        info(),
        info(tempered=False, temperature_arguments=["sampling_temperature", "top_p", "min_p"]),
    ):
        assert "It can be run as it is" in render_spec_template(module, "generation")


@pytest.mark.parametrize("scenario", ["contrast", "distillation"])
def test_the_blank_of_a_temperature_and_other_faults_are_told_together(scenario: str) -> None:
    text = render_spec_template(info(), scenario)
    with pytest.raises(FaultySpecError) as error:
        _load(text.replace("# trials: 12", "trials: many"))
    paths = sorted(path for path, _ in find_all_faults(error.value))
    assert paths == ["study.trials", f"temperatures.{scenario}.value"]
