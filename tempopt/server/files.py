"""Files that go through this server: taken in by the piece, given out whole or by the range.

They lie below the folder of its checkpoints, or in their object store. Who may send or get which is decided
by the routes; how pieces are put together by ``tempopt.server.uploads``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from fastapi import Query, Request
from fastapi.responses import FileResponse, Response, StreamingResponse

from tempopt.server.app_state import ServerState
from tempopt.server.errors import ApiError
from tempopt.server.uploads import (
    UPLOAD,
    UploadProgress,
    into_folder,
    into_store,
    out_of_store,
    size_in_store,
    upload_progress_in_folder,
    upload_progress_in_store,
)
from tempopt.storage.checkpoints import is_local, local_path
from tempopt.storage.http.filesystem import PIECE

LARGEST = 64 * 1024**3
"""Bytes of a checkpoint."""
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_MEDIA = "application/octet-stream"

Upload = Annotated[str, Query(pattern=rf"^{UPLOAD.pattern}$")]
Bytes = Annotated[int, Query(ge=0, le=2**53)]


def check_size(size: int) -> None:
    """Refuse a checkpoint that is larger than one may be.

    Raises:
        ApiError: It is.
    """
    if size > LARGEST:
        text = f"A checkpoint of {size} bytes is too large: at most {LARGEST} are taken here."
        raise ApiError(413, "too_large", text)


async def read_piece(request: Request, offset: int, total: int) -> bytes:
    """Return the body of a request that has a piece of a file.

    Args:
        request: The request.
        offset: Bytes of the file before the piece.
        total: Bytes of the file.

    Raises:
        ApiError: It is longer than a piece, or than what is left of the file.
    """
    max_bytes = min(PIECE, total - offset)
    content, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        # what is too long is read to its end, or the client would not hear the answer
        content += chunk if size <= max_bytes else b""
    if size > max_bytes:
        raise ApiError(413, "too_large", f"A piece has at most {PIECE} bytes, and ends with the file.")
    return bytes(content)


def save_chunk(
    url: str, shared: ServerState, upload: str, offset: int, total: int, content: bytes
) -> UploadProgress:
    """Keep a piece of a file; the file is in its place, whole, once the last one has come.

    Raises:
        ApiError: Pieces before it are missing, or it cannot be kept.
    """
    if is_local(url):
        return into_folder(resolve_safe_path(url, shared), upload, offset, total, content)
    return into_store(url, upload, offset, total, content)


def upload_progress(url: str, shared: ServerState, upload: str) -> UploadProgress:
    """Return how much of a file has come.

    Raises:
        ApiError: The object store cannot be reached.
    """
    return (
        upload_progress_in_folder(resolve_safe_path(url, shared), upload)
        if is_local(url)
        else upload_progress_in_store(url, upload)
    )


def file_response(url: str, shared: ServerState, range: str) -> Response | None:
    """Return the answer that has the bytes of a file, or one range of them; None: it is not there.

    Args:
        url: The file.
        shared: The server.
        range: The header of that name; empty: all of them.

    Raises:
        ApiError: The object store cannot be reached.
    """
    if is_local(url):
        path = resolve_safe_path(url, shared)
        # it reads the header itself
        return FileResponse(path, media_type=_MEDIA) if path.is_file() else None
    size = size_in_store(url)
    return None if size is None else _of_store(url, size, range)


def _of_store(url: str, size: int, range: str) -> Response:
    match = _RANGE.fullmatch(range)
    begin, end = (0, size) if match is None else (int(match[1]), min(int(match[2] or size) + 1, size))
    headers = {"content-length": f"{end - begin}", "accept-ranges": "bytes"}
    part = match is not None and begin < end
    if part:
        headers["content-range"] = f"bytes {begin}-{end - 1}/{size}"
    else:
        begin, end, headers["content-length"] = 0, size, f"{size}"
    return StreamingResponse(
        out_of_store(url, begin, end),
        status_code=206 if part else 200,
        headers=headers,
        media_type=_MEDIA,
    )


def resolve_safe_path(url: str, shared: ServerState) -> Path:
    """Return the path of a file, which is below the folder of the server whatever links lie there.

    Raises:
        ApiError: It is not.
    """
    if not is_local(url) or not is_local(shared.checkpoints):
        raise ApiError(403, "checkpoint_refused", "Checkpoints of this server are in no folder. Ask where.")
    root, path = local_path(shared.checkpoints).resolve(), local_path(url)
    if not path.parent.resolve().is_relative_to(root) or path.is_symlink():
        raise ApiError(403, "checkpoint_refused", "The checkpoint is not below the folder of this server.")
    return path
