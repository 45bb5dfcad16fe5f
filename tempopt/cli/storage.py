"""Which store is meant: the one given, the one a file names, the environment's, or the folder's."""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import sys
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.files import read_text
from tempopt.store import urls


def storage_url(arguments: argparse.Namespace) -> str:
    """Return the database URL: of ``--storage``, ``--storage-file``, TEMPOPT_STORAGE, else the default.

    Raises:
        UsageError: Both options were given, or the file holds no URL.
    """
    given, file = arguments.storage, arguments.storage_file
    if given is not None and file is not None:
        raise UsageError("--storage and --storage-file were both given. Give one of them.")
    return urls.storage_url(given) if file is None else _from_file(Path(file))


def storage_option(arguments: argparse.Namespace) -> str:
    """Return the option that leads back to the same store, with no password in it."""
    if arguments.storage_file is not None:
        return f" --storage-file {shlex.quote(arguments.storage_file)}"
    if arguments.storage in (None, urls.storage_url(None)):
        return ""
    return f" --storage {shlex.quote(urls.parse(arguments.storage).shown)}"


def read_private(path: Path, holds: str) -> tuple[str, bool]:
    """Return what a file holds, and whether others on this machine can read it.

    Args:
        path: The file.
        holds: What it is to hold, for messages.

    Raises:
        UsageError: It cannot be read, or is not text.
    """
    text, mode = read_text(path, holds)
    return text, os.name == "posix" and bool(mode & (stat.S_IRGRP | stat.S_IROTH))


def _from_file(path: Path) -> str:
    text, others = read_private(path, "one URL")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        count = f"{len(lines)} lines" if lines else "nothing"
        raise UsageError(f"{path} holds {count}. Give a file that holds one line, the URL.")
    (url,) = lines
    if others and urls.parse(url).secrets:
        print(
            f"tempopt: warning: {path} holds a password that others on this machine can read. "
            f"Run: chmod 600 {shlex.quote(str(path))}",
            file=sys.stderr,
        )
    return url
