"""What else is wrong with a study spec that does not validate, as far as that can be told.

Validation ends at what it finds first, as sections do not fit together before each is right. Whether the
classes fit as well is found by a worker, for which the parts that can be read are put together here.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from tempopt.errors import SpecError
from tempopt.spec import yaml_source
from tempopt.spec.lightning_sections import parse_class
from tempopt.spec.parameter_names import name_problem
from tempopt.spec.search_space import parse_search
from tempopt.spec.sections import AttachSection
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import ATTENTION, TemperatureSection
from tempopt.spec.validation_errors import FaultySpecError
from tempopt.spec.yaml_source import FaultsError
from tempopt.workers.messages import Evaluation, Program, RunRequest

_Lines = Sequence[tuple[str, str]]

_STUDY = {"name": "study", "metric": "metric", "direction": "minimize"}
_MODEL = {"class_path": "module.Class"}
_SEARCH = {"temperature_init": {"low": 0.25, "high": 4.0}}
# A spec is validated in three steps, of which each is taken only where the one before found nothing.
_STEPS = 3


def all_faults(error: FaultySpecError) -> list[tuple[str, str]]:
    """Return the path and the message of all that validation finds, were it to go on at each fault."""
    found = list(error.lines)
    for _ in range(_STEPS):
        try:
            StudySpec.parse(_without(error.origin.data, found), source=error.origin)
            break
        except FaultySpecError as more:
            new = [line for line in more.lines if not _follows(line[0], found)]
            if not new:
                break
            found += new
    return found


def check_request(error: FaultySpecError, found: _Lines) -> RunRequest | None:
    """Return what a worker is to check the classes of such a spec by; None: the model cannot be read.

    Args:
        error: What validating raised.
        found: All that is known to be wrong.
    """
    given = error.origin.data
    paths = {path for path, _ in found}
    try:
        model = yaml_source.resolve(parse_class(given.get("model"), section="model"), path="model")
        data = given.get("data")
        data = data and yaml_source.resolve(parse_class(data, section="data"), path="data")
    except (FaultsError, SpecError):
        return None
    study, trainer = _mapping(given.get("study")), _mapping(given.get("trainer"))
    on = study.get("confirm_on", "test")
    return RunRequest(
        ticket=0,
        attempt=0,
        program=Program(
            model=model,
            data=data or None,
            trainer={name: value for name, value in trainer.items() if f"trainer.{name}" not in paths},
            attach=_attach(given.get("attach")),
            values=_values(given.get("temperatures")),
            metric=str(study.get("metric")),
            validate_at="final",
            data_seed=0,
        ),
        parameters={},
        seed=0,
        evaluations=[Evaluation(name="test", on="test")] if on == "test" else [],
        task="check",
        space=_space(_mapping(given.get("search")), model["init_args"]),
    )


def with_classes(found: _Lines, refusal: str) -> list[tuple[str, str]]:
    """Return the faults of a spec with those that a worker has found, each once.

    Args:
        found: What is known without the classes.
        refusal: What the worker said, with a line for each fault.
    """
    lines = list(found)
    told = {path.replace(".init_args.", ".", 1) for path, _ in found}
    for line in refusal.splitlines():
        path, _, message = line.partition(": ")
        if path not in told or path.startswith("search."):
            lines.append((path, message))
    return lines


def _space(search: Mapping[str, Any], model_args: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the searched names with values that stand for all, and none where the domain is wrong."""
    space: dict[str, list[Any]] = {}
    for name, domain in search.items():
        if not isinstance(name, str) or name_problem(name, model_args, temperatures=None) is not None:
            continue
        try:
            space[name] = list(
                parse_search({name: domain}, model_args=model_args, temperatures=None)[name].probes
            )
        except FaultsError:
            space[name] = []
    return space


def _attach(given: object) -> dict[str, Any] | None:
    if given is None:
        return None
    try:
        return AttachSection.model_validate(given).model_dump()
    except ValidationError:
        return AttachSection().model_dump()


def _values(given: object) -> dict[str, Any]:
    """Return the entries of ``temperatures:``; one that is wrong is there, too, for a study has it."""
    found = {}
    for name, each in _mapping(given).items():
        section = TemperatureSection.model_construct()
        with contextlib.suppress(ValidationError):
            section = TemperatureSection.model_validate(each)
        found[str(name)] = section.model_dump()
    return found


def _follows(path: str, found: _Lines) -> bool:
    """Whether a fault may be there only because another part of the spec was left out for its own."""
    told = [each for each, _ in found]
    if path.partition(".")[0] == "search" or path.startswith("study.enqueue"):
        return any(each.partition(".")[0] == "search" for each in told)
    section, _, name = path.partition(".")
    if section == "temperatures" and any(each.startswith(f"search.{name}.") for each in told):
        # what is searched of it is there, and wrong
        return True
    return any(
        f"{one}.".startswith(f"{other}.") for each in told for one, other in ((path, each), (each, path))
    )


def _without(given: Mapping[str, Any], found: _Lines) -> dict[str, Any]:
    """Return a spec without what is wrong, and with something in the place of what has to be there."""
    data = copy.deepcopy(dict(given))
    for path, _ in found:
        _drop(data, path)
    data["study"] = {**_STUDY, **_mapping(data.get("study"))}
    data["model"] = {**_MODEL, **_mapping(data.get("model"))}
    if "compare" not in data:
        data["search"] = data.get("search") or _SEARCH
    if isinstance(kept := data.get("temperatures"), dict):
        _place_temperatures(kept, _mapping(given.get("temperatures")))
    return data


def _place_temperatures(kept: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Have the entries of ``temperatures:`` that lost their place be somewhere, for others to name them."""
    for name, each in given.items():
        if name not in kept and not isinstance(each, Mapping):
            kept[name] = {}
        left = kept.get(name)
        if name != ATTENTION and isinstance(left, dict) and "value" not in left:
            left["value"] = f"place_of.{name}"


def _drop(data: dict[str, Any], path: str) -> None:
    """Take out the key of a path, or the nearest one above it that can be taken out."""
    rest = path
    # a searched name has dots of its own
    while key := next((key for key in map(str, data) if f"{rest}.".startswith(f"{key}.")), None):
        inside, rest = data.get(key), rest[len(key) + 1 :]
        if not rest or not isinstance(inside, dict):
            data.pop(key, None)
            return
        data = inside


def _mapping(given: object) -> dict[str, Any]:
    return dict(given) if isinstance(given, Mapping) else {}
