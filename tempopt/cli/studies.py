"""Administration of studies: ``tempopt pause``, ``stop``, ``delete``, ``gc``, ``storage`` and ``logs``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from tempopt.agent.study_lookup import find_study
from tempopt.cli.launcher_options import selected_launcher
from tempopt.cli.output import print_table
from tempopt.cli.storage import study_argument
from tempopt.errors import UsageError, escape_control_chars
from tempopt.launch.job_status import UNKNOWN, JobStatus, cancel_jobs, query_job_status
from tempopt.service import lifecycle
from tempopt.service.lifecycle import RunLog
from tempopt.storage import urls
from tempopt.storage.opening import open_store
from tempopt.storage.rows import JobRow
from tempopt.storage.schema import upgrade

_WHY = "Only the output of runs is logged. For results: tempopt show; for curves: tempopt report."


def pause(arguments: argparse.Namespace) -> None:
    """Pause a study: its agents leave until it is resumed."""
    if count := _cancel_unbegun_jobs(arguments):
        print(f'Study "{arguments.name}" had not begun; {_format_job_count(count)} cancelled.')
        return
    name, change = arguments.name, lifecycle.pause(arguments.url, arguments.name)
    if change.before == "done":
        print(f'Study "{name}" is done: there is nothing to pause.')
        return
    print(f'Study "{name}" {"was paused already" if change.before == "paused" else "is paused"}. ', end="")
    print(
        f"{_agents_text(change.agents)}{' Each agent leaves once its runs are saved.' * bool(change.agents)}"
    )
    print(f"To continue:  tempopt resume {study_argument(arguments.name, arguments)}")


def stop(arguments: argparse.Namespace) -> None:
    """Stop the search of a study, so that the best so far is confirmed."""
    name, change = arguments.name, lifecycle.stop(arguments.url, arguments.name)
    if change.before == "done":
        print(f'Study "{name}" is done: there is nothing to stop.')
        return
    if change.compares:
        print(f'"{name}" is a comparison: there is no search to stop. To pause it: tempopt pause {name}')
        return
    count = change.withdrawn
    tickets = "1 ticket that waited was" if count == 1 else f"{count or 'no'} tickets that waited were"
    print(f'Study "{name}" searches no further: {tickets} withdrawn. ', end="")
    if change.agents and change.before == "running":
        print(f"{_agents_text(change.agents)} Runs in progress end, then the best so far is confirmed.")
        return
    print("It is paused." if change.before == "paused" else _agents_text(change.agents))
    print(f"To confirm the best so far:  tempopt resume {study_argument(arguments.name, arguments)}")


def delete(arguments: argparse.Namespace) -> None:
    """Delete a study with all its data, after confirmation."""
    if not (arguments.yes or _ask_to_confirm(arguments)):
        print("Nothing was deleted.")
        return
    if count := _cancel_unbegun_jobs(arguments):
        print(f'Study "{arguments.name}" had not begun; {_format_job_count(count)} cancelled.')
        return
    waiting_jobs = _list_waiting_jobs(arguments)
    deletion = lifecycle.delete(arguments.url, arguments.name, force=arguments.force)
    cancel_jobs(waiting_jobs, selected_launcher(arguments))
    print(
        f'Study "{arguments.name}" is deleted; {decimal(deletion.freed)} of checkpoints and logs were freed.'
    )
    if deletion.agents:
        print(f"{_agents_text(deletion.agents)} Each agent leaves as soon as it notices.")
    for url, reason in deletion.not_removed.items():
        print(f"Not removed: {url} ({reason})")


def _cancel_unbegun_jobs(arguments: argparse.Namespace) -> int:
    """Cancel the jobs of a study that no agent has created yet, and return their number."""
    with open_store(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
        if not rows or find_study(store, arguments.name) is not None:
            return 0
        _refuse_unreachable_jobs(cancel_jobs(rows, selected_launcher(arguments)), arguments)
        store.forget_jobs(arguments.name, [row.id for row in rows])
    return len(rows)


def _list_waiting_jobs(arguments: argparse.Namespace) -> list[JobRow]:
    """Return the jobs of a study that wait for room, which would create a deleted study again."""
    with open_store(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
    jobs = query_job_status(rows, selected_launcher(arguments))
    _refuse_unreachable_jobs(jobs, arguments)
    return [row for row, job in zip(rows, jobs, strict=True) if job.state == "waiting"]


def _refuse_unreachable_jobs(jobs: Sequence[JobStatus], arguments: argparse.Namespace) -> None:
    """Refuse to continue if jobs cannot be reached from here, unless ``--force`` is given.

    Raises:
        UsageError: A job cannot be reached.
    """
    unreachable_jobs = [job for job in jobs if job.state == UNKNOWN]
    if unreachable_jobs and not getattr(arguments, "force", False):
        job_names = ", ".join(f"{job.launcher} {job.id}" for job in unreachable_jobs)
        raise UsageError(
            f'These jobs of study "{arguments.name}" cannot be reached from here: {job_names}. '
            f"{unreachable_jobs[0].message.removesuffix('.')}. Waiting jobs would create the study again: "
            "run this where they can be reached, or cancel them there and use tempopt delete --force."
        )


def _format_job_count(count: int) -> str:
    return f"its {count} jobs were" if count > 1 else "its job was"


def gc(arguments: argparse.Namespace) -> None:
    """Remove the checkpoints that no run needs any more, or list them."""
    collections = lifecycle.collect_garbage(arguments.url, arguments.name, dry_run=arguments.dry_run)
    for collection in collections:
        if arguments.dry_run:
            for url, size in collection.files.items():
                print(f"{collection.study}: {url} ({decimal(size)})")
        for url, reason in collection.not_removed.items():
            print(f"{collection.study}: not removed: {url} ({reason})")
    count = sum(len(collection.files) for collection in collections)
    freed = sum(collection.freed for collection in collections)
    files = "1 checkpoint" if count == 1 else f"{count} checkpoints"
    print(f"{'Would free' if arguments.dry_run else 'Freed'} {decimal(freed)}: {files}.")


def storage(arguments: argparse.Namespace) -> None:
    """Migrate the tables of a database to this version."""
    version = upgrade(arguments.url)
    print(
        f"The database {urls.parse_database_url(arguments.url).masked} has this version (tables {version})."
    )


def _agents_text(agents: Sequence[str]) -> str:
    return f"At work: {', '.join(agents)}." if agents else "No agent works on it."


def _ask_to_confirm(arguments: argparse.Namespace) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "tempopt delete asks before it deletes, and there is no terminal to answer at. Give --yes."
        )
    where = urls.masked_url(arguments.url)
    question = (
        f'Delete study "{arguments.name}" in {where}, its trials, checkpoints and logs, permanently? [y/N] '
    )
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False


def logs(arguments: argparse.Namespace) -> None:
    """Print a line for each attempt of every run, or the output of all attempts of one run."""
    ticket = " ".join(arguments.ticket) or None
    outputs = lifecycle.logs(arguments.url, arguments.name, ticket)
    if arguments.attempt is not None:
        outputs = [output for output in outputs if output.attempt == arguments.attempt]
    if not outputs:
        attempt_text = "" if arguments.attempt is None else f" of attempt {arguments.attempt}"
        print(f"{ticket or f'Study {arguments.name}'}: nothing is logged{attempt_text}. {_WHY}")
        return
    if ticket is None:
        print_table(_build_overview(outputs))
        return
    for output in outputs:
        state = "running" if output.running else "over"
        _print(f"==> {output.ticket}, attempt {output.attempt}, {state}, agent {output.agent}")
        if output.text is None:
            _print(
                f"It is running on {output.agent.partition(':')[0]}; its log stays there until it is over."
            )
        else:
            # a progress bar returns to the start of its line: print each state as a line
            _print(output.text.replace("\r\n", "\n").replace("\r", "\n").rstrip("\n"))
    if outputs[-1].error is not None:
        _print(f"==> {outputs[-1].ticket}: the last attempt that failed or was lost: {outputs[-1].error}")


def _print(text: str) -> None:
    print(escape_control_chars(text))


def _build_overview(outputs: list[RunLog]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for title in ("ticket", "attempt", "agent", "lines"):
        table.add_column(title, no_wrap=True, justify="right" if title in ("attempt", "lines") else "left")
    table.add_column("last line", overflow="ellipsis", no_wrap=True, ratio=1)
    for output in outputs:
        # the output of a run may contain control characters
        last_line = "".join(sign if sign.isprintable() else " " for sign in output.text or "")
        table.add_row(
            output.ticket,
            str(output.attempt),
            Text(escape_control_chars(output.agent)),
            str(output.lines),
            Text(last_line),
        )
    return table
