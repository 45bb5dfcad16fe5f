"""The page of one run: how it went, its curve, its parameters, what it printed."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Depends, Request, Response

from tempopt.errors import NothingToPlot
from tempopt.records.rows import KINDS, StudyRow, TicketRow
from tempopt.server.app_state import State
from tempopt.server.asked import Seen, Shared
from tempopt.server.errors import ApiError
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import HEADERS, about, environment, page
from tempopt.server.pages.shown import Pages
from tempopt.server.pages.standing import run as as_run
from tempopt.server.pages.studies import part
from tempopt.store import urls
from tempopt.study.progress import LABELS

router = routing.router()
_RUN = re.compile(r"([a-z_]+)-([0-9]{1,9})")


def _ticket(study: Seen, shared: Shared, run: str) -> TicketRow:
    parts = _RUN.fullmatch(run)
    for kind in KINDS:
        if parts is not None and parts[1] == kind:
            found = shared.store.ticket(study.id, kind, int(parts[2]))
            if found is not None:
                return found
    raise ApiError(404, "run_not_found", f'The study "{study.name}" has no run "{run[:100]}".')


Ticket = Annotated[TicketRow, Depends(_ticket)]


def _about(study: StudyRow, ticket: TicketRow, shared: State) -> dict[str, Any]:
    mask = urls.masking(shared.store.url)
    logs = shared.store.logs(study.id, [ticket.id])
    return {
        "study": study,
        "run": as_run(ticket),
        "label": LABELS[ticket.kind],
        "error": mask(ticket.error or ""),
        "logs": [replace(each, text=mask(each.text)) for each in reversed(logs)],
    }


@router.get("/studies/{name}/runs/{run}")
def shown(request: Request, study: Seen, shared: Shared, ticket: Ticket) -> Response:
    """Return the page of a run."""
    return page(request, "run.html", place="studies", plots=True, **_about(study, ticket, shared))


@router.get("/studies/{name}/runs/{run}/standing")
def standing(request: Request, study: Seen, shared: Shared, ticket: Ticket) -> Response:
    """Return the part of the page that says how the run stands, and what it printed."""
    text = environment().get_template("run_standing.html")
    return part(request, text.render(**about(request), **_about(study, ticket, shared)))


@router.get("/studies/{name}/runs/{run}/curve")
def curve(study: Seen, shared: Shared, pages: Pages, ticket: Ticket) -> Response:
    """Return the curve of a run as plotly draws it, with its caption; or in words why there is none."""
    # plotly takes a while to load
    from tempopt.report.plots import plot_trial_curve, trial_curve_data

    _, result = pages.results.of(study, pages.results.tickets(study))
    reports = shared.store.measurements(study.id, [ticket.id], ["report"])
    seen = replace(result, curves={ticket.id: tuple((each.step, each.value) for each in reports)})
    try:
        data = trial_curve_data(seen, ticket)
    except NothingToPlot as reason:
        text = json.dumps({"absent": str(reason)})
    else:
        text = f'{{"caption": {json.dumps(data.caption())}, "figure": {plot_trial_curve(data).to_json()}}}'
    return Response(text, media_type="application/json", headers=HEADERS)
