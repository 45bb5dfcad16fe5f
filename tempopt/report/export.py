"""The recommended configuration as text: a config for LightningCLI or a script, without a tempopt service.

Reads a StudyData and writes strings; does not import the classes of the study.
"""

from __future__ import annotations

import copy
import math
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import yaml

from tempopt.errors import StudyFailed, UsageError
from tempopt.report.comparison_text import comparison_headline, exported_set
from tempopt.report.decision import decide
from tempopt.report.findings import round_lines
from tempopt.report.formatting import baseline_name, parameters_text
from tempopt.report.program_export import program_python, program_yaml
from tempopt.report.recommendation_text import HEAD, recommendation_text
from tempopt.report.study_data import StudyData
from tempopt.storage.run_code import run_codes
from tempopt.temperature import (
    CONTROL_PARAMETERS,
    CREDITED,
    ENTROPY_PARAMETERS,
    NEUTRAL,
    PLAN_PARAMETERS,
    ParameterNames,
    TemperatureParameters,
    drop_unused_params,
    group_by_temperature,
    named_schedule_params,
    registered_path,
    same_training,
    split_name,
)

Format = Literal["yaml", "python"]
"""A config for LightningCLI, or a script."""

_TRAINED = "trained.ckpt"
_DEPLOYED = "deployed.ckpt"
_LOADING = "tempopt.LoadCallback"
ATTACH = "tempopt.AttachCallback"
VALUE = "tempopt.ValueCallback"

_MAX_COMMENT_WIDTH = 110
_MAX_CALL_WIDTH = 72
# parses a mapping as LightningCLI does, into a dataclass if the class takes one
_ARGUMENTS = "tempopt.training.arguments.Arguments"
_NUM_INTERVALS = 20
_STORED: Mapping[str, Callable[[float], float]] = {
    "identity": lambda tau: tau,
    "inverse": lambda tau: 1.0 / tau,
    "log_inverse": lambda tau: -math.log(tau),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Export:
    """The content of an export.

    Args:
        parameters: The complete parameter set.
        header: Comment lines about the configuration.
        at_inference: Temperature parameters to evaluate the trained model with; None: its own.
        weights: Checkpoint of a trained model that is evaluated; None if the model is trained.
        config: Sections ``model``, ``data`` and ``trainer`` with the parameters.
        attached: Arguments of the callback that attaches; None if it is not needed.
        callbacks: Required callbacks of tempopt, which are also in ``config``.
    """

    parameters: dict[str, Any]
    header: list[str]
    at_inference: dict[str, Any] | None = None
    weights: str | None = None
    config: dict[str, Any] = field(default_factory=dict)
    attached: dict[str, Any] | None = None
    callbacks: Sequence[Mapping[str, Any]] = ()

    @property
    def plan_of_model(self) -> dict[str, Any] | None:
        """Plan of inference of a model that sets its own temperature; None: none, or a callback sets it."""
        return None if self.attached is not None else _attention_part(self.at_inference)

    @property
    def has_values(self) -> bool:
        """Whether a callback sets a temperature that is not attention's."""
        return any(callback["class_path"] == VALUE for callback in self.callbacks)


def to_text(result: StudyData, format: Format, *, winner: bool = False) -> str:
    """Return :func:`to_yaml` or :func:`to_python` of a study; arguments and errors as there.

    Raises:
        UsageError: There is no such format.
    """
    if format not in get_args(Format):
        raise UsageError(f"Unknown format {format!r}. Known: {', '.join(get_args(Format))}.")
    return (to_yaml if format == "yaml" else to_python)(result, winner=winner)


def to_yaml(result: StudyData, *, winner: bool = False) -> str:
    """Return ``model:``, ``data:`` and ``trainer:`` with the recommended parameters, for LightningCLI.

    For a module that is tempered from outside, the trainer has :class:`tempopt.AttachCallback`, which sets
    the temperature. The study's loggers are left out, since their names and paths belong to the runs of a
    study.

    Args:
        result: The study.
        winner: Whether to export the winner of the search regardless of the recommendation.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    if result.spec.program is not None:
        export = _select(result, winner=winner)
        return comment(export.header) + program_yaml(result.spec, export.parameters)
    export = _build_export(result, winner=winner)
    notes = [*export.header]
    action = "training" if export.weights is None else "evaluating"
    if export.attached is not None:
        notes += [f"{ATTACH} sets the temperature, so {action} needs tempopt.", *_checkpoint_notes(export)]
    if export.has_values:
        notes.append(f"{VALUE} sets a temperature of the module, so {action} needs tempopt.")
        notes += constants(export.callbacks)
    if export.weights is not None:
        notes.append(f"{_LOADING} loads the weights. Run it with: validate")
    if (attention_params := export.plan_of_model) is not None:
        notes += [
            "Once the model is trained, evaluate it at another temperature than it was trained with:",
            f"  {parameters_text(attention_params)}",
            "The Python script (--format python) does that, too.",
        ]
    text: str = yaml.safe_dump(export.config, sort_keys=False, allow_unicode=True)
    return comment(notes) + text


def to_python(result: StudyData, *, winner: bool = False) -> str:
    """Return a Python script that applies the recommendation with a plain ``lightning.Trainer``.

    It trains the model. If inference only is recommended, it loads trained weights and validates them at the
    recommended temperature. A module that is tempered from outside is then saved with the temperature in its
    weights, or beside them if weights cannot contain it; a folder of transformers or a state dict is saved in
    the same form. The study's loggers are left out, as by :func:`to_yaml`.

    Args:
        result: The study.
        winner: Whether to export the winner of the search regardless of the recommendation.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    if result.spec.program is not None:
        export = _select(result, winner=winner)
        return comment(export.header) + program_python(result.spec, export.parameters)
    export, code = _build_export(result, winner=winner), PythonWriter()
    body = [f"model = {code.object_expression('model', export.config['model'])}"]
    trainer = dict(export.config["trainer"])
    if callbacks := _to_list(trainer.pop("callbacks", None)):
        trainer["callbacks"] = callbacks
    body.append(f"trainer = {code.call(f'{_lightning_package_name(result)}.Trainer', trainer)}")
    fit_args = "model"
    if (data := export.config.get("data")) is not None:
        body.append(f"data = {code.object_expression('data', data)}")
        fit_args = "model, datamodule=data"
    body.append(f"trainer.{'fit' if export.weights is None else 'validate'}({fit_args})")
    if export.at_inference is not None:
        body.append("# evaluate, and serve, at another temperature than the model was trained with")
        if (attention_params := export.plan_of_model) is not None:
            parameters = code.name("tempopt.temperature.TemperatureParameters")
            body.append(f"model.use({parameters}.from_mapping({attention_params!r}))")
        body.append(f"trainer.validate({fit_args})")
    if export.attached is not None:
        body += comment(_checkpoint_notes(export)).splitlines()[:-1]
        body.append(f"trainer.save_checkpoint({_DEPLOYED!r}, weights_only=True)")
    notes = [*export.header, *constants(export.callbacks)]
    return comment(notes) + "\n".join([*code.imports(), "", *body, ""])


def _lightning_package_name(result: StudyData) -> str:
    """Return the name of the package whose Trainer has trained the runs."""
    packages = {
        name for run_code, _ in run_codes(run.code for run in result.runs) for name in run_code.packages
    }
    return "pytorch_lightning" if "pytorch_lightning" in packages else "lightning"


def _attention_part(at_inference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the part of a plan of inference that is attention's; None if there is none."""
    return group_by_temperature(at_inference or {})[""] or None


def _callbacks(result: StudyData, export: _Export) -> list[dict[str, Any]]:
    """Return the required callbacks that load trained weights and set temperatures."""
    callbacks: list[dict[str, Any]] = []
    if export.weights is not None:
        callbacks.append({"class_path": _LOADING, "init_args": {"path": export.weights}})
    if export.attached is not None:
        callbacks.append({"class_path": ATTACH, "init_args": export.attached})
    for name, value in result.spec.temperatures.items():
        schedule = named_schedule_params(export.parameters, name)
        parameters: dict[str, Any] = {}
        for parameter, number in schedule.items():
            # ``schedule_args.NAME`` belongs into the mapping ``schedule_args``
            _write_value(parameters, parameter, number)
        at_inference = group_by_temperature(export.at_inference or {}).get(name)
        if not schedule and at_inference is None:
            # neutral parameters need not be set
            continue
        arguments: dict[str, Any] = {
            "path": value.value or registered_path(name),
            "parameters": parameters,
            "transform": value.transform,
            "validate_at": result.spec.study.validate_at,
        }
        if at_inference is not None:
            arguments["at_inference"] = at_inference["temperature_init"]
        callbacks.append({"class_path": VALUE, "init_args": arguments})
    return callbacks


def _checkpoint_notes(export: _Export) -> list[str]:
    """Return notes on the checkpoints that the callbacks of an attached module write."""
    assert export.attached is not None
    inference_params = {**NEUTRAL, **export.attached.get("at_inference", export.attached["parameters"])}
    names = ("head_pattern", "local_share", "length_scaling", "normaliser")
    if parts := [name for name in names if inference_params[name] != NEUTRAL[name]]:
        return [
            f"Weights cannot hold {' and '.join(parts)}, so checkpoints have the temperature beside them:",
            "load them with tempopt.load_checkpoint(model, path, example=lambda: model(batch)).",
        ]
    if not export.has_values:
        return [
            "Checkpoints have the temperature in their weights and load without tempopt, if no warning says "
            "that it is beside them."
        ]
    return [
        f"Checkpoints have attention's temperature in their weights. A Python number that {VALUE} sets is "
        "beside them: tempopt.load_checkpoint(model, path) sets it."
    ]


def _build_export(result: StudyData, *, winner: bool) -> _Export:
    export = _select(result, winner=winner)
    config, plan = _fill_config(result, export.parameters)
    if result.spec.trainer.get("logger"):
        export.header.append("The study's loggers (trainer.logger) are left out; give the Trainer your own.")
    attach, at_inference = result.spec.attach, _attention_part(export.at_inference)
    if attach is not None and (plan or at_inference):
        attached: dict[str, Any] = {"parameters": plan, "layers": attach.layers}
        attached["validate_at"] = result.spec.study.validate_at
        if at_inference is not None:
            attached["at_inference"] = at_inference
        export = replace(export, attached=attached)
    callbacks = _callbacks(result, export)
    if callbacks:
        config["trainer"]["callbacks"] = [*_to_list(config["trainer"].get("callbacks")), *callbacks]
    return replace(export, config=config, callbacks=callbacks)


def _select(result: StudyData, *, winner: bool) -> _Export:
    """Return the parameters to export, and notes on them."""
    recommendation = result.recommendation
    written = "as written by tempopt export."
    if result.spec.compare is not None:
        name = exported_set(result)
        assert result.comparison is not None
        header = [f"{name} of tempopt's comparison {result.name!r}, {written}", comparison_headline(result)]
        return _Export(parameters=drop_unused_params(result.comparison.params_by_name[name]), header=header)
    verdict_lines = []
    if (decision := decide(result)) is not None:
        advice_text = f"{HEAD}{recommendation_text(result, as_code=False)}"
        verdict_lines = [decision.headline, *round_lines(result), advice_text]
    if recommendation is None or winner:
        header = [f"The winner of the search of tempopt's study {result.name!r}, {written}", *verdict_lines]
        if result.verdict is None:
            source = "Chosen on fresh seeds" if result.winner is not None else "The best trial of the search"
            gain = f"its gain over {baseline_name(result.spec)}"
            header.append(f"{source}, but UNCONFIRMED: {gain} has not been estimated.")
        return _Export(parameters=_winner_params(result), header=header)
    header = [f"What tempopt's study {result.name!r} recommends, {written}", *verdict_lines]
    if recommendation.action_without_training != "inference_only":
        parameters = drop_unused_params(recommendation.params)
        return _Export(parameters=parameters, header=header, at_inference=recommendation.at_inference)
    assert recommendation.at_inference is not None
    other_params = {name: value for name, value in recommendation.params.items() if name not in CREDITED}
    baseline_model = f"a model that was trained at {baseline_name(result.spec)}"
    header.append(f"{_TRAINED} stands for your checkpoint of {baseline_model}.")
    parameters = drop_unused_params({**other_params, **recommendation.at_inference})
    return _Export(parameters=parameters, header=header, weights=_TRAINED)


def _winner_params(result: StudyData) -> dict[str, Any]:
    if result.winner is not None:
        return drop_unused_params(result.winner)
    if result.best is not None:
        return drop_unused_params(result.best.params)
    raise StudyFailed(
        f'Study "{result.name}" has nothing to export: no search trial is complete. '
        f"Continue it (tempopt resume {result.name}), or look at what went wrong "
        f"(tempopt logs {result.name})."
    )


def _fill_config(result: StudyData, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the spec's config with the parameters, and the plan to attach."""
    spec = result.spec
    config: dict[str, Any] = {"model": copy.deepcopy(spec.model)}
    if spec.data is not None:
        config["data"] = copy.deepcopy(spec.data)
    config["trainer"] = copy.deepcopy(spec.trainer)
    if config["trainer"].get("logger"):
        # False stays: it disables logging
        del config["trainer"]["logger"]
    for name in spec.fixed_temperatures:
        # Inactive parameters are not among the winner's, and may even be inconsistent with these.
        config["model"]["init_args"].pop(name.partition(".")[0], None)
    plan: dict[str, Any] = {}
    attached_names = ParameterNames((*PLAN_PARAMETERS, *CONTROL_PARAMETERS, *ENTROPY_PARAMETERS))
    for name, value in parameters.items():
        section, dot, path = name.partition(".")
        if split_name(name)[0]:
            # a callback sets it
            continue
        if "." in path and section == "model":
            _write_value(config["model"]["init_args"], path, value)
        elif dot and section in ("data", "trainer"):
            target = config["trainer"] if section == "trainer" else config["data"]["init_args"]
            _write_value(target, path, value)
        elif spec.attach is not None and name in attached_names:
            _write_value(plan, name, value)
        else:
            _write_value(config["model"]["init_args"], name, value)
    # a neutral plan need not be attached
    return config, {} if same_training(plan, {}) else plan


def _write_value(target: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if "class_path" in target:
            target = target.setdefault("init_args", {})
    target[key] = value


def _to_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def constants(callbacks: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each number that stays constant, for which the module needs no callback."""
    for callback in callbacks:
        init_args = callback["init_args"]
        if callback["class_path"] != VALUE or "at_inference" in init_args:
            continue
        schedule = TemperatureParameters.from_mapping(init_args["parameters"]).plan(1).schedule
        levels = {schedule(moment / _NUM_INTERVALS) for moment in range(_NUM_INTERVALS + 1)}
        if len(levels) == 1:
            number = _STORED[init_args["transform"]](levels.pop())
            yield (
                f"{init_args['path']} stays constant: a module that is made with "
                f"{init_args['path']} = {number:.10g}, and does not learn it, needs no callback for it."
            )


def comment(lines: Iterable[str]) -> str:
    """Return texts as comment lines of readable length, and an empty line."""
    return "".join(f"{_wrap_comment(line)}\n" for text in lines for line in text.splitlines()) + "\n"


def _wrap_comment(line: str) -> str:
    if not line:
        return "#"
    return textwrap.fill(
        line,
        _MAX_COMMENT_WIDTH,
        initial_indent="# ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


class PythonWriter:
    """Plain data as Python expressions, with their imports."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, path: str) -> str:
        """Return the name under which the object at an import path is imported."""
        base_name = path.rpartition(".")[2]
        used_names = {name for other_path, name in self._names.items() if other_path != path}
        name, number = base_name, 1
        while name in used_names:
            number += 1
            name = f"{base_name}{number}"
        return self._names.setdefault(path, name)

    def imports(self) -> list[str]:
        """Return one import for each module, sorted."""
        modules: dict[str, list[str]] = {}
        for path, name in self._names.items():
            module, _, base_name = path.rpartition(".")
            modules.setdefault(module, []).append(
                base_name if name == base_name else f"{base_name} as {name}"
            )
        return [
            f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())
        ]

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return a call of the object at an import path, with one argument per line if there are many."""
        callee = self.name(path)
        if not all(name.isidentifier() for name in arguments):
            return f"{callee}(**{self._mapping(arguments)})"
        arg_texts = [f"{name}={self.expression(value)}" for name, value in arguments.items()]
        if sum(map(len, arg_texts)) <= _MAX_CALL_WIDTH:
            return f"{callee}({', '.join(arg_texts)})"
        lines = "".join(f"{argument},\n" for argument in arg_texts)
        return f"{callee}(\n{textwrap.indent(lines, '    ')})"

    def object_expression(self, section: str, config: Mapping[str, Any]) -> str:
        """Return the expression of a section's object; the class determines the type of mappings in it."""
        init_args = config.get("init_args") or {}
        mapping_names = [
            name
            for name, value in init_args.items()
            if isinstance(value, Mapping) and "class_path" not in value and name != "schedule_args"
        ]
        if not mapping_names:
            return self.expression(config)
        callee, arguments = self.name(config["class_path"]), self.name(_ARGUMENTS)
        return f"{callee}(**{arguments}({section!r}, {callee}, {init_args!r}).values({{}}))"

    def expression(self, value: Any) -> str:
        """Return the expression of plain data; ``{class_path, ...}`` becomes a call."""
        if isinstance(value, Mapping):
            if "class_path" in value and value.keys() <= {"class_path", "init_args", "dict_kwargs"}:
                call_args = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
                return self.call(value["class_path"], call_args)
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.expression(entry) for entry in value)}]"
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return f"float({str(value)!r})"
        return repr(value)

    def _mapping(self, value: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{key!r}: {self.expression(entry)}" for key, entry in value.items()) + "}"
