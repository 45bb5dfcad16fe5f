"""YAML text of a study as plain data with the line of every key, and settings ``--set a.b=c``.

Knows the notation of studies, not their meaning.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import yaml

from tempopt.errors import SpecError, UsageError, not_text, unknown
from tempopt.files import read_text

BLANK = "???"
"""Placeholder in a written template for a value that only the person can give."""

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

# YAML 1.2's numbers: PyYAML takes 1e-3 for a string, 10:30 for 630 and 010 for 8.
_FLOAT = re.compile(
    r"""^[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?
         |[0-9][0-9_]*[eE][-+]?[0-9]+|\.(?:inf|Inf|INF))$|^\.(?:nan|NaN|NAN)$""",
    re.VERBOSE,
)
_INT = re.compile(r"^[-+]?(?:0|[1-9][0-9_]*)$")
_REPLACED = ("tag:yaml.org,2002:float", "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp")

MAX_VALUES = 100_000
"""Far more values than a spec needs, yet few enough to be read and checked at once."""
_MAX_DEPTH = 50
# Integers of 64 bits, as a database holds them.
_LARGEST = 2**63 - 1
# Sections from which null removes an entry, and the word for an entry.
_BY_NAME = {("search",): "searched name", ("study", "guards"): "guard"}


class _Loader(yaml.SafeLoader):
    """SafeLoader with the numbers of YAML 1.2; dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver("tag:yaml.org,2002:int", _INT, list("-+0123456789"))
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789."))


class _TextLoader(_Loader):
    """Leaves all values text as it is typed."""


_TextLoader.yaml_implicit_resolvers = {}


class CollectedSpecError(ValueError):
    """Several errors at once: ``lines`` of dotted path and message."""

    def __init__(self, lines: list[tuple[str, str]]) -> None:
        super().__init__("\n".join(f"{path}: {message}" for path, message in lines))
        self.lines = lines


@dataclass(frozen=True, slots=True, kw_only=True)
class YamlDocument:
    """A parsed YAML file.

    Args:
        source: Name of the file, for messages.
        data: The mapping at the top level.
        lines: Line (from 1) of each key, by dotted path.
        settings: Keys that ``--set`` has written, as they were typed, by dotted path.
    """

    source: str
    data: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def line(self, path: str) -> int:
        """Return the line of the key, or of the nearest key above it in the file; 0 if there is none."""
        while path and path not in self.lines:
            path = path.rpartition(".")[0]
        return self.lines.get(path, 0)

    def where(self, path: str) -> str:
        """Return ``file:line`` of the key, the file without a known line, or another source."""
        prefix = f"{path}."
        for key, setting in self.settings.items():
            if prefix.startswith(f"{key}."):
                return f"--set {setting}"
        if self.lines and "compare" not in self.lines and prefix.startswith("compare."):
            return "the parameter sets to compare"
        line = self.line(path)
        nested_settings = [setting for key, setting in self.settings.items() if key.startswith(prefix)]
        options = "".join(f", --set {setting}" for setting in nested_settings)
        return f"{self.source}{f':{line}' * bool(line)}{options}"

    def with_settings(self, overrides: Sequence[Override]) -> YamlDocument:
        """Return the document with ``--set`` applied.

        Raises:
            SpecError: As :func:`apply`.
        """
        settings = {".".join(override.path): override.written for override in overrides}
        return replace(self, data=apply(self.data, overrides), settings={**self.settings, **settings})


def read(path: Path) -> YamlDocument:
    """Read a YAML file.

    Raises:
        SpecError: It cannot be read, is not YAML, holds a key twice, or is not a mapping.
    """
    return parse(_read_text(path, "a study spec"), source=str(path))


def read_sets(path: Path) -> list[dict[str, Any]]:
    """Read a YAML file that lists parameter sets.

    Raises:
        SpecError: It cannot be read, is not YAML, holds a key twice, or is not a list of mappings.
    """
    sets, _ = _load_yaml(_read_text(path, "a list"), str(path))
    if not isinstance(sets, list) or not sets or not all(isinstance(entry, dict) for entry in sets):
        raise SpecError(
            f"{path} is not a list of parameter sets. Give a line for each, with values of searched names, "
            "as in - {temperature_init: 2.0}"
        )
    return sets


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a YAML file that holds one parameter set.

    Raises:
        SpecError: It cannot be read, is not YAML, holds a key twice, or is not a mapping.
    """
    return parse_mapping(_read_text(path, "a parameter set"), source=str(path))


def parse_mapping(text: str, *, source: str, as_text: bool = False) -> dict[str, Any]:
    """Return the parameter set in the YAML text ``text``.

    Args:
        text: YAML text.
        source: Name of the text in messages.
        as_text: Whether all values stay text as it is typed.

    Raises:
        SpecError: It is not YAML, holds a key twice, or is not a mapping.
    """
    data, _ = _load_yaml(text, source, loader_type=_TextLoader if as_text else _Loader)
    if not isinstance(data, dict):
        raise SpecError(
            f"{source} is not a parameter set. Give a mapping of names to values, as in "
            "{temperature_init: 2, lr: 0.001}, or the path of a YAML file that holds one."
        )
    return data


def _read_text(path: Path, expected: str) -> str:
    try:
        return read_text(path, f"{expected} in YAML")[0]
    except UsageError as error:
        raise SpecError(str(error)) from error


def parse(text: str, *, source: str) -> YamlDocument:
    """Return the document in the YAML text ``text``.

    Args:
        text: YAML text.
        source: Name of the text in messages.

    Raises:
        SpecError: It is not YAML, holds a key twice, or is not a mapping.
    """
    data, lines = _load_yaml(text, source)
    if not isinstance(data, dict):
        content = "nothing" if data is None else "a list" if isinstance(data, list) else f"{str(data)[:40]!r}"
        raise SpecError(
            f"{source} holds {content}, but a study spec is a mapping with the sections study:, search:, "
            'model:, data: and trainer:. "tempopt init" writes one to begin with.'
        )
    return YamlDocument(source=source, data=data, lines=lines)


def _load_yaml(
    text: str, source: str, *, keys: bool = True, loader_type: type[_Loader] = _Loader
) -> tuple[Any, dict[str, int]]:
    """Parse a YAML text; return its data, and by path the line of each key if ``keys``."""
    loader = None
    try:
        loader = loader_type(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        _measure_extent(node, source, {}, 1)
        lines: dict[str, int] = {}
        for key, line in _iterate_keys(node, source) if keys else ():
            lines.setdefault(key, line)
        return loader.construct_document(node), lines
    except yaml.YAMLError as error:
        raise SpecError(_yaml_message(error, source)) from error
    except RecursionError as error:
        raise SpecError(_depth_message(source)) from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        if isinstance(error, SpecError):
            raise
        # PyYAML's constructors assume that a value fits the tag before it
        raise SpecError(
            f"{source}: a value does not fit the tag before it, such as !!int. Leave the tag out."
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _measure_extent(
    node: yaml.Node, source: str, cache: dict[int, tuple[int, int]], depth: int
) -> tuple[int, int]:
    """Return the number of values and levels of a node with its aliases expanded, before it is built."""
    location = f"{source}:{node.start_mark.line + 1}"
    if isinstance(node, yaml.ScalarNode):
        _check_scalar(node, location)
        return 1, 1
    if id(node) in cache:
        return cache[id(node)]
    if depth > _MAX_DEPTH:
        raise SpecError(_depth_message(location))
    children = (child for entry in node.value for child in (entry if isinstance(entry, tuple) else (entry,)))
    extents = [_measure_extent(child, source, cache, depth + 1) for child in children]
    values = 1 + sum(extent[0] for extent in extents)
    levels = 1 + max((extent[1] for extent in extents), default=0)
    if levels > _MAX_DEPTH:
        raise SpecError(_depth_message(location))
    if values > MAX_VALUES:
        raise SpecError(
            f"{location}: with its aliases written out, this has more than {MAX_VALUES} values. Give fewer."
        )
    cache[id(node)] = values, levels
    return values, levels


def _check_scalar(node: yaml.ScalarNode, location: str) -> None:
    digits = re.sub(r"[^0-9]", "", node.value)
    if node.tag == "tag:yaml.org,2002:int" and (len(digits) > 19 or int(digits or 0) > _LARGEST):
        raise SpecError(f"{location}: a number has {len(digits)} digits. Give one of at most {_LARGEST}.")
    if no_text := not_text(node.value):
        raise SpecError(f"{location}: a text holds {no_text}. Take it out.")


def _depth_message(location: str) -> str:
    return (
        f"{location}: this is nested more than {_MAX_DEPTH} levels deep, or an alias is inside of its own "
        "anchor. Give fewer levels."
    )


def _iterate_keys(root: yaml.Node | None, source: str) -> Iterator[tuple[str, int]]:
    """Yield dotted path and line of each key; raise if a key occurs twice or is not text."""
    visited_ids: set[int] = set()  # an anchor may contain its own alias
    stack: list[tuple[str, yaml.Node | None]] = [("", root)]
    while stack:
        prefix, node = stack.pop()
        if node is None or id(node) in visited_ids:
            continue
        visited_ids.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            stack += [(f"{prefix}.{i}", child) for i, child in enumerate(node.value)]
        if not isinstance(node, yaml.MappingNode):
            continue
        first_lines: dict[str, int] = {}
        for key, value in node.value:
            line = key.start_mark.line + 1
            path = f"{prefix}.{key.value}" if prefix else str(key.value)
            _check_key(key, f"{source}:{line}", path, first_lines)
            first_lines[key.value] = line
            yield path, line
            stack.append((path, value))


def _check_key(key: yaml.Node, location: str, path: str, first_lines: Mapping[str, int]) -> None:
    if key.tag == "tag:yaml.org,2002:merge":
        return
    if key.tag != "tag:yaml.org,2002:str":
        raise SpecError(
            f"{location}: a key reads {path!r}, which YAML takes for {key.tag.rpartition(':')[2]}. "
            f"Keys are text: put it in quotes."
        )
    if key.value in first_lines:
        raise SpecError(
            f'{location}: the key "{path}" is there twice (first in line {first_lines[key.value]}). '
            f"YAML would drop one of them: take one away."
        )


def _yaml_message(error: yaml.YAMLError, source: str) -> str:
    if not isinstance(error, yaml.MarkedYAMLError):
        return f"{source} is not YAML: {' '.join(str(error).split())}. Give a study spec in YAML."
    mark = error.problem_mark or error.context_mark
    location = f"{source}:{mark.line + 1}:{mark.column + 1}" if mark else source
    problem = " ".join(str(error.problem or error.context).split())
    remedy = "Check the indentation, the colons and the quotes there."
    if "\\t" in problem:
        remedy = "YAML is indented with spaces: replace the tab."
    if "chomping or indentation" in problem:
        remedy = 'A text that begins with > or | is written in quotes, as in ">= -2%".'
    if "could not determine a constructor for the tag" in problem:
        remedy = "Tags that make objects are not read: write class_path: and init_args: instead."
    return f"{location}: this is not valid YAML: {problem}. {remedy}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """One ``--set path=value``: the path as it is written and split, and the value that YAML reads."""

    written: str
    path: tuple[str, ...]
    value: Any

    @classmethod
    def of(cls, key: str, value: Any) -> Self:
        """Return the override of a path that is written as in ``--set``."""
        return cls(written=key, path=_expand(key.split(".")), value=value)

    @property
    def local(self) -> bool:
        """Whether it may differ between machines, and so is not part of a study's identity."""
        if self.path[0] == "data":
            return self.path[1:] != ("class_path",)
        return self.path[0] == "resources" or self.path == ("trainer", "accelerator")


def parse_override(text: str) -> Override:
    """Parse ``a.b=c``.

    ``model.x`` and ``data.x`` are short for ``model.init_args.x`` and ``data.init_args.x``. The part after
    ``search.`` is one name, including its dots.

    Raises:
        SpecError: There is no ``=``, no name before it, or no YAML value after it.
    """
    name, separator, value = text.partition("=")
    segments = name.strip().split(".")
    # an empty shell variable must neither set nor remove a key
    if not separator or not all(segments) or not value.strip():
        raise SpecError(
            f'--set was given "{text}". Give section.key=value, as in --set study.trials=20; null stands for '
            "no value."
        )
    parsed_value, _ = _load_yaml(value, f'--set "{text}"', keys=False)
    return Override.of(name.strip(), parsed_value)


def _expand(segments: list[str]) -> tuple[str, ...]:
    section, keys = segments[0], segments[1:]
    if section in ("model", "data") and keys and keys[0] not in ("class_path", "init_args"):
        return (section, "init_args", *keys)
    if section == "search" and len(keys) > 1:
        if keys[-1] in ("low", "high", "log", "step", "choices", "baseline"):
            return (section, ".".join(keys[:-1]), keys[-1])
        return (section, ".".join(keys))
    return (section, *keys)


def apply(data: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    """Return ``data`` with the overrides applied; ``data`` is unchanged.

    ``null`` removes a searched name or a guard.

    Args:
        data: A study spec.
        overrides: Settings to apply.

    Raises:
        SpecError: A path leads through a value that is not a mapping, or removes a key that does not exist.
    """
    result: dict[str, Any] = dict(data)
    for override in overrides:
        target = result
        for depth, segment in enumerate(override.path[:-1], start=1):
            child = target.get(segment)
            if child is not None and not isinstance(child, dict):
                raise SpecError(
                    f'--set {override.written}: "{".".join(override.path[:depth])}" is {child!r}, which '
                    f"has nothing inside to set. Set it as a whole, or give another path."
                )
            target[segment] = target = dict(child or {})
        *parents, name = override.path
        if override.value is None and (kind := _BY_NAME.get(tuple(parents))):
            if name not in target:
                raise SpecError(f"--set {override.written}: {unknown(kind, name, target)}")
            del target[name]
        else:
            target[name] = override.value
    return result


def has_reference(value: object) -> bool:
    """Return whether a value refers to an environment variable, as in ``${DATA}/train``."""
    return isinstance(value, str) and _REFERENCE.search(value) is not None


def resolve(value: Any, *, path: str) -> Any:
    """Return ``value`` with each ``${NAME}`` in its strings replaced from the environment.

    Raises:
        SpecError: A variable is not set; the message has its name and the ``path`` of the value.
    """
    if isinstance(value, dict):
        return {key: resolve(child, path=f"{path}.{key}") for key, child in value.items()}
    if isinstance(value, list):
        return [resolve(child, path=f"{path}.{i}") for i, child in enumerate(value)]
    if not isinstance(value, str):
        return value

    def variable(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in os.environ:
            raise SpecError(
                f'{path} is "{value}", but the environment variable {name} is not set on this machine. '
                f"Set it (export {name}=...), or give the value with --set."
            )
        return os.environ[name]

    return _REFERENCE.sub(variable, value)


def leaves(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield path and value of every leaf of plain data."""
    if not isinstance(value, Mapping | list):
        yield path, value
        return
    for key, child in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves(child, f"{path}.{key}" if path else str(key))


def number_problem(value: object) -> str | None:
    """Return what is wrong with a number that JSON and databases cannot store; None for any other value."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"given {value}, which JSON does not hold. Give a finite number, or leave it out."
    if isinstance(value, int) and abs(value) > _LARGEST:
        return f"given an integer beyond {_LARGEST}. Give a smaller one."
    return None
