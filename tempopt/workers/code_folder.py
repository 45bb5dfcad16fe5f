"""Where modules are imported from and workers work: the current folder, or that of a study's own code.

A setting of the thread that works on a study, as the current folder is one of the process.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path

_FOLDER: ContextVar[Path | None] = ContextVar("tempopt_code_folder", default=None)
_PYTHON: ContextVar[Path | None] = ContextVar("tempopt_code_python", default=None)


def code_folder() -> Path:
    """Return the folder that modules are looked for in first, and that a worker which is started works in."""
    return _FOLDER.get() or Path.cwd()


def code_python() -> Path | None:
    """Return the Python that runs a worker which is started now; None: the one that runs this process."""
    return _PYTHON.get()


@contextlib.contextmanager
def imported_from(folder: Path, python: Path | None = None) -> Iterator[None]:
    """Have workers that are started meanwhile, and schedules of this process, find their modules in a folder.

    What this process has imported from there is forgotten at the end: the next study may bring another module
    of the same name.

    Args:
        folder: The folder, absolute.
        python: The Python that runs the workers; None: the one that runs this process.
    """
    before = list(sys.path)
    token, own = _FOLDER.set(folder), _PYTHON.set(python)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        _FOLDER.reset(token)
        _PYTHON.reset(own)
        sys.path[:] = before
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and Path(file).is_relative_to(folder):
                del sys.modules[name]
