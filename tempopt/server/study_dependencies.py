"""Dependencies that return the study of a request, or 404 if the client may not access it."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query

from tempopt.errors import StudyNotFound, unknown
from tempopt.server.app_state import ServerState, get_server_state
from tempopt.server.auth import require
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import Name
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store

Shared = Annotated[ServerState, Depends(get_server_state)]
VIEW, SUBMIT = require("view"), require("submit")
LARGEST = 2**31 - 1
"""The largest id and number that every database can store."""
_IS_ID = Query(ge=0, le=LARGEST, description="Id of the study: a different study of its name is refused.")
StudyIdQuery = Annotated[int | None, _IS_ID]


def not_found(name: str, store: Store, principal: Principal) -> ApiError:
    """Return the error for a missing study, with the names of those that the client may see."""
    names = [summary.study.name for summary in store.list_studies() if principal.may_see(summary.study.name)]
    return ApiError(404, "study_not_found", unknown("study", name, names or ["none yet"]))


def _load_study(name: str, principal: Principal, shared: ServerState, study: int | None) -> StudyRow:
    if not principal.may_see(name):
        raise not_found(name, shared.store, principal)
    try:
        row = shared.store.load_study(name)
    except StudyNotFound:
        raise not_found(name, shared.store, principal) from None
    if study is not None and row.id != study:
        raise ApiError(404, "study_not_found", f"Study {study} has been deleted.")
    return row


# FastAPI resolves annotations in the module, so that a factory for any scope does not work.
def _get_viewable_study(
    name: Name, principal: Annotated[Principal, Depends(VIEW)], shared: Shared, study: StudyIdQuery = None
) -> StudyRow:
    return _load_study(name, principal, shared, study)


def _get_writable_study(
    name: Name, principal: Annotated[Principal, Depends(SUBMIT)], shared: Shared, study: StudyIdQuery = None
) -> StudyRow:
    return _load_study(name, principal, shared, study)


ViewableStudy = Annotated[StudyRow, Depends(_get_viewable_study)]
"""The study in the path, for clients that may read it."""
WritableStudy = Annotated[StudyRow, Depends(_get_writable_study)]
"""The study in the path, for clients that may change it."""


def _get_identified_study(row: WritableStudy, study: Annotated[int, _IS_ID]) -> StudyRow:
    return row


IdentifiedStudy = Annotated[StudyRow, Depends(_get_identified_study)]
"""The same, by name and id: a late copy of the request changes no later study of that name."""
