"""The ``compare:`` section: parameter sets that are compared on fresh seeds.

Reads and checks them as far as the data allow. ``verdict/set_comparison.py`` compares them.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator

from tempopt.errors import SpecError, UsageError
from tempopt.spec.domains import is_plain
from tempopt.spec.lightning_config import parse_trainer
from tempopt.spec.parameter_names import name_problem
from tempopt.spec.sections import SpecSection, StudySection
from tempopt.spec.yaml_source import CollectedSpecError, has_reference, parse_mapping, read_mapping
from tempopt.temperature.named import split_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS, check_parameter, is_float_param
from tempopt.temperature.plan import flatten_schedule_args

NO_SEARCH: dict[str, Any] = {}
"""Section ``search:`` of a spec that compares; identified by this very object."""

GivenSet = Mapping[str, Any] | str | Path
"""A parameter set as a person writes it: a mapping, one in YAML, or the path of a file that holds one."""

MAX_COMPARISON_RUNS = 1000
"""Largest number of runs of a comparison by default."""

_NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}"
_VARIED_NAME = r"[A-Za-z0-9][A-Za-z0-9._=,-]{0,99}"
_NAMED = re.compile(rf"({_NAME})=(.*)", re.DOTALL)
# sections whose keys cannot be in a parameter set
_STUDY_SECTIONS = ("study", "program", "search", "compare", "attach", "temperatures", "resources")
# a number as Python writes it, or with an exponent; not 007, 3.10 or 1_000
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.(?:0|\d*[1-9]))?(?:[eE][-+]?\d+)?")
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TYPICAL = "{temperature_init: 2, lr: 0.001}"
# keys of the section study: that only a search uses
_SEARCH_KEYS = (
    *("trials", "arms", "candidates", "sampler", "pruner", "enqueue", "warm_start"),
    *("explain", "learned", "keep_share", "min_gain", "failure"),
)


class ComparedSet(SpecSection):
    """One parameter set of the ``compare:`` section, with its name in messages and results."""

    name: Annotated[
        str,
        Field(
            pattern=rf"^{_VARIED_NAME}$",
            description="a name of at most 100 letters, digits, dots, dashes, underscores, commas and =",
        ),
    ]
    parameters: Annotated[
        dict[str, Any],
        Field(description=f"a mapping of names to values, as in {_TYPICAL}; {{}} for the spec as it stands"),
    ]

    @field_validator("parameters")
    @classmethod
    def _normalize_parameters(cls, parameters: dict[str, Any]) -> dict[str, Any]:
        """Return the values as tickets store them, so that 2 and 2.0 are the same temperature."""
        return {
            name: float(value) if type(value) is int and is_float_param(name) else value
            for name, value in flatten_schedule_args(parameters).items()
        }


def normalize_comparison(data: object) -> object:
    """Return a spec without the keys of a search, if it has a section ``compare:``."""
    if not isinstance(data, Mapping) or data.get("compare") is None:
        return data
    study = data.get("study")
    if not isinstance(study, Mapping):
        return {**data, "search": NO_SEARCH}
    study = {key: value for key, value in study.items() if key not in _SEARCH_KEYS}
    # gpu_hours does not end a comparison; it records what a budget has reserved for it
    for section, keys in (("seeds", ("search", "choose")), ("limits", ("hours", "standard_errors"))):
        if isinstance(study.get(section), Mapping):
            study[section] = {key: value for key, value in study[section].items() if key not in keys}
    return {**data, "search": NO_SEARCH, "study": study}


def check_sets(
    sets: Sequence[ComparedSet],
    *,
    model_args: Mapping[str, Any] | None,
    temperatures: Collection[str] | None = (),
) -> None:
    """Refuse sets that cannot be compared.

    Args:
        sets: The first is the reference of the others.
        model_args: Init arguments that the ``model:`` section sets; None: a program trains.
        temperatures: Names in the section ``temperatures:``; None if that section is invalid.

    Raises:
        CollectedSpecError: There are too few sets, or a name or a value is wrong; it lists all errors.
    """
    lines: list[tuple[str, str]] = []
    if len(sets) < 2:
        message = (
            f"given {len(sets)} parameter set{'s' * (len(sets) != 1)}. Give the reference and at least one "
            "variant; {} is the spec as it stands."
        )
        lines.append(("compare", message))
    for name, count in Counter(parameter_set.name for parameter_set in sets).items():
        if count > 1:
            lines.append(("compare", f"two parameter sets are named {name}. Give each a name of its own."))
    for parameter_set in sets:
        for name, value in parameter_set.parameters.items():
            if problem := _problem(name, value, model_args, temperatures):
                lines.append((f"compare.{parameter_set.name}.{name}", problem))
    if lines:
        raise CollectedSpecError(lines)


def _problem(
    name: str, value: object, model_args: Mapping[str, Any] | None, temperatures: Collection[str] | None
) -> str | None:
    problem = name_problem(name, model_args, action="compared", temperatures=temperatures)
    if problem := problem or _value_problem(value):
        return problem
    try:
        if name in TEMPERATURE_PARAMETERS:
            check_parameter(name, value)
        prefix, _, argument = name.partition(".")
        if prefix == "trainer" and "." not in argument:
            parse_trainer({argument: value})
    except SpecError as error:
        return str(error)
    except CollectedSpecError as error:
        return error.lines[0][1]
    return None


def _value_problem(value: object) -> str | None:
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            return f"given {value!r}. Give keys that are text."
        value = list(value.values())
    if isinstance(value, list):
        return next(filter(None, map(_value_problem, value)), None)
    if has_reference(value):
        return f"given {value!r}. Variables of the environment are read in model:, data: and trainer: only."
    if not is_plain(value):
        return f"given {value!r}. Give text, a finite number, true, false, null, a list or a mapping."
    return None


def comparison_problems(study: StudySection, sets: Sequence[ComparedSet] | None) -> list[tuple[str, str]]:
    """Return what in the section ``study:`` does not allow a comparison, as dotted path and message."""
    if sets is None:
        if study.all_pairs:
            message = "given true without parameter sets to compare. Take it out, or use tempopt compare."
            return [("study.all_pairs", message)]
        return []
    if study.all_pairs and study.guards:
        message = (
            "a guard compares with the first set, and study.all_pairs asks for no such one. Take it out."
        )
        return [("study.guards", message)]
    return []


def common_names(sets: Sequence[ComparedSet] | None) -> set[str]:
    """Return the names to which every set gives a value."""
    return set.intersection(*(set(parameter_set.parameters) for parameter_set in sets)) if sets else set()


def add_sets(data: Mapping[str, Any], sets: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return a spec as plain data with these sets as its section ``compare:``; None keeps its own.

    Raises:
        SpecError: The spec has sets of its own as well.
    """
    if sets is None:
        return dict(data)
    if data.get("compare") is not None:
        raise SpecError(
            "The study spec has a section compare:, and parameter sets were given as well. Give the sets in "
            "one of the two places."
        )
    return {**data, "compare": list(sets)}


def normalize_sets(sets: Sequence[GivenSet] | Mapping[str, GivenSet]) -> list[dict[str, Any]]:
    """Return parameter sets in the form of the section ``compare:``.

    The default name of a set is that of its file, or else a letter by its position: A, B, C, ...

    Args:
        sets: Mappings, texts of mappings in YAML, or paths of files; ``name=`` before a text names the set.

    Raises:
        SpecError: Some of them cannot be read; there is a line for each.
    """
    entries = sets.items() if isinstance(sets, Mapping) else ((None, parameter_set) for parameter_set in sets)
    parsed_sets, faults = [], []
    for index, (name, parameter_set) in enumerate(entries):
        default = _LETTERS[index] if index < len(_LETTERS) else f"set{index + 1}"
        try:
            own_name, parameters = _read(parameter_set)
            parsed_sets.append({"name": str(name or own_name or default), "parameters": parameters})
        except SpecError as error:
            faults.append(str(error))
    if faults:
        raise SpecError("\n".join(faults))
    return parsed_sets


def parse_vary(texts: Sequence[str], *, of_program: bool = False) -> dict[str, list[Any]]:
    """Return the values of each key of ``--vary KEY=V1,V2,...``, in their order.

    Args:
        texts: The values of the option.
        of_program: Whether a program gets the values: they stay text as it is typed, unless they are numbers
            that are written as Python writes them, or with an exponent. Otherwise they are YAML.

    Raises:
        UsageError: A text has another form, or a key occurs twice.
    """
    values_by_key: dict[str, list[Any]] = {}
    for text in texts:
        key, _, values = text.partition("=")
        key = key.strip()
        if not key or not values.strip():
            raise UsageError(
                f"--vary {text}: give a key and its values, as in --vary model.num_heads=1,2,4,8"
            )
        if key in values_by_key:
            raise UsageError(f"--vary gives {key} twice. Give all of its values at once: {key}=V1,V2,...")
        is_text = of_program and key not in TEMPERATURE_PARAMETERS
        mapping = parse_mapping(f"values: [{values}]", source=f"--vary {text}", as_text=is_text)
        parsed_values = _to_numbers(mapping["values"]) if is_text else mapping["values"]
        values_by_key[key] = [value for value in parsed_values if value != ""]
    return values_by_key


def _to_numbers(value: Any) -> Any:
    if isinstance(value, list):
        return [_to_numbers(entry) for entry in value]
    if not isinstance(value, str) or not _NUMBER.fullmatch(value):
        return value
    return int(value) if value.lstrip("-").isdigit() else float(value)


def combine_values(vary: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return each combination of values as a parameter set, in the form of the section ``compare:``.

    Args:
        vary: Values by key, in the order of the comparison; the last key changes fastest. A key is written as
            in a parameter set or as in ``--set``.

    Raises:
        UsageError: There are no values, or too many combinations.
    """
    for key, values in vary.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise UsageError(f"vary: {key} was given {values!r}. Give a list of values, as in [1, 2, 4].")
        if key.partition(".")[0] in _STUDY_SECTIONS and not split_name(key)[0]:
            raise UsageError(
                f"vary: {key} is no parameter of a run. Give an init argument of the model, data.x, "
                "trainer.x or a temperature parameter."
            )
        texts = [_value_text(value) for value in values]
        if duplicates := [text for text in dict.fromkeys(texts) if texts.count(text) > 1]:
            raise UsageError(f"vary: {key} was given {', '.join(duplicates)} more than once. Give it once.")
    num_sets = math.prod(len(values) for values in vary.values())
    if vary and num_sets == 1:
        key = next(iter(vary))
        raise UsageError(
            f"vary: {key} was given one value, so there is nothing to compare. Give the value of now and "
            f"others: --vary {key}=NOW,NEW"
        )
    if num_sets > MAX_COMPARISON_RUNS:
        factors = " × ".join(str(len(values)) for values in vary.values())
        raise UsageError(
            f"The values to vary make {factors} = {num_sets} parameter sets, which is {2 * num_sets} runs at "
            f"least, and at most {MAX_COMPARISON_RUNS} sets are compared. Give fewer values."
        )
    names = [_name_in_set(key) for key in vary]
    endings = Counter(name.rpartition(".")[2] for name in names)
    labels = [ending if endings[ending := name.rpartition(".")[2]] == 1 else name for name in names]
    sets: list[dict[str, Any]] = []
    for index, values in enumerate(product(*vary.values()), start=1):
        assignments = (f"{label}={_value_text(value)}" for label, value in zip(labels, values, strict=True))
        text = re.sub(r"[^A-Za-z0-9._=,-]+", "-", ",".join(assignments))
        name = text if re.fullmatch(_VARIED_NAME, text) else f"set{index}"
        sets.append({"name": name, "parameters": dict(zip(names, values, strict=True))})
    return sets


def _name_in_set(key: str) -> str:
    """Return the name in a parameter set of a key that may be written as in ``--set``."""
    section, _, subkey = key.partition(".")
    if section not in ("model", "data", "trainer") or not subkey:
        return key
    subkey = subkey.removeprefix("init_args.")
    is_bare = section == "model" and ("." not in subkey or subkey in TEMPERATURE_PARAMETERS)
    return subkey if is_bare else f"{section}.{subkey}"


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _read(parameter_set: GivenSet) -> tuple[str | None, dict[str, Any]]:
    """Return the name of a set, if it has one, and its parameters."""
    if isinstance(parameter_set, Mapping):
        return None, dict(parameter_set)
    text = str(parameter_set)
    name = None
    if not _is_file(text) and (split := _NAMED.fullmatch(text)):
        name, text = split[1], split[2]
    if _is_file(text):
        stem = Path(text).stem
        return name or (stem if re.fullmatch(_NAME, stem) else None), read_mapping(Path(text).expanduser())
    if not text.lstrip().startswith("{") and ":" not in text:
        example = f"{{{name}: {text}}}" if name else _TYPICAL
        raise SpecError(
            f"There is no file \"{text}\". Give a parameter set as a mapping, as in '{example}', or the path "
            "of a YAML file that holds one."
        )
    return name, parse_mapping(text, source=f"the parameter set {parameter_set!r}")


def _is_file(text: str) -> bool:
    try:
        path = Path(text).expanduser()
        # includes pipes, whose content decides
        return path.exists() and not path.is_dir()
    except (OSError, RuntimeError, ValueError):
        # too long for a path, or not a path at all
        return False


def digest(sets: Sequence[ComparedSet], *, names: bool = True) -> str:
    """Return a text that identifies these sets; ``names``: whether their names are part of it."""
    content = [[parameter_set.name if names else "", parameter_set.parameters] for parameter_set in sets]
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=8).hexdigest()
