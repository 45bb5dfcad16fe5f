"""Which store is meant: the one given, the one a file names, the environment's, or the folder's."""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import sys
from pathlib import Path

from tempopt.cli import DEFAULT_STORAGE
from tempopt.errors import UsageError
from tempopt.store import urls


def storage_url(arguments: argparse.Namespace) -> str:
    """Return the database URL: of ``--storage``, ``--storage-file``, TEMPOPT_STORAGE, else the default.

    Raises:
        UsageError: Both options were given, or the file holds no URL.
    """
    given, file = arguments.storage, arguments.storage_file
    if given and file:
        raise UsageError("--storage and --storage-file were both given. Give one of them.")
    if file:
        return _from_file(Path(file))
    return given or os.environ.get("TEMPOPT_STORAGE") or DEFAULT_STORAGE


def storage_option(arguments: argparse.Namespace) -> str:
    """Return the option that leads back to the same store, with no password in it."""
    if arguments.storage_file:
        return f" --storage-file {shlex.quote(arguments.storage_file)}"
    if arguments.storage in (None, DEFAULT_STORAGE):
        return ""
    return f" --storage {shlex.quote(urls.parse(arguments.storage).shown)}"


def _from_file(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8-sig")
        mode = path.stat().st_mode
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8. Give a file that holds one URL.") from None
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}. Give a file that holds one URL."
        ) from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        count = f"{len(lines)} lines" if lines else "nothing"
        raise UsageError(f"{path} holds {count}. Give a file that holds one line, the URL.")
    (url,) = lines
    others = mode & (stat.S_IRGRP | stat.S_IROTH)
    if os.name == "posix" and others and urls.parse(url).secrets:
        print(
            f"tempopt: warning: {path} holds a password that others on this machine can read. "
            f"Run: chmod 600 {shlex.quote(str(path))}",
            file=sys.stderr,
        )
    return url
