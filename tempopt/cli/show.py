"""``tempopt list``, ``show`` and ``export``: what is in the store, for people and for programs."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tempopt.agent.running import to_json
from tempopt.cli import DONE
from tempopt.cli.jobs import given
from tempopt.cli.output import shown, write
from tempopt.cli.storage import storage_option
from tempopt.errors import StudyNotFound, UsageError
from tempopt.launch.standing import UNKNOWN, Standing, standing
from tempopt.records.run_code import run_codes
from tempopt.results import export as exports
from tempopt.results import study_result
from tempopt.results.decision import screen_lines
from tempopt.results.findings import find, render_lines
from tempopt.results.heads_text import map_lines
from tempopt.results.study_result import Baseline, StudyResult
from tempopt.results.summary import summary_json
from tempopt.store.store import Store
from tempopt.study.progress import LABELS, number

# The documented keys of a study that are not known before it has been begun.
_KEYS = (
    *("metric", "direction", "state", "agents", "tickets"),
    *("trials", "baseline", "best", "verdict", "comparison", "cost", "alone"),
    *("codes", "heads", "ledger", "earlier_verdicts"),
)
_ORDER = ("running", "waiting", "done", "failed", "gone", UNKNOWN)
# So many of the jobs are named.
_NAMED = 8
_WIDE = 10_000


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
    table = _table("study", "state", "agents", "metric", "direction", "done", "begun (UTC)")
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
    _print(table)
    return DONE


def show(arguments: argparse.Namespace) -> int:
    """Print how a study stands: tickets, baseline, best and verdict, and the jobs that work on it."""
    if arguments.heads and (arguments.json or arguments.watch is not None):
        raise UsageError("--heads prints pictures, once. Leave --json and --watch out.")
    if arguments.watch is not None:
        if arguments.json:
            raise UsageError("--json prints once, and --watch continues. Leave one of them out.")
        from tempopt.cli.watch import look_on  # whoever looks once waits for no more than that

        look_on(arguments)
        print()
    asked = given(arguments)
    with Store.open(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
        try:
            result = study_result.load(store, arguments.name)
        except StudyNotFound:
            if not rows:
                raise
            return _show_waiting(arguments, standing(rows, asked))
        at_work = to_json(store, result.runs) if arguments.json else []
    if arguments.heads:
        for line in map_lines(result):
            print(shown(line))
        return DONE
    jobs = standing(rows, asked)
    if arguments.json:
        told = {**result.to_json(), "jobs": [asdict(job) for job in jobs], "agents_at_work": at_work}
        print(json.dumps(told, indent=2, allow_nan=False))
        return DONE
    option = storage_option(arguments)
    print(shown(f"{result.name}: {result.direction} {result.metric}; {_state(result)}"))
    codes = run_codes(run.code for run in result.runs)
    for code, count in codes if len(codes) > 1 else ():
        print(shown(f"mixture of code: {count} runs by {code.words}"))
    _print_jobs(jobs)
    print()
    if arguments.full or result.verdict is None:
        _print(_tickets(result))
        print()
    if arguments.full and result.baseline is not None:
        print(shown(_baseline_line(result.baseline)))
    lines = render_lines(find(result, option)) if arguments.full else screen_lines(result, option)
    for line in lines:
        print(shown(line))
    return DONE


def _show_waiting(arguments: argparse.Namespace, jobs: list[Standing]) -> int:
    """Print how the jobs of a study stand that none of them has begun yet."""
    if arguments.json:
        unknown = dict.fromkeys(_KEYS)
        jobs_told = [asdict(job) for job in jobs]
        told = {"study": arguments.name, **unknown, "jobs": jobs_told, "agents_at_work": []}
        print(json.dumps(told, indent=2))
        return DONE
    print(f"{arguments.name}: not begun yet")
    _print_jobs(jobs)
    return DONE


def _print_jobs(jobs: list[Standing]) -> None:
    for launcher in dict.fromkeys(job.launcher for job in jobs):
        own = [job for job in jobs if job.launcher == launcher]
        counts = Counter(job.state for job in own)
        told = ", ".join(
            f"{count} {'whose state is not known here' if state == UNKNOWN else state}"
            for state, count in sorted(counts.items(), key=lambda each: _ORDER.index(each[0]))
        )
        more = f" and {len(own) - _NAMED} more" if len(own) > _NAMED else ""
        print(shown(f"jobs: {launcher} {told} ({', '.join(job.id for job in own[:_NAMED])}{more})"))
        for message in dict.fromkeys(job.message for job in own if job.message):
            print(shown(f"  {message}"))


def export(arguments: argparse.Namespace) -> int:
    """Write what is recommended as YAML for LightningCLI or as a Python script."""
    result = _load(arguments)
    text = exports.to_text(result, arguments.format, winner=arguments.winner)
    write(text, arguments.output, overwrite=True)
    return DONE


def _load(arguments: argparse.Namespace) -> StudyResult:
    with Store.open(arguments.url, create=False) as store:
        return study_result.load(store, arguments.name)


def _state(result: StudyResult) -> str:
    if result.state == "waiting":
        return "waiting for an agent"
    if result.state != "running":
        return result.state
    return f"running ({result.agents} agent{'s' if result.agents > 1 else ''})"


def _tickets(result: StudyResult) -> Table:
    states = ["done", "running", "waiting", "failed"]
    if any(count.withdrawn for count in result.tickets.values()):
        states.append("withdrawn")
    table = _table("tickets", "asked", *states)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, count in result.tickets.items():
        if count.requested == 0 and not result.spec.about_temperature:
            continue
        asked = "not known yet" if count.requested is None else str(count.requested)
        table.add_row(LABELS[kind], asked, *(str(getattr(count, state)) for state in states))
    return table


def _baseline_line(baseline: Baseline) -> str:
    spread = "" if baseline.sd is None else f" ± {number(baseline.sd)}"
    runs = "1 run" if baseline.n == 1 else f"{baseline.n} runs"
    return f"baseline during the search: {number(baseline.mean)}{spread} ({runs})"


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for position, column in enumerate(columns):
        table.add_column(column, overflow="fold" if position == 0 else "ellipsis", no_wrap=position > 0)
    return table


def _print(table: Table) -> None:
    # in a pipe a line is a row, however long
    Console(width=None if sys.stdout.isatty() else _WIDE).print(table)
