"""Uploads in pieces: assembled in a folder, or in an object store that cannot sign the request.

No state of an upload is kept in memory, so that a server may be restarted, and several servers may receive
pieces of one file. A few unfinished uploads, and files that are not recorded, are not deleted.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tempopt.errors import mask_secrets
from tempopt.server.errors import ApiError
from tempopt.storage.checkpoints import error_reason, open_filesystem

LOGGER = logging.getLogger("tempopt.server")
UPLOAD = re.compile(r"[0-9a-f]{8,32}")
"""Pattern of the names that a client gives its uploads."""
MOST_KEPT = 4
"""Number of unfinished uploads, and of files that are not recorded, that are kept per run."""
_FILE = re.compile(r"step-([0-9]+)-([0-9]+)\.ckpt")
_PART = re.compile(rf"step-[0-9]+-[0-9]+\.ckpt\.({UPLOAD.pattern})(?:\.([0-9]+))?\.writing")
_CHUNK_BYTES = 4 * 1024 * 1024
LARGEST_UNFINISHED = 256 * 1024**3
"""Maximal bytes of the unfinished uploads of one token."""
EXPIRY_SECONDS = 24 * 3600.0
"""Seconds after its last piece at which an unfinished upload is deleted, and counts no longer."""
# Shorter than the client's timeout for an answer.
_JOIN_SECONDS = 20.0
# A request holds one of few threads while it waits for the object store, whose client tries for minutes.
_STORE_SECONDS = 10.0


class UploadProgress(BaseModel):
    """Progress of an upload.

    Args:
        bytes: Number of bytes that have arrived.
        is_complete: Whether the file is assembled. All bytes may have arrived before it is: ask again.
    """

    bytes: int
    is_complete: bool


# ---- in a folder


def into_folder(target: Path, upload: str, offset: int, total: int, content: bytes) -> UploadProgress:
    """Write a piece of a file; assemble the file after the last piece.

    Raises:
        ApiError: Earlier pieces are missing, or the piece cannot be written.
    """
    part = _part(target, upload)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # the same access rights as a file that a worker on this machine writes
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if offset > size:
                return _refuse_missing_pieces(target, part, size, total)
            os.pwrite(descriptor, content, offset)
            size = max(size, offset + len(content))
            if size < total:
                return UploadProgress(bytes=size, is_complete=False)
            os.ftruncate(descriptor, total)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        part.replace(target)
        _sync(target.parent)
    except FileNotFoundError as error:
        # another request has assembled the file, or removed old uploads
        if _exists(target, total):
            return UploadProgress(bytes=total, is_complete=True)
        raise _build_missing_error(0) from error
    except OSError as error:
        raise _build_write_error(error) from error
    return UploadProgress(bytes=total, is_complete=True)


def _refuse_missing_pieces(target: Path, part: Path, size: int, total: int) -> UploadProgress:
    if size == 0:
        part.unlink(missing_ok=True)
        if _exists(target, total):
            # the answer to the last piece was lost, and the file is complete
            return UploadProgress(bytes=total, is_complete=True)
    raise _build_missing_error(size)


def upload_progress_in_folder(target: Path, upload: str) -> UploadProgress:
    """Return the progress of an upload."""
    with contextlib.suppress(FileNotFoundError):
        return UploadProgress(bytes=_part(target, upload).lstat().st_size, is_complete=False)
    is_complete = target.is_file()
    return UploadProgress(bytes=target.stat().st_size if is_complete else 0, is_complete=is_complete)


def _part(target: Path, upload: str) -> Path:
    return target.with_name(f"{target.name}.{upload}.writing")


def _exists(target: Path, total: int) -> bool:
    return target.is_file() and target.stat().st_size == total


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---- in an object store


def into_store(url: str, upload: str, offset: int, total: int, content: bytes) -> UploadProgress:
    """Store a piece of a file as an object; assemble the file after the last piece.

    Raises:
        ApiError: Earlier pieces are missing, or the object store cannot be reached.
    """
    with _open_object_store(url) as (fs, path):
        if len(content) == total:
            fs.pipe_file(path, content)
            return UploadProgress(bytes=total, is_complete=True)
        if content:
            fs.pipe_file(f"{path}.{upload}.{offset}.writing", content)
        if offset + len(content) < total:
            return UploadProgress(bytes=offset + len(content), is_complete=False)
        pieces, size = _list_pieces(fs, path, upload)
        if size < total:
            if fs.exists(path) and fs.size(path) == total:
                return UploadProgress(bytes=total, is_complete=True)
            raise _build_missing_error(size)
        return UploadProgress(
            bytes=total, is_complete=_JOINS.done(f"{url}.{upload}", lambda: _join(fs, path, pieces))
        )


def upload_progress_in_store(url: str, upload: str) -> UploadProgress:
    """Return the progress of an upload.

    Raises:
        ApiError: The object store cannot be reached.
    """
    with _open_object_store(url) as (fs, path):
        pieces, size = _list_pieces(fs, path, upload)
        if not pieces and fs.exists(path):
            return UploadProgress(bytes=fs.size(path), is_complete=True)
        return UploadProgress(bytes=size, is_complete=False)


def _list_pieces(fs: Any, path: str, upload: str) -> tuple[list[str], int]:
    """Return the contiguous pieces from the first on, and their total bytes."""
    fs.invalidate_cache()
    sizes: dict[int, tuple[str, int]] = {}
    for name, info in fs.find(path.rpartition("/")[0], detail=True).items():
        match = _PART.fullmatch(name.rpartition("/")[2])
        if match and match[1] == upload and match[2] and name == f"{path}.{upload}.{match[2]}.writing":
            sizes[int(match[2])] = (name, int(info["size"] or 0))
    pieces: list[str] = []
    size = 0
    while size in sizes and sizes[size][1]:
        name, piece_size = sizes[size]
        pieces.append(name)
        size += piece_size
    return pieces, size


def _join(fs: Any, path: str, pieces: list[str]) -> None:
    """Write a file from its pieces, completely or not at all, and delete the pieces."""
    file = fs.open(path, "wb")
    try:
        for piece in pieces:
            file.write(fs.cat_file(piece))
    except BaseException:
        # closing it would store an incomplete file
        file.discard()
        file.closed = True
        raise
    file.close()
    for piece in pieces:
        fs.rm_file(piece)


class _Joins:
    """Files that are being assembled, each in a thread, since a large one takes longer than a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: dict[str, Future[None]] = {}

    def done(self, upload: str, work: Callable[[], None]) -> bool:
        """Return whether a file is assembled; start assembling it if that has not begun.

        Args:
            upload: Key of the file and its pieces.
            work: Assembles the file.

        Raises:
            Exception: The error of the work.
        """
        with self._lock:
            running = self._running.get(upload)
            if running is None:
                running = self._running[upload] = Future()
                # a daemon: a server that shuts down does not wait, and the agent repeats its request
                threading.Thread(target=_carry_out, args=(work, running), daemon=True).start()
        if not wait([running], _JOIN_SECONDS).done:
            return False
        with self._lock:
            if self._running.get(upload) is running:
                del self._running[upload]
        running.result()
        return True


def _carry_out(work: Callable[[], None], future: Future[None]) -> None:
    try:
        work()
    except Exception as error:
        # each store raises its own errors
        future.set_exception(error)
    else:
        future.set_result(None)


_JOINS = _Joins()


def out_of_store(url: str, begin: int, end: int) -> Iterator[bytes]:
    """Yield the bytes of an object between two positions, in chunks."""
    fs, path = open_filesystem(url)
    for position in range(begin, end, _CHUNK_BYTES):
        yield fs.cat_file(path, start=position, end=min(position + _CHUNK_BYTES, end))


def size_in_store(url: str) -> int | None:
    """Return the number of bytes of an object, None if it does not exist.

    Raises:
        ApiError: The object store cannot be reached.
    """
    with _open_object_store(url) as (fs, path):
        fs.invalidate_cache()
        try:
            return int(fs.size(path, timeout=_STORE_SECONDS) or 0)
        except FileNotFoundError:
            return None


@contextmanager
def _open_object_store(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system of a URL and the path in it; its errors become an ``ApiError``."""
    try:
        yield open_filesystem(url)
    except ApiError:
        raise
    except PermissionError as error:
        raise _build_write_error(error) from error
    except Exception as error:
        # each store raises its own errors
        LOGGER.warning("%s: %s", url, mask_secrets(error_reason(error)))
        raise ApiError(
            503, "checkpoints_away", "The object store of this server cannot be reached now. Try again."
        ) from error


# ---- unfinished uploads


class UploadQuota:
    """The announced sizes of each token's unfinished uploads to this server; threads may share it.

    Args:
        clock: A monotonic clock, in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._uploads: dict[tuple[str, str], tuple[int, float]] = {}
        self._expired_at: dict[str, float] = {}

    def count(self, token: str, upload: str, size: int) -> None:
        """Count an upload that has got a piece.

        Args:
            token: Name of the token.
            upload: URL and name of the upload.
            size: Bytes of the whole file.

        Raises:
            ApiError: The token has too many bytes of unfinished uploads.
        """
        with self._lock:
            now = self._clock()
            self._uploads = {
                key: entry for key, entry in self._uploads.items() if now - entry[1] < EXPIRY_SECONDS
            }
            total = sum(
                entry[0] for key, entry in self._uploads.items() if key[0] == token and key[1] != upload
            )
            if total + size > LARGEST_UNFINISHED:
                raise ApiError(
                    413,
                    "too_large",
                    f"Unfinished uploads of {token} have {total} bytes: with {size} more they exceed "
                    f"{LARGEST_UNFINISHED}. Finish them first; each expires a day after its last piece.",
                )
            self._uploads[token, upload] = (size, now)

    def forget(self, token: str, upload: str) -> None:
        """Forget an upload that is complete."""
        with self._lock:
            self._uploads.pop((token, upload), None)

    def is_time_to_expire(self, folder: str) -> bool:
        """Return whether the expired uploads of a study's folder are to be deleted: once an hour."""
        with self._lock:
            now = self._clock()
            self._expired_at = {key: at for key, at in self._expired_at.items() if now - at < 3600.0}
            return self._expired_at.setdefault(folder, now) == now


def delete_expired(folder: str) -> None:
    """Delete the pieces of a study's uploads that got none for :data:`EXPIRY_SECONDS`."""
    try:
        fs, path = open_filesystem(folder)
        fs.invalidate_cache()
        names_by_upload: dict[str, list[str]] = {}
        for name in fs.find(path, timeout=_STORE_SECONDS):
            if match := _PART.fullmatch(name.rpartition("/")[2]):
                names_by_upload.setdefault(f"{name.rpartition('/')[0]} {match[1]}", []).append(name)
        latest = datetime.now(UTC).timestamp() - EXPIRY_SECONDS
        for names in names_by_upload.values():
            if max(fs.modified(name).timestamp() for name in names) < latest:
                fs.rm(names)
    except Exception as error:
        # each store raises its own errors, and another server may delete the same pieces
        LOGGER.warning("%s: no uploads deleted: %s", folder, mask_secrets(error_reason(error)))


def tidy(folder: str, but: str, list_recorded: Callable[[], Collection[str]]) -> None:
    """Remove all but the newest unfinished uploads and unrecorded files from a run's folder.

    Args:
        folder: URL of the run's folder.
        but: Name of the file that is being uploaded.
        list_recorded: Returns the names of the recorded files; called after the folder has been listed, so
            that recently recorded files are not removed.
    """
    try:
        fs, path = open_filesystem(folder)
        fs.invalidate_cache()
        names = [
            file_path.rpartition("/")[2] for file_path in fs.ls(path, detail=False, timeout=_STORE_SECONDS)
        ]
    except FileNotFoundError:
        return
    except Exception as error:
        LOGGER.warning("%s: not tidied: %s", folder, mask_secrets(error_reason(error)))
        return
    needless_names = _list_oldest_uploads(names, but) + _list_oldest_files(names, but, list_recorded)
    for name in needless_names:
        with contextlib.suppress(Exception):
            # another process may have deleted it
            fs.rm_file(f"{path}/{name}")


def _sort_key(name: str) -> tuple[int, int]:
    match = _FILE.match(name)
    assert match is not None
    return int(match[2]), int(match[1])


def _list_oldest_files(names: list[str], but: str, list_recorded: Callable[[], Collection[str]]) -> list[str]:
    files = sorted((file for file in names if _FILE.fullmatch(file)), key=_sort_key)
    if len(files) <= MOST_KEPT:
        return []
    needed_names = {but, *list_recorded()}
    return [file for file in files if file not in needed_names][:-MOST_KEPT]


def _list_oldest_uploads(names: list[str], but: str) -> list[str]:
    """Return pieces of all but a few uploads, those of other files than the current one first."""
    uploads: dict[tuple[bool, tuple[int, int], str], list[str]] = {}
    for name in names:
        if match := _PART.fullmatch(name):
            key = (name.startswith(f"{but}."), _sort_key(name), match[1])
            uploads.setdefault(key, []).append(name)
    return [name for key in sorted(uploads)[: -(MOST_KEPT - 1)] for name in uploads[key]]


def _build_missing_error(size: int) -> ApiError:
    return ApiError(409, "piece_missing", f"The pieces before byte {size} have arrived. Continue there.")


def _build_write_error(error: OSError) -> ApiError:
    return ApiError(507, "not_written", f"The piece cannot be written: {error.strerror or error}.")
