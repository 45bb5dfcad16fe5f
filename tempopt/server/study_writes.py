"""Routes that change studies: create, extend, pause, resume, stop and delete them, remove their files.

They use the functions of the command line. No users' code runs here: the client sends the results of its dry
run.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from pydantic import Field

from tempopt.agent.study_creation import ensure_study_exists
from tempopt.agent.study_runner import validate_sampler_and_pruner
from tempopt.errors import AccessDenied, SpecError, UsageError, not_text
from tempopt.server.app_state import ServerState
from tempopt.server.auth import annotate_audit
from tempopt.server.authenticator import Principal
from tempopt.server.openapi_responses import REFUSALS
from tempopt.server.study_dependencies import SUBMIT, IdentifiedStudy, Shared, WritableStudy
from tempopt.service import lifecycle
from tempopt.service.extend import add_trials, extend_for_resume, extend_for_search
from tempopt.service.requests import (
    MAX_RUNS,
    ResumeRequest,
    SearchExtension,
    SearchRequest,
    StudyExtension,
    TicketVersion,
)
from tempopt.spec.custom_schedules import check_schedules
from tempopt.spec.logger_secrets import check_no_secrets
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.yaml_source import MAX_VALUES
from tempopt.storage.http.protocol import Body
from tempopt.storage.rows import StudyState
from tempopt.verdict.set_comparison import check_comparison
from tempopt.version import __version__

router = APIRouter(prefix="/api/studies", tags=["studies"], responses=REFUSALS)
Submitting = Annotated[Principal, Depends(SUBMIT)]

_MAX_DEPTH = 60


@dataclass(frozen=True, kw_only=True)
class SubmitStudyRequest(SearchExtension):
    """A study to create, or to continue and extend.

    Args:
        spec: The study spec as plain data, as in its YAML file or as ``StudySpec.to_json`` returns it.
    """

    spec: dict[str, Any]


class Queue(Body):
    """Parameter sets to try, with some or all of the searched names."""

    sets: Annotated[
        list[dict[str, Any]],
        Field(min_length=1, max_length=MAX_RUNS, examples=[[{"temperature_init": 2.0}]]),
    ]
    version: TicketVersion = None


class GarbageCollectionRequest(Body):
    """Which checkpoints are removed; with ``dry_run`` they are listed only."""

    dry_run: bool = False


class StudyActionResponse(Body):
    """State of a study after a request.

    Args:
        is_new: Whether the request created it.
        notes: Notes for the user.
    """

    study: Annotated[str, Field(examples=["max_retrieval"])]
    id: int
    state: StudyState
    version: int
    is_new: bool = False
    notes: Annotated[list[str], Field(default_factory=list)]


def _check_plain_data(data: Any) -> int:
    """Return the number of values; refuse text that no database can store, and deeply nested data."""
    num_values = 0
    stack: list[tuple[Any, int]] = [(data, 0)]
    while stack:
        node, depth = stack.pop()
        num_values += 1
        if isinstance(node, str) and (fault := not_text(node)):
            raise UsageError(f"The body contains {fault}. Give text in UTF-8 without it.")
        if isinstance(node, dict | list):
            if depth == _MAX_DEPTH:
                raise UsageError(f"The body is nested more than {_MAX_DEPTH} deep. Give plain data.")
            below = [*node, *node.values()] if isinstance(node, dict) else node
            stack += [(part, depth + 1) for part in below]
    return num_values


def _parse_submission(body: SubmitStudyRequest, principal: Principal) -> StudySpec:
    """Return the spec of a submission; refuse names of studies that the client may not see."""
    # not asdict, which recurses
    num_values = _check_plain_data(body.spec)
    _check_plain_data(body.enqueue)
    if num_values > MAX_VALUES:
        raise UsageError(f"The spec has {num_values} values. Give at most {MAX_VALUES}.")
    try:
        spec = StudySpec.parse(body.spec, source="the study spec that was submitted")
    except SpecError as error:
        raise SpecError(
            f"{error}\nThis server is tempopt {__version__}: keys of another version are unknown to it."
        ) from None
    principal.check_new(spec.study.name)
    for name in spec.study.warm_start:
        principal.check(name)
    check_schedules(spec)
    validate_sampler_and_pruner(spec)
    check_no_secrets(spec.trainer.get("logger"))
    if spec.compare is not None:
        check_comparison(spec)
    return spec


def _check_temperatures_are_found(spec: StudySpec) -> None:
    """Refuse to begin a study that lacks what a dry run finds in its module."""
    lines = [
        f"temperatures.{name}: as_found is missing: the temperature that the module has there, to which "
        "searched ones are compared. A server imports no module. Give it, as in "
        f"{name}: {{..., as_found: 0.5}}, or begin the study with tempopt search, which looks it up."
        for name, temperature in spec.temperatures.items()
        if temperature.as_found is None
    ]
    if lines:
        raise SpecError("\n".join(lines))


def _build_response(
    shared: ServerState, name: str, notes: list[str], *, is_new: bool = False
) -> StudyActionResponse:
    row = shared.store.load_study(name)
    return StudyActionResponse(
        study=name, id=row.id, state=row.state, version=row.version, is_new=is_new, notes=notes
    )


def _wake(shared: ServerState, name: str) -> None:
    row = shared.store.load_study(name)
    if row.state == "paused":
        shared.store.set_state(row.id, "running")


@router.post(
    "",
    summary="Create or continue a study",
    responses={201: {"description": "The study was created.", "model": StudyActionResponse}},
)
def submit(
    body: SubmitStudyRequest, principal: Submitting, shared: Shared, request: Request, answer: Response
) -> StudyActionResponse:
    """Create the study of a spec, or continue and extend the existing one; agents train it.

    There is no dry run here: `tempopt search` makes it on the client's machine.
    """
    spec = _parse_submission(body, principal)
    annotate_audit(request, study=spec.study.name)
    if spec.study.priority > 0 and "admin" not in principal.scopes:
        raise AccessDenied(
            f"study.priority is {spec.study.priority}, and one above 0 needs a token with the scope admin. "
            "Give 0 or less, or ask an administrator to submit the study."
        )
    notes: list[str] = []
    search_request = SearchRequest(**asdict(body) | {"spec": spec})
    spec, study = extend_for_search(shared.store, search_request, on_note=notes.append)
    is_new = study is None
    if is_new:
        _check_temperatures_are_found(spec)
    if study is None or shared.store.load_study(study.name).state != "done":
        checkpoints_url = shared.checkpoints if study is None else study.checkpoints or shared.checkpoints
        ensure_study_exists(
            shared.store, spec, study, checkpoints=checkpoints_url, owner=principal.user, on_note=notes.append
        )
        _wake(shared, spec.study.name)
    answer.status_code = 201 if is_new else 200
    return _build_response(shared, spec.study.name, notes, is_new=is_new)


@router.post("/{name}/pause", summary="Pause a study")
def pause(study: IdentifiedStudy, shared: Shared) -> lifecycle.StopResult:
    """Pause a study: its agents save their runs and leave, until it is resumed."""
    return lifecycle.pause_study(shared.store, study)


@router.post("/{name}/stop", summary="Stop the search of a study")
def stop(study: IdentifiedStudy, shared: Shared) -> lifecycle.StopResult:
    """Stop the search of a study: runs in progress are completed, and the best so far is confirmed."""
    return lifecycle.stop_study(shared.store, study)


@router.post("/{name}/resume", summary="Resume and extend a study")
def resume(body: StudyExtension, study: WritableStudy, shared: Shared) -> StudyActionResponse:
    """Resume a paused study, with more trials or pairs, or repeat failed runs."""
    notes: list[str] = []
    request = ResumeRequest(study=study.name, **asdict(body))
    extend_for_resume(shared.store, study, request, on_note=notes.append, check_schedules=check_schedules)
    _wake(shared, study.name)
    return _build_response(shared, study.name, notes)


@router.post("/{name}/enqueue", summary="Enqueue parameter sets")
def enqueue(body: Queue, study: WritableStudy, shared: Shared) -> StudyActionResponse:
    """Add search tickets with these parameter sets, except those that were tried before."""
    _check_plain_data(body.sets)
    spec = StudySpec.from_json(study.spec)
    added = add_trials(shared.store, study, spec, 0, body.sets, version=body.version)
    return _build_response(shared, study.name, [] if added else ["All of them are already in the study."])


@router.delete("/{name}", summary="Delete a study")
def delete(
    study: IdentifiedStudy,
    shared: Shared,
    force: Annotated[bool, Query(description="Even while agents work on it, which then leave.")] = False,
) -> lifecycle.DeleteResult:
    """Delete a study with its trials, checkpoints and logs."""
    try:
        return lifecycle.delete_study(shared.store, study, force=force)
    finally:
        shared.study_sessions.close(study.name)


@router.post("/{name}/gc", summary="Remove checkpoints that are no longer needed")
def collect(
    study: WritableStudy, shared: Shared, body: GarbageCollectionRequest | None = None
) -> lifecycle.GarbageCollectionResult:
    """Remove the checkpoints of a study that no run needs any more, or list them."""
    dry_run = body is not None and body.dry_run
    [collection] = lifecycle.collect_garbage(shared.store, study.name, dry_run=dry_run)
    return collection
