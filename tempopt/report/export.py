"""What is recommended as text: a config for LightningCLI and a script; neither needs a tempopt service.

Reads a StudyData and writes strings; imports nothing of what it names.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import yaml

from tempopt.errors import StudyFailed, UsageError
from tempopt.report.comparison_text import export_header, exported
from tempopt.report.export_notes import ATTACH, VALUE, comment, constants, has, in_weights
from tempopt.report.findings import headline, round_lines
from tempopt.report.formatting import baseline_name, parameters_text
from tempopt.report.python_code import PythonWriter, Verbatim
from tempopt.report.recommendation_text import HEAD, recommendation_text
from tempopt.report.study_data import StudyData
from tempopt.temperature import (
    CONTROL_PARAMETERS,
    CREDITED,
    ENTROPY_PARAMETERS,
    NEUTRAL,
    PLAN_PARAMETERS,
    ParameterNames,
    drop_unused_params,
    groups_of,
    registered_path,
    same_training,
    schedule_of,
    split_name,
)

Format = Literal["yaml", "python"]
"""A config for LightningCLI, or a script."""

_TRAINED = "trained.ckpt"
_DEPLOYED = "deployed.ckpt"
_LOADING = "tempopt.LoadCallback"


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportRequest:
    """What is exported.

    Args:
        parameters: The whole parameter set.
        at_inference: Temperature parameters to evaluate the model with once it is trained; None: its own.
        weights: Checkpoint of a trained model that is evaluated; None: the model is trained.
        header: Comment lines on what this is.
    """

    parameters: dict[str, Any]
    at_inference: dict[str, Any] | None
    weights: str | None
    header: list[str]


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
    the temperature. The study's loggers are left out: what they are called, and where they log to, follows
    from the runs of a study.

    Args:
        result: The study.
        winner: Whether to take the winner of the search, whatever is recommended.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    export = _build_export_request(result, winner=winner)
    config, plan = _merged(result, export.parameters)
    attaching = _attaching(result, plan, export.at_inference)
    notes = [*export.header, *_left_out(result)]
    if callbacks := _callbacks(result, export, attaching):
        config_callbacks = _listed(config["trainer"].get("callbacks"))
        config["trainer"]["callbacks"] = [*config_callbacks, *callbacks]
    action = "training" if export.weights is None else "evaluating"
    if attaching is not None:
        notes += [
            f"tempopt.AttachCallback sets the temperature, so {action} needs tempopt.",
            *_saved(attaching, callbacks),
        ]
    if has(callbacks, VALUE):
        notes.append(f"tempopt.ValueCallback sets a temperature of the module, so {action} needs tempopt.")
        notes += constants(callbacks)
    if export.weights is not None:
        notes.append("tempopt.LoadCallback loads the weights. Run it with: validate")
    if (attention_params := _of_attention(export.at_inference)) is not None and attaching is None:
        notes += [
            "Once the model is trained, evaluate it at another temperature than it was trained with:",
            f"  {parameters_text(attention_params)}",
            "The Python script (--format python) does that, too.",
        ]
    text: str = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    return comment(notes) + text


def to_python(result: StudyData, *, winner: bool = False) -> str:
    """Return a Python script that does what is recommended with a plain ``lightning.Trainer``.

    It trains the model. Where inference alone is recommended, it loads trained weights and validates them at
    the temperature that was found.
    A module that is tempered from outside is then saved with the temperature in its weights, or beside them
    where weights cannot hold it; what was a folder of transformers, or a state dict, is saved as such, too.
    The study's loggers are left out, as by :func:`to_yaml`.

    Args:
        result: The study.
        winner: Whether to take the winner of the search, whatever is recommended.

    Raises:
        StudyFailed: No search trial is complete, so there is nothing to export.
    """
    export = _build_export_request(result, winner=winner)
    config, plan = _merged(result, export.parameters)
    attaching = _attaching(result, plan, export.at_inference)
    code = PythonWriter()
    body = [f"model = {code.object_expression('model', config['model'])}"]
    trainer = dict(config.get("trainer", {}))
    callbacks = _callbacks(result, export, attaching)
    all_callbacks = [*_listed(trainer.pop("callbacks", None)), *callbacks]
    if all_callbacks:
        expressions = ", ".join(code.expression(callback) for callback in all_callbacks)
        trainer["callbacks"] = Verbatim(f"[{expressions}]")
    body.append(f"trainer = {code.call('lightning.Trainer', trainer)}")
    data = config.get("data")
    if data is not None:
        body.append(f"data = {code.object_expression('data', data)}")
    fit_args = f"model{', datamodule=data' if data is not None else ''}"
    body.append(f"trainer.{'fit' if export.weights is None else 'validate'}({fit_args})")
    if export.at_inference is not None:
        body.append("# evaluate, and serve, at another temperature than the model was trained with")
        if attaching is None and (attention_params := _of_attention(export.at_inference)) is not None:
            parameters = code.name("tempopt.temperature.TemperatureParameters")
            body.append(f"model.use({parameters}.from_mapping({attention_params!r}))")
        body.append(f"trainer.validate({fit_args})")
    body += _saving(attaching, callbacks)
    notes = [*export.header, *_left_out(result), *constants(callbacks)]
    return comment(notes) + "\n".join([*code.imports(), "", *body, ""])


def _attaching(
    result: StudyData, plan: Mapping[str, Any], at_inference: Mapping[str, Any] | None
) -> dict[str, Any] | None:
    """Return the arguments of the callback that attaches, None if nothing is to be attached."""
    attach = result.spec.attach
    at_inference = _of_attention(at_inference)
    if attach is None or not (plan or at_inference):
        return None
    init_args: dict[str, Any] = {"parameters": dict(plan), "layers": attach.layers, "method": attach.method}
    init_args["validate_at"] = result.spec.study.validate_at
    return init_args if at_inference is None else {**init_args, "at_inference": at_inference}


def _of_attention(at_inference: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return what of a plan of inference is attention's; None if nothing is."""
    return groups_of(at_inference or {})[""] or None


def _callbacks(
    result: StudyData, export: _ExportRequest, attaching: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """Return the callbacks that load trained weights and set temperatures, as far as they are needed."""
    callbacks: list[dict[str, Any]] = []
    if export.weights is not None:
        callbacks.append({"class_path": _LOADING, "init_args": {"path": export.weights}})
    if attaching is not None:
        callbacks.append({"class_path": ATTACH, "init_args": dict(attaching)})
    for name, value in result.spec.temperatures.items():
        schedule = schedule_of(export.parameters, name)
        at_inference = groups_of(export.at_inference or {}).get(name)
        if not schedule and at_inference is None:
            # what changes nothing need not be set
            continue
        arguments: dict[str, Any] = {
            "path": value.value or registered_path(name),
            "parameters": _nested_numbers(schedule),
            "transform": value.transform,
        }
        arguments["validate_at"] = result.spec.study.validate_at
        if at_inference is not None:
            arguments["at_inference"] = at_inference["temperature_init"]
        callbacks.append({"class_path": VALUE, "init_args": arguments})
    return callbacks


def _nested_numbers(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with ``schedule_args.NAME`` in a mapping ``schedule_args``."""
    nested_params: dict[str, Any] = {}
    for name, value in parameters.items():
        _put(nested_params, name, value)
    return nested_params


def _saving(attaching: Mapping[str, Any] | None, callbacks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the lines that save what is to be served, as far as there is something new to save."""
    save = f"trainer.save_checkpoint({_DEPLOYED!r}, weights_only=True)"
    if attaching is None:
        return []
    return [*comment(_saved(attaching, callbacks)).splitlines()[:-1], save]


def _beside(attaching: Mapping[str, Any]) -> list[str]:
    """Return what weights cannot hold of the temperature that a model is evaluated with."""
    evaluated = {**NEUTRAL, **attaching.get("at_inference", attaching["parameters"])}
    names = ("head_pattern", "local_share", "length_scaling", "normaliser")
    return [name for name in names if evaluated[name] != NEUTRAL[name]]


def _saved(attaching: Mapping[str, Any], callbacks: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what is to be known of the checkpoints that the callbacks have written."""
    if names := _beside(attaching):
        return [
            f"Weights cannot hold {' and '.join(names)}, so checkpoints have the temperature beside them:",
            "load them with tempopt.load_checkpoint(model, path).",
        ]
    return [in_weights(callbacks)]


def _build_export_request(result: StudyData, *, winner: bool) -> _ExportRequest:
    verdict, recommendation = result.verdict, result.recommendation
    if result.spec.compare is not None:
        name, header = exported(result), export_header(result)
        assert result.comparison is not None
        set_params = result.comparison.params_by_name[name]
        return _ExportRequest(
            parameters=drop_unused_params(set_params), at_inference=None, weights=None, header=header
        )
    if verdict is None or recommendation is None or winner:
        return _ExportRequest(
            parameters=_winner(result), at_inference=None, weights=None, header=_winners_header(result)
        )
    header = [f"What tempopt's study {result.name!r} recommends, as written by tempopt export."]
    header += [headline(result), *round_lines(result), f"{HEAD}{recommendation_text(result, as_code=False)}"]
    if recommendation.action_without_training != "inference_only":
        return _ExportRequest(
            parameters=drop_unused_params(recommendation.parameters),
            at_inference=recommendation.at_inference,
            weights=None,
            header=header,
        )
    assert recommendation.at_inference is not None
    other_params = {name: value for name, value in recommendation.parameters.items() if name not in CREDITED}
    baseline_model = f"a model that was trained at {baseline_name(result.spec)}"
    header.append(f"{_TRAINED} stands for your checkpoint of {baseline_model}.")
    return _ExportRequest(
        parameters=drop_unused_params({**other_params, **recommendation.at_inference}),
        at_inference=None,
        weights=_TRAINED,
        header=header,
    )


def _winner(result: StudyData) -> dict[str, Any]:
    if result.winner is not None:
        return drop_unused_params(result.winner)
    if result.best is not None:
        return drop_unused_params(result.best.params)
    raise StudyFailed(
        f'Study "{result.name}" has nothing to export: no search trial is complete. '
        f"Continue it (tempopt resume {result.name}), or look at what went wrong "
        f"(tempopt logs {result.name})."
    )


def _winners_header(result: StudyData) -> list[str]:
    lines = [f"The winner of the search of tempopt's study {result.name!r}, as written by tempopt export."]
    if result.verdict is not None:
        lines += [
            headline(result),
            *round_lines(result),
            f"{HEAD}{recommendation_text(result, as_code=False)}",
        ]
    else:
        source = "Chosen on fresh seeds" if result.winner is not None else "The best trial of the search"
        gain = f"its gain over {baseline_name(result.spec)}"
        lines.append(f"{source}, but UNCONFIRMED: {gain} has not been estimated.")
    return lines


def _left_out(result: StudyData) -> list[str]:
    """Return a line for the loggers, if there are any."""
    if not result.spec.trainer.get("logger"):
        return []
    return ["The study's loggers (trainer.logger) are left out; give the Trainer your own."]


def _merged(result: StudyData, parameters: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
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
    by_interface = spec.attach is not None and spec.attach.method == "attention_interface"
    entropies = ENTROPY_PARAMETERS if by_interface else ()
    attached = ParameterNames((*PLAN_PARAMETERS, *CONTROL_PARAMETERS, *entropies))
    for name, value in parameters.items():
        section, dot, path = name.partition(".")
        if split_name(name)[0]:
            # a callback sets it
            continue
        if "." in path and section == "model":
            _put(config["model"]["init_args"], path, value)
        elif dot and section in ("data", "trainer"):
            target = config["trainer"] if section == "trainer" else config["data"]["init_args"]
            _put(target, path, value)
        elif spec.attach is not None and name in attached:
            _put(plan, name, value)
        else:
            _put(config["model"]["init_args"], name, value)
    # what changes nothing need not be attached
    return config, {} if same_training(plan, {}) else plan


def _put(target: dict[str, Any], path: str, value: Any) -> None:
    *parents, key = path.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if "class_path" in target:
            target = target.setdefault("init_args", {})
    target[key] = value


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
