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


class Code:
    """Plain data as Python expressions, and the imports that they need."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}

    def name(self, path: str) -> str:
        """Return the name under which the object of that import path is imported."""
        last = path.rpartition(".")[2]
        taken = {name for other, name in self._names.items() if other != path}
        name, number = last, 1
        while name in taken:
            number += 1
            name = f"{last}{number}"
        return self._names.setdefault(path, name)

    def imports(self) -> list[str]:
        """Return one import for each module, sorted."""
        modules: dict[str, list[str]] = {}
        for path, name in self._names.items():
            module, _, last = path.rpartition(".")
            modules.setdefault(module, []).append(last if name == last else f"{last} as {name}")
        return [
            f"from {module} import {', '.join(sorted(names))}" for module, names in sorted(modules.items())
        ]

    def call(self, path: str, arguments: Mapping[str, Any]) -> str:
        """Return the call of the object of that import path, an argument a line where there are many."""
        callee = self.name(path)
        if not all(name.isidentifier() for name in arguments):
            return f"{callee}(**{self._mapping(arguments)})"
        given = [f"{name}={self.expression(value)}" for name, value in arguments.items()]
        if sum(map(len, given)) <= _WIDTH:
            return f"{callee}({', '.join(given)})"
        lines = "".join(f"{argument},\n" for argument in given)
        return f"{callee}(\n{textwrap.indent(lines, '    ')})"

    def made(self, section: str, config: Mapping[str, Any]) -> str:
        """Return the expression of a section's object; of mappings in it, the class says what they are."""
        given = config.get("init_args") or {}
        plain = [
            name
            for name, value in given.items()
            if isinstance(value, Mapping) and "class_path" not in value and name != "schedule_args"
        ]
        if not plain:
            return self.expression(config)
        callee, arguments = self.name(config["class_path"]), self.name(_ARGUMENTS)
        return f"{callee}(**{arguments}({section!r}, {callee}, {given!r}).values({{}}))"

    def expression(self, value: Any) -> str:
        """Return the expression of plain data; ``{class_path, ...}`` becomes the call it stands for."""
        if isinstance(value, Verbatim):
            return str(value)
        if isinstance(value, Mapping):
            if "class_path" in value and value.keys() <= {"class_path", "init_args", "dict_kwargs"}:
                given = {**(value.get("init_args") or {}), **(value.get("dict_kwargs") or {})}
                return self.call(value["class_path"], given)
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return f"[{', '.join(self.expression(item) for item in value)}]"
        if isinstance(value, float) and (value != value or abs(value) == float("inf")):
            return f"float({str(value)!r})"
        return repr(value)

    def _mapping(self, value: Mapping[str, Any]) -> str:
        return "{" + ", ".join(f"{key!r}: {self.expression(item)}" for key, item in value.items()) + "}"
