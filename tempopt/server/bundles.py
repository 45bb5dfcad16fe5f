"""The code that studies bring: taken from whoever may begin them, given to agents; never unpacked here.

A bundle lies beside the checkpoints of its study, by its hash. It comes before the study is begun.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from tempopt.bundle.archive import unpacked, verify
from tempopt.remote.protocol import Body
from tempopt.server.app_state import State
from tempopt.server.asked import SUBMIT, Brought, Shared
from tempopt.server.auth import Principal, about
from tempopt.server.brought import is_missing, place_for, tidy
from tempopt.server.documented import REFUSALS, Name, refusal
from tempopt.server.errors import ApiError
from tempopt.spec.study_spec import StudySpec
from tempopt.store import bundles

MOST_KEPT = 8
"""Bundles that lie there of a study that was not begun."""

router = APIRouter(
    prefix="/api/studies",
    tags=["studies"],
    responses={
        **REFUSALS,
        503: refusal("The place of the checkpoints cannot be reached: `checkpoints_away`."),
    },
)
Submitting = Annotated[Principal, Depends(SUBMIT)]
Digest = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="SHA-256 of the bundle.")]


class Came(Body):
    """A bundle that has come: its bytes and its number of files."""

    bytes: int
    files: int


@router.put("/{name}/code/{digest}", summary="Send the code of a study")
async def put(name: Name, digest: Digest, request: Request, principal: Submitting, shared: Shared) -> Came:
    """Keep the bundle of a study that is to be begun, or of one that was begun with it.

    The body is the archive that `tempopt search --with-code` makes: a tar without compression, of at most
    16 MB. It is checked as agents check it, and not unpacked.
    """
    principal.check(name)
    about(request, study=name, detail=f"code {digest[:12]}")
    archive = await request.body()
    return await run_in_threadpool(_kept, name, digest, archive, shared)


def _kept(name: str, digest: str, archive: bytes, shared: State) -> Came:
    verify(archive, digest)
    files = unpacked(archive)
    place, new = place_for(name, shared, same=lambda stored: stored.study.code == digest, what="code")
    url = bundles.bundle_url(place, name, digest)
    if new:
        tidy(url, pattern=bundles.FILE, most=MOST_KEPT)
    bundles.keep(archive, url)
    return Came(bytes=len(archive), files=len(files))


@router.get("/{name}/code", summary="The code of a study", response_class=Response)
def get(study: Brought, shared: Shared) -> Response:
    """Return the bundle of a study, whose hash is `study.code` of its spec."""
    digest = StudySpec.stored(study).study.code
    if digest is None:
        raise ApiError(404, "code_not_found", f'The study "{study.name}" brings no code.')
    place = study.checkpoints or shared.checkpoints
    archive = bundles.fetch(bundles.bundle_url(place, study.name, digest))
    verify(archive, digest)
    return Response(archive, media_type="application/x-tar")


def refuse_missing(spec: StudySpec, shared: State) -> None:
    """Refuse a study whose code has not come.

    Raises:
        ApiError: It brings code, and that is not here.
    """
    digest, name = spec.study.code, spec.study.name
    if digest is not None and is_missing(
        name,
        shared,
        same=lambda stored: stored.study.code == digest,
        url_at=lambda place: bundles.bundle_url(place, name, digest),
    ):
        raise ApiError(
            409,
            "code_not_found",
            f'The study "{name}" brings code (study.code is {digest[:12]}…) that has not come. Begin it with '
            "tempopt search SPEC --with-code DIR, which sends it, or take study.code out.",
        )
