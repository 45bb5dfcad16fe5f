"""``tempopt list``: the studies that are in the store."""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from tempopt.cli import EXIT_OK
from tempopt.cli.output import escape_control_chars
from tempopt.cli.tables import make_table, print_table
from tempopt.report.list_row import summary_json
from tempopt.storage.opening import open_store


def list_studies(arguments: argparse.Namespace) -> int:
    """Print a line for every study in the store, oldest first."""
    with open_store(arguments.url, create=False) as store:
        url = store.masked_url
        summaries = store.list_studies()
    rows = [summary_json(summary) for summary in summaries]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return EXIT_OK
    if not rows:
        print(f"No study in {url} yet.")
        return EXIT_OK
    table = make_table("study", "state", "agents", "metric", "direction", "done", "begun (UTC)")
    for row in rows:
        tickets = row["tickets"]
        table.add_row(
            Text(escape_control_chars(row["study"])),
            row["state"],
            str(row["agents"]),
            Text(escape_control_chars(row["metric"])),
            Text(escape_control_chars(row["direction"])),
            f"{tickets['done']}/{tickets['requested']}",
            row["created"][:16].replace("T", " "),
        )
    print_table(table)
    return EXIT_OK
