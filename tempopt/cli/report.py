"""``tempopt report``, and the report at the end of a search: one HTML file."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tempopt.cli.output import write
from tempopt.files import replace
from tempopt.report.page.html import PlotlyJs, file_name, render_report
from tempopt.report.study_result import load
from tempopt.storage.opening import open_store

_SCREEN = "-"
_REPORT_MARK = b'<meta name="generator" content="tempopt'
# Number of bytes at the beginning of a file that include the head of a page.
_HEAD_BYTES = 4096


def report(arguments: argparse.Namespace) -> None:
    """Write a study as one HTML page."""
    text = _render_page(arguments.url, arguments.name, arguments.plotlyjs)
    if arguments.output == _SCREEN:
        sys.stdout.write(text)
    else:
        output = file_name(arguments.name) if arguments.output is None else arguments.output
        write(text, output, overwrite=True)


def write_final_report(url: str, name: str) -> str:
    """Write the report of a finished study into the current folder, and return its path.

    An earlier report is replaced. Any other file of that name is left unchanged, with a message.
    """
    default_path = Path(file_name(name))
    page = _render_page(url, name, "inline")
    path = next(path for path in _iter_names(default_path) if _is_free(path))
    replace(path, page)
    if path != default_path:
        print(
            f"tempopt: warning: {default_path} exists and is not a report of tempopt, so it is left "
            f"unchanged. The report is in {path}.",
            file=sys.stderr,
        )
    return str(path)


def _iter_names(path: Path) -> Iterator[Path]:
    """Yield possible names of a report, best first."""
    yield path
    yield path.with_stem(f"{path.stem}-tempopt")
    yield from (path.with_stem(f"{path.stem}-tempopt-{number}") for number in count(2))


def _is_free(path: Path) -> bool:
    """Return whether a path does not exist, or is a report of tempopt."""
    try:
        with path.open("rb") as file:
            return _REPORT_MARK in file.read(_HEAD_BYTES)
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError:
        # a folder, or a file that cannot be read
        return False


def _render_page(url: str, name: str, plotlyjs: PlotlyJs) -> str:
    with open_store(url, create=False) as store:
        return render_report(
            load(store, name, needs_measurements=True), plotlyjs=plotlyjs, storage=store.masked_url
        )
