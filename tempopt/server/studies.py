"""Routes that read studies: list, state, report, export, and rows for RemoteStore."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from fastapi import APIRouter, Depends, Query, Response
from fastapi.responses import HTMLResponse, PlainTextResponse
from pydantic import Field, TypeAdapter

from tempopt.agent.worker_views import to_json
from tempopt.errors import without_passwords
from tempopt.launch.job_status import UNKNOWN
from tempopt.report import export as exports
from tempopt.report.study_result import load
from tempopt.report.study_summary import summary_json, verdict_json
from tempopt.server.authenticator import Principal
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import REFUSALS, REFUSALS_OF_TEXT, Name
from tempopt.server.study_dependencies import LARGEST, VIEW, Shared, ViewableStudy
from tempopt.storage import urls
from tempopt.storage.changes import StudyDelta
from tempopt.storage.http.wire import measurements_to_plain
from tempopt.storage.rows import WITHOUT_NUL, JobRow, Kind, LogRow, StudyRow, StudySummary, TicketRow

router = APIRouter(prefix="/api", tags=["studies"], responses=REFUSALS)
Seeing = Annotated[Principal, Depends(VIEW)]
Id = Annotated[int, Field(ge=0, le=LARGEST)]
Text = Annotated[str, Field(pattern=WITHOUT_NUL, max_length=255)]
Ids = Annotated[list[Id] | None, Query(description="Only of these tickets; all if none is given.")]
Names = Annotated[list[Text] | None, Query(description="Only of these names.")]
Prefixes = Annotated[list[Text] | None, Query(description="Only of names with these prefixes.")]
Kinds = Annotated[list[Kind] | None, Query(description="Only of these kinds; all if none is given.")]
Since = Annotated[
    list[str],
    Query(description="`KIND:NUMBER`: the tickets of a kind from a number on.", examples=["search:12"]),
]

_KINDS: tuple[str, ...] = get_args(Kind)


def _json_response(kind: Any, rows: Any) -> Response:
    """Return rows as JSON, without validating them again."""
    return Response(TypeAdapter(kind).dump_json(rows), media_type="application/json")


def _to_plain(data: Any) -> Response:
    return Response(json.dumps(data, allow_nan=False), media_type="application/json")


def _hide_study_secrets(row: StudyRow) -> StudyRow:
    url = None if row.checkpoints is None else without_passwords(row.checkpoints)
    return dataclasses.replace(row, checkpoints=url)


def _hide_ticket_secrets(row: TicketRow) -> TicketRow:
    checkpoints = tuple(
        dataclasses.replace(checkpoint, url=without_passwords(checkpoint.url))
        for checkpoint in row.checkpoints
    )
    return dataclasses.replace(row, checkpoints=checkpoints)


@router.get("/studies", summary="List studies")
def studies(principal: Seeing, shared: Shared) -> list[dict[str, Any]]:
    """Return the studies that the token may see, oldest first, as `tempopt list --json` prints them."""
    rows = shared.store.list_studies()
    return [summary_json(summary) for summary in rows if principal.may_see(summary.study.name)]


@router.get("/summaries", summary="List studies as rows", response_model=list[StudySummary])
def summaries(principal: Seeing, shared: Shared) -> Response:
    """Return the same as rows with their specs, for RemoteStore."""
    rows = [
        dataclasses.replace(summary, study=_hide_study_secrets(summary.study))
        for summary in shared.store.list_studies()
        if principal.may_see(summary.study.name)
    ]
    return _json_response(list[StudySummary], rows)


@router.get("/studies/{name}", summary="Show a study", response_model=dict[str, Any])
def show(study: ViewableStudy, shared: Shared) -> Response:
    """Return the state of a study: progress, baseline, best and verdict, as `tempopt show --json`."""
    result = load(shared.store, study.name)
    jobs = [
        {
            "launcher": job.launcher,
            "id": job.id,
            "state": UNKNOWN,
            "message": "A server does not query launchers.",
        }
        for job in shared.store.jobs(study.name)
    ]
    return _to_plain({**result.to_json(), "jobs": jobs, "agents_at_work": to_json(shared.store, result.runs)})


@router.get(
    "/studies/{name}/report",
    summary="The report",
    response_class=HTMLResponse,
    responses={**REFUSALS_OF_TEXT, 200: {"description": "One HTML page.", "content": {"text/html": {}}}},
)
def report(study: ViewableStudy, shared: Shared, plotlyjs: Literal["inline", "cdn"] = "inline") -> Response:
    """Return a study as one HTML page that opens offline, as `tempopt report` writes it."""
    page = shared.reports.page(study, plotlyjs=plotlyjs)
    return HTMLResponse(page, headers={"x-content-type-options": "nosniff"})


@router.get("/studies/{name}/verdict", summary="The verdict", response_model=dict[str, Any])
def verdict(study: ViewableStudy, shared: Shared) -> Response:
    """Return the verdict and the recommendation, as the tool `verdict` of `tempopt mcp`."""
    return _to_plain(verdict_json(load(shared.store, study.name)))


@router.get(
    "/studies/{name}/export",
    summary="The recommendation, as code",
    response_class=PlainTextResponse,
    responses={**REFUSALS_OF_TEXT, 200: {"description": "YAML for LightningCLI, or a Python script."}},
)
def export(
    study: ViewableStudy,
    shared: Shared,
    format: Literal["yaml", "python"] = "yaml",
    winner: Annotated[bool, Query(description="The winner of the search, whatever is recommended.")] = False,
) -> Response:
    """Return the output of `tempopt export`."""
    text = exports.to_text(load(shared.store, study.name), format, winner=winner)
    return PlainTextResponse(text, headers={"x-content-type-options": "nosniff"})


# ---- rows, as they are in the store


@router.get("/studies/{name}/row", summary="The row of a study", response_model=StudyRow)
def row(study: ViewableStudy) -> Response:
    """Return the study's row: its spec, its state, the version of its tickets."""
    return _json_response(StudyRow, _hide_study_secrets(study))


@router.get("/studies/{name}/tickets", summary="Tickets", response_model=list[TicketRow])
def tickets(study: ViewableStudy, shared: Shared, kinds: Kinds = None) -> Response:
    """Return the tickets of a study in their order of work."""
    return _json_response(
        list[TicketRow], [_hide_ticket_secrets(ticket) for ticket in shared.store.tickets(study.id, kinds)]
    )


@router.get(
    "/studies/{name}/measurements",
    summary="Measurements",
    response_model=list[tuple[int, int, str, float | None]],
)
def measurements(
    study: ViewableStudy, shared: Shared, ids: Ids = None, names: Names = None, prefixes: Prefixes = None
) -> Response:
    """Return measurements: ticket id, step, name and value, null if it is not finite."""
    rows = shared.store.measurements(study.id, ids, names, prefixes=prefixes or ())
    return _to_plain(measurements_to_plain(rows))


@router.get("/studies/{name}/logs", summary="Logs", response_model=list[LogRow])
def logs(study: ViewableStudy, shared: Shared, ids: Ids = None) -> Response:
    """Return the ends of the runs' outputs, by ticket and attempt."""
    mask = urls.url_masker(shared.store.url)
    rows = shared.store.logs(study.id, ids)
    return _json_response(list[LogRow], [dataclasses.replace(row, text=mask(row.text)) for row in rows])


@router.get("/studies/{name}/maps", summary="Attention maps", response_model=dict[int, Any])
def maps(
    study: ViewableStudy, shared: Shared, ids: Annotated[list[Id], Query(description="Of these tickets.")]
) -> Response:
    """Return the attention maps by ticket, of those tickets that have them."""
    return _to_plain(shared.store.attention_maps(study.id, ids))


@router.get("/studies/{name}/warm-start", summary="Earlier studies' runs", response_model=list[Any])
def warm_start(study: ViewableStudy, shared: Shared) -> Response:
    """Return the warm-start runs of a study."""
    return _to_plain(shared.store.warm_start(study.id))


@router.get("/studies/{name}/jobs", summary="Jobs of launchers", response_model=list[JobRow])
def jobs(name: Name, principal: Seeing, shared: Shared) -> Response:
    """Return the jobs of launchers for a study, which need not exist yet."""
    principal.check(name)
    return _json_response(list[JobRow], shared.store.jobs(name))


@router.get("/studies/{name}/news", summary="Changes of tickets", response_model=StudyDelta)
def news(study: ViewableStudy, shared: Shared, since: Since) -> Response:
    """Return the tickets that are no longer waiting, with the reports of those that are over."""
    study_news = shared.store.news(study.id, dict(_parse_since(since)))
    tickets = [_hide_ticket_secrets(ticket) for ticket in study_news.tickets]
    return _json_response(StudyDelta, dataclasses.replace(study_news, tickets=tickets))


def _parse_since(texts: list[str]) -> Iterable[tuple[Kind, int]]:
    for text in texts:
        kind, colon, number = text.partition(":")
        if text == "none":
            continue
        if kind not in _KINDS or not (colon and number.isascii() and number.isdecimal() and len(number) < 10):
            raise ApiError(
                422,
                "invalid_request",
                f'since was given "{text[:100]}". Give KIND:NUMBER, as in search:12; the kinds are '
                f"{', '.join(_KINDS)}.",
            )
        yield kind, int(number)  # type: ignore[misc]
