"""The weights that runs of studies start from: taken from whoever may begin them, given to agents.

They lie beside the checkpoints of their study, by their hash, and come in pieces before the study is begun.
Nothing is loaded here: whoever trains reads them, as data.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Path, Request
from fastapi.responses import FileResponse, Response
from starlette.concurrency import run_in_threadpool

from tempopt.agent.start_weights import weights_of
from tempopt.errors import UsageError
from tempopt.server.app_state import State
from tempopt.server.asked import SUBMIT, Shared, Worked
from tempopt.server.auth import Principal, about
from tempopt.server.brought import is_missing, place_for, tidy
from tempopt.server.documented import REFUSALS, Name, refusal
from tempopt.server.errors import ApiError
from tempopt.server.files import Bytes, Upload, check_size, file_of, given, has_come, read_piece, taken
from tempopt.server.uploads import UPLOAD, Came
from tempopt.spec.study_spec import StudySpec
from tempopt.store import weights
from tempopt.store.checkpoints import is_local

MOST_KEPT = 2
"""Files of weights, whole or not, that lie there of a study that was not begun."""

router = APIRouter(
    prefix="/api/studies",
    tags=["studies"],
    responses={
        **REFUSALS,
        507: refusal("The server has no room for the piece: `not_written`."),
    },
)
Submitting = Annotated[Principal, Depends(SUBMIT)]
File = Annotated[
    str,
    Path(pattern=r"^[0-9a-f]{64}\.ckpt$", description="SHA-256 of the file, and its ending."),
]
Uploaded = Annotated[
    str, Path(pattern=rf"^{UPLOAD.pattern}$", description="Name that the client gives its upload.")
]


@router.put("/{name}/weights/{file}", summary="Send a piece of the weights that runs start from")
async def put(
    name: Name,
    file: File,
    request: Request,
    principal: Submitting,
    shared: Shared,
    upload: Upload,
    offset: Bytes,
    total: Bytes,
) -> Came:
    """Write a piece; the file is in its place, whole, once the last one has come. A piece may come twice.

    The study is one that is to be begun, or that was begun with these weights.
    """
    principal.check(name)
    about(request, study=name, detail=f"weights {file[:12]}")
    check_size(total, "A file of weights")
    url = await run_in_threadpool(_place, name, file, shared)
    some = await read_piece(request, offset, total)
    return await run_in_threadpool(_written, url, file, shared, upload, offset, total, some)


@router.get("/{name}/weights/{file}/uploads/{upload}", summary="How much of the weights has come")
def come(name: Name, file: File, upload: Uploaded, principal: Submitting, shared: Shared) -> Came:
    """Return how many bytes of the file have come; `whole` says that nothing has to be sent."""
    principal.check(name)
    url = _place(name, file, shared)
    found = has_come(url, shared, upload)
    if found.whole and not _is_right(url, file, shared):
        # what lies there with another content is replaced
        return Came(bytes=0, whole=False)
    return found


@router.get("/{name}/weights", summary="The weights that runs start from", response_class=FileResponse)
def get(
    study: Worked,
    shared: Shared,
    range: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """Return the bytes of the file, whose hash is in `study.start_from` of the spec, or a range of them."""
    file = weights_of(StudySpec.stored(study))
    if file is None:
        raise ApiError(
            404, "weights_not_found", f'The runs of the study "{study.name}" start from no weights.'
        )
    url = weights.weights_url(study.checkpoints or shared.checkpoints, study.name, file)
    answer = given(url, shared, range)
    if answer is None:
        raise ApiError(
            404, "weights_not_found", f'The weights of the study "{study.name}" are not there any more.'
        )
    return answer


def refuse_missing(spec: StudySpec, shared: State) -> None:
    """Refuse a study whose weights have not come.

    Raises:
        ApiError: Its runs start from weights, and those are not here.
    """
    start, name = spec.study.start_from, spec.study.name
    if start is None:
        return
    file, told = weights_of(spec), "has no sha256"
    if file is not None:
        told = f"is {file[:12]}…, which has not come"
        if not is_missing(
            name,
            shared,
            same=lambda stored: weights_of(stored) == file,
            url_at=lambda place: weights.weights_url(place, name, file),
        ):
            return
    raise ApiError(
        409,
        "weights_not_found",
        f'The runs of the study "{name}" start from weights, of which study.start_from {told}. Begin it with '
        "tempopt search SPEC where the file is, which sends it, or take study.start_from out.",
    )


def _place(name: str, file: str, shared: State) -> str:
    """Return where a file that is sent belongs."""
    place, _ = place_for(name, shared, same=lambda stored: weights_of(stored) == file, what="weights")
    return weights.weights_url(place, name, file)


def _is_right(url: str, file: str, shared: State) -> bool:
    """Return whether a file that is there has the content that it is to have, as far as is known here."""
    if not is_local(url):
        # agents compare the hash
        return True
    path = file_of(url, shared)
    return path.is_file() and weights.digest_of(path) == file.partition(".")[0]


def _written(url: str, file: str, shared: State, upload: str, offset: int, total: int, some: bytes) -> Came:
    if offset == 0:
        tidy(url, pattern=weights.FILE, most=MOST_KEPT)
    if is_local(url) and _is_right(url, file, shared):
        return Came(bytes=total, whole=True)
    came = taken(url, shared, upload, offset, total, some)
    if came.whole and not _is_right(url, file, shared):
        file_of(url, shared).unlink(missing_ok=True)
        raise UsageError(
            f"What came as the weights {file} has another SHA-256 and was removed. Send the file again: "
            "tempopt search SPEC"
        )
    return came
