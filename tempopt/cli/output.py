"""Text and tables on the screen, or text in a file that is whole or not there."""

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
# Control characters, invisible ones such as those that turn the direction of text, lone surrogates, and the
# line ends of Unicode.
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
    """Print the lines of a decision; on a terminal those with a label are broken at spaces, below their text.

    One with a command stays as it is, to be copied.
    """
    columns = shutil.get_terminal_size().columns
    for line in lines:
        label = re.match(r"  \w* +", line) if sys.stdout.isatty() and "tempopt " not in line else None
        wrapper = textwrap.TextWrapper(columns, break_long_words=False, break_on_hyphens=False)
        wrapper.subsequent_indent = " " * (label.end() if label else 0)
        print(escape_control_chars(wrapper.fill(line) if label else line))


def write(text: str, output: str | None, *, overwrite: bool) -> None:
    """Print a text, or write it to a file by way of a temporary one.

    Args:
        text: What to write; ends with a newline.
        output: Name of the file; None for the screen.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        UsageError: The file cannot be written, or is there and may not be replaced.
    """
    if output is None:
        print(text, end="")
        return
    if not output:
        raise UsageError('-o was given the empty text "". Give the path of a file, or take -o out.')
    path = Path(output)
    replace(path, text, overwrite=overwrite)
    print(f"Written to {path}.")


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
