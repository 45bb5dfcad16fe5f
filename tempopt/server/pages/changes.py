"""What is done to a study from its page: the same as over REST, by forms that lead back to the page."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.responses import RedirectResponse
from pydantic import ValidationError

from tempopt.records.rows import StudyRow
from tempopt.server import pool_admin, study_writes
from tempopt.server.app_state import State
from tempopt.server.asked import LARGEST, SUBMIT, Meant, Shared
from tempopt.server.auth import Principal, about
from tempopt.server.errors import ApiError
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import HEADERS, segment
from tempopt.server.pages.routing import form
from tempopt.server.pages.shown import Pages

router = routing.router()
Form = Annotated[dict[str, str], Depends(form)]
_MOST_DIGITS = 9


def _back(name: str, done: str) -> Response:
    return RedirectResponse(f"/studies/{segment(name)}?done={done}", status_code=303, headers=HEADERS)


def _resume(study: StudyRow, shared: State, **asked: int | bool) -> None:
    study_writes.resume(study_writes.Resumption.model_validate(asked), study, shared)


def number(given: dict[str, str], name: str, *, least: int, most: int) -> int:
    """Return a whole number of a form.

    Raises:
        ApiError: It is none, or not from ``least`` to ``most``.
    """
    text = given.get(name, "").strip().removeprefix("+")
    digits = text.removeprefix("-")
    whole = digits.isascii() and digits.isdecimal() and len(digits) <= _MOST_DIGITS
    if not whole or not least <= int(text) <= most:
        raise ApiError(
            422,
            "invalid_request",
            f'{name} was given "{text[:50]}". Give a whole number from {least} to {most}.',
        )
    return int(text)


@router.post("/studies/{name}/pause")
def pause(study: Meant, shared: Shared, pages: Pages) -> Response:
    """Have every agent of a study save its runs and leave."""
    study_writes.pause(study, shared)
    pages.overview.forget()
    return _back(study.name, "paused")


@router.post("/studies/{name}/stop")
def stop(study: Meant, shared: Shared, pages: Pages) -> Response:
    """End the search of a study, and have what was found confirmed."""
    study_writes.stop(study, shared)
    pages.overview.forget()
    return _back(study.name, "stopped")


@router.post("/studies/{name}/resume")
def resume(study: Meant, shared: Shared, pages: Pages) -> Response:
    """Let a study that was paused go on."""
    _resume(study, shared)
    pages.overview.forget()
    return _back(study.name, "resumed")


@router.post("/studies/{name}/retry")
def retry(study: Meant, shared: Shared, pages: Pages) -> Response:
    """Have runs trained again that failed on every attempt."""
    _resume(study, shared, retry_failed=True)
    pages.overview.forget()
    return _back(study.name, "retried")


@router.post("/studies/{name}/grow")
def grow(request: Request, study: Meant, shared: Shared, pages: Pages, given: Form) -> Response:
    """Add search trials, or pairs to the verdict; once, however often the form is sent."""
    what = "pairs" if "pairs" in given else "trials"
    more = number(given, what, least=1, most=1000 if what == "pairs" else 10_000)
    version = number(given, "version", least=0, most=LARGEST)
    about(request, study=study.name, detail=f"{more} {what} more")
    _resume(study, shared, **{"pairs" if what == "pairs" else "more": more}, version=version)
    pages.overview.forget()
    return _back(study.name, "added")


@router.post("/studies/{name}/place")
def place(
    study: Meant,
    principal: Annotated[Principal, Depends(SUBMIT)],
    shared: Shared,
    pages: Pages,
    given: Form,
) -> Response:
    """Give a study another priority, or move it to another queue of the pool."""
    priority = number(given, "priority", least=-1000, most=1000)
    try:
        # what stays as it is was allowed before, whoever asks now
        body = pool_admin.Placing(
            queue=given.get("queue", "").strip() or None,
            priority=None if priority == study.priority else priority,
        )
    except ValidationError:
        raise ApiError(
            422,
            "invalid_request",
            f'queue was given "{given.get("queue", "")[:100]}". Give letters, digits, ".", "_", "=" and "-", '
            "of which the first is a letter or a digit.",
        ) from None
    pool_admin.place(body, study, principal, shared)
    pages.overview.forget()
    pages.pool.forget()
    return _back(study.name, "placed")


@router.post("/studies/{name}/delete")
def delete(study: Meant, shared: Shared, pages: Pages, given: Form) -> Response:
    """Delete a study whose name was typed."""
    if given.get("confirm", "").strip() != study.name:
        raise ApiError(
            400, "usage", f'The name that was typed is not "{study.name}", so nothing was deleted. Type it.'
        )
    study_writes.delete(study, shared, force="force" in given)
    pages.overview.forget()
    return RedirectResponse("/?done=deleted", status_code=303, headers=HEADERS)
