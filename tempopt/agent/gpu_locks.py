"""Locks on the GPUs of this machine, so that no two agents of one user train on the same GPU.

An agent holds a GPU by a lock on a file, which the kernel releases when the agent ends, even if it is killed.
Agents of other users are not taken into account.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from tempopt.agent.machine import Machine
from tempopt.agent.placement import Placement
from tempopt.errors import UsageError


@contextlib.contextmanager
def claim_gpus(
    machine: Machine, assign_fn: Callable[[Machine], list[Placement]]
) -> Iterator[list[Placement]]:
    """Lock the GPUs of the placements that ``assign_fn`` returns, until the end of the context.

    Args:
        machine: This machine. If CUDA_VISIBLE_DEVICES has assigned GPUs to this process, none is locked.
        assign_fn: Called with the machine and its free GPUs, returns the placements.

    Raises:
        UsageError: Raised by ``assign_fn``, or the folder with the locks belongs to another user.
    """
    if machine.is_restricted or not machine.cards:
        yield assign_fn(machine)
        return
    folder = _make_folder()
    with contextlib.ExitStack() as stack:
        # one agent at a time: two agents that need two GPUs would else lock one each, and both have too few
        with FileLock(folder / "lock"):
            locks: dict[str, FileLock] = {}
            busy_cards: list[tuple[str, int]] = []
            for card in machine.cards:
                # any thread may end the context
                lock = FileLock(folder / card.replace("/", "+"), timeout=0, thread_local=False)
                try:
                    locks[card] = stack.enter_context(lock)
                except Timeout:
                    busy_cards.append((card, _read_holder(lock)))
            placements = assign_fn(dataclasses.replace(machine, cards=tuple(locks), busy=tuple(busy_cards)))
            used_cards = {card for placement in placements for card in placement.gpus or ()}
            for card, lock in locks.items():
                if card in used_cards:
                    _pid_file(lock).write_text(str(os.getpid()))
                else:
                    lock.release()
        yield placements


def exclude_claimed_gpus(machine: Machine) -> Machine:
    """Return the machine without the GPUs that other agents hold."""
    views: list[Machine] = []

    def record(view: Machine) -> list[Placement]:
        views.append(view)
        return []

    with claim_gpus(machine, record):
        return views[0]


def _pid_file(lock: FileLock) -> Path:
    """Return the file with the id of the process that holds a lock.

    A file of its own, since some versions of filelock empty the lock file.
    """
    return Path(f"{lock.lock_file}.pid")


def _read_holder(lock: FileLock) -> int:
    """Return the id of the process that holds a lock, 0 if it is not known."""
    with contextlib.suppress(OSError, ValueError):
        return int(_pid_file(lock).read_text())
    return 0


def _make_folder() -> Path:
    """Make the folder with the locks, to which no other user can write, and return it.

    Not in XDG_RUNTIME_DIR, which is removed at a user's last logout, while agents may still run.
    """
    folder = Path(tempfile.gettempdir()) / f"tempopt-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UsageError(
            f"{folder}, where agents record which GPUs they use, belongs to another user. Remove it, or set "
            "another folder for temporary files with TMPDIR."
        )
    folder.chmod(0o700)
    return folder
