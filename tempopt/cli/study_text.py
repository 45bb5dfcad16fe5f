"""Output of ``tempopt show`` for people and for programs."""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from rich.table import Table

from tempopt.agent.worker_views import to_json
from tempopt.cli.output import make_table, print_decision, print_table
from tempopt.cli.storage import storage_option
from tempopt.errors import escape_control_chars
from tempopt.launch.job_status import UNKNOWN, JobStatus
from tempopt.report import study_result
from tempopt.report.findings import find, render_lines
from tempopt.report.heads_text import map_lines
from tempopt.report.study_data import BaselineStats
from tempopt.report.study_lines import screen_lines
from tempopt.report.study_result import StudyResult
from tempopt.service.progress import format_number
from tempopt.storage.run_code import run_codes
from tempopt.storage.store import Store

# The documented keys of a study that are not known before it exists.
_KEYS = (
    *("metric", "direction", "state", "agents", "tickets"),
    *("trials", "baseline", "best", "decision", "findings", "verdict"),
    *("comparison", "cost", "alone", "codes", "heads", "ledger", "earlier_verdicts"),
)
_ORDER = ("running", "waiting", "done", "failed", "gone", UNKNOWN)
# Maximal number of jobs that are named.
_MAX_NAMED_JOBS = 8


def print_json(store: Store, name: str, jobs: Sequence[JobStatus]) -> None:
    """Print the documented JSON of a study."""
    result = study_result.load(store, name)
    work_fields = {"jobs": [asdict(job) for job in jobs], "agents_at_work": to_json(store, result.runs)}
    print(json.dumps({**result.to_json(), **work_fields}, indent=2, allow_nan=False))


def print_heads(store: Store, name: str) -> None:
    """Print pictures of the heads of a study's winner and baseline."""
    for line in map_lines(study_result.load(store, name)):
        print(escape_control_chars(line))


def print_study(store: Store, arguments: argparse.Namespace, jobs: Sequence[JobStatus]) -> None:
    """Print the state of a study, and its verdict."""
    result = study_result.load(store, arguments.name)
    print(escape_control_chars(f"{result.name}: {result.direction} {result.metric}; {_format_state(result)}"))
    codes = run_codes(run.code for run in result.runs)
    for code, count in codes if len(codes) > 1 else ():
        print(escape_control_chars(f"mixture of code: {count} runs by {code.words}"))
    print_jobs(jobs)
    print()
    if arguments.full or result.verdict is None:
        print_table(_format_tickets(result))
        print()
    if arguments.full and result.baseline is not None:
        print(escape_control_chars(_format_baseline(result.baseline)))
    option = storage_option(arguments)
    if not arguments.full:
        return print_decision(screen_lines(result, option))
    for line in render_lines(find(result, option)):
        print(escape_control_chars(line))


def _format_state(result: StudyResult) -> str:
    if result.state == "waiting":
        return "waiting for an agent"
    if result.state != "running":
        return result.state
    return f"running ({result.agents} agent{'s' if result.agents > 1 else ''})"


def _format_tickets(result: StudyResult) -> Table:
    states = ["done", "running", "waiting", "failed"]
    if any(count.withdrawn for count in result.tickets.values()):
        states.append("withdrawn")
    table = make_table("tickets", "asked", *states)
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, count in result.tickets.items():
        if count.requested == 0 and not result.spec.is_about_temperature:
            continue
        requested_text = "not known yet" if count.requested is None else str(count.requested)
        table.add_row(kind, requested_text, *(str(getattr(count, state)) for state in states))
    return table


def _format_baseline(baseline: BaselineStats) -> str:
    spread = "" if baseline.sd is None else f" ± {format_number(baseline.sd)}"
    runs = "1 run" if baseline.n == 1 else f"{baseline.n} runs"
    return f"baseline during the search: {format_number(baseline.mean)}{spread} ({runs})"


def print_waiting(arguments: argparse.Namespace, jobs: Sequence[JobStatus]) -> None:
    """Print the states of the jobs of a study that no agent has created yet."""
    if arguments.json:
        unknown = dict.fromkeys(_KEYS)
        job_rows = [asdict(job) for job in jobs]
        document = {"study": arguments.name, **unknown, "jobs": job_rows, "agents_at_work": []}
        print(json.dumps(document, indent=2))
        return
    print(f"{arguments.name}: not begun yet")
    print_jobs(jobs)


def print_jobs(jobs: Sequence[JobStatus]) -> None:
    """Print the states of the jobs of a study, a line for each launcher."""
    for launcher in dict.fromkeys(job.launcher for job in jobs):
        launcher_jobs = [job for job in jobs if job.launcher == launcher]
        counts = Counter(job.state for job in launcher_jobs)
        counts_text = ", ".join(
            f"{count} {'whose state is not known here' if state == UNKNOWN else state}"
            for state, count in sorted(counts.items(), key=lambda pair: _ORDER.index(pair[0]))
        )
        more_text = (
            f" and {len(launcher_jobs) - _MAX_NAMED_JOBS} more"
            if len(launcher_jobs) > _MAX_NAMED_JOBS
            else ""
        )
        ids = ", ".join(job.id for job in launcher_jobs[:_MAX_NAMED_JOBS])
        print(escape_control_chars(f"jobs: {launcher} {counts_text} ({ids}{more_text})"))
        for message in dict.fromkeys(job.message for job in launcher_jobs if job.message):
            print(escape_control_chars(f"  {message}"))
