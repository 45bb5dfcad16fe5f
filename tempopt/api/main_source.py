"""The source of the running program: a script's ``__main__``, or the cells of a notebook.

Finds definitions, the names that they use, and the import statements of these names.
"""

from __future__ import annotations
import __future__

import ast
import functools
import inspect
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, cast

MAIN = "__main__"
_COMPREHENSIONS = ("listcomp", "setcomp", "dictcomp", "genexpr")
_MAGIC = "get_ipython().run_cell_magic("
_Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True, kw_only=True)
class Definition:
    """A class or function of the program.

    Args:
        text: Its source, decorators included.
        eager: Names that have to exist when it is defined, such as those of its bases.
        lazy: Names that have to exist when it is used.
        hints: Names that annotations use, which may be missing.
        postponed: Whether its annotations are not evaluated (``from __future__ import annotations``).
    """

    text: str
    eager: frozenset[str]
    lazy: frozenset[str]
    hints: frozenset[str]
    postponed: bool


def main_names() -> dict[str, Any]:
    """Return the global names of the running program."""
    return vars(sys.modules[MAIN])


def is_defined_in_main(value: object) -> bool:
    """Return whether a class or function was defined in the running program."""
    if getattr(value, "__module__", None) != MAIN or not hasattr(value, "__qualname__"):
        return False
    return isinstance(value, type | FunctionType) or hasattr(value, "__wrapped__")


def definition(value: Any) -> Definition | str:
    """Return the definition of a class or function of the running program, or why there is none."""
    name = value.__qualname__
    if name == "<lambda>":
        return "is a lambda, which has no source of its own: write a def"
    if "." in name:
        return "is defined inside of a function or class: define it at the top level"
    codes = _list_codes(value)
    source = _find_definition(name, codes)
    if source is None:
        return "has no source that can be read"
    node, text, source_filename = source
    if isinstance(node, ast.ClassDef) and (methods := _list_added_methods(node, source_filename, codes)):
        return f"was given {', '.join(methods)} after its definition: write that into the class"
    postponed = any(code.co_flags & __future__.annotations.compiler_flag for _, code in codes)
    return _parse_definition(name, node, text, postponed=postponed)


def _list_codes(value: Any) -> list[tuple[str, CodeType]]:
    """Return the code of a function, or of all functions in a class, by name."""
    members = vars(value).items() if isinstance(value, type) else [(value.__qualname__, value)]
    codes = []
    for name, member in members:
        member = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        function = inspect.unwrap(member) if callable(member) else member
        if isinstance(function, FunctionType):
            codes.append((name, function.__code__))
    return codes


def _find_definition(
    name: str, codes: list[tuple[str, CodeType]]
) -> tuple[_Definition, str, str | None] | None:
    """Return a definition with its source and file: the one that was run, if known, else the last."""
    for _, code in codes:
        for node, text in _find_definitions(name, "".join(linecache.getlines(code.co_filename))):
            if _find_first_line(node) <= code.co_firstlineno <= (node.end_lineno or 0):
                return node, text, code.co_filename
    definitions = [candidate for source in main_sources() for candidate in _find_definitions(name, source)]
    return (*definitions[-1], None) if definitions else None


def _find_definitions(name: str, source: str) -> Iterator[tuple[_Definition, str]]:
    tree = _parse_source(source)
    for node in [] if tree is None else _iter_statements(tree):
        if isinstance(node, _Definition) and node.name == name:
            lines = source.splitlines(keepends=True)[_find_first_line(node) - 1 : node.end_lineno]
            yield node, textwrap.dedent("".join(lines)).rstrip("\n") + "\n"


def _find_first_line(node: _Definition) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _list_added_methods(
    node: ast.ClassDef, source_filename: str | None, codes: list[tuple[str, CodeType]]
) -> list[str]:
    """Return the methods that the program added to a class, or replaced, after its definition."""
    plain = {
        statement.name
        for statement in node.body
        if isinstance(statement, _Definition) and not statement.decorator_list
    }
    bound_names = {name for statement in node.body for name in _list_bound_names(statement)}
    span = range(_find_first_line(node), (node.end_lineno or 0) + 1)
    return [
        name
        for name, code in codes
        if _is_of_program(code.co_filename)
        and not (
            name in bound_names
            and (name not in plain or (code.co_filename == source_filename and code.co_firstlineno in span))
        )
    ]


def _list_bound_names(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, _Definition):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _is_of_program(filename: str) -> bool:
    # code of a cell has lines but no file; generated code, as of dataclasses, has neither
    return filename == main_names().get("__file__") or (
        bool(linecache.getlines(filename)) and not Path(filename).is_file()
    )


def _parse_definition(name: str, node: _Definition, text: str, *, postponed: bool) -> Definition:
    eager: set[str] = set()
    lazy: set[str] = set()
    head = "from __future__ import annotations\n" if postponed else ""
    _gather_global_names(symtable.symtable(head + text, MAIN, "exec"), eager, lazy, is_eager=True)
    hints = {
        child.id
        for hint in _iter_annotations(node)
        for child in ast.walk(hint)
        if isinstance(child, ast.Name)
    } - (eager | lazy)
    own_names = {name, "annotations"}
    return Definition(
        text=text,
        eager=frozenset(eager - own_names),
        lazy=frozenset(lazy - own_names),
        hints=frozenset(hints - own_names),
        postponed=postponed,
    )


def _gather_global_names(
    table: symtable.SymbolTable, eager: set[str], lazy: set[str], *, is_eager: bool
) -> None:
    """Gather the global names that a piece of source uses, by whether its definition uses them."""
    top = table.get_type() == "module"
    for symbol in table.get_symbols():
        if symbol.is_referenced() and (not symbol.is_assigned() if top else symbol.is_global()):
            (eager if is_eager else lazy).add(symbol.get_name())
    for child in table.get_children():
        body = child.get_type() == "function" and child.get_name() not in _COMPREHENSIONS
        _gather_global_names(child, eager, lazy, is_eager=is_eager and not body)


def _iter_annotations(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the annotations in a definition, those that are written as text parsed."""
    for child in ast.walk(node):
        for hint in (getattr(child, "annotation", None), getattr(child, "returns", None)):
            if isinstance(hint, ast.Constant) and isinstance(hint.value, str):
                tree = _parse_source(hint.value)
                if tree is not None:
                    yield tree
            elif isinstance(hint, ast.AST):
                yield hint


def imports_of(name: str, value: object) -> list[str]:
    """Return the statements with which the running program imports a name.

    The first such statement; for a package, also the statements that import its submodules under the same
    name.
    """
    imports, submodule_imports = [], []
    for source in main_sources():
        tree = _parse_source(source)
        for node in [] if tree is None else _iter_statements(tree):
            if isinstance(node, ast.Import):
                statements = [s for alias in node.names if (s := _build_import(alias, name, value))]
                submodule_imports += [s for s in statements if "." in s and " as " not in s]
                imports += [s for s in statements if s not in submodule_imports]
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                imports += [
                    s for alias in node.names if (s := _build_import_from(node.module, alias, name, value))
                ]
    first_imports = imports[:1] if imports or not submodule_imports else [f"import {name}"]
    return list(dict.fromkeys([*first_imports, *submodule_imports]))


def _build_import(alias: ast.alias, name: str, value: object) -> str | None:
    if alias.asname is not None:
        is_same = alias.asname == name and sys.modules.get(alias.name) is value
        return f"import {alias.name} as {name}" if is_same else None
    root = alias.name.partition(".")[0]
    return f"import {alias.name}" if root == name and sys.modules.get(root) is value else None


def _build_import_from(module: str, alias: ast.alias, name: str, value: object) -> str | None:
    if (alias.asname or alias.name) != name or module == "__future__":
        return None
    target = getattr(sys.modules.get(module), alias.name, sys.modules.get(f"{module}.{alias.name}"))
    alias_text = "" if alias.asname is None else f" as {alias.asname}"
    return f"from {module} import {alias.name}{alias_text}" if target is value else None


def main_sources() -> list[str]:
    """Return the sources of the running program: the text of its file, and the cells that were run."""
    names = main_names()
    file = names.get("__file__")
    sources = ["".join(linecache.getlines(file))] if isinstance(file, str) else []
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is not None:
        sources += [_strip_magic(str(cell)) for cell in shell.user_ns.get("In", [])]
    return [text for text in sources if text.strip()]


def _strip_magic(cell: str) -> str:
    """Return the code of a cell without magic commands; in IPython the body of %%time is an argument."""
    tree = _parse_source(cell) if cell.startswith(_MAGIC) else None
    match tree.body if tree is not None else []:
        case [ast.Expr(ast.Call(args=[ast.Constant("time" | "capture"), _, ast.Constant(str(body))]))]:
            return body
    return cell


@functools.lru_cache(maxsize=1000)
def _parse_source(source: str) -> ast.Module | None:
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        return cast(ast.Module, compile(source, MAIN, "exec", flags, dont_inherit=True))
    except (SyntaxError, ValueError):
        return None


def _iter_statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including those in its blocks (if, try, with, for)."""
    stack: list[ast.AST] = list(reversed(tree.body))
    while stack:
        node = stack.pop()
        if isinstance(node, ast.stmt):
            yield node
        if not isinstance(node, _Definition):
            children = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.expr)]
            stack += reversed(children)
