"""The output of a command: a log that keeps its beginning and its end, and the value that is printed."""

from __future__ import annotations

import codecs
import contextlib
import difflib
import os
import re
from collections import deque
from pathlib import Path

from tempopt.spec.program_pattern import name_pattern, num_groups_in

KEPT_BYTES = 1024 * 1024
"""So much of the beginning of the output is kept, and as much of its end."""

_MAX_LINE_CHARS = 64 * 1024
_OVERLAP_CHARS = 1024  # longer than a value with its name
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_NON_LETTERS = re.compile(r"[\W_]+")
# linear in the length of a line
_NAMED_NUMBER = re.compile(r"""(?<![\w./@-])([A-Za-z_][\w./@-]*+)["']?\s*[:=]?\s*[-+]?\.?\d""")
_MAX_NAMES, _MIN_SIMILARITY = 1000, 0.7
_MAX_NEAR_MISSES, _MAX_SHOWN_LINE = 3, 200


class CappedLog:
    """A log file that is appended to, and of which the middle is left out when it grows long.

    Args:
        path: The file; what is in it stays.

    Attributes:
        lost: Why some of the output is missing, the disk having refused it; else empty.
    """

    def __init__(self, path: Path) -> None:
        self.lost = ""
        self._descriptor: int | None = None
        self._omitted = 0
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            self._size = os.lseek(self._descriptor, 0, os.SEEK_END)
        except OSError as error:
            self.lost = error.strerror or str(error)
            self._size = 0
        self._head_end = self._size + KEPT_BYTES

    def write(self, data: bytes) -> None:
        """Append output; never raises."""
        if self._descriptor is None:
            return
        try:
            self._size += os.pwrite(self._descriptor, data, self._size)
            if self._size > self._head_end + 2 * KEPT_BYTES:
                self._omit_middle(self._descriptor)
        except OSError as error:
            self.lost = error.strerror or str(error)

    def _omit_middle(self, descriptor: int) -> None:
        tail = os.pread(descriptor, KEPT_BYTES, self._size - KEPT_BYTES)
        self._omitted += self._size - KEPT_BYTES - self._head_end
        note = f"\n[about {self._omitted} bytes of output are left out here]\n".encode()
        self._size = self._head_end + os.pwrite(descriptor, note + tail, self._head_end)
        os.ftruncate(descriptor, self._size)

    def close(self) -> None:
        """Close the file."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)


class ValueReader:
    """Finds the last value in output that arrives in pieces, in constant memory.

    Args:
        pattern: As in the section ``program:``. A value behind it as a name counts before its group.
    """

    def __init__(self, pattern: str) -> None:
        self._name, self._name_pattern = pattern, name_pattern(pattern)
        self._group_pattern = re.compile(pattern, re.MULTILINE) if num_groups_in(pattern) else None
        self._last_by_name: tuple[float, str] | None = None
        self._last_by_group: tuple[float, str] | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line = ""

    def feed(self, data: bytes, *, is_last: bool = False) -> None:
        """Take the next piece; the value of a line counts once the line is over."""
        text = self._line + self._decoder.decode(data, is_last)
        end = len(text) if is_last else max(text.rfind("\n"), text.rfind("\r")) + 1
        self._search(text[:end])
        self._line = text[end:]
        if len(self._line) > _MAX_LINE_CHARS:
            # a value that is cut here is found again, whole; a name that is cut there is not found
            self._search(self._line)
            self._line = " " + self._line[-_OVERLAP_CHARS:].partition(" ")[2]

    @property
    def last(self) -> tuple[float, str] | None:
        """The last value so far, and its line up to it; None: there is none."""
        return self._last_by_name or self._last_by_group

    def _search(self, text: str) -> None:
        # most output does not have the name, which is found out faster so
        if self._name in text:
            self._last_by_name = _find_last(self._name_pattern, text) or self._last_by_name
        if self._group_pattern is not None:
            self._last_by_group = _find_last(self._group_pattern, text) or self._last_by_group


def _find_last(pattern: re.Pattern[str], text: str) -> tuple[float, str] | None:
    text = _COLOUR.sub("", text) if "\x1b" in text else text
    for match in deque(pattern.finditer(text), maxlen=1):
        with contextlib.suppress(ValueError, TypeError):
            line = re.split(r"[\r\n]", text[max(0, match.end() - _MAX_SHOWN_LINE) : match.end()])[-1]
            return float(match[1]), line.strip()
    return None


def find_near_misses(name: str, output: str) -> list[str]:
    """Return the last lines that have the letters and digits of a name, in any case and in longer names."""
    letters = _NON_LETTERS.sub("", name).lower()
    lines = output.splitlines() if letters else []
    near_misses = [line.strip() for line in lines if letters in _NON_LETTERS.sub("", line).lower()]
    return [line[:_MAX_SHOWN_LINE] for line in near_misses[-_MAX_NEAR_MISSES:]]


def find_similar_name(name: str, output: str) -> tuple[str, str] | None:
    """Return the most similar name before a number, and its last line; None: no name is similar."""
    lines = {
        match[1]: line.strip()[:_MAX_SHOWN_LINE]
        for line in output.splitlines()
        for match in _NAMED_NUMBER.finditer(line)
    }
    names = difflib.get_close_matches(name, list(lines)[-_MAX_NAMES:], n=1, cutoff=_MIN_SIMILARITY)
    return (names[0], lines[names[0]]) if names else None
