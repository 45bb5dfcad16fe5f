"""Which cards of this machine the agents of one person hold, so that no two of them pack the same card.

A card is held by a lock on a file of its own, which the kernel lets go of when the agent ends, however it
does: nothing is left behind to be found out about. Other people's agents are not known.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from tempopt.errors import UsageError
from tempopt.workers.machine import Machine
from tempopt.workers.placement import Placement


@contextlib.contextmanager
def claimed(machine: Machine, dealt: Callable[[Machine], list[Placement]]) -> Iterator[list[Placement]]:
    """Hold the cards of places that are dealt on those that are free, until the end of the context.

    Args:
        machine: This machine. If somebody has said which cards are for this process, they are not claimed:
            whoever did has dealt them.
        dealt: Given the machine with its free cards, returns the places.

    Raises:
        UsageError: What ``dealt`` raises, or the folder with the locks is not this person's own.
    """
    if machine.dealt or not machine.cards:
        yield dealt(machine)
        return
    folder = _folder()
    with contextlib.ExitStack() as held:
        # one at a time, or two that need two cards each would hold one each and both find too few
        with (folder / "lock").open("a") as door:
            fcntl.flock(door, fcntl.LOCK_EX)
            free: dict[str, IO[str]] = {}
            busy: list[tuple[str, int]] = []
            for card in machine.cards:
                file: IO[str] = held.enter_context((folder / card.replace("/", "+")).open("a+"))
                if _locked(file):
                    free[card] = file
                else:
                    busy.append((card, _holder(file)))
                    file.close()
            places = dealt(dataclasses.replace(machine, cards=tuple(free), busy=tuple(busy)))
            taken = {card for place in places for card in place.gpus or ()}
            for card, file in free.items():
                if card in taken:
                    file.truncate(0)
                    file.write(str(os.getpid()))
                    file.flush()
                else:
                    file.close()
        yield places


def free(machine: Machine) -> Machine:
    """Return the machine as an agent would find it that begins now: without the cards that others hold."""
    found: list[Machine] = []

    def look(there: Machine) -> list[Placement]:
        found.append(there)
        return []

    with claimed(machine, look):
        return found[0]


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(file: IO[str]) -> int:
    """Return the process that holds a card, 0 if it has not said so yet."""
    file.seek(0)
    text = file.read()
    return int(text) if text.isdecimal() else 0


def _folder() -> Path:
    """Return the folder with the locks, which nobody else can write to.

    Not in XDG_RUNTIME_DIR: that goes with the last login of a person, whose agents may stay.
    """
    folder = Path(tempfile.gettempdir()) / f"tempopt-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise UsageError(
            f"{folder}, where agents note which GPUs they use, belongs to another user. Remove it, or give "
            "another folder for temporary files with TMPDIR."
        )
    folder.chmod(0o700)
    return folder
