"""The arguments of one class, as jsonargparse reads them for LightningCLI; parsed once, given out often.

Says in one line what jsonargparse says in a wall of unions. Which classes there are is build.py's.
"""

from __future__ import annotations

import copy
import enum
import importlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError, unknown
from tempopt.workers.class_paths import load_class

if TYPE_CHECKING:
    from jsonargparse import ArgumentParser, Namespace

_KEY = "arguments"


class Arguments:
    """What a class is called with: the values of the spec, type-checked, and overrides on top.

    Args:
        section: Key of the spec, for messages: ``model``, ``data`` or ``trainer``.
        cls: The class.
        given: Argument name to plain value; an object is ``{"class_path": ..., "init_args": {...}}``.

    Raises:
        SpecError: An argument is unknown, missing, or of the wrong type; there is a line for each.
    """

    def __init__(self, section: str, cls: type, given: Mapping[str, Any]) -> None:
        self.section = section
        self.cls = cls
        self.given = dict(given)
        self._parser, self.names = _parser(cls)
        self._parsed = self._parse(self.given)
        self._has_objects = any(_holds_namespace(self._parsed[name]) for name in self.given)
        self._checked: dict[tuple[str, object], Any] = {}

    @staticmethod
    def names_of(cls: type) -> list[str]:
        """Return the names of a class's init arguments, those that it hands on to its bases included."""
        return _parser(cls)[1]

    def values(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return fresh keyword arguments, objects made; what is not given is left to the class.

        Args:
            overrides: Argument name, dotted for what is nested below, to value.

        Raises:
            SpecError: An override is unknown or of the wrong type.
        """
        if any("." in name for name in overrides):
            given = self._with(overrides)
            return self._make(self._parse(given), given)
        checked = {name: self.check(name, value) for name, value in overrides.items()}
        if not self._has_objects:
            return {**copy.deepcopy({name: self._parsed[name] for name in self.given}), **checked}
        parsed = self._parsed.clone()
        for name, value in checked.items():
            parsed[name] = value
        return self._make(parsed, {**self.given, **overrides})

    def check(self, name: str, value: Any) -> Any:
        """Return an override as the type that its annotation asks for.

        Numbers are parsed once for each type and text once for each value, so that a run in a warm
        worker does not pay for it.

        Raises:
            SpecError: The argument is unknown, or the value is of the wrong type.
        """
        number = isinstance(value, int | float) and not isinstance(value, bool)
        text = isinstance(value, Mapping | list)
        key = (name, type(value) if number else repr(value) if text else value)
        if key not in self._checked:
            given = self._with({name: value})
            parsed = self._parse(given)[name.partition(".")[0]]
            if _holds_namespace(parsed) or "." in name:
                return value
            self._checked[key] = type(parsed) if number else parsed
        known = self._checked[key]
        if not number:
            return known
        return known(value) if known in (int, float) else self._parse({**self.given, name: value})[name]

    def _with(self, overrides: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is given with dotted overrides written into its objects, dataclasses and mappings."""
        result = copy.deepcopy(self.given)
        for name, value in overrides.items():
            top, *below = name.split(".")
            if not below:
                result[top] = value
                continue
            default = self._parsed.get(top)
            if top not in result and _holds_namespace(default):
                result[top] = _plain(default)
            self._put(result, _plain(default), name, value)
        return result

    def _put(self, result: dict[str, Any], known: Any, name: str, value: Any) -> None:
        """Write a dotted override, below whose first name there is what ``known`` has."""
        top, *above, last = name.split(".")
        target, path = result.get(top), top
        for segment in [*above, None]:
            if not isinstance(target, dict):
                raise SpecError(
                    f'"{name}" goes below "{path}", but the spec gives {path} no class_path and no mapping. '
                    f"Write its values under {self._place}, or search another name."
                )
            if "class_path" in target:
                # what its class takes is for its own parser to say
                target, known = target.setdefault("init_args", {}), None
            elif isinstance(known, dict) and (segment or last) not in known:
                raise SpecError(unknown(f"key of {self.section}.{path}", segment or last, known))
            if segment is not None:
                known = known.get(segment) if isinstance(known, dict) else None
                if segment not in target and isinstance(known, dict):
                    target[segment] = copy.deepcopy(known)
                target, path = target.get(segment), f"{path}.{segment}"
        assert isinstance(target, dict)
        target[last] = value

    def _make(self, parsed: Namespace, given: Mapping[str, Any]) -> dict[str, Any]:
        made = self._parser.instantiate(_wrapped(parsed))[_KEY]
        return {name: made[name] for name in given}

    def _parse(self, given: Mapping[str, Any]) -> Namespace:
        from jsonargparse import ArgumentError, Namespace

        try:
            if not self.names and not given:
                return Namespace()  # type: ignore[no-untyped-call]
            parsed: Namespace = self._parser.parse_object({_KEY: dict(given)}, env=False)[_KEY]
        except (ArgumentError, TypeError, ValueError, KeyError) as error:
            lines = self._faults(given)
            if not lines:
                detail = " ".join(str(error).replace(f"{_KEY}.", "").split())
                lines = [f"{self.section}: {self.called} cannot be called with {dict(given)!r}: {detail}"]
            raise SpecError("\n".join(lines)) from error
        return parsed

    @property
    def called(self) -> str:
        """The class's full name, for messages."""
        return f"{self.cls.__module__}.{self.cls.__qualname__}"

    def _faults(self, given: Mapping[str, Any]) -> list[str]:
        """Return a line for each argument that is wrong."""
        from jsonargparse import ArgumentError

        lines = []
        for name in _required(self.cls, self.names):
            if name not in given:
                lines.append(
                    f"{self.section}: {self.called} needs the argument {name} "
                    f"({_allowed(self.cls, name)}). Give it under {self._place}."
                )
        for name, value in given.items():
            if name not in self.names:
                known = self.names or ["none; it takes no arguments"]
                lines.append(f"{self.section}: {unknown(f'argument of {self.called}', name, known)}")
                continue
            parser, _ = _parser(self.cls, only=name)
            try:
                parser.parse_object({_KEY: {name: value}}, env=False)
            except (ArgumentError, TypeError, ValueError, KeyError):
                path = f"{self.section}.{name}"
                nested = _object_fault(value, path)
                wanted = f"given {_shown(value)}. Allowed for {self.called}: {_allowed(self.cls, name)}."
                lines.append(nested or f"{path}: {wanted}")
        return lines

    @property
    def _place(self) -> str:
        return "trainer" if self.section == "trainer" else f"{self.section}.init_args"


def _parser(cls: type, only: str | None = None) -> tuple[ArgumentParser, list[str]]:
    """Return a parser of a class's arguments (or of one of them), and their names."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False)
    skip: set[str | int] = set() if only is None else {n for n in _parser(cls)[1] if n != only}
    added = parser.add_class_arguments(
        cls, _KEY, fail_untyped=False, instantiate=False, sub_configs=True, skip=skip
    )
    return parser, list(dict.fromkeys(name.split(".")[1] for name in added))


def _wrapped(parsed: Namespace) -> Namespace:
    from jsonargparse import Namespace

    wrapped: Namespace = Namespace(**{_KEY: parsed})  # type: ignore[no-untyped-call]
    return wrapped


def parameter(cls: type, name: str) -> inspect.Parameter | None:
    """Return an init parameter of a class, from whichever class above it has it under that name."""
    for each in cls.__mro__:
        if "__init__" in vars(each):
            found = inspect.signature(vars(each)["__init__"]).parameters.get(name)
            if found is not None:
                return found
    return None


def _required(cls: type, names: list[str]) -> list[str]:
    found = {name: parameter(cls, name) for name in names}
    return [name for name, each in found.items() if each is not None and each.default is each.empty]


def _allowed(cls: type, name: str) -> str:
    found = parameter(cls, name)
    if found is None or found.annotation is inspect.Parameter.empty:
        return "any value"
    hint = found.annotation
    if isinstance(hint, str):
        hint = vars(importlib.import_module(cls.__module__)).get(hint, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return ", ".join(member.name for member in hint)
    return hint if isinstance(hint, str) else inspect.formatannotation(hint)


def _shown(value: object) -> str:
    return f'the text "{value}"' if isinstance(value, str) else f"{value!r} ({type(value).__name__})"


def _object_fault(value: object, path: str) -> str | None:
    """Return what is wrong with a value that describes an object, if that can be told."""
    if isinstance(value, list):
        found = (_object_fault(item, f"{path}.{i}") for i, item in enumerate(value))
        return next((fault for fault in found if fault), None)
    if not isinstance(value, Mapping) or not isinstance(value.get("class_path"), str):
        return None
    try:
        cls = load_class(value["class_path"], base=object, where=f"{path}.class_path")
        Arguments(f"{path}", cls, value.get("init_args") or {})
    except SpecError as error:
        return str(error)
    return None


def _plain(value: object) -> Any:
    """Return what was parsed as plain data."""
    from jsonargparse import Namespace

    return value.as_dict() if isinstance(value, Namespace) else value


def _holds_namespace(value: object) -> bool:
    from jsonargparse import Namespace

    if isinstance(value, list | tuple):
        return any(_holds_namespace(item) for item in value)
    if isinstance(value, dict):
        return any(_holds_namespace(item) for item in value.values())
    return isinstance(value, Namespace)


def loaders(cls: type) -> set[str]:
    """Return which of ``train``, ``val`` and ``test`` dataloaders a module or data module defines."""
    from lightning.pytorch.core.hooks import DataHooks

    kinds = ("train", "val", "test")
    return {kind for kind in kinds if _method(cls, kind) is not _method(DataHooks, kind)}


def _method(cls: type, kind: str) -> object:
    """Return the function that makes the dataloader, from the nearest class that has it."""
    name = f"{kind}_dataloader"
    return next(vars(each)[name] for each in cls.__mro__ if name in vars(each))
