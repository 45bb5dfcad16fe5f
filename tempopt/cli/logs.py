"""``tempopt logs``: what the runs of a study printed, with the traceback of those that died."""

from __future__ import annotations

import argparse

from rich.table import Table
from rich.text import Text

from tempopt.cli import EXIT_OK
from tempopt.cli.output import escape_control_chars
from tempopt.cli.tables import print_table
from tempopt.service import lifecycle
from tempopt.service.lifecycle import RunLog

_WHY = "Only what a run prints is kept. For results: tempopt show; for curves: tempopt report."


def logs(arguments: argparse.Namespace) -> int:
    """Print a line for each attempt at a run, or all that the attempts at one printed."""
    ticket = " ".join(arguments.ticket) or None
    outputs = lifecycle.logs(arguments.url, arguments.name, ticket)
    if arguments.attempt is not None:
        outputs = [output for output in outputs if output.attempt == arguments.attempt]
    if not outputs:
        attempt_text = "" if arguments.attempt is None else f" of attempt {arguments.attempt}"
        print(f"{ticket or f'Study {arguments.name}'}: nothing is logged{attempt_text}. {_WHY}")
    elif ticket is None:
        print_table(_overview(outputs))
    else:
        for output in outputs:
            _show(output)
    return EXIT_OK


def _show(output: RunLog) -> None:
    state = "running" if output.running else "over"
    print(
        escape_control_chars(f"==> {output.ticket}, attempt {output.attempt}, {state}, agent {output.agent}")
    )
    if output.text is None:
        host = output.agent.partition(":")[0]
        print(escape_control_chars(f"It is running on {host}; its log is there until it is over."))
    else:
        # a progress bar returns to the start of its line: each state of it is a line here
        print(escape_control_chars(output.text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n")))


def _overview(outputs: list[RunLog]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in ("ticket", "attempt", "agent", "lines"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("attempt", "lines") else "left")
    table.add_column("last line", overflow="ellipsis", no_wrap=True, ratio=1)
    for output in outputs:
        # what a run prints may hold anything, such as what moves the cursor
        last_line = "".join(sign if sign.isprintable() else " " for sign in output.text or "")
        table.add_row(
            output.ticket,
            str(output.attempt),
            Text(escape_control_chars(output.agent)),
            str(output.lines),
            Text(last_line),
        )
    return table
