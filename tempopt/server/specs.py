"""Check a spec before its study is created: each error with its line and column.

No class that a spec names is imported, no file of the server is read, and nothing is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import Field

from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import REFUSALS
from tempopt.server.study_dependencies import SUBMIT, Shared
from tempopt.service import spec_check
from tempopt.service.spec_check import ExistingStudy
from tempopt.spec.lint import LintMessage
from tempopt.storage.http.protocol import Body

router = APIRouter(prefix="/api", tags=["specs"], responses=REFUSALS)
Submitting = Annotated[Principal, Depends(SUBMIT)]

LONGEST = 200_000
"""Maximal characters of a spec's text."""
# A check uses a core for tenths of a second, for which agents must not wait.
_THINKING, _WAITING = threading.BoundedSemaphore(2), threading.BoundedSemaphore(8)
Yaml = Annotated[str, Field(max_length=LONGEST, description="A study spec, as its YAML file has it.")]


class SpecText(Body):
    """A spec as text."""

    text: Yaml


class SpecCheckResponse(Body):
    """Result of checking a spec.

    Args:
        valid: Whether its study can be created or continued.
        name: Name of the study; null if it is missing or cannot be read.
        messages: Messages in the order of lines.
        study: The existing study of this name; null if there is none, or the spec has errors.
    """

    valid: bool
    name: str | None
    messages: tuple[LintMessage, ...]
    study: ExistingStudy | None


@contextlib.contextmanager
def _wait_for_turn() -> Iterator[None]:
    """Limit the number of concurrent checks; refuse a check if many others wait."""
    if not _WAITING.acquire(blocking=False):
        text = "Many specs are being checked at the moment. Try again in a few seconds."
        raise ApiError(429, "rate_limited", text, {"retry-after": "3"})
    try:
        with _THINKING:
            yield
    finally:
        _WAITING.release()


@router.post("/check", summary="Check a spec")
def check(body: SpecText, principal: Submitting, shared: Shared) -> SpecCheckResponse:
    """Return the errors of a spec, as `tempopt check`, except for the classes that it names."""
    with _wait_for_turn():
        result = spec_check.check(body.text, shared.store, principal.may_see)
        spec = result.spec
        study = None if spec is None else spec_check.find_existing_study(spec, shared.store)
    return SpecCheckResponse(
        valid=spec is not None and (study is None or study.same),
        name=result.name,
        messages=result.messages,
        study=study,
    )
