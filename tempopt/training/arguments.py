"""The arguments of one class, as jsonargparse parses them for LightningCLI; parsed once, copied for each use.

Replaces the long messages of jsonargparse by one line. ``build.py`` selects the classes.
"""

from __future__ import annotations

import argparse
import copy
import enum
import functools
import importlib
import inspect
import re
import typing
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tempopt.class_loading import load_class
from tempopt.errors import SpecError, unknown

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

_KEY = "arguments"


class Arguments:
    """Arguments of a class: the values of the spec, type-checked, with overrides.

    Args:
        section: Key of the spec, for messages: ``model``, ``data`` or ``trainer``.
        cls: The class.
        init_args: Argument name to plain value; an object is ``{"class_path": ..., "init_args": {...}}``.

    Raises:
        SpecError: An argument is unknown, missing, or of the wrong type; it lists all errors.
    """

    def __init__(self, section: str, cls: type, init_args: Mapping[str, Any]) -> None:
        self.section = section
        self.cls = cls
        self.init_args = dict(init_args)
        self._parser, self.names = _parser(cls)
        self._parsed = self._parse(self.init_args)
        self._has_objects = any(_holds_namespace(self._parsed[name]) for name in self.init_args)
        self._checked: dict[tuple[str, object], Any] = {}

    @staticmethod
    def names_of(cls: type) -> list[str]:
        """Return the names of a class's init arguments, including those that it passes on to its bases."""
        return _parser(cls)[1]

    def values(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return new keyword arguments with their objects; missing ones keep the default of the class.

        Args:
            overrides: Argument name, dotted for nested ones, to value.

        Raises:
            SpecError: An override is unknown or of the wrong type.
        """
        if any("." in name for name in overrides):
            init_args = self._apply_overrides(overrides)
            return self._make(self._parse(init_args), init_args)
        checked_values = {name: self.check(name, value) for name, value in overrides.items()}
        if not self._has_objects:
            return {**copy.deepcopy({name: self._parsed[name] for name in self.init_args}), **checked_values}
        namespace = self._parsed.clone()
        for name, value in checked_values.items():
            namespace[name] = value
        return self._make(namespace, {**self.init_args, **overrides})

    def check(self, name: str, value: Any) -> Any:
        """Return an override converted to the type of its annotation.

        Numbers are parsed once per type and text once per value, which saves time in a warm worker.

        Raises:
            SpecError: The argument is unknown, or the value is of the wrong type.
        """
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_text = isinstance(value, Mapping | list)
        key = (name, type(value) if is_number else repr(value) if is_text else value)
        if key not in self._checked:
            init_args = self._apply_overrides({name: value})
            parsed_value = self._parse(init_args)[name.partition(".")[0]]
            if _holds_namespace(parsed_value) or "." in name:
                return value
            self._checked[key] = type(parsed_value) if is_number else parsed_value
        cached_value = self._checked[key]
        if not is_number:
            return cached_value
        return (
            cached_value(value)
            if cached_value in (int, float)
            else self._parse({**self.init_args, name: value})[name]
        )

    def _apply_overrides(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments with dotted overrides written into their objects, dataclasses and mappings."""
        result = copy.deepcopy(self.init_args)
        for name, value in overrides.items():
            argument, *subkeys = name.split(".")
            if not subkeys:
                result[argument] = value
                continue
            default = self._parsed.get(argument)
            if argument not in result and _holds_namespace(default):
                result[argument] = _to_plain(default)
            self._write_override(result, _to_plain(default), name, value)
        return result

    def _write_override(self, result: dict[str, Any], default: Any, name: str, value: Any) -> None:
        """Write a dotted override; ``default`` has the default values below its first name."""
        argument, *middle_segments, last_segment = name.split(".")
        target, path = result.get(argument), argument
        for segment in [*middle_segments, None]:
            if not isinstance(target, dict):
                raise SpecError(
                    f'"{name}" goes below "{path}", but the spec gives {path} no class_path and no mapping. '
                    f"Write its values under {self._init_args_path}, or search another name."
                )
            if "class_path" in target:
                # the parser of that class checks its arguments
                target, default = target.setdefault("init_args", {}), None
            elif isinstance(default, dict) and (segment or last_segment) not in default:
                raise SpecError(unknown(f"key of {self.section}.{path}", segment or last_segment, default))
            if segment is not None:
                default = default.get(segment) if isinstance(default, dict) else None
                if segment not in target and isinstance(default, dict):
                    target[segment] = copy.deepcopy(default)
                target, path = target.get(segment), f"{path}.{segment}"
        assert isinstance(target, dict)
        target[last_segment] = value

    def _make(self, namespace: Namespace, init_args: Mapping[str, Any]) -> dict[str, Any]:
        from jsonargparse import Namespace

        wrapper: Namespace = Namespace(**{_KEY: namespace})  # type: ignore[no-untyped-call]
        for value in vars(namespace).values():
            _restore_callables(value)
        objects = self._parser.instantiate(wrapper)[_KEY]
        return {name: objects[name] for name in init_args}

    def _parse(self, init_args: Mapping[str, Any]) -> Namespace:
        from jsonargparse import ArgumentError, Namespace

        try:
            if not self.names and not init_args:
                return Namespace()  # type: ignore[no-untyped-call]
            namespace: Namespace = self._parser.parse_object({_KEY: dict(init_args)}, env=False)[_KEY]
        except (ArgumentError, TypeError, ValueError, KeyError) as error:
            lines = self._faults(init_args)
            if not lines:
                detail = " ".join(str(error).replace(f"{_KEY}.", "").split())
                lines = [f"{self.section}: {self.called} cannot be called with {dict(init_args)!r}: {detail}"]
            raise SpecError("\n".join(lines)) from error
        return namespace

    @property
    def called(self) -> str:
        """Full name of the class, for messages."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    def _faults(self, init_args: Mapping[str, Any]) -> list[str]:
        """Return a line for each wrong argument."""
        from jsonargparse import ArgumentError

        lines = []
        for name in self.names:
            init_parameter = parameter(self.cls, name)
            is_required = init_parameter is not None and init_parameter.default is init_parameter.empty
            if is_required and name not in init_args:
                lines.append(
                    f"{self.section}: {self.called} needs the argument {name} "
                    f"({_allowed_values_text(self.cls, name)}). Give it under {self._init_args_path}."
                )
        for name, value in init_args.items():
            if name not in self.names:
                known_names = self.names or ["none; it takes no arguments"]
                lines.append(f"{self.section}: {unknown(f'argument of {self.called}', name, known_names)}")
                continue
            parser, _ = _parser(self.cls, argument_name=name)
            try:
                parser.parse_object({_KEY: {name: value}}, env=False)
            except (ArgumentError, TypeError, ValueError, KeyError):
                path = f"{self.section}.{name}"
                nested_fault = None if _is_bare_callable(self.cls, name) else _object_fault(value, path)
                allowed_text = _allowed_values_text(self.cls, name)
                message = f"given {_format_value(value)}. Allowed for {self.called}: {allowed_text}."
                lines.append(nested_fault or f"{path}: {message}")
        return lines

    @property
    def _init_args_path(self) -> str:
        return "trainer" if self.section == "trainer" else f"{self.section}.init_args"


@functools.lru_cache(maxsize=64)
def _parser(cls: type, argument_name: str | None = None) -> tuple[ArgumentParser, list[str]]:
    """Return a parser of a class's arguments (or of one of them), and their names.

    It is cached, since jsonargparse parses docstrings and annotations of all arguments to build it.
    """
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    skip: set[str | int] = (
        set() if argument_name is None else {n for n in _parser(cls)[1] if n != argument_name}
    )
    # a mapping becomes a namespace when the object is made
    namespaces = {name for name in _init_parameters(cls) if takes_namespace(cls, name)}
    argument_paths = parser.add_class_arguments(
        cls, _KEY, fail_untyped=False, instantiate=False, sub_configs=True, skip=skip | namespaces
    )
    names = list(dict.fromkeys(name.split(".")[1] for name in argument_paths))
    for name in [*namespaces, *_popped_names(cls)]:
        if name not in names and name not in skip:
            parser.add_argument(f"--{_KEY}.{name}", type=dict if name in namespaces else Any)
            names.append(name)
    return parser, names


def _init_parameters(cls: type) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(vars(cls)["__init__"]).parameters if "__init__" in vars(cls) else {}


def _popped_names(cls: type) -> list[str]:
    """Return the names that a constructor takes out of its ``**kwargs`` by itself."""
    kinds = {name: init_parameter.kind for name, init_parameter in _init_parameters(cls).items()}
    keywords = [name for name, kind in kinds.items() if kind is inspect.Parameter.VAR_KEYWORD]
    if not keywords:
        return []
    try:
        source = inspect.getsource(vars(cls)["__init__"])
    except (OSError, TypeError):
        return []
    pattern = rf"\b{keywords[0]}(?:\.pop\(|\.get\(|\[)\s*[\"'](\w+)[\"']"
    return list(dict.fromkeys(re.findall(pattern, source)))


def takes_namespace(cls: type, name: str) -> bool:
    """Return whether an argument is annotated as ``argparse.Namespace``."""
    init_parameter = parameter(cls, name)
    hint = None if init_parameter is None else init_parameter.annotation
    return hint is argparse.Namespace or hint in ("argparse.Namespace", "Namespace")


def parameter(cls: type, name: str) -> inspect.Parameter | None:
    """Return an init parameter of a class, from the class or the base that defines it."""
    for base_class in cls.__mro__:
        if "__init__" in vars(base_class):
            init_parameter = inspect.signature(vars(base_class)["__init__"]).parameters.get(name)
            if init_parameter is not None:
                return init_parameter
    return None


def _allowed_values_text(cls: type, name: str) -> str:
    init_parameter = parameter(cls, name)
    if init_parameter is None or init_parameter.annotation is inspect.Parameter.empty:
        return "any value"
    if _is_bare_callable(cls, name):
        return (
            "a function; to give a class by class_path, annotate the argument with what it makes, as in "
            f"{name}: Callable[[Iterable], torch.optim.Optimizer]"
        )
    hint = init_parameter.annotation
    if isinstance(hint, str):
        hint = vars(importlib.import_module(cls.__module__)).get(hint, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(member.name for member in hint)
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def _is_bare_callable(cls: type, name: str) -> bool:
    init_parameter = parameter(cls, name)
    hint = None if init_parameter is None else init_parameter.annotation
    return hint in (Callable, typing.Callable, "Callable")


def _format_value(value: object) -> str:
    return f'the text "{value}"' if isinstance(value, str) else f"{value!r} ({type(value).__name__})"


def _object_fault(value: object, path: str) -> str | None:
    """Return what is wrong with a value that describes an object, if it can be determined."""
    if isinstance(value, list):
        faults = (_object_fault(child, f"{path}.{i}") for i, child in enumerate(value))
        return next((fault for fault in faults if fault), None)
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return None
    try:
        cls = load_class(value["class_path"], base=object, where=f"{path}.class_path")
        Arguments(f"{path}", cls, value.get("init_args") or {})
    except SpecError as error:
        return str(error)
    return None


def _restore_callables(value: object) -> None:
    """Put functions that are defaults of objects back, which jsonargparse gives as the text of their path."""
    from jsonargparse import Namespace

    if isinstance(value, list):
        for entry in value:
            _restore_callables(entry)
    if not isinstance(value, Namespace) or not isinstance(value.get("class_path"), str):
        return
    init_args = value.get("init_args")
    if not isinstance(init_args, Namespace):
        return
    cls = load_class(value["class_path"], base=object, where="class_path")
    for name, argument in list(vars(init_args).items()):
        init_parameter = parameter(cls, name)
        default = None if init_parameter is None else init_parameter.default
        if isinstance(argument, str) and inspect.isroutine(default):
            if argument.rpartition(".")[2] == default.__name__ and argument != default.__name__:
                init_args[name] = default
        else:
            _restore_callables(argument)


def _to_plain(value: object) -> Any:
    """Return a parsed value as plain data."""
    from jsonargparse import Namespace

    return value.as_dict() if isinstance(value, Namespace) else value


def _holds_namespace(value: object) -> bool:
    from jsonargparse import Namespace

    if isinstance(value, list | tuple):
        return any(_holds_namespace(child) for child in value)
    if isinstance(value, dict):
        return any(_holds_namespace(child) for child in value.values())
    return isinstance(value, Namespace)


def loaders(cls: type) -> set[str]:
    """Return which of the ``train``, ``val`` and ``test`` dataloaders a module or data module defines."""

    def is_defined(kind: str) -> bool:
        definer = next(base for base in cls.__mro__ if f"{kind}_dataloader" in vars(base))
        # where Lightning declares them all
        return definer.__name__ != "DataHooks"

    return set(filter(is_defined, ("train", "val", "test")))
