"""Print text and tables, or write text to a file atomically."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Iterable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tempopt.errors import UsageError
from tempopt.files import replace

_WIDE = 10_000
# Control characters, invisible ones such as those that change the direction of text, lone surrogates, and
# Unicode's line ends.
_UNSEEN = ("Cc", "Cf", "Cs", "Zl", "Zp")


def escape_control_chars(text: str) -> str:
    r"""Return a text with each character that could steer a terminal as an escape such as ``\x1b``.

    Args:
        text: Any text, for instance of the database; newlines and tabs stay.
    """
    return "".join(
        sign.encode("unicode_escape").decode("ascii")
        if sign not in "\n\t" and unicodedata.category(sign) in _UNSEEN
        else sign
        for sign in text
    )


def print_decision(lines: Iterable[str]) -> None:
    """Print the lines of a decision; on a terminal, lines with a label are wrapped and indented.

    Lines with a command are not wrapped, so that they can be copied.
    """
    columns = shutil.get_terminal_size().columns
    for line in lines:
        label = re.match(r"  \w* +", line) if sys.stdout.isatty() and "tempopt " not in line else None
        wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        wrapper.subsequent_indent = " " * (label.end() if label else 0)
        print(escape_control_chars(wrapper.fill(line) if label else line))


def write(text: str, output: str | None, *, overwrite: bool) -> None:
    """Print a text, or write it to a file atomically.

    Args:
        text: What to write; ends with a newline.
        output: Name of the file; None for the screen.
        overwrite: Whether an existing file may be replaced.

    Raises:
        UsageError: The file cannot be written, or exists and may not be replaced.
    """
    if output is None:
        print(text, end="")
        return
    if not output:
        raise UsageError('-o was given the empty text "". Give the path of a file, or leave out -o.')
    path = Path(output)
    replace(path, text, overwrite=overwrite)
    print(f"Written to {path}.")


def make_table(*columns: str) -> Table:
    """Return an empty table; if it is too wide, its first column is wrapped and the others are cut."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold" if position == 0 else "ellipsis", no_wrap=position > 0)
    return table


def print_table(table: Table) -> None:
    """Print a table on standard output; in a pipe, each row is one line of any length."""
    if sys.stdout.isatty():
        Console().print(table)
        return
    console = Console(width=_WIDE, color_system=None)  # wider than any table: no cell is wrapped
    with console.capture() as capture:
        console.print(table)
    print(*(line.rstrip() for line in capture.get().rstrip("\n").split("\n")), sep="\n")
