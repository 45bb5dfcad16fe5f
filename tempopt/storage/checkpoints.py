"""Where checkpoints live: fsspec URLs, checked before use, and what lies under them counted and deleted.

Layout: ``<place>/<study>/<run>/<file>``, the files being a run's checkpoints and its log. Knows neither what
is in a checkpoint nor SQL; loads fsspec only when it is asked something.
"""

from __future__ import annotations

import contextlib
import os
import re
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tempopt.errors import UsageError, install_command
from tempopt.files import absolute as absolute_path
from tempopt.files import remove_new_empty_folders
from tempopt.storage.rows import KINDS, Kind

DEFAULT_FOLDER = "tempopt-runs"
"""Where checkpoints and logs lie unless something else is said: a folder in the current one."""
# What was left half written, half fetched, or half put through a server, included.
CHECKPOINT = re.compile(
    r"(?:step-([0-9]+)|resume)-[0-9]+\.ckpt(?:(?:\.[0-9a-f]{8,32}(?:\.[0-9]+)?)?\.writing)?"
)
"""Names of checkpoints; the first group is the step, None for a copy that was fetched to go on from."""
RUN = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]{{4,}}")
"""Names of runs' folders."""

_LOCAL = ("file", "local")
# Object stores: an object is there whole or not at all, and server and keys are given by the configuration of
# the reader, not by the URL. What else fsspec knows would have the database say whom a reader connects to
# (http, sftp, hdfs), or what it runs (reference).
_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
SERVED = "tempopt"
"""Protocol of checkpoints behind a server; only workers of an agent that works for one know it."""
# What pip installs for a protocol; for others fsspec says it.
_EXTRAS = {"s3": "s3", "s3a": "s3"}
# Greedy up to the last "@": a password with an "@" that was not percent-encoded is hidden whole.
_USERINFO = re.compile(r"(?<=://)[^:@/]*:.*@", re.DOTALL)
_SECRET_QUERY = re.compile(
    r"(?<=[?&])([^=&]{0,60}(?:pass|pwd|secret|token|key|sig)[^=&]*=)[^&]+", re.IGNORECASE
)


def normalize_checkpoint_url(path: str | Path) -> str:
    """Return the absolute URL (or path, on this machine) of a folder that can be written to.

    Args:
        path: A path, of a folder that can be made if it is not there, or an fsspec URL such as
            ``s3://bucket/folder``.

    Raises:
        UsageError: It cannot be read, reached, made or written to, or it holds a password.
    """
    url = absolute(path)
    fs, folder = open_filesystem(url)
    probe = f"{folder}/.tempopt-{uuid.uuid4().hex}"
    try:
        # what is asked of a folder leaves none behind: the study may be refused yet
        with remove_new_empty_folders(Path(folder)) if is_local(url) else contextlib.nullcontext():
            if is_local(url):
                fs.makedirs(folder, exist_ok=True)
            fs.pipe_file(probe, b"tempopt")
            fs.rm_file(probe)
    except Exception as error:
        # each store has errors of its own
        why = f"{type(error).__name__}: {error}".removesuffix(": ")
        if is_local(url):
            # a full disk has room for an empty file; an object is there whole or not at all
            with contextlib.suppress(OSError):
                Path(probe).unlink()
        raise UsageError(
            f"Checkpoints cannot be written to {url} ({why}). Free some space there, or allow writing; or "
            "give another folder, or a URL such as s3://bucket/folder, with --checkpoints."
        ) from error
    return url


def absolute(path: str | Path) -> str:
    """Return the absolute URL (or path, on this machine) of a folder that may be elsewhere.

    Raises:
        UsageError: It is empty, holds a password, or :func:`open_filesystem` does not support its kind.
    """
    text = str(path).strip()
    if not text:
        raise UsageError(
            "The folder for checkpoints is empty. Give a path, or a URL such as s3://bucket/folder."
        )
    masked_text = _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("***@", text))
    if masked_text != text:
        raise UsageError(
            f"The URL of the checkpoints, {masked_text}, holds a password or a key, and would be kept in the "
            "study's database. Leave it out, and give it to the storage's own client, by its environment "
            "variables or files (AWS_ACCESS_KEY_ID, ~/.aws, FSSPEC_<PROTOCOL>_PASSWORD, ...)."
        )
    if is_local(text):
        text = str(absolute_path(str(local_path(text)), "The folder for checkpoints"))
    else:
        _refuse_other(text)
    return text.rstrip("/") or "/"


def is_local(url: str) -> bool:
    """Return whether a path or URL names a folder of this machine."""
    protocol, separator, _ = url.partition("://")
    return not separator or protocol in _LOCAL


def join(url: str, *parts: str) -> str:
    """Return the URL of what lies under another."""
    return "/".join([url.rstrip("/"), *parts])


def local_path(url: str) -> Path:
    """Return the path of a folder or file of this machine."""
    assert is_local(url)
    return Path(url.partition("://")[2] if "://" in url else url)


def run_name(kind: Kind, number: int) -> str:
    """Return what the folder of a run is called, as in ``search-0003``."""
    return f"{kind}-{number:04d}"


def belongs_to_run(url: str, *, study: str, run: str) -> bool:
    """Return whether a URL is that of a checkpoint, as tempopt names them, of a study's run.

    Args:
        run: Name of the run's folder.
    """
    parts = url.split("/")
    return (
        parts[-3:-1] == [study, run]
        and RUN.fullmatch(run) is not None
        and CHECKPOINT.fullmatch(parts[-1]) is not None
        and ".." not in parts
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalResult:
    """What came of deleting files.

    Args:
        freed: Bytes.
        not_removed: Files that could not be deleted, by URL, and why.
    """

    freed: int
    not_removed: dict[str, str]


def remove(urls: Iterable[str]) -> RemovalResult:
    """Delete files, whatever becomes of any of them; one that is not there is none to delete."""
    freed = 0
    reasons: dict[str, str] = {}
    for url in urls:
        try:
            fs, path = open_filesystem(url)
            # what was listed once may be listed from memory
            fs.invalidate_cache()
            size = fs.size(path) or 0
            fs.rm_file(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            # each storage has errors of its own
            reasons[url] = error_reason(error)
        else:
            freed += size
    return RemovalResult(freed=freed, not_removed=reasons)


def error_reason(error: Exception) -> str:
    """Return in few words why something could not be done to a file or a storage."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def disk_usage(url: str) -> dict[str, int]:
    """Return the bytes of each file below a folder by its URL; empty if there is no such folder.

    Raises:
        OSError: The storage cannot be reached.
    """
    fs, folder = open_filesystem(url)
    fs.invalidate_cache()
    root = folder.rstrip("/")
    infos: dict[str, dict[str, Any]] = fs.find(root, detail=True)
    return {
        join(url, name.removeprefix(root).lstrip("/")): int(info["size"] or 0)
        for name, info in infos.items()
        if name != root
    }


def open_filesystem(url: str) -> tuple[Any, str]:
    """Return the file system (fsspec's) of a path or URL, and the path in it; connects to nothing yet.

    Raises:
        UsageError: It is neither a path nor the URL of an object store, or a package is missing.
    """
    import fsspec

    if is_local(url):
        # not by fsspec's own reading of URLs, to which "a::b" is a chain of file systems
        return fsspec.filesystem("file"), str(local_path(url).absolute())
    if url.startswith(f"{SERVED}://") and os.environ.get("TEMPOPT_SERVER"):
        from tempopt.storage.http.filesystem import ServerFileSystem

        return ServerFileSystem(), url.partition("://")[2]
    protocol = _refuse_other(url)
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as error:
        remedy = f"{error}."
        if protocol in _EXTRAS:
            remedy = f"Run: {install_command(_EXTRAS[protocol])}"
        raise UsageError(
            f"Checkpoints under {protocol}:// need a package that is missing. {remedy}"
        ) from error
    except ValueError as error:
        raise UsageError(
            f"{url} cannot be read as the URL of a folder for checkpoints ({error}). Give a path, or a URL "
            "such as s3://bucket/folder."
        ) from error
    return fs, path


def _refuse_other(url: str) -> str:
    """Return the protocol of an object store's URL; refuse every other URL."""
    protocol = url.partition("://")[0]
    if protocol in _STORES and "::" not in url:
        return protocol
    allowed = ", ".join(f"{scheme}://" for scheme in (*_LOCAL, *_STORES))
    raise UsageError(
        f"{url} is no place for checkpoints. Give a path, or a URL such as s3://bucket/folder; a URL "
        f"begins with one of {allowed}, and chains nothing with ::."
    )
