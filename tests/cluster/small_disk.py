"""A file system of a few megabytes, mounted as root on Linux, which something else fills for a while."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from tests.cluster.crew import wait_until

_BLOCK = bytes(16 * 1024)


def why_not() -> str:
    """Return why no file system can be mounted here, the empty text if one can."""
    lacking = [program for program in ("mount", "umount", "setpriv") if shutil.which(program) is None]
    if sys.platform != "linux" or os.geteuid() != 0 or lacking:
        return "NOT TESTED: full disks. This needs root on Linux with mount and setpriv (util-linux)."
    with tempfile.TemporaryDirectory() as folder:
        try:
            Disk(Path(folder)).unmount()
        except subprocess.CalledProcessError as error:
            return f"NOT TESTED: full disks. A tmpfs cannot be mounted here: {error.stderr.decode().strip()}"
    return ""


class Disk:
    """A file system of a few megabytes, which something else fills for a while.

    Args:
        folder: Where it is mounted; made if it is not there.
        megabytes: Its size.
    """

    def __init__(self, folder: Path, megabytes: int = 24) -> None:
        self.folder = folder
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        folder.mkdir(parents=True, exist_ok=True)
        run("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder))

    def fill(self) -> None:
        """Take all space, and what is freed meanwhile."""
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()
        wait_until(lambda: shutil.disk_usage(self.folder).free == 0, "a full disk")

    def free(self) -> None:
        """Give the space back."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            (self.folder / "filler").unlink()
            self._thread = None

    def _take(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            while not self._stop.wait(0.002):
                with contextlib.suppress(OSError):
                    while file.write(_BLOCK) == len(_BLOCK):
                        pass

    def unmount(self) -> None:
        """Take it away."""
        self.free()
        run("umount", "--lazy", str(self.folder))


def run(*command: str) -> None:
    """Carry out a command that must succeed."""
    subprocess.run(command, check=True, capture_output=True)
