"""Writes plain data as Python expressions: calls, imports, and the arguments of classes."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any

_WIDTH = 72
# It reads a mapping as LightningCLI does, as a dataclass where the class takes one.
_ARGUMENTS = "tempopt.training.arguments.Arguments"


class Verbatim(str):
    """Text that is already an expression."""

    __slots__ = ()


class PythonWriter:
    """Plain data as Python expressions, and the imports that they need."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, path: str) -> str:
        """Return the name under which the object of that import path is imported."""
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
        """Return the call of the object of that import path, an argument a line where there are many."""
        callee = self.name(path)
        if not all(name.isidentifier() for name in arguments):
            return f"{callee}(**{self._mapping(arguments)})"
        arg_texts = [f"{name}={self.expression(value)}" for name, value in arguments.items()]
        if sum(map(len, arg_texts)) <= _WIDTH:
            return f"{callee}({', '.join(arg_texts)})"
        lines = "".join(f"{argument},\n" for argument in arg_texts)
        return f"{callee}(\n{textwrap.indent(lines, '    ')})"

    def object_expression(self, section: str, config: Mapping[str, Any]) -> str:
        """Return the expression of a section's object; of mappings in it, the class says what they are."""
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
        """Return the expression of plain data; ``{class_path, ...}`` becomes the call it stands for."""
        if isinstance(value, Verbatim):
            return str(value)
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
