"""``tempopt init``: write a spec for a user's module, which is imported in a child process.

The child process imports this module as well, so that imports here are few.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tempopt.cli.output import write
from tempopt.errors import UsageError
from tempopt.service.template import ModuleInfo, inspect_module, render_spec_template


def init(arguments: argparse.Namespace) -> None:
    """Write a commented spec for the LightningModule at an import path."""
    info = _inspect(arguments.module)
    text = render_spec_template(info, arguments.scenario)
    write(text, arguments.output, overwrite=False)
    if "\nattach:" in text:
        print(
            f"{info.class_path} is not a TemperedModule, so the spec has a section attach:, which sets the "
            "temperature of its attention layers from outside. Which layers these are, if it has any: "
            "tempopt check SPEC --dry-run",
            file=sys.stderr,
        )


def _inspect(import_path: str) -> ModuleInfo:
    # the folder comes after the standard library, whose names the user's files may have
    os.environ["PYTHONSAFEPATH"] = "1"
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_redirect_stdout) as child:
        try:
            return child.submit(inspect_module, import_path).result()
        except BrokenProcessPool as error:
            raise UsageError(
                f'Importing "{import_path}" ended the process that tried it. Import it in Python to see why.'
            ) from error


def _redirect_stdout() -> None:
    # Output of the imported module must not be mixed with the spec.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
