"""Checkpoints of agents that reach this server alone: signed requests to an object store, or pieces.

An agent puts files only into the folder of a run that it holds, and gets only those that the study records.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from tempopt.errors import StudyNotFound
from tempopt.server.app_state import ServerState, get_server_state
from tempopt.server.auth import require
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.files import (
    Bytes,
    Upload,
    check_size,
    file_response,
    read_piece,
    received_bytes,
    resolve_safe_path,
    save_chunk,
)
from tempopt.server.openapi_responses import REFUSALS, error_response_doc
from tempopt.server.uploads import UPLOAD, UploadProgress, tidy
from tempopt.storage.checkpoints import belongs_to_run, is_local, join, open_filesystem, run_name
from tempopt.storage.http.filesystem import PIECE
from tempopt.storage.http.protocol import StudyName
from tempopt.storage.rows import KINDS, Kind, TicketRow

LARGEST_SIGNED = 5 * 1024**3
"""Bytes that an object store takes in one request."""
SIGNED_SECONDS = 900
# Others sign too, each in a way of its own, and not with every kind of key.
_SIGNING = ("s3", "s3a")
# No number of a run or a step is larger, and no name longer.
_RUN = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]{{4,9}}")
_FILE = re.compile(r"step-[0-9]{1,15}-[0-9]{1,9}\.ckpt")

router = APIRouter(
    prefix="/api/checkpoints",
    tags=["checkpoints"],
    responses={
        **REFUSALS,
        507: error_response_doc("The server has no room for the piece: `not_written`."),
    },
)
Asking = Annotated[Principal, Depends(require("agent"))]
Shared = Annotated[ServerState, Depends(get_server_state)]
Run = Annotated[str, Field(pattern=rf"^{_RUN.pattern}$", max_length=40, examples=["search-0012"])]
File = Annotated[str, Field(pattern=rf"^{_FILE.pattern}$", max_length=60, examples=["step-100-1.ckpt"])]


class CheckpointTarget(BaseModel):
    """A checkpoint that an agent wants to put or to get.

    Args:
        size: Its bytes; 0 to get it.
    """

    model_config = ConfigDict(extra="forbid")

    study: StudyName
    run: Run
    file: File
    size: Annotated[int, Field(ge=0, le=2**53)] = 0
    purpose: Literal["put", "get"]


class TransferInstructions(BaseModel):
    """How it is put or got.

    Args:
        url: Signed for a quarter of an hour; the request needs no token. Empty: through this server.
        piece: Bytes of a piece through this server.
        size: Bytes of the file, to get it.
    """

    url: str = ""
    piece: int
    size: int = 0


@router.post("/where", summary="Where to put or to get a checkpoint")
def get_transfer_instructions(
    body: CheckpointTarget, principal: Asking, shared: Shared
) -> TransferInstructions:
    """Return a signed request to the object store, or the size of the pieces that this server takes."""
    study, run, file = body.study, body.run, body.file
    if body.purpose == "get":
        url, size = _recorded(study, run, file, principal, shared)
        return TransferInstructions(
            url=_signed(url, "get_object") if _signs(url) else "", piece=PIECE, size=size
        )
    _check_ticket_holder(study, run, file, principal, shared)
    check_size(body.size)
    url = _checkpoint_url(study, run, file, shared)
    if not _signs(url) or body.size > LARGEST_SIGNED:
        return TransferInstructions(piece=PIECE)
    _tidy(study, run, file, principal, shared)
    return TransferInstructions(url=_signed(url, "put_object", ContentLength=body.size), piece=PIECE)


@router.put("/{study}/{run}/{file}", summary="Put a piece of a checkpoint")
async def put(
    study: str,
    run: str,
    file: str,
    request: Request,
    principal: Asking,
    shared: Shared,
    upload: Upload,
    offset: Bytes,
    total: Bytes,
) -> UploadProgress:
    """Write a piece; the file is in its place, whole, once the last one has come. A piece may come twice."""

    def may() -> str:
        _check_names(run, file)
        _check_ticket_holder(study, run, file, principal, shared)
        check_size(total)
        return _checkpoint_url(study, run, file, shared)

    def written(url: str, chunk: bytes) -> UploadProgress:
        if offset == 0:
            _tidy(study, run, file, principal, shared)
        return save_chunk(url, shared, upload, offset, total, chunk)

    url = await run_in_threadpool(may)
    chunk = await read_piece(request, offset, total)
    return await run_in_threadpool(written, url, chunk)


@router.get("/{study}/{run}/{file}/uploads/{upload}", summary="How much of a checkpoint has come")
def get_received_bytes(
    study: str, run: str, file: str, upload: str, principal: Asking, shared: Shared
) -> UploadProgress:
    """Return how many bytes of a file that is put have come; the next piece begins there."""
    _check_names(run, file)
    if UPLOAD.fullmatch(upload) is None:
        raise ApiError(403, "checkpoint_refused", "An upload has a name of 8 to 32 hexadecimal digits.")
    _check_ticket_holder(study, run, file, principal, shared)
    return received_bytes(_checkpoint_url(study, run, file, shared), shared, upload)


@router.get("/{study}/{run}/{file}", summary="Get a checkpoint", response_class=FileResponse)
def get(
    study: str,
    run: str,
    file: str,
    principal: Asking,
    shared: Shared,
    range: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Return the bytes of a checkpoint that the study records, or a range of them."""
    _check_names(run, file)
    url, _ = _recorded(study, run, file, principal, shared)
    answer = file_response(url, shared, range)
    if answer is None:
        raise ApiError(404, "checkpoint_not_found", f"The checkpoint {run}/{file} is not there any more.")
    return answer


# ---- what may be put and got


def _check_names(run: str, file: str) -> None:
    if _RUN.fullmatch(run) is None or _FILE.fullmatch(file) is None:
        raise ApiError(403, "checkpoint_refused", "This is no name of a checkpoint, as in step-100-1.ckpt.")


def _ticket(study: str, run: str, principal: Principal, shared: ServerState) -> TicketRow:
    principal.check(study)
    row = shared.store.load_study(study)
    if row.name != study:
        # to some databases "Toy" is "toy", and to folders it is not
        raise StudyNotFound(f'There is no study "{study}".')
    kind, number = _kind(run.rpartition("-")[0]), int(run.rpartition("-")[2])
    ticket = shared.store.ticket(row.id, kind, number)
    if ticket is None or run != run_name(kind, number):
        raise ApiError(404, "checkpoint_not_found", f'The study "{study}" has no run {run}.')
    return ticket


def _kind(text: str) -> Kind:
    return next(kind for kind in KINDS if kind == text)


def _check_ticket_holder(study: str, run: str, file: str, principal: Principal, shared: ServerState) -> None:
    """Refuse agents that do not hold the ticket of a run, and files of another attempt at it."""
    ticket = _ticket(study, run, principal, shared)
    if not file.endswith(f"-{ticket.attempt}.ckpt"):
        raise ApiError(
            409, "stale_attempt", f"The run {run} is at attempt {ticket.attempt}; {file} is of another one."
        )
    # no name of an agent has an "@", and names of people do
    if ticket.state != "running" or (ticket.agent or "").partition("@")[2] != principal.name:
        raise ApiError(
            403,
            "checkpoint_refused",
            f"The run {run} is not one that an agent of {principal.name} is at work on.",
        )


def _recorded(study: str, run: str, file: str, principal: Principal, shared: ServerState) -> tuple[str, int]:
    """Return where a checkpoint lies that a ticket names, and its bytes."""
    ticket = _ticket(study, run, principal, shared)
    for checkpoint in ticket.checkpoints:
        if checkpoint.url.rpartition("/")[2] == file and belongs_to_run(checkpoint.url, study=study, run=run):
            return checkpoint.url, checkpoint.size
    raise ApiError(404, "checkpoint_not_found", f'The study "{study}" records no checkpoint {run}/{file}.')


def _tidy(study: str, run: str, file: str, principal: Principal, shared: ServerState) -> None:
    """Make room for a checkpoint among what is not recorded."""

    def recorded() -> set[str]:
        checkpoints = _ticket(study, run, principal, shared).checkpoints
        return {checkpoint.url.rpartition("/")[2] for checkpoint in checkpoints}

    url = _checkpoint_url(study, run, file, shared)
    if is_local(url):
        resolve_safe_path(url, shared)
    tidy(url.rpartition("/")[0], file, recorded)


def _checkpoint_url(study: str, run: str, file: str, shared: ServerState) -> str:
    return join(shared.checkpoints, study, run, file)


def _signs(url: str) -> bool:
    """Return whether requests to the object store of a URL can be signed."""
    return url.partition("://")[0] in _SIGNING


def _signed(url: str, method: str, **bound: Any) -> str:
    """Return the URL of a signed request, which is valid for what is bound alone."""
    fs, path = open_filesystem(url)
    # the older signature, which some regions get unless this is said, binds nothing, and others refuse it
    options = fs.storage_options
    config = {**options.get("config_kwargs", {}), "signature_version": "s3v4"}
    signer: Any = type(fs)(**{**options, "config_kwargs": config})
    signed_url: str = signer.url(path, expires=SIGNED_SECONDS, client_method=method, **bound)
    return signed_url
