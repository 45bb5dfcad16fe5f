"""A dashboard beside a search: a process of its own, so that it slows no agent down.

``python -m tempopt.report.dashboard.child`` is that process. What it needs comes through its input, so that
no password is in a list of processes; when its input ends, because the search has or was killed, so does it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable

from tempopt.errors import TempoptError, UsageError
from tempopt.report.dashboard.server import listen

_END_SECONDS = 10.0


class Beside:
    """A dashboard in a process of its own, on this machine's own address, until it is closed.

    A port that is taken is no reason to have no dashboard: another one is chosen. Nothing that happens to it
    happens to the search.

    Args:
        url: URL of the store's database.
        name: Name of the study, which the store has.
        note: Told the address, and whatever else a person should read; from another thread.
    """

    def __init__(self, url: str, name: str, note: Callable[[str], None]) -> None:
        self._note = note
        # a group of its own: Ctrl-C is for the search, which may take a while to leave
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tempopt.report.dashboard.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            start_new_session=True,
        )
        assert self._process.stdin is not None
        self._reader = threading.Thread(target=self._read, name="tempopt-beside", daemon=True)
        self._reader.start()
        try:
            self._process.stdin.write(f"{json.dumps({'url': url, 'name': name})}\n")
            self._process.stdin.flush()
        except OSError:
            # it has died, which the reader tells
            pass

    def _read(self) -> None:
        assert self._process.stdout is not None
        told = False
        for line in self._process.stdout:
            told = True
            self._note(line.rstrip("\n"))
        if not told:
            self._note("The dashboard could not be started. To see why: tempopt dashboard")

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
        except OSError:
            pass
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(_END_SECONDS)
        self._process.stdout.close()


def _serve() -> None:
    wanted = json.loads(sys.stdin.readline())
    # the doors of this room are heavy, and the search has begun already
    from tempopt.report.dashboard.dashboard import HOST, PORT, Dashboard

    port, why = PORT, ""
    try:
        listen(HOST, PORT).close()
    except UsageError:
        port, why = 0, f" (port {PORT} is taken)"
    try:
        with Dashboard(wanted["url"], host=HOST, port=port, first=wanted["name"], note=_say) as dashboard:
            _say(f"Dashboard: {dashboard.study_url or dashboard.url}{why}")
            sys.stdin.read()
    except TempoptError as error:
        _say(f"There is no dashboard: {error}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    _serve()
