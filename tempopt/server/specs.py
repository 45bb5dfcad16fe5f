"""Check a spec before its study begins: each error with its line and column.

Nothing of what a spec names is imported, no file of the server is read, and nothing is written.
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
"""Characters of a spec's text at the most."""
# A check takes a core for tenths of a second; agents do not wait for it.
_THINKING, _WAITING = threading.BoundedSemaphore(2), threading.BoundedSemaphore(8)
Yaml = Annotated[str, Field(max_length=LONGEST, description="A study spec, as its YAML file has it.")]


class SpecText(Body):
    """A spec as text."""

    text: Yaml


class SpecCheckResponse(Body):
    """What there is to say of a spec.

    Args:
        valid: Whether its study can be created or continued.
        name: Name of the study; null: none is given, or it cannot be read.
        messages: In the order of lines.
        study: The study that has this name already; null: there is none, or the spec has errors.
    """

    valid: bool
    name: str | None
    messages: tuple[LintMessage, ...]
    study: ExistingStudy | None


@contextlib.contextmanager
def _turn() -> Iterator[None]:
    """Wait until two others at most are at it; refuse where many wait already."""
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
    """Return what is wrong with a spec, as `tempopt check` tells it, apart from the classes that it names."""
    with _turn():
        result = spec_check.check(body.text, shared.store, principal.may_see)
        spec = result.spec
        study = None if spec is None else spec_check.find_existing_study(spec, shared.store)
    return SpecCheckResponse(
        valid=spec is not None and (study is None or study.same),
        name=result.name,
        messages=result.messages,
        study=study,
    )
