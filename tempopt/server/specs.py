"""Check a spec before its study begins: each error with its line and column.

Nothing of what a spec names is imported, no file of the server is read, and nothing is written.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import Field

from tempopt.server.app_state import ServerState
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import REFUSALS
from tempopt.server.study_dependencies import SUBMIT, Shared
from tempopt.service import spec_check
from tempopt.spec.lint import SpecLintResult
from tempopt.storage.http.protocol import Body
from tempopt.storage.rows import StudyState

router = APIRouter(prefix="/api", tags=["specs"], responses=REFUSALS)
Submitting = Annotated[Principal, Depends(SUBMIT)]

LONGEST = 200_000
"""Characters of a spec's text at the most."""
# A check takes a core for tenths of a second; agents do not wait for it.
_THINKING, _WAITING = threading.BoundedSemaphore(2), threading.BoundedSemaphore(8)
_TEXT = """study:
  name: max_retrieval
  metric: val_accuracy
  direction: maximize
model: {class_path: lightning_modules.MaxRetrieval}
trainer: {max_steps: 300}
search:
  temperature_init: {low: 0.25, high: 4, log: true}
"""
Yaml = Annotated[
    str, Field(max_length=LONGEST, description="A study spec, as its YAML file has it.", examples=[_TEXT])
]


class SpecText(Body):
    """A spec as text."""

    text: Yaml


class SpecMessage(Body):
    """One thing that there is to say of a spec.

    Args:
        line: Line from 1; null: it is about the whole text.
        column: Column of the key in that line, from 1.
        severity: With an ``error`` the study cannot be begun.
        path: Dotted path of the key; empty: it is about none.
    """

    line: int | None
    column: int | None
    severity: Literal["error", "warning"]
    path: Annotated[str, Field(examples=["study.trials"])]
    text: str


class ExistingStudyResponse(Body):
    """The study that has this name already.

    Args:
        same: Whether the spec is that of the study, so that submitting it continues it.
        differences: A line for each thing that the spec asks otherwise.
    """

    state: StudyState
    same: bool
    differences: list[str]


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
    messages: list[SpecMessage]
    study: ExistingStudyResponse | None


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


def check_spec_text(
    text: str, principal: Principal, shared: ServerState
) -> tuple[SpecLintResult, SpecCheckResponse]:
    """Return what there is to say of a spec to its author."""
    with _turn():
        checked_text = spec_check.check(text, shared.store, principal.may_see)
        stored_study = (
            None
            if checked_text.spec is None
            else spec_check.find_existing_study(checked_text.spec, shared.store)
        )
    return checked_text, SpecCheckResponse(
        valid=checked_text.spec is not None and (stored_study is None or stored_study.same),
        name=checked_text.name,
        messages=[SpecMessage(**asdict(message)) for message in checked_text.messages],
        study=None
        if stored_study is None
        else ExistingStudyResponse(
            state=stored_study.state, same=stored_study.same, differences=list(stored_study.differences)
        ),
    )


@router.post("/check", summary="Check a spec")
def check(body: SpecText, principal: Submitting, shared: Shared) -> SpecCheckResponse:
    """Return what is wrong with a spec, as `tempopt check` tells it, apart from the classes that it names."""
    return check_spec_text(body.text, principal, shared)[1]
