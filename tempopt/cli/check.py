"""``tempopt check`` and ``tempopt init``, before a search; a person's module is imported elsewhere."""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tempopt.cli import DONE
from tempopt.cli.output import write
from tempopt.errors import UsageError
from tempopt.spec.study_spec import load_spec
from tempopt.study import api
from tempopt.study.template import ModuleInfo, inspect_module, render


def check(arguments: argparse.Namespace) -> int:
    """Check a spec and print what was found, after training two steps of it if asked to."""
    spec = load_spec(arguments.spec, arguments.set)
    told = functools.partial(print, flush=True)
    for line in api.check(spec, dry_run=arguments.dry_run, told=told):
        told(line)
    return DONE


def init(arguments: argparse.Namespace) -> int:
    """Write a commented spec for the LightningModule at an import path."""
    write(render(_inspected(arguments.module)), arguments.output, overwrite=False)
    return DONE


def _inspected(import_path: str) -> ModuleInfo:
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_say_it_on_stderr) as child:
        try:
            return child.submit(inspect_module, import_path).result()
        except BrokenProcessPool as error:
            raise UsageError(
                f'Importing "{import_path}" ended the process that tried it. Import it in Python to see why.'
            ) from error


def _say_it_on_stderr() -> None:
    # What a module prints while it is imported is no part of the spec that is written.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
