"""``tempopt dump`` and ``load``: a study in a file, from one database to another."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from tempopt.cli.storage import study_argument
from tempopt.service import study_file


def dump(arguments: argparse.Namespace) -> None:
    """Write a study into a file."""
    path = Path(arguments.output or f"{arguments.name}.tempopt")
    done = study_file.dump(arguments.url, arguments.name, path, overwrite=arguments.output is not None)
    print(
        f"{path} holds the study {done.study}: {done.tickets} tickets, {done.measurements} measurements, "
        f"{done.file / 1000:.0f} kB. Read it anywhere: tempopt load {shlex.quote(str(path))}"
    )


def load(arguments: argparse.Namespace) -> None:
    """Write the study of a file into a database."""
    done = study_file.load(arguments.url, Path(arguments.file), name=arguments.name)
    where = study_argument(done.study, arguments)
    print(
        f"The study {done.study} is loaded: {done.tickets} tickets, {done.measurements} measurements.\n"
        f"Look at it: tempopt show {where}"
    )
    if not done.is_done:
        print(f"Go on:      tempopt resume {where}")
