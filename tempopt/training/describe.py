"""Inspects a person's LightningModule class without instantiating it."""

from __future__ import annotations

import ast
import inspect
import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from itertools import takewhile
from typing import Any

from tempopt.class_loading import dotted_path, load_class, module_name, refuse_module
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS
from tempopt.training.arguments import Arguments, loaders, parameter

_GOVERNED = ("validate_at",)
_MISSING = object()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleArgument:
    """One init argument of a class.

    Args:
        name: Its name.
        annotation: Its type as written, or an empty string.
        required: Whether it has no default.
        default: Its default if that is plain data, else its repr.
    """

    name: str
    annotation: str
    required: bool
    default: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleInfo:
    """A LightningModule class and its data module, as plain data.

    Args:
        class_path: Import path, dotted.
        tempered: Whether it is a TemperedModule.
        arguments: Its init arguments without temperature parameters.
        metrics: Names that its validation seems to log, the most likely first.
        data: Import path of the data module that the same file defines or imports, or None.
        data_arguments: Init arguments of that data module.
        other_data: Import paths of further data modules.
        loaders: Which of the ``train``, ``val`` and ``test`` dataloaders either of them defines.
        temperature_arguments: Temperature parameters that are init arguments of the module.
    """

    class_path: str
    tempered: bool
    arguments: list[ModuleArgument]
    metrics: list[str]
    data: str | None
    data_arguments: list[ModuleArgument]
    other_data: list[str]
    loaders: list[str]
    temperature_arguments: list[str] = field(default_factory=list)


def inspect_module(import_path: str) -> ModuleInfo:
    """Import a LightningModule and return the information that a spec needs.

    Args:
        import_path: ``package.module.Class``, ``package.module:Class`` or ``package/module.py:Class``.

    Raises:
        SpecError: There is no such class, or its module cannot be imported.
    """
    from tempopt.training.lightning_package import LightningDataModule, LightningModule
    from tempopt.training.module import TemperedModule

    refuse_module(module_name(import_path), base=LightningModule, where="init")
    cls = load_class(dotted_path(import_path), base=LightningModule, where="init")
    candidates = dict.fromkeys(
        candidate
        for candidate in vars(sys.modules[cls.__module__]).values()
        if isinstance(candidate, type)
        and issubclass(candidate, LightningDataModule)
        and candidate.__name__ != LightningDataModule.__name__
    )
    # one with the model's name first, then those defined in the file, then imported ones
    data_classes = sorted(
        candidates,
        key=lambda candidate: (
            not candidate.__name__.startswith(cls.__name__),
            candidate.__module__ != cls.__module__,
        ),
    )
    data = data_classes[0] if data_classes else None
    return ModuleInfo(
        class_path=_path(cls),
        tempered=issubclass(cls, TemperedModule),
        arguments=_describe_arguments(cls),
        metrics=_metrics(cls),
        data=_path(data) if data else None,
        data_arguments=_describe_arguments(data) if data else [],
        other_data=[_path(data_class) for data_class in data_classes[1:]],
        loaders=sorted(loaders(cls) | (loaders(data) if data else set())),
        temperature_arguments=[name for name in Arguments.names_of(cls) if name in TEMPERATURE_PARAMETERS],
    )


def _path(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _describe_arguments(cls: type) -> list[ModuleArgument]:
    result = []
    for name in Arguments.names_of(cls):
        init_parameter = parameter(cls, name)
        if init_parameter is None or name in TEMPERATURE_PARAMETERS or name in _GOVERNED:
            continue
        annotation = init_parameter.annotation
        if annotation is init_parameter.empty:
            annotation = ""
        elif not isinstance(annotation, str):
            annotation = inspect.formatannotation(annotation)
        is_required = init_parameter.default is init_parameter.empty
        default = None if is_required else _to_plain(init_parameter.default)
        result.append(ModuleArgument(name=name, annotation=annotation, required=is_required, default=default))
    return result


def _to_plain(value: object) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    try:
        return json.loads(json.dumps(value))
    except TypeError:
        return repr(value)


def _metrics(cls: type) -> list[str]:
    """Return the logged names, those of the validation methods first."""
    validation_names, other_names = [], []
    for base_class in takewhile(lambda base: base.__name__ != "LightningModule", cls.__mro__):
        for method, name in _logged_names(base_class):
            if "val" in method:
                validation_names.append(name)
            elif name.startswith("val"):
                other_names.append(name)
    return list(dict.fromkeys([*validation_names, *other_names]))


def _logged_names(cls: type) -> Iterator[tuple[str, str]]:
    """Yield method and name of each ``self.log("name", ...)`` and ``self.log_dict({"name": ...})``."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return  # a class created at run time has no source
    for method in ast.walk(tree):
        if not isinstance(method, ast.FunctionDef):
            continue
        for call in ast.walk(method):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args):
                continue
            first = call.args[0]
            names = first.keys if call.func.attr == "log_dict" and isinstance(first, ast.Dict) else [first]
            for name in names if call.func.attr in ("log", "log_dict") else ():
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield method.name, name.value
                elif isinstance(name, ast.JoinedStr) and (validated_name := _name_in_validation(name)):
                    yield method.name, validated_name


def _name_in_validation(name: ast.JoinedStr) -> str | None:
    """Return what ``f"{mode}_loss"`` is where the mode, a phase of training, is ``val``; None for others."""
    placeholders = [part for part in name.values if isinstance(part, ast.FormattedValue)]
    texts = [part.value if isinstance(part, ast.Constant) else "val" for part in name.values]
    is_of_phase = len(placeholders) == 1 and isinstance(name.values[0], ast.FormattedValue)
    return "".join(map(str, texts)) if is_of_phase else None
