"""Routes of the pages; refusals are pages, too, and an unknown client gets the sign-in form."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Coroutine
from typing import Annotated, Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from markupsafe import Markup

from tempopt.errors import mask_secrets
from tempopt.server import sessions
from tempopt.server.auth import check_scopes, require
from tempopt.server.authenticator import READS, SCOPES, Principal, check_same_site
from tempopt.server.errors import ApiError, as_refusal
from tempopt.server.pages.rendering import HEADERS, MEDIA_TYPES, asset, asset_url, environment, render_page
from tempopt.server.pages.study_list import PER_PAGE
from tempopt.server.study_dependencies import VIEW, Shared, ViewableStudy

_MAX_FIELDS = 10
REFRESH_SECONDS = 20
"""Seconds between two updates of the page of a running study."""


class PageRoute(APIRoute):
    """A route that answers refused requests of a browser with a page, and those of a program with JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_page(request: Request) -> Response:
            if "text/html" not in request.headers.get("accept", ""):
                return await handle(request)
            try:
                return await handle(request)
            except Exception as error:
                refusal = as_refusal(error)
                if refusal is None:
                    raise
                return _refuse(request, refusal)

        return handle_page


router = APIRouter(route_class=PageRoute, include_in_schema=False)
Viewer = Annotated[Principal, Depends(VIEW)]


@router.get("/")
def show_studies(
    request: Request,
    principal: Viewer,
    shared: Shared,
    q: Annotated[str, Query(max_length=200)] = "",
    page: Annotated[int, Query(ge=1, le=10_000)] = 1,
) -> Response:
    """Return the list of studies, those at work first, then the newest."""
    visible = [row for row in shared.study_list.rows() if principal.may_see(row.study.name)]
    matching = [row for row in visible if row.matches(q)]
    first_index = (page - 1) * PER_PAGE
    return render_page(
        request,
        "studies.html",
        rows=shared.study_list.with_answers(matching[first_index : first_index + PER_PAGE]),
        num_visible=len(visible),
        num_matching=len(matching),
        page=page,
        num_pages=max(1, -(-len(matching) // PER_PAGE)),
        query=q,
    )


@router.get("/studies/{name}")
def show_study(request: Request, study: ViewableStudy, shared: Shared) -> Response:
    """Return the report of a study, which updates itself while the study runs."""
    # lazy import: plotly is slow to load
    from tempopt.report.page.html import Site

    is_signed_in = "session" in request.scope.get("state", {})
    actions = environment().get_template("actions.html").render(name=study.name, signed_in=is_signed_in)
    site = Site(
        home_url="/",
        library_url=asset_url("plotly.js"),
        refresh_seconds=REFRESH_SECONDS,
        actions=Markup(actions),
    )
    return HTMLResponse(shared.reports.page(study, site=site), headers=HEADERS)


@router.get("/sign-in")
def show_sign_in(request: Request, then: str = "/") -> Response:
    """Return the form that asks for a token."""
    return _render_sign_in_form(request, then=_to_local_path(then))


@router.post("/sign-in")
async def sign_in(request: Request, shared: Shared) -> Response:
    """Begin a session with the token of the form; the browser stores the session, not the token."""
    try:
        fields = parse_qs((await request.body()).decode(), max_num_fields=_MAX_FIELDS)
    except ValueError:
        raise ApiError(400, "bad_request", "The body is not a form. Load the page again.") from None
    then = _to_local_path(fields.get("then", ["/"])[-1])
    try:
        check_same_site(request)
        token = fields.get("token", [""])[-1].strip()
        principal = await shared.guard.identify(request, token)
        request.state.principal = principal
        check_scopes(principal, {"view"})
        secret, expires = await shared.guard.begin_session(principal)
    except ApiError as refusal:
        return _render_sign_in_form(request, status=refusal.status, error=refusal, then=then)
    response = RedirectResponse(then, status_code=303, headers=HEADERS)
    sessions.set_cookie(request, response, secret, expires)
    return response


@router.post("/sign-out")
def sign_out(
    request: Request, shared: Shared, principal: Annotated[Principal, Depends(require(*SCOPES))]
) -> Response:
    """End the session of this browser, on every server."""
    if secret := sessions.read_cookie(request):
        sessions.end(shared.store, secret)
    response = RedirectResponse("/sign-in", status_code=303, headers=HEADERS)
    sessions.delete_cookie(request, response)
    return response


@router.get("/assets/{name}")
def send_asset(name: str, request: Request, v: str = "") -> Response:
    """Return a file that pages load, which has no data of studies and needs no token."""
    if name not in MEDIA_TYPES:
        raise ApiError(404, "not_found", f"There is no such file. Files: {', '.join(MEDIA_TYPES)}.")
    data, tag = asset(name)
    headers = {
        "cache-control": "public, max-age=31536000, immutable" if v == tag else "no-cache",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["content-encoding"] = "gzip"
    else:
        data = gzip.decompress(data)
    return Response(data, media_type=f"{MEDIA_TYPES[name]}; charset=utf-8", headers=headers)


def _refuse(request: Request, refusal: ApiError) -> Response:
    if refusal.status in (401, 429) and "principal" not in request.scope.get("state", {}):
        error = refusal if refusal.code != "token_missing" else None
        return _render_sign_in_form(request, status=refusal.status, error=error)
    return render_page(
        request,
        "refused.html",
        status=refusal.status,
        headers=refusal.headers,
        code=refusal.code,
        message=mask_secrets(refusal.message),
    )


def _render_sign_in_form(
    request: Request, *, status: int = 200, error: ApiError | None = None, then: str = ""
) -> Response:
    if not then:
        path = f"/{quote(request.scope['path'].lstrip('/'))}"
        query = request.scope["query_string"].decode("latin-1")
        then = (f"{path}?{query}" if query else path) if request.method in READS else "/"
    headers = {} if error is None else {**(error.headers or {})}
    message = "" if error is None else mask_secrets(error.message)
    return render_page(request, "sign_in.html", status=status, headers=headers, error=message, then=then)


def _to_local_path(path: str) -> str:
    """Return a path of this server, that of the list of studies for any other address."""
    # browsers read a backslash as a slash, and drop control characters
    is_plain = path.isprintable() and "\\" not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else "/"
