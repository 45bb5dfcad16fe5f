"""``tempopt list``, ``show`` and ``export``: the studies of the store, for people and for programs.

Modules that read a study are imported after it has been found, so that a refusal is quick.
"""

from __future__ import annotations

import argparse
import json

from rich.text import Text

from tempopt.cli.output import make_table, print_table, write
from tempopt.errors import StudyNotFound, UsageError, escape_control_chars
from tempopt.report.study_summary import summary_json
from tempopt.storage.opening import open_store


def list_studies(arguments: argparse.Namespace) -> None:
    """Print a line for every study in the store, oldest first."""
    with open_store(arguments.url, create=False) as store:
        url = store.masked_url
        summaries = store.list_studies()
    rows = [summary_json(summary) for summary in summaries]
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    if not rows:
        print(f"No study in {url} yet.")
        return
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


def show(arguments: argparse.Namespace) -> None:
    """Print the state of a study: tickets, baseline, best and verdict, and its jobs."""
    if arguments.heads and (arguments.json or arguments.watch is not None):
        raise UsageError("--heads prints pictures, once. Leave out --json and --watch.")
    if arguments.watch is not None:
        if arguments.json:
            raise UsageError("--json prints once, and --watch continues. Leave one of them out.")
        from tempopt.cli.watch import show_live  # needed only with --watch

        show_live(arguments)
        print()
    with open_store(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
        has_begun = True
        try:
            store.load_study(arguments.name)
        except StudyNotFound:
            if not rows:
                raise
            has_begun = False
        from tempopt.cli import study_text
        from tempopt.cli.launcher_options import selected_launcher
        from tempopt.launch.job_status import query_job_status

        jobs = (
            query_job_status(rows, selected_launcher(arguments))
            if not (arguments.heads and has_begun)
            else []
        )
        if not has_begun:
            study_text.print_waiting(arguments, jobs)
        elif arguments.heads:
            study_text.print_heads(store, arguments.name)
        elif arguments.json:
            study_text.print_json(store, arguments.name, jobs)
        else:
            study_text.print_study(store, arguments, jobs)


def export(arguments: argparse.Namespace) -> None:
    """Write the recommended configuration as YAML for LightningCLI or as a Python script."""
    with open_store(arguments.url, create=False) as store:
        store.load_study(arguments.name)
        from tempopt.report import export as exports
        from tempopt.report import study_result

        result = study_result.load(store, arguments.name)
    text = exports.to_text(result, arguments.format, winner=arguments.winner)
    write(text, arguments.output, overwrite=True)
