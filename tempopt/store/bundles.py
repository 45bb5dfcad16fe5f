"""Where the bundles of studies lie: by their hash, beside the checkpoints of the study that they belong to.

Layout: ``<place>/<study>/code/<SHA-256>.tar``.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from tempopt.bundle.archive import MOST_BYTES, refuse_size
from tempopt.errors import UsageError
from tempopt.store.checkpoints import is_local, join, opened, reason
from tempopt.store.kept import whole

FOLDER = "code"
"""Name of the folder, which no run has."""
FILE = re.compile(r"([0-9a-f]{64})\.tar(?:\.[0-9a-f]{16}\.writing)?")
"""Names of bundles, of those that were left half written too; the group is the hash."""


def bundle_url(checkpoints: str, study: str, digest: str) -> str:
    """Return where a study's bundle lies, given the URL under which its runs keep their checkpoints."""
    return join(checkpoints, study, FOLDER, f"{digest}.tar")


def keep(archive: bytes, url: str) -> None:
    """Write a bundle, whole or not at all; what is there and equal stays.

    Raises:
        UsageError: It cannot be written.
    """
    fs, path = opened(url)
    try:
        fs.invalidate_cache()
        with contextlib.suppress(FileNotFoundError):
            if fs.size(path) == len(archive) and fs.cat_file(path) == archive:
                return
        if not is_local(url):
            fs.pipe_file(path, archive)
            return
        whole(Path(path), lambda temporary: temporary.write_bytes(archive))
    except Exception as error:
        # each storage has errors of its own
        raise UsageError(
            f"The bundle of code cannot be written to {url} ({reason(error)}). Free some space there, or "
            "give another place with --checkpoints."
        ) from error


def fetch(url: str) -> bytes:
    """Return the bytes of a bundle, whose hash whoever asks compares.

    Raises:
        BundleRefused: It is larger than a bundle may be.
        UsageError: It is not there, or cannot be read from here.
    """
    fs, path = opened(url)
    try:
        fs.invalidate_cache()
        with fs.open(path, "rb") as file:
            archive: bytes = file.read(MOST_BYTES + 1)
    except Exception as error:
        # each storage has errors of its own
        why = "it is not there" if isinstance(error, FileNotFoundError) else reason(error)
        raise UsageError(
            f"The bundle of code cannot be read from {url}: {why}. It lies where the study keeps its "
            "checkpoints: agents on several machines need a place that all of them reach. To send it again: "
            "tempopt search SPEC --with-code DIR"
        ) from error
    refuse_size(len(archive))
    return archive
