"""``tempopt dashboard``: Optuna's dashboard with tempopt's notes and plots, only on this machine."""

from __future__ import annotations

import argparse
import contextlib
import sys

from tempopt.agent.signals import sigterm_as_keyboard_interrupt
from tempopt.errors import UsageError
from tempopt.storage.http.address import is_server


def dashboard(arguments: argparse.Namespace) -> None:
    """Serve the dashboard until it is interrupted.

    Raises:
        UsageError: The storage is a tempopt server.
    """
    if is_server(arguments.url):
        raise UsageError(
            f"{arguments.url} is a tempopt server, whose page of a study is its report: open that in a "
            "browser. For Optuna's dashboard give the database, as in --storage postgresql://user@host/db."
        )
    # lazy import: plotly and Optuna's dashboard are slow to load
    from tempopt.report.dashboard import Dashboard

    with contextlib.suppress(KeyboardInterrupt), sigterm_as_keyboard_interrupt():
        with Dashboard(arguments.url, port=arguments.port, name=arguments.name, note=_warn) as server:
            print(f"Dashboard: {server.url}")
            print("Ctrl-C ends it; the studies continue.", flush=True)
            server.serve()


def _warn(text: str) -> None:
    print(f"tempopt: warning: {text}", file=sys.stderr, flush=True)
