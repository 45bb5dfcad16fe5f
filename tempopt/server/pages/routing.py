"""Routes that answer people: a refusal is a page as well, and whoever is unknown is asked to sign in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import parse_qs, quote

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from tempopt.errors import masked
from tempopt.server.app_state import State
from tempopt.server.auth import MOST_FIELDS, READS
from tempopt.server.errors import ApiError, as_refusal
from tempopt.server.pages.rendering import page


class PageRoute(APIRoute):
    """A route whose refusals are pages for browsers, and JSON for programs as everywhere."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def told(request: Request) -> Response:
            if not _is_browser(request):
                return await handle(request)
            if (first := _before(request)) is not None:
                return first
            try:
                return await handle(request)
            except Exception as error:
                refusal = as_refusal(error)
                if refusal is None:
                    raise
                return refused(request, refusal)

        return told


def router() -> APIRouter:
    """Return a router of pages, which no document of the REST tells of."""
    return APIRouter(route_class=PageRoute, include_in_schema=False)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _before(request: Request) -> Response | None:
    """Return what comes instead of a page where nobody can be known: the form; None: somebody may be."""
    shared: State = request.app.state.tempopt
    open_to_all = request.scope["path"] == "/sign-in"
    if open_to_all or "authorization" in request.headers or shared.guard.may_be_known(request):
        return None
    if request.method in READS and request.headers.get("sec-fetch-site") == "cross-site":
        # a browser that follows a link of another site leaves the cookie at home, and sends it the next time
        return page(request, "again.html", where=_where(request))
    return sign_in(request, status=401)


def _where(request: Request) -> str:
    query = request.scope["query_string"].decode("latin-1")
    # one slash: two would name another host
    path = f"/{quote(request.scope['path'].lstrip('/'))}"
    return f"{path}?{query}" if query else path


def sign_in(
    request: Request, *, status: int = 200, error: ApiError | None = None, then: str = ""
) -> Response:
    """Return the page that asks for a token.

    Args:
        error: Why there is nobody who may go on.
        then: Path to go on to; empty: that which was asked for.
    """
    then = then or (_where(request) if request.method in READS else "/")
    headers = {} if error is None else {**(error.headers or {})}
    message = "" if error is None else masked(error.message)
    return page(request, "sign_in.html", status=status, headers=headers, error=message, then=then)


def refused(request: Request, refusal: ApiError) -> Response:
    """Return a refusal as a page."""
    if refusal.status in (401, 429) and "principal" not in request.scope.get("state", {}):
        return sign_in(request, status=refusal.status, error=refusal)
    return page(
        request,
        "refused.html",
        status=refusal.status,
        headers=refusal.headers,
        code=refusal.code,
        message=masked(refusal.message),
    )


async def form(request: Request) -> dict[str, str]:
    """Return the fields of a form, the last of each name; a dependency.

    Raises:
        ApiError: It is none, or has too many fields.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    body = await request.body()
    if body and kind != "application/x-www-form-urlencoded":
        raise ApiError(415, "unsupported_media_type", f'The body is "{kind[:100]}". Send a form of a page.')
    try:
        fields = parse_qs(
            body.decode(),
            keep_blank_values=True,
            strict_parsing=False,
            errors="strict",
            max_num_fields=MOST_FIELDS,
        )
    except ValueError:
        raise ApiError(400, "bad_request", "The body is no form of a page: load the page again.") from None
    return {name: values[-1] for name, values in fields.items()}
