"""The page of one study: its verdict, how far it is, its plots, its runs; changes.py has what is done."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import RedirectResponse

from tempopt.errors import NothingToPlot
from tempopt.records.rows import KINDS, StudyRow
from tempopt.report.page import sections
from tempopt.results.study_result import StudyResult
from tempopt.server import studies as rest
from tempopt.server.asked import LARGEST, Seen, Shared
from tempopt.server.errors import ApiError
from tempopt.server.pages import routing
from tempopt.server.pages.rendering import HEADERS, about, environment, page
from tempopt.server.pages.shown import Pages
from tempopt.server.pages.standing import (
    PER_PAGE,
    RUN_STATES,
    latest_first,
    run,
    run_state,
    stages,
    standing,
    verdict,
)
from tempopt.server.pages.studies import part
from tempopt.study.progress import LABELS

router = routing.router()
# Drawing takes a core for seconds; agents are not to wait for it.
_DRAWING = threading.BoundedSemaphore(2)
# Numbers are asked for together with an attribute of the pages.
_ANY = "tempopt:headline"
DONE = {
    "paused": "The study pauses: its agents write checkpoints and leave.",
    "resumed": "The study goes on.",
    "stopped": "The search stops, and what it found so far is confirmed.",
    "added": "They were added, and agents begin them.",
    "retried": "Runs that had failed wait for agents again.",
    "placed": "Queue and priority are changed.",
    "submitted": "The study has begun.",
}
"""What a page says was done, by the word in its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which runs somebody wants to see: of one stage and one state each, empty: of any; ``page`` from 1."""

    stage: str = ""
    state: str = ""
    page: int = 1

    def query(self) -> str:
        """Return it as the query of a URL, with what is not as usual."""
        found = {"stage": self.stage, "state": self.state, "page": self.page if self.page > 1 else ""}
        return urlencode({name: value for name, value in found.items() if value})


def _wished(
    stage: Annotated[str, Query(max_length=20)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    page: Annotated[int, Query(ge=1, le=LARGEST)] = 1,
) -> Wish:
    return Wish(stage=stage if stage in KINDS else "", state=state if state in RUN_STATES else "", page=page)


Wished = Annotated[Wish, Depends(_wished)]


def _top(study: StudyRow, pages: Pages) -> dict[str, Any]:
    tickets = pages.results.tickets(study)
    _, result = pages.results.of(study, tickets)
    state, agents = standing(study, tickets)
    return {
        "study": study,
        "result": result,
        "state": state,
        "agents": agents,
        "stages": stages(tickets),
        "verdict": verdict(result),
        "can_grow": result.spec.compare is None,
        "exportable": result.best is not None or result.comparison is not None,
    }


def _runs(study: StudyRow, pages: Pages, wish: Wish) -> dict[str, Any]:
    tickets = pages.results.tickets(study)
    fitting = [
        each
        for each in latest_first(tickets)
        if wish.stage in ("", each.kind) and wish.state in ("", run_state(each))
    ]
    last = max(1, -(-len(fitting) // PER_PAGE))
    wish = replace(wish, page=min(wish.page, last))
    first = (wish.page - 1) * PER_PAGE
    there = {each.kind for each in tickets}
    return {
        "study": study,
        "wish": wish,
        "runs": [run(each) for each in fitting[first : first + PER_PAGE]],
        "first": first,
        "found": len(fitting),
        "last": last,
        "kinds": [(kind, LABELS[kind]) for kind in KINDS if kind in there],
        "states": RUN_STATES,
        "pages": {place: replace(wish, page=place).query() for place in (wish.page - 1, wish.page + 1)},
    }


@router.get("/studies/{name}")
def shown(request: Request, study: Seen, pages: Pages, wish: Wished, done: str = "") -> Response:
    """Return the page of a study."""
    found = _top(study, pages)
    return page(
        request,
        "study.html",
        place="studies",
        plots=True,
        done=DONE.get(done, ""),
        drawn=drawn(found["result"]),
        **found,
        **{name: value for name, value in _runs(study, pages, wish).items() if name != "study"},
    )


@router.get("/studies/{name}/standing")
def top(request: Request, study: Seen, pages: Pages) -> Response:
    """Return the part of the page that says how the study stands."""
    text = environment().get_template("study_standing.html")
    return part(request, text.render(**about(request), **_top(study, pages)))


@router.get("/studies/{name}/runs")
def runs(request: Request, study: Seen, pages: Pages, wish: Wished) -> Response:
    """Return the table of runs."""
    text = environment().get_template("study_runs.html")
    return part(request, text.render(**about(request), **_runs(study, pages, wish)))


def drawn(result: StudyResult) -> list[tuple[str, str]]:
    """Return key and title of the plots that there may be, those first that people look at while it runs."""
    # plotly takes a while to load
    from tempopt.report.plots import PLOTS

    keys = sections.plot_keys(result)
    first = [key for key in ("history", "differences") if key in keys]
    return [(key, PLOTS[key].title) for key in (*first, *(key for key in keys if key not in first))]


@router.get("/studies/{name}/plots/{key}")
def plot(request: Request, study: Seen, pages: Pages, key: str) -> Response:
    """Return a plot as plotly draws it, with its caption; or in words why there is none."""
    from tempopt.report.plots import PLOTS

    if key not in PLOTS:
        raise ApiError(404, "not_found", f"There is no such plot. Known: {', '.join(PLOTS)}.")
    tickets = pages.results.tickets(study)
    with _DRAWING:
        mark, result = pages.results.of(study, tickets, whole=True)
        tag = f'"{mark}"'
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={**HEADERS, "etag": tag})
        try:
            data = PLOTS[key].data(result)
        except NothingToPlot as reason:
            text = json.dumps({"absent": str(reason)})
        else:
            figure = PLOTS[key].figure(data).to_json()
            text = f'{{"caption": {json.dumps(data.caption())}, "figure": {figure}}}'
    return Response(text, media_type="application/json", headers={**HEADERS, "etag": tag})


@router.get("/studies/{name}/report")
def report(study: Seen, shared: Shared) -> Response:
    """Return the report, which says itself what a browser may run on it."""
    answer = rest.report(study, shared)
    for name in ("x-frame-options", "referrer-policy", "cross-origin-opener-policy", "cache-control"):
        answer.headers[name] = HEADERS[name]
    return answer


@router.get("/studies/{name}/optuna")
def optuna(study: Seen, shared: Shared) -> Response:
    """Lead to the study in Optuna's dashboard, which knows it by Optuna's number."""
    found = shared.store.page_attributes(_ANY).get(study.name)
    if found is None:
        raise ApiError(404, "not_found", f'Optuna has no study "{study.name}", so its dashboard has no page.')
    return RedirectResponse(f"/dashboard/studies/{found[0]}", status_code=303, headers=HEADERS)


@router.get("/studies/{name}/export.{ending}")
def export(study: Seen, shared: Shared, ending: str, winner: bool = False) -> Response:
    """Return what is recommended as a file."""
    if ending not in ("yaml", "py"):
        raise ApiError(404, "not_found", "There are export.yaml and export.py.")
    answer = rest.export(study, shared, format="yaml" if ending == "yaml" else "python", winner=winner)
    # a study's name is one that every file system takes
    answer.headers["content-disposition"] = f'attachment; filename="{study.name}.{ending}"'
    answer.headers["cache-control"] = "no-store"
    return answer
