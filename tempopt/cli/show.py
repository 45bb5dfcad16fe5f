"""``tempopt show`` and ``export``: one study of the store, for people and for programs.

What reads a study is imported once it was found, so that a refusal is quick.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tempopt.cli import DONE
from tempopt.cli.jobs import given
from tempopt.cli.output import shown, write
from tempopt.errors import StudyNotFound, UsageError
from tempopt.launch.standing import UNKNOWN, Standing, standing
from tempopt.store.store import Store

# The documented keys of a study that are not known before it has been begun.
_KEYS = (
    *("metric", "direction", "state", "agents", "tickets"),
    *("trials", "baseline", "best", "verdict", "comparison", "cost", "alone"),
    *("codes", "heads", "ledger", "earlier_verdicts"),
)
_ORDER = ("running", "waiting", "done", "failed", "gone", UNKNOWN)
# So many of the jobs are named.
_NAMED = 8


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
            store.load_study(arguments.name)
        except StudyNotFound:
            if not rows:
                raise
            return _show_waiting(arguments, standing(rows, asked))
        from tempopt.cli import study_text

        if arguments.heads:
            study_text.print_heads(store, arguments.name)
        elif arguments.json:
            study_text.print_json(store, arguments.name, standing(rows, asked))
        else:
            study_text.print_study(store, arguments, standing(rows, asked))
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
    print_jobs(jobs)
    return DONE


def print_jobs(jobs: Sequence[Standing]) -> None:
    """Print how the jobs of a study stand, a line for each launcher."""
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
    with Store.open(arguments.url, create=False) as store:
        store.load_study(arguments.name)
        from tempopt.results import export as exports
        from tempopt.results import study_result

        result = study_result.load(store, arguments.name)
    text = exports.to_text(result, arguments.format, winner=arguments.winner)
    write(text, arguments.output, overwrite=True)
    return DONE
