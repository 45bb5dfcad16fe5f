"""``tempopt dashboard``: Optuna's dashboard with temperatures inside; and the one beside a search."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from tempopt.agent.observer import Observer, Snapshot
from tempopt.agent.signals import terminable
from tempopt.cli import DONE
from tempopt.cli.storage import read_private
from tempopt.errors import TempoptError, UsageError
from tempopt.records.rows import TicketRow
from tempopt.remote.address import is_server
from tempopt.report.dashboard.access import Access, is_loopback
from tempopt.report.dashboard.child import Beside
from tempopt.store.store import Store

PASSWORD, TOKEN = "TEMPOPT_DASHBOARD_PASSWORD", "TEMPOPT_DASHBOARD_TOKEN"


def dashboard(arguments: argparse.Namespace) -> int:
    """Serve the dashboard until it is interrupted."""
    if is_server(arguments.url):
        raise UsageError(
            f"{arguments.url} is a tempopt server, and the dashboard reads a database. Open the server's "
            "address in a browser for its pages, or give the database with --storage."
        )
    access = _access(arguments)
    # only now: the rooms behind it are heavy, and what was typed wrong is told at once
    from tempopt.report.dashboard.dashboard import Dashboard

    with contextlib.suppress(KeyboardInterrupt), terminable():
        with Dashboard(
            arguments.url,
            host=arguments.host,
            port=arguments.port,
            access=access,
            trusted_proxy=arguments.trusted_proxy,
            first=arguments.name,
            note=_warn,
        ) as served:
            print(f"Dashboard: {served.url}")
            if served.study_url is not None:
                print(f"Study:     {served.study_url}")
            if not is_loopback(arguments.host):
                _warn("what is sent is not encrypted: who listens on the network reads it, the secret too.")
            print("Ctrl-C ends it; the studies continue.", flush=True)
            served.wait()
    return DONE


def bring_up_to_date(url: str, name: str) -> None:
    """Have a study's page in Optuna's dashboard show what it came to; say why if that cannot be done."""
    try:
        from tempopt.report.dashboard.study_page import publish

        with Store.open(url, create=False) as store:
            publish(store, name)
    except Exception as error:
        # the study is over, and whatever happens here takes nothing from it
        why = str(error) if isinstance(error, TempoptError) else type(error).__name__
        _warn(f"the study's page in Optuna's dashboard is not up to date: {why}")


def _warn(text: str) -> None:
    print(f"tempopt: warning: {text}", file=sys.stderr, flush=True)


# ---- secrets


def _access(arguments: argparse.Namespace) -> Access:
    """Return what a visitor has to know, by the options, else by the environment.

    Raises:
        UsageError: The secrets do not go together, or cannot be read.
    """
    if arguments.password is not None and arguments.password_file is not None:
        raise UsageError("--password and --password-file were both given. Give one of them.")
    password = arguments.password if arguments.password is not None else _read(arguments.password_file)
    token = _read(arguments.token_file)
    if arguments.user is not None and password is None:
        password = os.environ.get(PASSWORD)
    if arguments.user is None and password is None and token is None:
        # whoever set it means to be asked for it, which nobody can be without a user
        if PASSWORD in os.environ:
            raise UsageError(
                f"{PASSWORD} is set and no user is given. Give --user NAME with it, or unset it."
            )
        token = os.environ.get(TOKEN)
    return Access(user=arguments.user, password=password, token=token)


def _read(file: str | None) -> str | None:
    """Return the secret that a file's only line is."""
    if file is None:
        return None
    path = Path(file)
    text, others = read_private(path, "one line")
    lines = text.splitlines()
    if len(lines) != 1:
        raise UsageError(f"{path} holds {len(lines)} lines. Give a file that holds one, the secret.")
    if others:
        _warn(f"{path} can be read by others on this machine. Run: chmod 600 {path}")
    return lines[0]


# ---- beside a search


class _Watched:
    """An observer with whom a dashboard is started, once there is a study to look at."""

    def __init__(self, observer: Observer, url: str) -> None:
        self._observer = observer
        self.others_every = observer.others_every
        self._url = url
        self._beside: Beside | None = None
        self._tried = False

    def update(self, snapshot: Snapshot) -> None:
        if not self._tried:
            self._tried = True
            try:
                self._beside = Beside(self._url, snapshot.study, self._observer.note)
            except OSError as error:
                # no process more, no memory for one: the search has its own, and goes on
                why = error.strerror or type(error).__name__
                self._observer.note(
                    f"The dashboard could not be started: {why}. The search continues without it."
                )
        self._observer.update(snapshot)

    def finished(self, ticket: TicketRow) -> None:
        self._observer.finished(ticket)

    def note(self, text: str) -> None:
        self._observer.note(text)

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()


@contextlib.contextmanager
def beside(observer: Observer, url: str) -> Iterator[Observer]:
    """Yield an observer that has the study shown in a dashboard as long as it is looked at."""
    watched = _Watched(observer, url)
    try:
        yield watched
    finally:
        watched.close()
