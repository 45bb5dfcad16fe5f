"""The winner as text: a config for LightningCLI and a call in Python; neither needs a tempopt service.

Reads a StudyResult and writes strings; imports nothing of what it names.
"""

from __future__ import annotations

import copy
import textwrap
from collections.abc import Mapping
from typing import Any

import yaml

from tempopt.errors import StudyFailed
from tempopt.results.comparison_text import export_header, exported
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import headline, parameters_text, round_lines
from tempopt.spec.sections import AttachSection
from tempopt.temperature import (
    ENTROPY_PARAMETERS,
    PLAN_PARAMETERS,
    TEMPERATURE_PARAMETERS,
    EntropyParameters,
    ParameterNames,
    effective,
)

_WIDTH = 72


def to_yaml(result: StudyResult) -> str:
    """Return ``model:``, ``data:`` and ``trainer:`` with the winner's parameters, for LightningCLI.

    For a module that is tempered from outside, LightningCLI has no place for the temperature: the
    header says so and names it. The study's loggers are left out: what they are called, and where they log
    to, follows from the runs of a study.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    parameters = _parameters(result)
    config, plan = _merged(result, parameters)
    notes = [*_header(result), *_left_out(result)]
    if plan:
        notes += [
            "The model is not a TemperedModule, so this config holds no temperature. It needs:",
            f"  {parameters_text(plan)}",
            "The Python call that tempopt exports attaches it.",
        ]
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return _comment(notes) + text


def to_python(result: StudyResult) -> str:
    """Return a Python script that trains the winner with a plain ``lightning.Trainer``.

    A study of a trained model (``study.evaluate_only``) gets a script that validates it. The study's loggers
    are left out, as by :func:`to_yaml`.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    config, plan = _merged(result, _parameters(result))
    code = _Code()
    body = [f"model = {code.expression(config['model'])}"]
    weights = result.spec.study.evaluate_only
    if weights is not None:
        checkpoint = f"{code.name('torch.load')}({weights!r}, map_location='cpu', weights_only=True)"
        body.append(f"model.load_state_dict({checkpoint}['state_dict'])")
    trainer = dict(config.get("trainer", {}))
    callbacks = [code.expression(callback) for callback in _listed(trainer.pop("callbacks", None))]
    if plan:
        how = result.spec.attach or AttachSection()
        body.append(
            f"attachment = {code.name('tempopt.attach')}(model, {plan!r}, layers={how.layers!r}, "
            f"way={how.way!r})"
        )
        follow = code.name("tempopt.training.callbacks.TemperatureCallback")
        at = result.spec.study.validate_at
        callbacks.append(f"{follow}(validate_at={at!r}, tempered=attachment)")
        if EntropyParameters.from_mapping(plan).has_term:
            scaling = code.name("tempopt.training.callbacks.LossScaleCallback")
            callbacks.append(f"{scaling}(tempered=attachment)")
    if callbacks:
        trainer["callbacks"] = _Verbatim(f"[{', '.join(callbacks)}]")
    body.append(f"trainer = {code.call('lightning.Trainer', trainer)}")
    data = config.get("data")
    if data is not None:
        body.append(f"data = {code.expression(data)}")
    verb = "fit" if weights is None else "validate"
    body.append(f"trainer.{verb}(model{', datamodule=data' if data is not None else ''})")
    return _comment([*_header(result), *_left_out(result)]) + "\n".join([*code.imports(), "", *body, ""])


def _parameters(result: StudyResult) -> dict[str, Any]:
    if result.spec.compare is not None:
        return effective(exported(result).params)
    if result.winner is not None:
        return effective(result.winner)
    if result.best is not None:
        return effective(result.best.params)
    raise StudyFailed(
        f'Study "{result.name}" has no winner to export: no search trial is complete. '
        f"Continue it (tempopt resume {result.name}), or look at what went wrong "
        f"(tempopt logs {result.name})."
    )


def _header(result: StudyResult) -> list[str]:
    if result.spec.compare is not None:
        return export_header(result)
    lines = [f"The winner of tempopt's study {result.name!r}, as written by tempopt export."]
    weights = result.spec.study.evaluate_only
    if result.verdict is not None:
        lines += [headline(result), *round_lines(result)]
    elif weights is not None:
        lines.append(f"The best temperature for the trained model {weights}; nothing was trained.")
    else:
        source = "Chosen on fresh seeds" if result.winner is not None else "The best trial of the search"
        lines.append(f"{source}, but UNCONFIRMED: its gain over τ = 1 has not been estimated.")
    return lines


def _left_out(result: StudyResult) -> list[str]:
    """Return a line for the loggers, if there are any."""
    if not result.spec.trainer.get("logger"):
        return []
    return ["The study's loggers (trainer.logger) are left out; give the Trainer your own."]


def _comment(lines: list[str]) -> str:
    return "".join(f"# {line}\n" for text in lines for line in text.splitlines()) + "\n"


def _merged(result: StudyResult, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the config with the parameters in their places, and the plan that has to be attached."""
    spec = result.spec
    config: dict[str, Any] = {"model": copy.deepcopy(spec.model)}
    if spec.data is not None:
        config["data"] = copy.deepcopy(spec.data)
    config["trainer"] = copy.deepcopy(spec.trainer)
    if config["trainer"].get("logger"):
        # one that is switched off stays so
        del config["trainer"]["logger"]
    for name in spec.fixed_temperatures:
        # What the winner does not read is not among its parameters, and may not even go with it.
        config["model"]["init_args"].pop(name.partition(".")[0], None)
    plan: dict[str, Any] = {}
    by_interface = spec.attach is not None and spec.attach.way == "attention_interface"
    attached = ParameterNames((*PLAN_PARAMETERS, *(ENTROPY_PARAMETERS if by_interface else ())))
    for name, value in parameters.items():
        section, dot, rest = name.partition(".")
        if dot and section in ("data", "trainer"):
            target = config["trainer"] if section == "trainer" else config["data"]["init_args"]
            _put(target, rest, value)
        elif spec.attach is not None and name in attached:
            _put(plan, name, value)
        elif name in TEMPERATURE_PARAMETERS:
            _put(config["model"]["init_args"], name, value)
        else:
            config["model"]["init_args"][name] = value
    return config, plan


def _put(target: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
    target[last] = value


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


class _Verbatim(str):
    """Text that is already an expression."""

    __slots__ = ()


class _Code:
    """Plain data as Python expressions, and the imports that they need."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, path: str) -> str:
        """Return the name under which the object of that import path is imported."""
        last = path.rpartition(".")[2]
        taken = {name for other, name in self._names.items() if other != path}
        name, number = last, 1
        while name in taken:
            number += 1
            name = f"{last}{number}"
        return self._names.setdefault(path, name)

    def imports(self) -> list[str]:
        """Return one import for each module, sorted."""
        modules: dict[str, list[str]] = {}
        for path, name in self._names.items():
            module, _, last = path.rpartition(".")
            modules.setdefault(module, []).append(last if name == last else f"{last} as {name}")
        return [
            f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())
        ]

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the call of the object of that import path, an argument a line where there are many."""
        callee = self.name(path)
        if not all(name.isidentifier() for name in arguments):
            return f"{callee}(**{self._mapping(arguments)})"
        given = [f"{name}={self.expression(value)}" for name, value in arguments.items()]
        if sum(map(len, given)) <= _WIDTH:
            return f"{callee}({', '.join(given)})"
        lines = "".join(f"{argument},\n" for argument in given)
        return f"{callee}(\n{textwrap.indent(lines, '    ')})"

    def expression(self, value: Any) -> str:
        """Return the expression of plain data; ``{class_path, ...}`` becomes the call it stands for."""
        if isinstance(value, _Verbatim):
            return str(value)
        if isinstance(value, Mapping):
            if "class_path" in value and value.keys() <= {"class_path", "init_args", "dict_kwargs"}:
                given = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
                return self.call(value["class_path"], given)
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.expression(item) for item in value)}]"
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return f"float({str(value)!r})"
        return repr(value)

    def _mapping(self, value: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{key!r}: {self.expression(item)}" for key, item in value.items()) + "}"
