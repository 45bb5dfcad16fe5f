"""Ends what a process has started, and what that has started, wherever it went. Linux alone knows."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """Become the parent of what is started below this process, once its own parent has ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_descendants(root: int) -> None:
    """Kill all processes below one, which itself lives on."""
    stopped_pids: set[int] = set()
    # what is stopped starts nothing more
    while pids := _descendants(root) - stopped_pids:
        _signal_all(pids, signal.SIGSTOP)
        stopped_pids |= pids
    _signal_all(stopped_pids, signal.SIGKILL)


def reap_children() -> None:
    """Collect the processes that have ended, adopted ones among them."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _signal_all(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants(root: int) -> set[int]:
    descendants: set[int] = set()
    parents = [root]
    while parents:
        children = _children(parents.pop()) - descendants
        descendants |= children
        parents += children
    return descendants


def _children(pid: int) -> set[int]:
    children: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            children.update(map(int, path.read_text().split()))
    return children
