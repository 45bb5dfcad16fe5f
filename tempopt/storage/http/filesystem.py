"""Checkpoints of agents that reach a server alone: ``tempopt://study/run/file``, put and got through it.

The server and the token are those of the process, never those of a URL: a row of a database cannot say whom a
token is shown to. Bytes go straight to an object store where the server signs requests for it, and in pieces
through the server where it keeps a folder.
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
"""Environment variable by which workers know the server that keeps their checkpoints."""
_PATIENCE_SECONDS = 120.0
# A server that has all pieces of a large file may have to write it to an object store yet.
_JOINED_SECONDS = 3600.0
_JOINED_PAUSE_SECONDS = 1.0
_MOST_BACK = 8
_CHUNK = 1024 * 1024
PIECE = 4 * 1024 * 1024
"""Bytes of a piece: small enough to come in time over a slow line."""
# a signed request goes to an object store, which answers once it has all
_SIGNED_SECONDS = (60.0, 600.0, 600.0, 60.0)
# not the global generator: waiting must not move anybody's random numbers
_JITTER = random.SystemRandom()


class ServerFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The checkpoints behind a server.

    Args:
        url: Of the server; None: that of this process.

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
                f"Checkpoints under {PROTOCOL}:// are behind a server, and {SERVER} does not say which."
            )

    def _connect(self) -> closing[ServerConnection]:
        return closing(ServerConnection(self._url, lambda: token_for(self._url)))

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix(f"{PROTOCOL}://").strip("/")

    def put_file(self, lpath: str, rpath: str, *args: Any, **options: Any) -> None:
        """Put a file of this machine in its place, whole or not at all.

        Raises:
            OSError: The server could not be reached for two minutes, or refuses it.
        """
        path = self._strip_protocol(rpath)
        source = Path(lpath)
        size = source.stat().st_size
        with self._connect() as server:
            where = _where(server, "put", path, size)
            if not where["url"]:
                self._put_pieces(server, f"/api/checkpoints/{path}", source, int(where["piece"]))
                return
            urls = _urls(where, lambda: _where(server, "put", path, size))
            _retry_while_unreachable(lambda: _put_signed(next(urls), source, size), self._url)

    def _put_pieces(self, server: ServerConnection, path: str, file: Path, piece: int) -> None:
        """Put a file in its place through the server, whole or not at all.

        Args:
            server: A connection to the server.
            path: Path of its REST under which pieces are taken.
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
                    # another server, or one whose folder was cleared, has less of it than was sent
                    num_restarts += 1
                    if num_restarts > _MOST_BACK:
                        raise OSError(f"The server {self._url} loses pieces of {path.rpartition('/')[2]}.")
                    query = partial(_request_json, server, "GET", f"{path}/uploads/{upload}")
                    offset = min(int(_retry_while_unreachable(query, self._url)["bytes"]), offset)
                    continue
                offset += len(chunk)
                if answer["is_complete"]:
                    return
                if offset >= size:
                    deadline = deadline or time.monotonic() + _JOINED_SECONDS
                    if time.monotonic() > deadline:
                        raise OSError(f"The server {self._url} does not bring the file to its object store.")
                    time.sleep(_JOINED_PAUSE_SECONDS)

    def get_file(self, rpath: str, lpath: str, *args: Any, **options: Any) -> None:
        """Fetch a file; what is broken off goes on where it was.

        Raises:
            FileNotFoundError: It is not there.
            OSError: The server could not be reached for two minutes, or refuses it.
        """
        path = self._strip_protocol(rpath)
        with self._connect() as server:
            where = _where(server, "get", path)
            with Path(lpath).open("wb") as target:
                if not where["url"]:
                    url = f"/api/checkpoints/{path}"
                    _retry_while_unreachable(lambda: _fetch(server.client, url, target), self._url)
                    return
                urls = _urls(where, lambda: _where(server, "get", path))
                with httpx.Client(timeout=httpx.Timeout(_SIGNED_SECONDS)) as client:
                    _retry_while_unreachable(lambda: _fetch(client, next(urls), target), self._url)

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        """Return name and size of a file."""
        with self._connect() as server:
            where = _where(server, "get", self._strip_protocol(path))
        return {"name": path, "size": where["size"], "type": "file"}

    def rm_file(self, path: str) -> None:
        """Refuse: the server deletes what no run needs any more."""
        raise PermissionError(f"{path} is deleted by the server, once no run needs it.")

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        """Refuse: what others keep is not listed."""
        raise PermissionError("Checkpoints behind a server are not listed.")


class _AgainError(Exception):
    """The server or the object store cannot do it just now."""


def _where(server: ServerConnection, purpose: str, path: str, size: int = 0) -> dict[str, Any]:
    parts = path.rsplit("/", 2)
    if len(parts) != 3:
        raise FileNotFoundError(f"{PROTOCOL}://{path} names no study, run and file.")
    body = {**dict(zip(("study", "run", "file"), parts, strict=True)), "size": size, "purpose": purpose}
    answer: dict[str, Any] = _retry_while_unreachable(
        lambda: _request_json(server, "POST", "/api/checkpoints/where", json=body), server.url
    )
    return answer


def _urls(where: dict[str, Any], ask: Callable[[], dict[str, Any]]) -> Iterator[str]:
    """Yield signed URLs: each request has one of its own, which is valid long enough."""
    while True:
        yield str(where["url"])
        where = ask()


def _request_json(server: ServerConnection, method: str, path: str, **kwargs: Any) -> Any:
    """Return the JSON data of an answer; None if pieces of a file are missing."""
    answer = server.client.request(method, path, **kwargs)
    if answer.is_success:
        return answer.json()
    error = error_from_response(server.url, answer)
    if answer.status_code == httpx.codes.CONFLICT and _code(answer) == "piece_missing":
        return None
    raise _AgainError(str(error)) if _may_pass(answer) else error


def _code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return ""


def _may_pass(answer: httpx.Response) -> bool:
    """Return whether an answer tells of what may be over in a moment; a full disk is not."""
    status = answer.status_code
    return status in (408, 429) or (status >= 500 and status not in (501, 507))


def _retry_while_unreachable(work: Callable[[], T], server: str) -> T:
    """Return what the work returns, done anew while the server or the object store cannot be reached."""
    deadline, pause = 0.0, 0.25
    while True:
        try:
            return work()
        except (CheckpointNotFound, StudyNotFound) as error:
            raise FileNotFoundError(str(error)) from error
        except (_AgainError, httpx.TransportError) as error:
            # counted from the first time on: a large file may have been on its way for longer
            deadline = deadline or time.monotonic() + _PATIENCE_SECONDS
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
            while chunk := file.read(_CHUNK):
                yield chunk

    headers = {"content-length": str(size)}
    with httpx.Client(timeout=httpx.Timeout(_SIGNED_SECONDS)) as client:
        answer = client.put(url, content=chunks(), headers=headers)
    _raise_for_status(answer)


def _fetch(client: httpx.Client, url: str, target: BinaryIO) -> None:
    """Write what lies under a URL into a file, from the byte on that it has up to now."""
    offset = target.tell()
    headers = {"range": f"bytes={offset}-"} if offset else {}
    with client.stream("GET", url, headers=headers) as answer:
        if offset and answer.status_code in (httpx.codes.OK, httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE):
            # all of it comes, or has come, perhaps of another file than before
            target.seek(0)
            target.truncate()
        if not answer.is_success:
            answer.read()
        _raise_for_status(answer)
        for chunk in answer.iter_bytes(_CHUNK):
            target.write(chunk)


def _raise_for_status(answer: httpx.Response) -> None:
    """Raise the error of an answer that is no success."""
    if answer.is_success:
        return
    if answer.status_code == httpx.codes.NOT_FOUND:
        raise FileNotFoundError("It is not there.")
    text = f"status {answer.status_code}"
    if _may_pass(answer) or answer.status_code == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE:
        raise _AgainError(text)
    raise OSError(f"{answer.request.url.host} refuses it ({text}).")
