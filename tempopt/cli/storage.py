"""Which store a command uses: that of an option, of a file, of the environment, or the default."""

from __future__ import annotations

import argparse
import os
import shlex
import stat
import sys
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.files import read_text
from tempopt.storage import urls
from tempopt.storage.http.address import is_server


def storage_url(arguments: argparse.Namespace) -> str:
    """Return the URL of the store: of ``--storage``, ``--storage-file``, TEMPOPT_STORAGE, else the default.

    Raises:
        UsageError: Both options were given, or the file holds no URL.
    """
    url, file = arguments.storage, arguments.storage_file
    if url is not None and file is not None:
        raise UsageError("--storage and --storage-file were both given. Give one of them.")
    return urls.storage_url(url) if file is None else _read_storage_file(Path(file))


def storage_option(arguments: argparse.Namespace) -> str:
    """Return the option that names the same store, without a password."""
    if arguments.storage_file is not None:
        return f" --storage-file {shlex.quote(arguments.storage_file)}"
    if arguments.storage in (None, urls.storage_url(None)):
        return ""
    return f" --storage {shlex.quote(urls.masked_url(arguments.storage))}"


def study_argument(name: str, arguments: argparse.Namespace) -> str:
    """Return the words that name a study of the same store on the command line."""
    return f"{shlex.quote(name)}{storage_option(arguments)}"


_HERE_ALONE = {
    "launcher": "Start its agents with: tempopt agent NAME --server URL.",
    "checkpoints": "A server stores them under the URL of tempopt serve --checkpoints.",
}


def check_option_needs_database(command: str, arguments: argparse.Namespace) -> None:
    """Refuse commands and options that need the database if a server is given.

    Args:
        command: Name of the command.
        arguments: The parsed arguments, with ``url``.

    Raises:
        UsageError: The command, or one of its options, needs the database.
    """
    if not is_server(arguments.url):
        return
    where = f"{urls.masked_url(arguments.url)} is a tempopt server"
    if command == "storage":
        raise UsageError(
            f"tempopt storage needs the database, and {where}. Run it on a machine that can reach the "
            "database, before tempopt serve is started."
        )
    for option, replacement in _HERE_ALONE.items():
        if command in ("search", "compare", "resume") and getattr(arguments, option, None):
            raise UsageError(
                f"--{option} is for a database, and {where}. {replacement} Leave out --{option}."
            )


def _read_storage_file(path: Path) -> str:
    text, mode = read_text(path, "one URL")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) != 1:
        count = f"{len(lines)} lines" if lines else "nothing"
        raise UsageError(f"{path} holds {count}. Give a file that holds one line, the URL.")
    (url,) = lines
    others_can_read = os.name == "posix" and bool(mode & (stat.S_IRGRP | stat.S_IROTH))
    if others_can_read and not is_server(url) and urls.parse_database_url(url).secrets:
        print(
            f"tempopt: warning: {path} holds a password that other users of this machine can read. "
            f"Run: chmod 600 {shlex.quote(str(path))}",
            file=sys.stderr,
        )
    return url
