"""The tables that commands print."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def make_table(*columns: str) -> Table:
    """Return an empty table whose first column is folded and whose others are cut where it is too wide."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold" if position == 0 else "ellipsis", no_wrap=position > 0)
    return table


def print_table(table: Table) -> None:
    """Print a table on standard output; in a pipe a line is a row, however long, and ends with its text."""
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=_WIDE, color_system=None)
    with console.capture() as capture:
        console.print(table)
    print(*(line.rstrip() for line in capture.get().rstrip("\n").split("\n")), sep="\n")
