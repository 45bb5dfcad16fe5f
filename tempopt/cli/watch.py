"""``tempopt show NAME --watch``: watch a study until it is done."""

from __future__ import annotations

import argparse
import sys
import time

from tempopt.cli.storage import study_argument
from tempopt.launch.watch import StudyPoller
from tempopt.service.progress import progress_for_stream
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyState


def show_live(arguments: argparse.Namespace) -> None:
    """Show a study while agents carry it out, until it is done.

    Raises:
        StudyNotFound: There is no study of that name, and no job that would create it.
        StudyFailed: It was deleted.
    """
    name = arguments.name
    notes: dict[StudyState | None, str] = {
        None: f"{name} is not begun yet: its jobs wait.",
        "paused": f"{name} was paused. To continue: tempopt resume {study_argument(name, arguments)}",
    }
    with open_store(arguments.url, create=False) as store:
        if not store.jobs(name):
            store.load_study(name)
        with progress_for_stream(sys.stdout) as observer:
            watch = StudyPoller(store, name, observer)
            state: StudyState | None = "running"
            last_state = state
            while state != "done":
                state = watch.poll_patiently()
                if watch.is_reachable and state != last_state:
                    last_state = state
                    if state in notes:
                        observer.note(notes[state])
                if state != "done":
                    time.sleep(arguments.watch)
