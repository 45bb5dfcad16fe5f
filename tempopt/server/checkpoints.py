"""Checkpoints for agents without access to the storage: signed requests to an object store, or pieces.

An agent can upload files only for a run that it holds, and download only checkpoints recorded in the study.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Header, Request
from fastapi.responses import FileResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from tempopt.errors import StudyNotFound
from tempopt.server.app_state import ServerState
from tempopt.server.auth import require
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.files import (
    Bytes,
    Upload,
    check_size,
    file_response,
    read_piece,
    resolve_safe_path,
    save_chunk,
    upload_progress,
)
from tempopt.server.openapi_responses import REFUSALS, error_response_doc
from tempopt.server.study_dependencies import Shared
from tempopt.server.uploads import UPLOAD, UploadProgress, delete_expired, tidy
from tempopt.storage.checkpoints import belongs_to_run, is_local, join, open_filesystem, run_name
from tempopt.storage.http.filesystem import PIECE
from tempopt.storage.http.protocol import StudyName
from tempopt.storage.rows import KINDS, Checkpoint, TicketRow

LARGEST_SIGNED = 5 * 1024**3
"""Maximal bytes of one upload to an object store."""
SIGNED_SECONDS = 900
# Other stores sign in different ways, and not with every kind of key.
_SIGNING_PROTOCOLS = ("s3", "s3a")
# These limits exclude larger numbers of runs and steps, and longer names.
_RUN = re.compile(rf"(?:{'|'.join(KINDS)})-[0-9]{{4,9}}")
_FILE = re.compile(r"step-[0-9]{1,15}-[0-9]{1,9}\.ckpt")

router = APIRouter(
    prefix="/api/checkpoints",
    tags=["checkpoints"],
    responses={**REFUSALS, 507: error_response_doc("The server has no room for the piece: `not_written`.")},
)
Asking = Annotated[Principal, Depends(require("agent"))]
Run = Annotated[str, Field(pattern=rf"^{_RUN.pattern}$", max_length=40, examples=["search-0012"])]
File = Annotated[str, Field(pattern=rf"^{_FILE.pattern}$", max_length=60, examples=["step-100-1.ckpt"])]


class CheckpointTarget(BaseModel):
    """A checkpoint to upload or download.

    Args:
        size: Its bytes; 0 for a download.
    """

    model_config = ConfigDict(extra="forbid")

    study: StudyName
    run: Run
    file: File
    size: Annotated[int, Field(ge=0, le=2**53)] = 0
    purpose: Literal["put", "get"]


class TransferInstructions(BaseModel):
    """Instructions for an upload or download.

    Args:
        url: Signed URL, valid for 15 minutes without a token. Empty: through this server.
        piece: Bytes of a piece through this server.
        size: Bytes of the file, for a download.
    """

    url: str = ""
    piece: int
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedFile:
    """A requested checkpoint, with the client."""

    study: str
    run: str
    file: str
    principal: Principal
    shared: ServerState

    @property
    def url(self) -> str:
        """Its URL in the storage of this server."""
        return join(self.shared.checkpoints, self.study, self.run, self.file)

    def ticket(self) -> TicketRow:
        """Return the ticket of the run; refuse a missing one, or one that the client may not access."""
        self.principal.check(self.study)
        row = self.shared.store.load_study(self.study)
        if row.name != self.study:
            # "Toy" and "toy" are equal in some databases, but not as folders
            raise StudyNotFound(f'There is no study "{self.study}".')
        kind_name, _, number = self.run.rpartition("-")
        kind = next(kind for kind in KINDS if kind == kind_name)
        ticket = self.shared.store.ticket(row.id, kind, int(number))
        if ticket is None or self.run != run_name(kind, int(number)):
            text = f'The study "{self.study}" has no run {self.run}.'
            raise ApiError(404, "checkpoint_not_found", text)
        return ticket

    def check_holder(self, size: int = 0) -> None:
        """Refuse an agent without the ticket, a file of another attempt, and a file that is too large."""
        ticket = self.ticket()
        if not self.file.endswith(f"-{ticket.attempt}.ckpt"):
            text = f"The run {self.run} is at attempt {ticket.attempt}; {self.file} is of another one."
            raise ApiError(409, "stale_attempt", text)
        # names of agents have no "@"
        if ticket.state != "running" or (ticket.agent or "").partition("@")[2] != self.principal.name:
            text = f"The run {self.run} is not one that an agent of {self.principal.name} is at work on."
            raise ApiError(403, "checkpoint_refused", text)
        check_size(size)

    def recorded_checkpoint(self) -> Checkpoint:
        """Return the recorded checkpoint of this file; raise ``ApiError`` if the ticket has none."""
        for checkpoint in self.ticket().checkpoints:
            is_of_run = belongs_to_run(checkpoint.url, study=self.study, run=self.run)
            if is_of_run and checkpoint.url.rpartition("/")[2] == self.file:
                return checkpoint
        text = f'The study "{self.study}" records no checkpoint {self.run}/{self.file}.'
        raise ApiError(404, "checkpoint_not_found", text)

    def make_room(self) -> None:
        """Remove older unfinished uploads, expired ones, and older files that are not recorded."""

        def list_recorded() -> set[str]:
            return {checkpoint.url.rpartition("/")[2] for checkpoint in self.ticket().checkpoints}

        if is_local(self.url):
            resolve_safe_path(self.url, self.shared)
        tidy(self.url.rpartition("/")[0], self.file, list_recorded)
        study_folder = join(self.shared.checkpoints, self.study)
        if self.shared.uploads.is_time_to_expire(study_folder):
            delete_expired(study_folder)


async def _requested_file(
    study: str, run: str, file: str, principal: Asking, shared: Shared
) -> RequestedFile:
    if _RUN.fullmatch(run) is None or _FILE.fullmatch(file) is None:
        raise ApiError(
            403, "checkpoint_refused", "This is not the name of a checkpoint, such as step-100-1.ckpt."
        )
    return RequestedFile(study=study, run=run, file=file, principal=principal, shared=shared)


Requested = Annotated[RequestedFile, Depends(_requested_file)]


@router.post("/where", summary="How to upload or download a checkpoint")
def get_transfer_instructions(
    body: CheckpointTarget, principal: Asking, shared: Shared
) -> TransferInstructions:
    """Return a signed request to the object store, or the size of the pieces that this server takes."""
    requested = RequestedFile(
        study=body.study, run=body.run, file=body.file, principal=principal, shared=shared
    )
    if body.purpose == "get":
        checkpoint = requested.recorded_checkpoint()
        url = _sign_url(checkpoint.url, "get_object") if _can_sign(checkpoint.url) else ""
        return TransferInstructions(url=url, piece=PIECE, size=checkpoint.size)
    requested.check_holder(body.size)
    if not _can_sign(requested.url) or body.size > LARGEST_SIGNED:
        return TransferInstructions(piece=PIECE)
    requested.make_room()
    url = _sign_url(requested.url, "put_object", ContentLength=body.size)
    return TransferInstructions(url=url, piece=PIECE)


@router.put("/{study}/{run}/{file}", summary="Upload a piece of a checkpoint")
async def put(
    requested: Requested, request: Request, upload: Upload, offset: Bytes, total: Bytes
) -> UploadProgress:
    """Write a piece; the file is complete after the last piece. A piece may be sent twice."""

    def write_chunk(chunk: bytes) -> UploadProgress:
        uploads, token = requested.shared.uploads, requested.principal.name
        uploads.count(token, f"{requested.url} {upload}", total)
        if offset == 0:
            requested.make_room()
        progress = save_chunk(requested.url, requested.shared, upload, offset, total, chunk)
        if progress.is_complete:
            uploads.forget(token, f"{requested.url} {upload}")
        return progress

    await run_in_threadpool(requested.check_holder, total)
    return await run_in_threadpool(write_chunk, await read_piece(request, offset, total))


@router.get("/{study}/{run}/{file}/uploads/{upload}", summary="Progress of an upload")
def get_received_bytes(requested: Requested, upload: str) -> UploadProgress:
    """Return how many bytes of an upload have arrived; the next piece begins there."""
    if UPLOAD.fullmatch(upload) is None:
        raise ApiError(403, "checkpoint_refused", "An upload has a name of 8 to 32 hexadecimal digits.")
    requested.check_holder()
    return upload_progress(requested.url, requested.shared, upload)


@router.get("/{study}/{run}/{file}", summary="Get a checkpoint", response_class=FileResponse)
def get(requested: Requested, range: Annotated[str, Header(include_in_schema=False)] = "") -> Response:
    """Return the bytes of a recorded checkpoint, or a range of them."""
    answer = file_response(requested.recorded_checkpoint().url, requested.shared, range)
    if answer is None:
        text = f"The checkpoint {requested.run}/{requested.file} no longer exists."
        raise ApiError(404, "checkpoint_not_found", text)
    return answer


def _can_sign(url: str) -> bool:
    """Return whether requests to the object store of a URL can be signed."""
    return url.partition("://")[0] in _SIGNING_PROTOCOLS


def _sign_url(url: str, method: str, **bound: Any) -> str:
    """Return a signed URL, which is valid for requests with the bound values only."""
    fs, path = open_filesystem(url)
    # the older signature, which some regions get unless this is said, binds nothing, and others refuse it
    options = fs.storage_options
    config = {**options.get("config_kwargs", {}), "signature_version": "s3v4"}
    signer: Any = type(fs)(**{**options, "config_kwargs": config})
    signed_url: str = signer.url(path, expires=SIGNED_SECONDS, client_method=method, **bound)
    return signed_url
