"""``tempopt report``, and the same page at the end of a search: one HTML file to look at and to send on."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tempopt.cli import EXIT_OK
from tempopt.cli.output import write
from tempopt.cli.storage import storage_option
from tempopt.errors import TempoptError, masked
from tempopt.files import replace
from tempopt.report.page.html import PlotlyJs, file_name, render_report
from tempopt.report.study_result import load
from tempopt.storage.opening import open_store

_SCREEN = "-"
_OURS = b'<meta name="generator" content="tempopt'
# The head of a page is at its beginning.
_HEAD_BYTES = 4096


def report(arguments: argparse.Namespace) -> int:
    """Write a study as one HTML page."""
    text = _page(arguments.url, arguments.name, arguments.plotlyjs)
    if arguments.output == _SCREEN:
        sys.stdout.write(text)
    else:
        output = file_name(arguments.name) if arguments.output is None else arguments.output
        write(text, output, overwrite=True)
    return EXIT_OK


def write_final_report(arguments: argparse.Namespace, name: str) -> str | None:
    """Write the report of a study that is over into the current folder, and return its path.

    An earlier report is replaced. Any other file of that name is left as it is, which is told.
    A report that cannot be written is told, and is no reason for a search to fail: None is returned.
    """
    default_path = Path(file_name(name))
    try:
        page = _page(arguments.url, name, "inline")
        path = next(path for path in _names(default_path) if _is_free(path))
        replace(path, page)
    except Exception as error:
        reason = f"{error}" if isinstance(error, TempoptError) else f"{type(error).__name__}: {error}"
        command = f"tempopt report {shlex.quote(name)}{storage_option(arguments)}"
        print(
            masked(
                f"tempopt: warning: the report could not be written: {reason}\n"
                f"The study is whole. Try again: {command}"
            ),
            file=sys.stderr,
        )
        return None
    if path != default_path:
        print(
            f"tempopt: warning: {default_path} is there already and is no report of tempopt, so it is left "
            f"as it is. The report is in {path}.",
            file=sys.stderr,
        )
    return str(path)


def _names(path: Path) -> Iterator[Path]:
    """Yield what a report may be called, best first."""
    yield path
    yield path.with_stem(f"{path.stem}-tempopt")
    yield from (path.with_stem(f"{path.stem}-tempopt-{number}") for number in count(2))


def _is_free(path: Path) -> bool:
    """Return whether a path is free, or holds a report of tempopt."""
    try:
        with path.open("rb") as file:
            return _OURS in file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError:
        # a folder, or what may not be read
        return False


def _page(url: str, name: str, plotlyjs: PlotlyJs) -> str:
    with open_store(url, create=False) as store:
        return render_report(
            load(store, name, needs_measurements=True), plotlyjs=plotlyjs, storage=store.masked_url
        )
