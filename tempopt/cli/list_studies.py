"""``tempopt list``: the studies that are in the store."""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from tempopt.cli import DONE
from tempopt.cli.output import shown
from tempopt.cli.tables import make_table, print_table
from tempopt.report.list_row import summary_json
from tempopt.storage.store import Store


def list_studies(arguments: argparse.Namespace) -> int:
    """Print a line for every study in the store, oldest first."""
    with Store.open(arguments.url, create=False) as store:
        url = store.url_shown
        summaries = store.list_studies()
    rows = [summary_json(summary) for summary in summaries]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return DONE
    if not rows:
        print(f"No study in {url} yet.")
        return DONE
    table = make_table("study", "state", "agents", "metric", "direction", "done", "begun (UTC)")
    for row in rows:
        tickets = row["tickets"]
        table.add_row(
            Text(shown(row["study"])),
            row["state"],
            str(row["agents"]),
            Text(shown(row["metric"])),
            Text(shown(row["direction"])),
            f"{tickets['done']}/{tickets['requested']}",
            row["created"][:16].replace("T", " "),
        )
    print_table(table)
    return DONE
