"""Files through this server: uploaded in pieces, downloaded completely or by range.

They are stored in the folder for checkpoints, or in its object store. The routes check access, and
``tempopt.server.uploads`` assembles pieces.
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
"""Maximal bytes of a checkpoint."""
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{0,18})")
_MEDIA = "application/octet-stream"

Upload = Annotated[str, Query(pattern=rf"^{UPLOAD.pattern}$")]
Bytes = Annotated[int, Query(ge=0, le=2**53)]


def check_size(size: int) -> None:
    """Refuse a checkpoint that is too large.

    Raises:
        ApiError: It is too large.
    """
    if size > LARGEST:
        text = f"A checkpoint of {size} bytes is too large: at most {LARGEST} are accepted."
        raise ApiError(413, "too_large", text)


async def read_piece(request: Request, offset: int, total: int) -> bytes:
    """Return the body of a request with a piece of a file.

    Args:
        request: The request.
        offset: Bytes of the file before the piece.
        total: Bytes of the file.

    Raises:
        ApiError: It is longer than a piece, or than the rest of the file.
    """
    max_bytes = min(PIECE, total - offset)
    content, size = bytearray(), 0
    async for chunk in request.stream():
        size += len(chunk)
        # a body that is too long is read to its end, or the client would not get the answer
        content += chunk if size <= max_bytes else b""
    if size > max_bytes:
        raise ApiError(413, "too_large", f"A piece has at most {PIECE} bytes, and ends with the file.")
    return bytes(content)


def save_chunk(
    url: str, shared: ServerState, upload: str, offset: int, total: int, content: bytes
) -> UploadProgress:
    """Store a piece of a file; the file is complete after the last piece.

    Raises:
        ApiError: Earlier pieces are missing, or the piece cannot be stored.
    """
    if is_local(url):
        return into_folder(resolve_safe_path(url, shared), upload, offset, total, content)
    return into_store(url, upload, offset, total, content)


def upload_progress(url: str, shared: ServerState, upload: str) -> UploadProgress:
    """Return the progress of an upload.

    Raises:
        ApiError: The object store cannot be reached.
    """
    return (
        upload_progress_in_folder(resolve_safe_path(url, shared), upload)
        if is_local(url)
        else upload_progress_in_store(url, upload)
    )


def file_response(url: str, shared: ServerState, range: str) -> Response | None:
    """Return the answer with the bytes of a file, or one range of them; None if it does not exist.

    Args:
        url: The file.
        shared: State of the server.
        range: The range header; empty: all bytes.

    Raises:
        ApiError: The object store cannot be reached.
    """
    if is_local(url):
        path = resolve_safe_path(url, shared)
        # FileResponse reads the range header itself
        return FileResponse(path, media_type=_MEDIA) if path.is_file() else None
    size = size_in_store(url)
    return None if size is None else _respond_from_store(url, size, range)


def _respond_from_store(url: str, size: int, range: str) -> Response:
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
    """Return the path of a file after resolving links, which has to be below the server's folder.

    Raises:
        ApiError: It is not.
    """
    if not is_local(url) or not is_local(shared.checkpoints):
        raise ApiError(
            403,
            "checkpoint_refused",
            "Checkpoints of this server are not in a folder. Request transfer instructions.",
        )
    root, path = local_path(shared.checkpoints).resolve(), local_path(url)
    if not path.parent.resolve().is_relative_to(root) or path.is_symlink():
        raise ApiError(403, "checkpoint_refused", "The checkpoint is not below the folder of this server.")
    return path
