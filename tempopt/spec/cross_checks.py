"""Inconsistencies between valid sections of a spec, as far as its text shows them.

Each check returns paths of keys with messages. ``training/build.py``, which imports the module, checks
whether it takes the named arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from tempopt.errors import SpecError
from tempopt.spec.compared_sets import common_names, comparison_problems
from tempopt.spec.lightning_config import LOGGER_CALLBACKS, SCREEN_CALLBACKS, length_problems
from tempopt.spec.program_section import program_problems
from tempopt.spec.search_space import is_n0_redundant, parse_sets, unused_temperature_params
from tempopt.spec.sections import guess_direction
from tempopt.spec.strategy_options import strategy_problems
from tempopt.spec.temperatures import LEVELS, MAX_TEMPERATURES
from tempopt.spec.yaml_source import CollectedSpecError, has_reference
from tempopt.temperature.entropy import ENTROPY_PARAMETERS
from tempopt.temperature.entropy_control import CONTROL, CONTROL_PARAMETERS, has_target
from tempopt.temperature.named import join_name, name_problem, registered_path, split_name
from tempopt.temperature.parameters import PLAN_PARAMETERS, ParameterNames, check_parameter
from tempopt.temperature.ranges import HIGHEST, LOWEST

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_Problems = list[tuple[str, str]]

_ATTACHABLE = ParameterNames((*PLAN_PARAMETERS, *CONTROL_PARAMETERS, *ENTROPY_PARAMETERS))
_WIDTH = 8
"""Half width of an example range around the temperature as found, as a ratio."""
_REMEDY = (
    "Search what it goes with as well (a schedule and temperature_final, num_knots and temperature_knot_2, "
    "a layer_pattern and layer_ratio, a head_pattern and head_ratio, a length_scaling, a normaliser and "
    "top_k, a local_share and window, an entropy_lambda, its entropy_schedule and entropy_lambda_final, an "
    "entropy_control and control_level), set that under model.init_args, or take the name out."
)


def find_inconsistencies(spec: StudySpec) -> _Problems:
    """Return all inconsistencies: paths and messages."""
    lines = [*program_problems(spec)]
    if spec.program is None:
        lines += length_problems(spec.trainer, {*spec.search, *common_names(spec.compare)})
        lines += _data_problems(spec)
    # how a program uses the cards that it sees is its own affair
    divides_cards = spec.uses_gpu and spec.program is None
    lines += spec.resources.problems(spec.study, ranks=spec.ranks, can_use_gpus=divides_cards)
    lines += _temperature_problems(spec)
    try:
        parse_sets(spec.study.enqueue, search=spec.search, max_sets=spec.num_trials, path="study.enqueue")
    except CollectedSpecError as error:
        lines += error.lines
    lines += strategy_problems(spec.study)
    lines += _attach_problems(spec)
    lines += comparison_problems(spec.study, spec.compare)
    return lines + _named_temperature_problems(spec)


def _data_problems(spec: StudySpec) -> _Problems:
    """Return searched and compared arguments of the data module if the spec has no data module."""
    return [
        (path, f"{name} is given, but the spec has no data: section. Add one, or take {name} out.")
        for path, name, _ in spec.written_parameters()
        if spec.data is None and name.startswith("data.") and not split_name(name)[0]
    ]


# ---- attention's temperature


def _temperature_problems(spec: StudySpec) -> _Problems:
    """Return what is wrong with the temperatures of attention that are searched or set."""
    fixed, lines = spec.fixed_temperatures, []
    for name, value in fixed.items():
        try:
            if not has_reference(value):
                check_parameter(name, value)
        except SpecError as error:
            lines.append((f"model.init_args.{name}", str(error)))
    if lines:
        return lines
    if spec.study.compile is not None and (CONTROL in spec.search or has_target(fixed)):
        message = (
            "the entropy of attention cannot be controlled in a compiled model (study.compile), which does "
            "not show what it attends to. Take study.compile or entropy_control out."
        )
        return [(f"{'search' if CONTROL in spec.search else 'model.init_args'}.{CONTROL}", message)]
    if spec.is_about_temperature and spec.program is None and not spec.searches_temperature:
        message = (
            f"given {', '.join(spec.search)}, of which none is a temperature, so that there would be no "
            "temperature for the verdict to be about. Search one, as in temperature_init: {low: 0.25, "
            "high: 4}."
        )
        if argument := next((name for name in spec.search if "temperature" in name or name == "tau"), ""):
            message += (
                f" Is {argument} an argument of the model? The number that the module makes of it is "
                f"searched by its path: temperatures: {{contrast: {{value: hparams.{argument}}}}} with "
                f"save_hyperparameters, or as in value: criterion.{argument}, and search: "
                "{contrast.temperature_init: {low: 0.02, high: 1}}."
            )
        return [("search", message)]
    if is_n0_redundant(spec.search, fixed):
        message = (
            "given a range of n0 beside one of temperature_init: with length_scaling log_n the logits are "
            "divided by temperature_init * ln n0, so that both are one parameter. Take n0 out of search."
        )
        return [("search.n0", message)]
    return [
        (f"search.{name}", f"it changes nothing: nothing in this space depends on it. {_REMEDY}")
        for name in unused_temperature_params(spec.search, fixed)
    ]


def _attach_problems(spec: StudySpec) -> _Problems:
    """Return which searched or compared parameters the section ``attach:`` cannot set."""
    problems: dict[str, str] = {}
    for path, name, _ in spec.written_parameters() if spec.attach is not None else ():
        problem = _argument_problem(spec, name)
        if problem is not None and not split_name(name)[0]:
            problems.setdefault(path, problem)
    return list(problems.items())


def _argument_problem(spec: StudySpec, name: str) -> str | None:
    if name not in _ATTACHABLE or name not in spec.model_args:
        return None
    return (
        f"{name} could mean what attach: sets, or the argument {name} of {spec.model['class_path']}. Rename "
        "the argument, or take attach: out."
    )


# ---- named temperatures


def _named_temperature_problems(spec: StudySpec) -> _Problems:
    """Return what is wrong with the named temperatures of a spec."""
    temperatures = spec.temperatures
    if len(temperatures) > MAX_TEMPERATURES:
        message = f"given {len(temperatures)} temperatures. Give at most {MAX_TEMPERATURES}."
        return [("temperatures", message)]
    lines = []
    names_by_path: dict[str, str] = {}
    for name, section in temperatures.items():
        path = f"temperatures.{name}"
        problem = name_problem(name)
        if problem is None and name in spec.model_args:
            problem = f'the model has an init argument "{name}", too. Give the temperature another name.'
        if problem is not None:
            lines.append((path, problem))
        elif spec.compare is None and not any(join_name(name, level) in spec.search for level in LEVELS):
            example = _example(name, section.as_found)
            message = f"its level is not searched. Search it, as in {example}, or take"
            lines.append((path, f"{message} {name} out. Usual ranges are in docs/values.md."))
        value_path = section.value or registered_path(name)
        if value_path in names_by_path:
            message = f'"{value_path}" is the temperature {names_by_path[value_path]} already.'
            lines.append((f"{path}.value", f"{message} Take one of them out."))
        names_by_path.setdefault(value_path, name)
    if spec.study.learned == "per_head" and not spec.attends:
        message = (
            "given per_head, which is about heads of attention, but no temperature of attention is searched. "
            "Give true: each of the temperatures is then learned."
        )
        lines.append(("study.learned", message))
    return lines


def _example(name: str, as_found: float | None) -> str:
    """Return an example of a searched level: around the temperature as found, else that of a contrastive
    loss.
    """
    low, high = (0.02, 1.0) if as_found is None else (as_found / _WIDTH, as_found * _WIDTH)
    return f"{name}.temperature_init: {{low: {max(low, LOWEST):.3g}, high: {min(high, HIGHEST):.3g}}}"


# ---- likely slips


def _callback_names(callbacks: object) -> list[str]:
    entries = callbacks if isinstance(callbacks, list) else [callbacks]
    paths = [entry.get("class_path") if isinstance(entry, Mapping) else entry for entry in entries]
    return [path.rpartition(".")[2] for path in paths if isinstance(path, str)]


def find_likely_mistakes(spec: StudySpec) -> list[str]:
    """Return hints at valid settings that may be mistakes, one sentence each."""
    study, expected = spec.study, guess_direction(spec.study.metric)
    notes = []
    if study.not_resumed is not None:
        notes.append(f"A resumed run starts again from its first step: {study.not_resumed}.")
    left_out = SCREEN_CALLBACKS if spec.trainer.get("logger") else (*SCREEN_CALLBACKS, *LOGGER_CALLBACKS)
    for name in _callback_names(spec.trainer.get("callbacks")):
        if name in left_out:
            reason = "no screen" if name in SCREEN_CALLBACKS else "no trainer.logger"
            notes.append(f"trainer.callbacks: {name} is left out, since a run has {reason}.")
    if expected in (None, study.direction):
        return notes
    return [
        *notes,
        f'study.direction is {study.direction}, but by its name "{study.metric}" is one to {expected}. Check '
        "that it is meant.",
    ]
