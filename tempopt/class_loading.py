"""Import classes by their paths, with an error message for each way in which that can fail.

Creates no objects. An error that a user's module raises is shown unchanged.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
import sysconfig
import traceback
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from tempopt.errors import SpecError, unknown
from tempopt.temperature.custom_schedules import custom_schedule_fields
from tempopt.temperature.schedules import Schedule


def dotted_path(path: str) -> str:
    """Return an import path with dots: ``stock.Stock`` for ``stock:Stock`` and for ``./stock.py:Stock``."""
    file = re.fullmatch(r"(?:\./)*([^:]+)\.py[:.](\w+)", path)
    return f"{file[1].replace('/', '.')}.{file[2]}" if file else path.replace(":", ".")


def module_name(path: str) -> str:
    """Return the name of a module that may be given by its path: ``stock`` for ``./stock.py``."""
    file = re.fullmatch(r"(?:\./)*([^:]+)\.py", path)
    return file[1].replace("/", ".") if file else dotted_path(path)


def load_class(class_path: str, *, base: type, where: str) -> type:
    """Import a class, from the current folder or from installed packages.

    Args:
        class_path: ``package.module.Class``.
        base: Its required base class.
        where: Key of the spec that names it, for messages.

    Raises:
        SpecError: There is no such module or class, it is of another kind, or its module cannot be imported.
    """
    module_name, _, class_name = class_path.rpartition(".")
    if not module_name:
        raise SpecError(f'{where}: given "{class_path}". Give an import path: package.module.{class_path}.')
    if module_name == "__main__":
        raise SpecError(
            f'{where}: "{class_path}" is in the running program, which workers cannot import. Put '
            f"{class_name} into a module of its own, and name it my_module.{class_name}. In Python, "
            "tempopt.search takes the class itself."
        )
    module = import_module(module_name, where=where)
    try:
        cls = getattr(module, class_name)
    except AttributeError as error:
        message = unknown(f'class in "{module_name}"', class_name, _list_classes(module, base) or ["none"])
        raise SpecError(f"{where}: {message}{_warn_if_shadowed(module_name)}") from error
    if not isinstance(cls, type):
        raise SpecError(
            f'{where}: "{class_path}" is {_describe_kind(cls)}. {_explain_other_kind(module, base)}'
        )
    if not issubclass(cls, base):
        raise SpecError(
            f'{where}: "{class_path}" is not a {base.__name__}. {_explain_other_kind(module, base)}'
        )
    return cls


def load_schedule(name: str, *, where: str) -> None:
    """Import a custom schedule, so that it is registered by its name.

    Args:
        name: ``package.module:Class``.
        where: Key of the spec that names it, for messages.

    Raises:
        SpecError: As :func:`load_class`, or the class is not declared as a schedule.
    """
    schedule_class = load_class(name.replace(":", "."), base=Schedule, where=where)
    defined_name = getattr(schedule_class, "name", None)
    if defined_name is None:
        raise SpecError(f'{where}: "{name}" is the base class of schedules. Name a schedule.')
    if defined_name != name:
        raise SpecError(f'{where}: "{name}" is defined as "{defined_name}". Name it so.')
    try:
        custom_schedule_fields(name)
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from error


def import_module(module_name: str, *, where: str) -> object:
    """Import a module, from the current folder or from installed packages.

    Raises:
        SpecError: There is no such module, or it cannot be imported.
    """
    _find_here()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and f"{module_name}.".startswith(f"{error.name}."):
            message = _explain_missing(error.name) + _warn_if_shadowed(module_name)
            raise SpecError(f"{where}: {message}") from error
        raise SpecError(f"{where}: {_explain_broken(module_name, error)}") from error
    except (Exception, SystemExit) as error:
        raise SpecError(f"{where}: {_explain_broken(module_name, error)}") from error


class _StandardFirst:
    """Finds modules of the standard library before those of folders on ``sys.path``."""

    def find_spec(
        self, name: str, path: object = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the location of a module of the standard library; None for other modules."""
        if name not in sys.stdlib_module_names:
            return None
        folders = [sysconfig.get_path(path_name) for path_name in ("stdlib", "platstdlib")]
        return PathFinder.find_spec(
            name, [*folders, *(f"{folder}/lib-dynload" for folder in folders)], target
        )


def find_modules_in(folder: str) -> None:
    """Put a folder on the import path before installed packages, and after the standard library.

    Then torch does not import a user's ``random.py``, and the user's ``data.py`` precedes that of a package.
    """
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    if not any(isinstance(finder, _StandardFirst) for finder in sys.meta_path):
        sys.meta_path.insert(sys.meta_path.index(PathFinder), _StandardFirst())


def _find_here() -> None:
    find_modules_in(str(Path.cwd()))


def _explain_missing(name: str) -> str:
    """Return the message for a missing module, with the existing ones."""
    parent = name.rpartition(".")[0]
    if not parent:
        folder = Path.cwd()
        modules = {path.stem for path in folder.glob("*.py")} | {
            p.parent.name for p in folder.glob("*/__init__.py")
        }
        message = unknown("module", name, sorted(modules)) if modules else f'There is no module "{name}".'
        return (
            f"{message} Looked in {folder} and in installed packages. Install it, change to its folder, or "
            "add that folder to PYTHONPATH."
        )
    package = sys.modules[parent]
    try:
        module_names = [module.name for module in pkgutil.iter_modules(package.__path__)]
    except AttributeError:
        return f'"{parent}" is a module, not a package, so there is no "{name}". Give package.module.Class.'
    return unknown(f'module in "{parent}"', name.rpartition(".")[2], sorted(module_names))


def _explain_broken(module_name: str, error: BaseException) -> str:
    """Return the message for a module that raises an error while it is imported."""
    location = ""
    if isinstance(error, SyntaxError) and error.filename:
        location = f" at {error.filename}:{error.lineno}"
    elif frames := [f for f in traceback.extract_tb(error.__traceback__) if _is_source(f.filename)]:
        # The line in the user's code is more helpful than the one in a library.
        innermost = ([f for f in frames if not _is_installed(f.filename)] or frames)[-1]
        location = f" at {innermost.filename}:{innermost.lineno}"
    reason = " ".join(traceback.format_exception_only(error)[-1].split())
    return f'"{module_name}" was found, but importing it failed{location}: {reason}. Fix that, and try again.'


def _is_source(filename: str) -> bool:
    return not filename.startswith("<frozen") and filename not in (__file__, importlib.__file__)


def _is_installed(filename: str) -> bool:
    folders = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return any(Path(filename).is_relative_to(folder) for folder in folders)


def _list_classes(module: object, base: type) -> list[str]:
    """Return the names of a module's classes of a kind: its own, or the imported ones if it has none."""
    classes = {n: cls for n, cls in vars(module).items() if isinstance(cls, type) and issubclass(cls, base)}
    own_names = [name for name, cls in classes.items() if cls.__module__ == vars(module)["__name__"]]
    return own_names or [name for name, cls in classes.items() if cls.__name__ != base.__name__]


def _describe_kind(value: object) -> str:
    if isinstance(value, ModuleType):
        return "a module, not a class"
    if not callable(value):
        return f"of type {type(value).__name__}, not a class"
    return (
        "a function, not a class. The arguments that it passes to the class cannot be searched: name the "
        "class itself, with these values as arguments of its __init__"
    )


def refuse_module(name: str, *, base: type, where: str) -> None:
    """Refuse a module in place of a class.

    Args:
        name: The given path, with dots.
        base: Required base class.
        where: Option or key that needs the class, for messages.

    Raises:
        SpecError: It is a module, with its classes in the message; or there is no such module.
    """
    _find_here()
    try:
        module_spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if module_spec is None and "." in name:
        return
    names = _list_classes(import_module(name, where=where), base)
    advice = f"Name the class as well: {name}.{names[0]}." if names else f"It has no {base.__name__}."
    others_text = f" It also has {', '.join(names[1:])}." if names[1:] else ""
    raise SpecError(f'{where}: "{name}" is a module, not a class. {advice}{others_text}')


def _explain_other_kind(module: object, base: type) -> str:
    names = _list_classes(module, base)
    if names:
        return f"Give one of {', '.join(names)}."
    return f"Give a subclass of {base.__name__}."


def _warn_if_shadowed(module_name: str) -> str:
    """Return a warning if a user's module has the name of a module of the standard library."""
    top = module_name.partition(".")[0]
    if top in sys.stdlib_module_names and (Path(f"{top}.py").exists() or Path(top, "__init__.py").exists()):
        return f' "{top}" is a module of Python\'s standard library, which hides yours. Rename yours.'
    return ""
