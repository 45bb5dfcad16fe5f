"""Checkpoints behind a server, ``tempopt://study/run/file``, for agents without access to the storage.

The server and the token are those of the process, never those of a URL: a row of a database must not decide
to which host a token is sent. If the server has an object store, it signs URLs with which the bytes are
transferred directly; if it has a folder, they are sent in pieces through the server.
"""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from fsspec import AbstractFileSystem

from tempopt.errors import CheckpointNotFound, StudyNotFound, TempoptError, UsageError
from tempopt.storage.http.connection import ServerConnection, error_from_response
from tempopt.storage.http.credentials import token_for
from tempopt.storage.http.lazy_httpx import httpx

T = TypeVar("T")
PROTOCOL = "tempopt"
SERVER = "TEMPOPT_SERVER"
"""Environment variable with the URL of the server that stores the workers' checkpoints."""
_MAX_OUTAGE_SECONDS = 120.0
# After the last piece of a large file, the server may still have to write it to an object store.
_MAX_ASSEMBLY_SECONDS = 3600.0
_ASSEMBLY_POLL_SECONDS = 1.0
_MAX_RESTARTS = 8
_CHUNK_BYTES = 1024 * 1024
PIECE = 4 * 1024 * 1024
"""Bytes of a piece: small enough for the timeout on a slow connection."""
# an object store answers a signed request once it has received all bytes
_SIGNED_SECONDS = (60.0, 600.0, 600.0, 60.0)
# not the global generator: waiting must not change the user's random numbers
_JITTER = random.SystemRandom()


class ServerFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The checkpoints behind a server.

    Args:
        url: URL of the server; None: that of this process.

    Raises:
        UsageError: There is no URL, and TEMPOPT_SERVER is not set.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, url: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        self._url = url or os.environ.get(SERVER, "")
        if not self._url:
            raise UsageError(
                f"Checkpoints under {PROTOCOL}:// are behind a server, but {SERVER} is not set to its URL."
            )

    def _connect(self) -> closing[ServerConnection]:
        return closing(ServerConnection(self._url, lambda: token_for(self._url)))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix(f"{PROTOCOL}://").strip("/")

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> None:
        """Upload a local file, completely or not at all.

        Raises:
            OSError: The server could not be reached for two minutes, or refuses it.
        """
        path = self._strip_protocol(rpath)
        source = Path(lpath)
        size = source.stat().st_size
        with self._connect() as server:
            location = _locate(server, "put", path, size)
            if not location["url"]:
                self._put_pieces(server, f"/api/checkpoints/{path}", source, int(location["piece"]))
                return
            urls = _iter_signed_urls(location, lambda: _locate(server, "put", path, size))
            _retry_while_unreachable(lambda: _put_signed(next(urls), source, size), self._url)

    def _put_pieces(self, server: ServerConnection, path: str, file: Path, piece: int) -> None:
        """Upload a file in pieces through the server, completely or not at all.

        Args:
            server: A connection to the server.
            path: Path of the REST resource that receives the pieces.
            file: The file.
            piece: Bytes of a piece.

        Raises:
            OSError: The server could not be reached for two minutes, or refuses it.
        """
        upload, size, offset = secrets.token_hex(8), file.stat().st_size, 0
        num_restarts, deadline = 0, 0.0
        with file.open("rb") as source:
            while True:
                source.seek(offset)
                chunk = source.read(piece)
                params = {"upload": upload, "offset": offset, "total": size}
                answer: dict[str, Any] | None = _retry_while_unreachable(
                    partial(_request_json, server, "PUT", path, params=params, content=chunk), self._url
                )
                if answer is None:
                    # a restarted server, or one whose folder was cleared, has fewer bytes than were sent
                    num_restarts += 1
                    if num_restarts > _MAX_RESTARTS:
                        raise OSError(
                            f"The server {self._url} keeps losing pieces of {path.rpartition('/')[2]}."
                        )
                    query = partial(_request_json, server, "GET", f"{path}/uploads/{upload}")
                    offset = min(int(_retry_while_unreachable(query, self._url)["bytes"]), offset)
                    continue
                offset += len(chunk)
                if answer["is_complete"]:
                    return
                if offset >= size:
                    deadline = deadline or time.monotonic() + _MAX_ASSEMBLY_SECONDS
                    if time.monotonic() > deadline:
                        raise OSError(f"The server {self._url} does not finish writing to its object store.")
                    time.sleep(_ASSEMBLY_POLL_SECONDS)

    def get_file(self, rpath: str, lpath: str, *args: Any, **options: Any) -> None:
        """Download a file; an interrupted download is continued.

        Raises:
            FileNotFoundError: The file does not exist.
            OSError: The server could not be reached for two minutes, or refuses it.
        """
        path = self._strip_protocol(rpath)
        with self._connect() as server:
            location = _locate(server, "get", path)
            with Path(lpath).open("wb") as target:
                if not location["url"]:
                    url = f"/api/checkpoints/{path}"
                    _retry_while_unreachable(lambda: _fetch(server.client, url, target), self._url)
                    return
                urls = _iter_signed_urls(location, lambda: _locate(server, "get", path))
                with httpx.Client(timeout=httpx.Timeout(_SIGNED_SECONDS)) as client:
                    _retry_while_unreachable(lambda: _fetch(client, next(urls), target), self._url)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return name and size of a file."""
        with self._connect() as server:
            location = _locate(server, "get", self._strip_protocol(path))
        return {"name": path, "size": location["size"], "type": "file"}

    def rm_file(self, path: str) -> None:
        """Raise PermissionError: the server deletes checkpoints that no run needs."""
        raise PermissionError(f"{path} is deleted by the server, once no run needs it.")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Raise PermissionError: files of other users are not listed."""
        raise PermissionError("Checkpoints behind a server are not listed.")


class _RetryableError(Exception):
    """The server or the object store cannot serve the request now."""


def _locate(server: ServerConnection, purpose: str, path: str, size: int = 0) -> dict[str, Any]:
    parts = path.rsplit("/", 2)
    if len(parts) != 3:
        raise FileNotFoundError(f"{PROTOCOL}://{path} does not name a study, a run and a file.")
    body = {**dict(zip(("study", "run", "file"), parts, strict=True)), "size": size, "purpose": purpose}
    answer: dict[str, Any] = _retry_while_unreachable(
        lambda: _request_json(server, "POST", "/api/checkpoints/where", json=body), server.url
    )
    return answer


def _iter_signed_urls(location: dict[str, Any], ask: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Yield a signed URL for each attempt, since it is valid only for some time."""
    while True:
        yield str(location["url"])
        location = ask()


def _request_json(server: ServerConnection, method: str, path: str, **kwargs: Any) -> Any:
    """Return the JSON data of an answer; None if pieces of a file are missing."""
    answer = server.client.request(method, path, **kwargs)
    if answer.is_success:
        return answer.json()
    error = error_from_response(server.url, answer)
    if answer.status_code == httpx.codes.CONFLICT and _read_error_code(answer) == "piece_missing":
        return None
    raise _RetryableError(str(error)) if _is_retryable(answer) else error


def _read_error_code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _is_retryable(answer: httpx.Response) -> bool:
    """Return whether a request may succeed when it is repeated; not on a full disk."""
    status = answer.status_code
    return status in (408, 429) or (status >= 500 and status not in (501, 507))


def _retry_while_unreachable(work: Callable[[], T], server: str) -> T:
    """Call a function until the server and the object store can be reached, and return its result."""
    deadline, pause = 0.0, 0.25
    while True:
        try:
            return work()
        except (CheckpointNotFound, StudyNotFound) as error:
            raise FileNotFoundError(str(error)) from error
        except (_RetryableError, httpx.TransportError) as error:
            # counted from the first failure: the transfer of a large file may have taken longer
            deadline = deadline or time.monotonic() + _MAX_OUTAGE_SECONDS
            if time.monotonic() >= deadline:
                why = str(error) or type(error).__name__
                raise OSError(
                    f"The server {server} cannot be reached, or its object store ({why})."
                ) from error
        except (TempoptError, httpx.InvalidURL) as error:
            raise OSError(str(error)) from error
        time.sleep(pause * _JITTER.uniform(0.5, 1.0))
        pause = min(2 * pause, 10.0)


def _put_signed(url: str, path: Path, size: int) -> None:
    def chunks() -> Iterator[bytes]:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                yield chunk

    headers = {"content-length": str(size)}
    with httpx.Client(timeout=httpx.Timeout(_SIGNED_SECONDS)) as client:
        answer = client.put(url, content=chunks(), headers=headers)
    _raise_for_status(answer)


def _fetch(client: httpx.Client, url: str, target: BinaryIO) -> None:
    """Download a URL into a file, from the byte after the last one that the file has."""
    offset = target.tell()
    headers = {"range": f"bytes={offset}-"} if offset else {}
    with client.stream("GET", url, headers=headers) as answer:
        if offset and answer.status_code in (httpx.codes.OK, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):
            # the answer has the whole file, or the file has changed: start again
            target.seek(0)
            target.truncate()
        if not answer.is_success:
            answer.read()
        _raise_for_status(answer)
        for chunk in answer.iter_bytes(_CHUNK_BYTES):
            target.write(chunk)


def _raise_for_status(answer: httpx.Response) -> None:
    """Raise an error if the answer is not a success."""
    if answer.is_success:
        return
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise FileNotFoundError("The file does not exist.")
    text = f"status {answer.status_code}"
    if _is_retryable(answer) or answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise _RetryableError(text)
    raise OSError(f"{answer.request.url.host} refuses it ({text}).")
