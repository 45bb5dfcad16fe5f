"""Locations of checkpoints: fsspec URLs, validated before use; sizes and deletion of the files below them.

Layout: ``<folder>/<study>/<run>/<file>``, with the checkpoints and the log of a run. Independent of the
content of checkpoints and of SQL; loads fsspec at the first call.
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
"""Default folder for checkpoints and logs, in the current folder."""
# Includes files that are incompletely written, downloaded or uploaded.
CHECKPOINT = re.compile(
    r"(?:step-([0-9]+)|resume)-[0-9]+\.ckpt(?:(?:\.[0-9a-f]{8,32}(?:\.[0-9]+)?)?\.writing)?"
)
"""Names of checkpoints; the first group is the step, None for a copy that was downloaded to resume from."""
RUN = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]{{4,}}")
"""Names of the folders of runs."""

# Seconds for an object store to take a small file: a lost connection is retried by its client for minutes.
_PROBE_SECONDS = 60.0
_LOCAL = ("file", "local")
# Object stores: an object exists completely or not at all, and server and keys come from the configuration of
# the reader, not from the URL. With other protocols of fsspec the database would decide to which host a
# reader connects (http, sftp, hdfs) or what it runs (reference).
_STORES = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")
SERVED = "tempopt"
"""Protocol of checkpoints behind a server; only workers of a server's agent support it."""
# Extra of tempopt for a protocol; for other protocols fsspec's own message names the package.
_EXTRAS = {"s3": "s3", "s3a": "s3"}
# Greedy up to the last "@": a password with an "@" that is not percent-encoded is masked completely.
_USERINFO = re.compile(r"(?<=://)[^:@/]*:.*@", re.DOTALL)
_SECRET_QUERY = re.compile(
    r"(?<=[?&])([^=&]{0,60}(?:pass|pwd|secret|token|key|sig)[^=&]*=)[^&]+", re.IGNORECASE
)


def normalize_checkpoint_url(path: str | Path) -> str:
    """Return the absolute URL (or local path) of a folder, after checking that it is writable.

    Args:
        path: A path, or an fsspec URL such as ``s3://bucket/folder``. A missing folder is made.

    Raises:
        UsageError: The URL is invalid or holds a password, or the folder cannot be reached, made or written
            to.
    """
    url = absolute(path)
    fs, folder = open_filesystem(url)
    probe = f"{folder}/.tempopt-{uuid.uuid4().hex}"
    try:
        # the check leaves no new folder behind: the study may still be refused
        with remove_new_empty_folders(Path(folder)) if is_local(url) else contextlib.nullcontext():
            if is_local(url):
                fs.makedirs(folder, exist_ok=True)
            limit: dict[str, float] = {} if is_local(url) else {"timeout": _PROBE_SECONDS}
            fs.pipe_file(probe, b"tempopt", **limit)
            fs.rm_file(probe, **limit)
    except Exception as error:
        # each file system raises its own errors
        why = f"{type(error).__name__}: {error}".removesuffix(": ")
        if isinstance(error, TimeoutError):
            why = f"no answer for {_PROBE_SECONDS:g} s"
        if is_local(url):
            # on a full disk an empty file may remain; an object exists completely or not at all
            with contextlib.suppress(OSError):
                Path(probe).unlink()
        raise UsageError(
            f"Checkpoints cannot be written to {url} ({why}). Free some space there, or allow writing; or "
            "give another folder, or a URL such as s3://bucket/folder, with --checkpoints."
        ) from error
    return url


def absolute(path: str | Path) -> str:
    """Return the absolute URL (or local path) of a folder, without access to it.

    Raises:
        UsageError: The URL is empty, holds a password, or has a protocol that is not supported.
    """
    text = str(path).strip()
    if not text:
        raise UsageError(
            "The folder for checkpoints is empty. Give a path, or a URL such as s3://bucket/folder."
        )
    masked_text = _SECRET_QUERY.sub(r"\1***", _USERINFO.sub("***@", text))
    if masked_text != text:
        raise UsageError(
            f"The URL of the checkpoints, {masked_text}, holds a password or a key, and would be stored in "
            "the study's database. Leave it out, and give it to the storage's own client, by its environment "
            "variables or files (AWS_ACCESS_KEY_ID, ~/.aws, FSSPEC_<PROTOCOL>_PASSWORD, ...)."
        )
    if is_local(text):
        text = str(absolute_path(str(local_path(text)), "The folder for checkpoints"))
    else:
        _check_object_store_protocol(text)
    return text.rstrip("/") or "/"


def is_local(url: str) -> bool:
    """Return whether a path or URL names a folder of this machine."""
    protocol, separator, _ = url.partition("://")
    return not separator or protocol in _LOCAL


def is_in_object_store(url: str) -> bool:
    """Return whether a URL names an object store that is supported for checkpoints."""
    return url.partition("://")[0] in _STORES and "::" not in url


def join(url: str, *parts: str) -> str:
    """Return the URL of a file or folder below another."""
    return "/".join([url.rstrip("/"), *parts])


def local_path(url: str) -> Path:
    """Return the path of a local URL."""
    assert is_local(url)
    return Path(url.partition("://")[2] if "://" in url else url)


def run_name(kind: Kind, number: int) -> str:
    """Return the name of a run's folder, as in ``search-0003``."""
    return f"{kind}-{number:04d}"


def belongs_to_run(url: str, *, study: str, run: str) -> bool:
    """Return whether a URL is that of a checkpoint of a study's run, by tempopt's names.

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
    """The result of deleting files.

    Args:
        freed: Bytes that were freed.
        not_removed: Reason by URL, for files that could not be deleted.
    """

    freed: int
    not_removed: dict[str, str]


def remove(urls: Iterable[str]) -> RemovalResult:
    """Delete files, continuing after errors; missing files are ignored."""
    freed = 0
    reasons: dict[str, str] = {}
    for url in urls:
        try:
            fs, path = open_filesystem(url)
            # the listing may be cached
            fs.invalidate_cache()
            size = fs.size(path) or 0
            fs.rm_file(path)
        except FileNotFoundError:
            continue
        except Exception as error:
            # each file system raises its own errors
            reasons[url] = error_reason(error)
        else:
            freed += size
    return RemovalResult(freed=freed, not_removed=reasons)


def error_reason(error: Exception) -> str:
    """Return a short reason of an error of a file or a storage."""
    return (isinstance(error, OSError) and error.strerror) or str(error) or type(error).__name__


def disk_usage(url: str) -> dict[str, int]:
    """Return the bytes of each file below a folder by URL; empty if the folder does not exist.

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
    """Return the fsspec file system of a path or URL, and the path in it, without connecting.

    Raises:
        UsageError: It is neither a path nor the URL of an object store, or a package is missing.
    """
    import fsspec

    if is_local(url):
        # not by fsspec's parser, to which "a::b" is a chain of file systems
        return fsspec.filesystem("file"), str(local_path(url).absolute())
    if url.startswith(f"{SERVED}://") and os.environ.get("TEMPOPT_SERVER"):
        from tempopt.storage.http.filesystem import ServerFileSystem

        return ServerFileSystem(), url.partition("://")[2]
    protocol = _check_object_store_protocol(url)
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


def _check_object_store_protocol(url: str) -> str:
    """Return the protocol of an object store's URL; refuse all other URLs."""
    if is_in_object_store(url):
        return url.partition("://")[0]
    allowed = ", ".join(f"{scheme}://" for scheme in (*_LOCAL, *_STORES))
    raise UsageError(
        f"{url} is not supported for checkpoints. Give a path, or a URL such as s3://bucket/folder; a URL "
        f"has to begin with one of {allowed}, and must not contain ::."
    )
