"""Write classes and functions of the running program, with all that they use, into a module for workers."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from tempopt.api.main_source import MAIN, Definition, definition, imports_of, is_defined_in_main, main_names
from tempopt.errors import SpecError, UsageError
from tempopt.files import replace

FOLDER = "tempopt_modules"
"""Folder for these modules, in the current folder, where workers look for modules first."""

_HEAD = '''"""{names} as the running program defined {them}: written by tempopt, for its workers to import.

A study that was begun with this file needs it to be resumed. Its name holds a hash of what is in it.
"""

'''
_FOLDER_TEXT = '"""Classes of scripts and notebooks, written by tempopt; their studies need them."""\n'
_CONSTANTS = (int, float, str, bytes, list, tuple, dict, set, type(None))
_MAX_CONSTANT_LENGTH = 20_000
_NOT_OURS = ("__name__", "__doc__", "__builtins__", "__builtin__", "__package__", "__spec__", "__loader__")
# Maximal number of problems in a message.
_MAX_PROBLEMS = 8


def write_module(classes: Sequence[str]) -> str:
    """Write classes of the running program into a module in the current folder, and return its name.

    Args:
        classes: Their names in the running program, each once; the module is named after the first.

    Raises:
        SpecError: There is no such class, or its source or a name that it uses cannot be written.
        UsageError: The file cannot be written.
    """
    names = main_names()
    for class_name in classes:
        if not isinstance(names.get(class_name), type | FunctionType):
            raise SpecError(
                f'"{MAIN}.{class_name}": the program that is running has no class or function {class_name}.'
            )
    module = _Module()
    for class_name in classes:
        module.need(class_name)
    if module.problems:
        raise SpecError(_build_refusal(classes, module.problems))
    pronoun = "it" if len(classes) == 1 else "them"
    text = _HEAD.format(names=", ".join(classes), them=pronoun) + module.text()
    name = f"{classes[0].lower()}_{hashlib.sha256(text.encode()).hexdigest()[:10]}"
    folder = Path.cwd() / FOLDER
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"The classes of the running program have to be written to {folder} for workers to import, but "
            f"that folder cannot be made: {error.strerror}. Change to a writable folder."
        ) from error
    _write(folder / "__init__.py", _FOLDER_TEXT)
    _write(folder / f"{name}.py", text)
    return f"{FOLDER}.{name}"


def _write(path: Path, text: str) -> None:
    # do not write an equal file again, which workers may be reading
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        replace(path, text)


class _Module:
    """A module to which definitions are added with all names that they use.

    Attributes:
        problems: A phrase on each name that cannot be written.
    """

    def __init__(self) -> None:
        self._names = main_names()
        self._visited_names: set[str] = set()
        self._imports: dict[str, None] = {}
        self._constants: list[str] = []
        self._definitions: list[str] = []
        self._waiting: list[tuple[str, bool]] = []
        self._postponed = False
        self.problems: list[str] = []

    def text(self) -> str:
        """Return the source of the module without its docstring."""
        head = ["from __future__ import annotations"] if self._postponed else []
        body = "".join(f"\n\n{text}" for text in self._definitions)
        # leave out imports that these classes do not use
        used_imports = sorted(statement for statement in self._imports if _find_submodule(statement) in body)
        return "\n".join([*head, "", *used_imports, "", *self._constants]).strip("\n") + "\n" + body

    def need(self, name: str) -> None:
        """Add the definition of a name in the running program, and all that it uses."""
        self._waiting.append((name, False))
        while self._waiting:
            self._add(*self._waiting.pop(0))

    def _add(self, name: str, hint: bool = False) -> None:
        """Add one name, after the names that its definition uses.

        Args:
            hint: Whether only annotations use it, so that it may be missing.
        """
        # other names are builtins, or missing in the program, too
        if name in self._visited_names or name not in self._names or name in _NOT_OURS:
            return
        self._visited_names.add(name)
        value = self._names[name]
        if is_defined_in_main(value):
            source = definition(value)
            if not isinstance(source, str):
                self._define(name, value, source)
            elif not hint:
                self.problems.append(f"{name}, which {source}")
        elif statements := imports_of(name, value) or _build_import(name, value):
            self._imports.update(dict.fromkeys(statements))
        elif (constant := _format_constant(value)) is not None:
            self._constants.append(f"{name} = {constant}")
        elif not hint:
            self.problems.append(f"{name} (of type {type(value).__qualname__})")

    def _define(self, name: str, value: Any, source: Definition) -> None:
        self.problems += _list_redefined_bases(name, value, self._names)
        self._postponed |= source.postponed
        if value.__qualname__ != name:
            # another name of it
            self._add(value.__qualname__)
            self._definitions.append(f"{name} = {value.__qualname__}\n")
            return
        for used_name in sorted(source.eager):
            self._add(used_name)
        self._definitions.append(source.text)
        self._waiting += [(used_name, False) for used_name in sorted(source.lazy)]
        self._waiting += [(used_name, True) for used_name in sorted(source.hints)]


def _find_submodule(statement: str) -> str:
    """Return the submodule that a statement imports under its package's name; empty for other statements."""
    statement_words = statement.split()
    is_import = len(statement_words) == 2 and "." in statement_words[1]
    return statement_words[1] if is_import else ""


def _list_redefined_bases(name: str, value: object, names: dict[str, Any]) -> list[str]:
    """Return the bases of a class that were redefined later, so that its source means a different class."""
    bases = value.__bases__ if isinstance(value, type) else ()
    return [
        f"{name}, whose base {base.__name__} has been defined anew since: define {name} again"
        for base in bases
        if base.__module__ == MAIN and names.get(base.__name__) is not base
    ]


def _build_import(name: str, value: Any) -> list[str]:
    """Return the statement that imports a module, or an object of a module under its own name."""
    if isinstance(value, ModuleType):
        is_importable = value.__name__ != MAIN and sys.modules.get(value.__name__) is value
        alias = "" if value.__name__ == name else f" as {name}"
        return [f"import {value.__name__}{alias}"] if is_importable else []
    module, qualname = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if (
        not isinstance(module, str)
        or not isinstance(qualname, str)
        or module == MAIN
        or not qualname.isidentifier()
    ):
        return []
    if getattr(sys.modules.get(module), qualname, None) is not value:
        return []
    return [f"from {module} import {qualname}" + ("" if qualname == name else f" as {name}")]


def _format_constant(value: object) -> str | None:
    """Return the source of a number, a text or a collection of these; None for other objects."""
    text = repr(value) if isinstance(value, _CONSTANTS) else ""
    try:
        is_same = 0 < len(text) <= _MAX_CONSTANT_LENGTH and ast.literal_eval(text) == value
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return text if is_same else None


def _build_refusal(classes: Sequence[str], problems: Sequence[str]) -> str:
    listing = "\n".join(f"  {problem}" for problem in problems[:_MAX_PROBLEMS])
    more_text = f"\n  and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
    name = classes[0]
    return (
        f"{' and '.join(classes)} {'is' if len(classes) == 1 else 'are'} defined in the program that is "
        "running, which workers cannot import, and cannot be written to a module with all that is used:\n"
        f"{listing}{more_text}\n"
        "A class can use imports, other classes and functions of the program, and constants. Give it "
        "anything else as an argument, or make it inside of the class. Or write it to a file yourself: in a "
        f"notebook, put %%writefile my_module.py at the top of its cell, and give my_module.{name}."
    )
