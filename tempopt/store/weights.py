"""Where the weights lie that a study's runs start from: by their hash, beside its checkpoints.

Layout: ``<place>/<study>/weights/<SHA-256>.ckpt``. Copies files and compares hashes; does not know what is in
a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.store.checkpoints import absolute, is_local, join, local_path, opened, reason
from tempopt.store.kept import whole

FOLDER = "weights"
"""Name of the folder, which no run has."""
FILE = re.compile(r"([0-9a-f]{64})\.ckpt(?:\.[0-9a-f]{8,32}(?:\.[0-9]+)?\.writing)?")
"""Names of such files, of those that were left half written too; the group is the hash."""
_CHUNK = 4 * 1024 * 1024
# The coarsest times of files that are in use, of FAT, in nanoseconds.
_TICK = 2_000_000_000


def file_name(digest: str) -> str:
    """Return the name of a study's weights, given their SHA-256; how they are read, their content says."""
    return f"{digest}.ckpt"


def weights_url(checkpoints: str, study: str, name: str) -> str:
    """Return where a study's weights lie, given the URL under which its runs keep their checkpoints."""
    return join(checkpoints, study, FOLDER, name)


def digest_of(path: Path) -> str:
    """Return the SHA-256 of a file; of one that has not changed since this process read it, as it was then.

    Raises:
        UsageError: It cannot be read.
    """
    try:
        stat = path.stat()
        known = (str(path), stat.st_size, stat.st_mtime_ns, stat.st_ino)
        if known in _KNOWN:
            return _KNOWN[known]
        with path.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
        # what was written just now may change once more before its time does
        if time.time_ns() - stat.st_mtime_ns > _TICK:
            _KNOWN[known] = found
        return found
    except OSError as error:
        raise UsageError(f"The weights {path} cannot be read: {reason(error)}.") from error


# One for each file that this process has read; a study has one.
_KNOWN: dict[tuple[str, int, int, int], str] = {}


def refuse_other(path: Path, digest: str, where: str) -> None:
    """Refuse weights with another content than the study was begun with.

    Args:
        path: The file.
        digest: The SHA-256 that it is to have.
        where: Where it came from, for the message.

    Raises:
        UsageError: It has another one, or cannot be read.
    """
    found = digest_of(path)
    if found != digest:
        raise UsageError(
            f"study.start_from: {where} has another content (SHA-256 {found[:12]}…) than the file that the "
            f"study was begun with ({digest[:12]}…). No run starts from other weights. Put the right file "
            "back there, or begin another study (--name) with this one."
        )


def keep(source: Path, url: str, digest: str) -> None:
    """Copy weights to their place, whole or not at all; what is there already and right stays.

    Args:
        source: The file.
        url: Its place.
        digest: Its SHA-256.

    Raises:
        UsageError: It has another content, or cannot be written.
    """
    refuse_other(source, digest, str(source))
    if is_local(url):
        target = local_path(url)
        if not (target.is_file() and digest_of(target) == digest):
            _copied(source, target, digest)
        return
    fs, path = opened(url)
    try:
        fs.invalidate_cache()
        if fs.exists(path) and fs.size(path) == source.stat().st_size:
            return
        # an object is there whole or not at all
        fs.put_file(str(source), path)
    except Exception as error:
        raise _not_written(url, error) from error


def _copied(source: Path, target: Path, digest: str) -> None:
    def copy(temporary: Path) -> None:
        with source.open("rb") as read, temporary.open("wb") as written:
            while some := read.read(_CHUNK):
                written.write(some)
            written.flush()
            os.fsync(written.fileno())
        refuse_other(temporary, digest, str(source))

    try:
        whole(target, copy)
    except OSError as error:
        raise _not_written(str(target), error) from error


def _not_written(url: str, error: Exception) -> UsageError:
    return UsageError(
        f"The weights that the study starts from cannot be written to {url} ({reason(error)}). Free some "
        "space there, or give another place with --checkpoints."
    )


def fetch(url: str, target: Path, digest: str) -> Path:
    """Return a file of this machine that holds weights, fetched unless a copy is there.

    Args:
        url: Where they lie.
        target: The copy, where they do not lie on this machine.
        digest: Their SHA-256.

    Raises:
        UsageError: They are not there, have another content, or cannot be read or written.
    """
    if is_local(url):
        refuse_other(local_path(url), digest, url)
        return local_path(url)
    if not (target.is_file() and digest_of(target) == digest):
        download(url, target, digest)
    return target


@contextlib.contextmanager
def downloaded(url: str) -> Iterator[Path]:
    """Yield a copy of weights that lie in an object store, which is removed at the end.

    Raises:
        UsageError: There is no such URL, or as for :func:`download`.
    """
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / url.rpartition("/")[2]
        download(absolute(url), copy)
        yield copy


def download(url: str, target: Path, digest: str | None = None) -> None:
    """Fetch weights from a storage, whole or not at all.

    Args:
        url: Where they lie.
        target: The file to write.
        digest: SHA-256 that they are to have; None: any.

    Raises:
        UsageError: They are not there, have another content, or cannot be read or written.
    """

    def get(temporary: Path) -> None:
        fs, path = opened(url)
        # what was listed once may be listed from memory
        fs.invalidate_cache()
        fs.get_file(path, str(temporary))

    try:
        fetched(get, target, digest, url)
    except UsageError:
        raise
    except Exception as error:
        # each storage has errors of its own
        why = "it is not there" if isinstance(error, FileNotFoundError) else reason(error)
        raise UsageError(
            f"study.start_from: the weights cannot be fetched from {url} ({why}). Look whether they are "
            "there, and whether this machine may read them."
        ) from error


def fetched(get: Callable[[Path], None], target: Path, digest: str | None, where: str) -> None:
    """Have weights fetched into a file, whole or not at all.

    Args:
        get: Fetches them into a file.
        target: The file.
        digest: SHA-256 that they are to have; None: any.
        where: Where they come from, for the message.

    Raises:
        UsageError: They have another content.
    """

    def got(temporary: Path) -> None:
        get(temporary)
        if digest is not None:
            refuse_other(temporary, digest, where)

    whole(target, got)
