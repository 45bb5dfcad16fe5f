"""Output of a worker, which a full disk does not turn into an error; and detection of disk errors."""

from __future__ import annotations

import errno
import io
import os
import re
import sys
from pathlib import Path
from typing import Any

from tempopt.training.messages import LOG

# no space, over quota, read-only, not permitted: another attempt succeeds after a person has fixed it
_REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES)
# An error in a data loader's worker process arrives as text.
_NUMBER = re.compile(r"\[Errno (\d+)\]")


def is_disk_refusal(error: BaseException) -> bool:
    """Return whether a disk was full, read-only or not accessible to this user."""
    if not isinstance(error, OSError):
        # torch's compiler wraps the original error
        cause = error.__cause__ or getattr(error, "inner_exception", None)
        return cause is not None and is_disk_refusal(cause)
    if error.errno is not None:
        return error.errno in _REFUSED
    return any(int(number) in _REFUSED for number in _NUMBER.findall(str(error)))


class LossyFile(io.FileIO):
    """A raw file that drops the data that the system refuses to write.

    The number of lost bytes is written in their place as soon as there is space again.

    Args:
        descriptor: Open for writing; it stays open.

    Attributes:
        why: Reason of the latest loss since :meth:`forget`; empty if nothing was lost, None if nothing was
            written.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self._lost = 0
        self._reason = ""
        self.why: str | None = None

    def write(self, data: Any) -> int:
        """Write some of the data; return the number of bytes, all of them if they are dropped."""
        try:
            if self._lost:
                super().write(f"\n[{self._lost} bytes of output were lost here: {self._reason}]\n".encode())
                self._lost = 0
            num_bytes = super().write(data)
        except OSError as error:
            size = memoryview(data).nbytes
            self._lost += size
            self.why = self._reason = error.strerror or str(error)
            return size
        self.why = self.why or ""
        return num_bytes

    def forget(self) -> None:
        """Reset the losses: the following output goes to another file."""
        self._lost, self.why = 0, None


class Output:
    """The output of this process; printing never raises.

    Attributes:
        streams: Its ``sys.stdout`` and ``sys.stderr`` from now on.
    """

    def __init__(self) -> None:
        self._files = [LossyFile(stream.fileno()) for stream in (sys.stdout, sys.stderr)]
        self._refused = ""
        self.streams = [
            # characters outside of the encoding must not raise either
            io.TextIOWrapper(io.BufferedWriter(file), "utf-8", "backslashreplace", line_buffering=True)
            for file in self._files
        ]
        sys.stdout, sys.stderr = self.streams

    def to(self, folder: str | None) -> None:
        """Write all output into a run's folder; discard it if that is None or not possible."""
        self._refused = ""
        for stream, file in zip(self.streams, self._files, strict=True):
            stream.flush()
            file.forget()
        try:
            descriptor = _open_log(Path(os.devnull) if folder is None else Path(folder) / LOG)
        except OSError as error:
            self._refused = error.strerror or str(error)
            descriptor = _open_log(Path(os.devnull))
        # by file descriptor, to include the output of C code
        for file in self._files:
            os.dup2(descriptor, file.fileno())
        os.close(descriptor)

    @property
    def lost(self) -> str | None:
        """Why part of the output since :meth:`to` is lost; empty if none is, None if there was no output."""
        reasons = [file.why for file in self._files if file.why is not None]
        if not reasons:
            return None
        return self._refused or next(filter(None, reasons), "")


def _open_log(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
