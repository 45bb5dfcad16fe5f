"""Which GPUs of this machine the agents of one user hold, so that no two of them train on the same one.

A GPU is held by a lock on a file, which the kernel releases when the agent ends, however it does. The agents
of other users are not known.
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
def claim_gpus(machine: Machine, dealt: Callable[[Machine], list[Placement]]) -> Iterator[list[Placement]]:
    """Lock the GPUs of the placements that ``dealt`` returns, until the end of the context.

    Args:
        machine: This machine. GPUs that were assigned to this process are not locked: they have been shared
            out already.
        dealt: Called with the machine and its free GPUs, returns the placements.

    Raises:
        UsageError: What ``dealt`` raises, or the folder with the locks belongs to another user.
    """
    if machine.dealt or not machine.cards:
        yield dealt(machine)
        return
    folder = _folder()
    with contextlib.ExitStack() as stack:
        # one at a time, or two that need two GPUs each would lock one each and both have too few
        with FileLock(folder / "lock"):
            locks: dict[str, FileLock] = {}
            busy: list[tuple[str, int]] = []
            for card in machine.cards:
                # any thread may end the context
                lock = FileLock(folder / card.replace("/", "+"), timeout=0, thread_local=False)
                try:
                    locks[card] = stack.enter_context(lock)
                except Timeout:
                    busy.append((card, _holder(lock)))
            placements = dealt(dataclasses.replace(machine, cards=tuple(locks), busy=tuple(busy)))
            used_cards = {card for placement in placements for card in placement.gpus or ()}
            for card, lock in locks.items():
                if card in used_cards:
                    _pid_file(lock).write_text(str(os.getpid()))
                else:
                    lock.release()
        yield placements


def without_claimed_gpus(machine: Machine) -> Machine:
    """Return the machine as an agent that begins now would see it: without the GPUs that others hold."""
    views: list[Machine] = []

    def look(view: Machine) -> list[Placement]:
        views.append(view)
        return []

    with claim_gpus(machine, look):
        return views[0]


def _pid_file(lock: FileLock) -> Path:
    """Return the file with the process that holds a lock: some versions of filelock empty the lock file."""
    return Path(f"{lock.lock_file}.pid")


def _holder(lock: FileLock) -> int:
    """Return the process that holds a lock, 0 if it is not known."""
    with contextlib.suppress(OSError, ValueError):
        return int(_pid_file(lock).read_text())
    return 0


def _folder() -> Path:
    """Return the folder with the locks, which no other user can write to.

    Not in XDG_RUNTIME_DIR: that is removed with the last login of a user, whose agents may go on.
    """
    folder = Path(tempfile.gettempdir()) / f"tempopt-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise UsageError(
            f"{folder}, where agents note which GPUs they use, belongs to another user. Remove it, or give "
            "another folder for temporary files with TMPDIR."
        )
    folder.chmod(0o700)
    return folder
