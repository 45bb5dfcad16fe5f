"""How a new interpreter is started in which a person's modules are imported later, and none before that."""

from __future__ import annotations

import sys
from pathlib import Path

_RUN = "import runpy, sys; sys.path.append({!r}); runpy.run_module({!r}, run_name='__main__', alter_sys=True)"


def python_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of tempopt as a program.

    As ``python -m``, but that the current folder is not searched from the beginning: a person's own
    ``random.py`` there would be what torch imports.

    Args:
        module: Name of the module.
        arguments: Its arguments.
    """
    # where this package was found, which may have been by the folder alone
    folder = str(Path(__file__).resolve().parents[2])
    return [sys.executable, "-P", "-c", _RUN.format(folder, module), *arguments]
