"""``tempopt pause``, ``stop``, ``delete``, ``gc`` and ``storage upgrade``: say what was done to a study."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence

from tempopt.agent.study_lookup import find_study
from tempopt.cli import EXIT_OK
from tempopt.cli.launcher_options import selected_launcher
from tempopt.cli.storage import storage_option
from tempopt.errors import UsageError
from tempopt.launch.job_status import UNKNOWN, JobStatus, cancel_jobs, query_job_status
from tempopt.service import lifecycle
from tempopt.service.progress import format_bytes
from tempopt.storage import urls
from tempopt.storage.opening import open_store
from tempopt.storage.rows import JobRow
from tempopt.storage.schema import upgrade


def pause(arguments: argparse.Namespace) -> int:
    """Have every agent of a study leave until it is resumed."""
    if count := _end_unbegun(arguments):
        print(f'Study "{arguments.name}" had not been begun; {_jobs(count)} cancelled.')
        return EXIT_OK
    name, change = arguments.name, lifecycle.pause(arguments.url, arguments.name)
    if change.before == "done":
        print(f'Study "{name}" is done: there is nothing to pause.')
        return EXIT_OK
    print(f'Study "{name}" {"was paused already" if change.before == "paused" else "is paused"}. ', end="")
    print(f"{_at_work(change.agents)}{' Each agent leaves once its runs are saved.' * bool(change.agents)}")
    print(f"To go on:  tempopt resume {_where(arguments)}")
    return EXIT_OK


def stop(arguments: argparse.Namespace) -> int:
    """End the searching of a study, so that what was found is confirmed."""
    name, change = arguments.name, lifecycle.stop(arguments.url, arguments.name)
    if change.before == "done":
        print(f'Study "{name}" is done: there is nothing to stop.')
        return EXIT_OK
    if change.compares:
        print(f'"{name}" is a comparison: there is no search to stop. To pause it: tempopt pause {name}')
        return EXIT_OK
    count = change.withdrawn
    tickets = "1 ticket that waited was" if count == 1 else f"{count or 'no'} tickets that waited were"
    print(f'Study "{name}" searches no further: {tickets} withdrawn. ', end="")
    if change.agents and change.before == "running":
        print(f"{_at_work(change.agents)} Runs at work end, then what was found is confirmed.")
        return EXIT_OK
    print("It is paused." if change.before == "paused" else _at_work(change.agents))
    print(f"To have what was found confirmed:  tempopt resume {_where(arguments)}")
    return EXIT_OK


def delete(arguments: argparse.Namespace) -> int:
    """Delete a study with all that belongs to it, having asked."""
    if not (arguments.yes or _confirmed(arguments)):
        print("Nothing was deleted.")
        return EXIT_OK
    if count := _end_unbegun(arguments):
        print(f'Study "{arguments.name}" had not been begun; {_jobs(count)} cancelled.')
        return EXIT_OK
    waiting_jobs = _waiting(arguments)
    deletion = lifecycle.delete(arguments.url, arguments.name, force=arguments.force)
    cancel_jobs(waiting_jobs, selected_launcher(arguments))
    print(
        f'Study "{arguments.name}" is deleted; '
        f"{format_bytes(deletion.freed)} of checkpoints and logs were freed."
    )
    if deletion.agents:
        print(f"{_at_work(deletion.agents)} Each agent leaves as soon as it notices.")
    for url, reason in deletion.not_removed.items():
        print(f"Not removed: {url} ({reason})")
    return EXIT_OK


def _end_unbegun(arguments: argparse.Namespace) -> int:
    """Cancel the jobs of a study that none of them has begun, and return how many there were."""
    with open_store(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
        if not rows or find_study(store, arguments.name) is not None:
            return 0
        _refuse_unreached(cancel_jobs(rows, selected_launcher(arguments)), arguments)
        store.forget_jobs(arguments.name, [row.id for row in rows])
    return len(rows)


def _waiting(arguments: argparse.Namespace) -> list[JobRow]:
    """Return the jobs of a study that wait for room: they would begin it again when it has been deleted."""
    with open_store(arguments.url, create=False) as store:
        rows = store.jobs(arguments.name)
    jobs = query_job_status(rows, selected_launcher(arguments))
    _refuse_unreached(jobs, arguments)
    return [row for row, job in zip(rows, jobs, strict=True) if job.state == "waiting"]


def _refuse_unreached(jobs: Sequence[JobStatus], arguments: argparse.Namespace) -> None:
    """Refuse to go on where jobs cannot be reached from here, unless it is forced.

    Raises:
        UsageError: A job cannot be reached.
    """
    unreachable_jobs = [job for job in jobs if job.state == UNKNOWN]
    if unreachable_jobs and not getattr(arguments, "force", False):
        job_names = ", ".join(f"{job.launcher} {job.id}" for job in unreachable_jobs)
        raise UsageError(
            f'These jobs of study "{arguments.name}" cannot be reached from here: {job_names}. '
            f"{unreachable_jobs[0].message.removesuffix('.')}. Those that wait would begin the study again: "
            "type this where they can be reached, or cancel them there and give tempopt delete --force."
        )


def _jobs(count: int) -> str:
    return f"its {count} jobs were" if count > 1 else "its job was"


def gc(arguments: argparse.Namespace) -> int:
    """Remove the checkpoints that no run needs any more, or list them."""
    collections = lifecycle.collect_garbage(arguments.url, arguments.name, dry_run=arguments.dry_run)
    for collection in collections:
        if arguments.dry_run:
            for url, size in collection.files.items():
                print(f"{collection.study}: {url} ({format_bytes(size)})")
        for url, reason in collection.not_removed.items():
            print(f"{collection.study}: not removed: {url} ({reason})")
    count, freed = (
        sum(len(collection.files) for collection in collections),
        sum(collection.freed for collection in collections),
    )
    files = "1 checkpoint" if count == 1 else f"{count} checkpoints"
    print(f"{'Would free' if arguments.dry_run else 'Freed'} {format_bytes(freed)}: {files}.")
    return EXIT_OK


def storage(arguments: argparse.Namespace) -> int:
    """Bring the tables of a database to this version."""
    version = upgrade(arguments.url)
    print(
        f"The database {urls.parse_database_url(arguments.url).masked} is of this version (tables {version})."
    )
    return EXIT_OK


def _at_work(agents: Sequence[str]) -> str:
    return f"At work: {', '.join(agents)}." if agents else "No agent works on it."


def _where(arguments: argparse.Namespace) -> str:
    return f"{shlex.quote(arguments.name)}{storage_option(arguments)}"


def _confirmed(arguments: argparse.Namespace) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(
            "tempopt delete asks before it deletes, and there is no terminal to answer at. Give --yes."
        )
    where = urls.masked_url(arguments.url)
    question = (
        f'Delete study "{arguments.name}" in {where}, its trials, checkpoints and logs, for good? [y/N] '
    )
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        return False
