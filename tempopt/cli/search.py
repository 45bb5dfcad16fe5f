"""``tempopt search`` and ``tempopt resume``: run a study, show it while it runs, say what it found."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from tempopt.cli import DEFAULT_STORAGE, DONE, FAILED, INTERRUPTED, storage_url
from tempopt.cli.progress import observing
from tempopt.errors import StorageError
from tempopt.store import urls
from tempopt.store.store import Store
from tempopt.study import api
from tempopt.study.progress import Observer
from tempopt.study.spec import load_spec
from tempopt.study.verdict import verdict_lines

if TYPE_CHECKING:
    from tempopt.study.results import StudyResult


def search(arguments: argparse.Namespace) -> int:
    """Create the study of a spec or go on with it, to its verdict."""
    overrides = list(arguments.set)
    if arguments.name is not None:
        overrides.append(f"study.name={json.dumps(arguments.name)}")
    spec = load_spec(arguments.spec, overrides)
    storage = storage_url(arguments.storage)

    def carry_out(observer: Observer) -> StudyResult:
        return api.search(
            spec,
            storage=storage,
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            trials=arguments.trials,
            observer=observer,
        )

    return _to_verdict(spec.study.name, carry_out, arguments)


def resume(arguments: argparse.Namespace) -> int:
    """Go on with a study from the database alone, to its verdict."""

    def carry_out(observer: Observer) -> StudyResult:
        return api.resume(
            arguments.name,
            storage=storage_url(arguments.storage),
            workers=arguments.workers,
            checkpoints=arguments.checkpoints,
            observer=observer,
        )

    return _to_verdict(arguments.name, carry_out, arguments)


def _to_verdict(
    name: str, carry_out: Callable[[Observer], StudyResult], arguments: argparse.Namespace
) -> int:
    try:
        with observing(sys.stdout) as observer:
            result = carry_out(observer)
    except KeyboardInterrupt:
        print(f"\n{_how_to_go_on(name, arguments)}")
        return INTERRUPTED
    where = f"{shlex.quote(name)}{_storage_option(arguments)}"
    print("", *verdict_lines(result), "", sep="\n")
    print(f"Look again:       tempopt show {where}")
    if result.best is None:
        return FAILED
    print(f"Take the winner:  tempopt export {where}")
    return DONE


def _how_to_go_on(name: str, arguments: argparse.Namespace) -> str:
    # A database that is lost just now is no reason to doubt that the study is in it.
    with suppress(StorageError), Store.open(storage_url(arguments.storage), create=False) as store:
        if name not in [summary.study.name for summary in store.list_studies()]:
            return "Interrupted before the study was begun; nothing was written."
    command = f"tempopt resume {shlex.quote(name)}{_storage_option(arguments)}"
    if arguments.checkpoints is not None:
        command += f" --checkpoints {shlex.quote(arguments.checkpoints)}"
    return f"Interrupted. Everything that was reported is saved. To go on:\n  {command}"


def _storage_option(arguments: argparse.Namespace) -> str:
    """Return the option that leads back to the same store, with no password in it."""
    if arguments.storage in (None, DEFAULT_STORAGE):
        return ""
    return f" --storage {shlex.quote(urls.parse(arguments.storage).shown)}"
