"""Limits of requests: size and duration of the body, and parameters of the query."""

from __future__ import annotations

import asyncio

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tempopt.errors import TempoptError, unknown
from tempopt.server.auth import identify_client
from tempopt.server.errors import ApiError, answer, as_refusal

LARGEST_BODY = 16 * 1024 * 1024
"""Maximal bytes of a body with studies, reports of agents or pieces of checkpoints."""
LARGEST_ELSEWHERE = 4 * 1024 * 1024
"""Maximal bytes of other bodies."""
LARGEST_FORM = 8 * 1024
"""Maximal bytes of the form for signing in, the only body of unknown clients that is read."""
_CLOSE = {"connection": "close"}
_LARGE = ("/api/agents/sync", "/api/studies", "/api/checkpoints/")
LONGEST_BODY_SECONDS = 60.0
"""Maximal seconds in which a body has to arrive."""
LONGEST_FORM_SECONDS = 10.0
"""Maximal seconds for the form for signing in."""


class BodyLimitMiddleware:
    """ASGI middleware that refuses a body that is too large, while it is read, or too slow.

    Args:
        app: The application.
        longest: Maximal seconds in which the body has to arrive.
    """

    def __init__(self, app: ASGIApp, *, longest: float = LONGEST_BODY_SECONDS) -> None:
        self._app, self._longest = app, longest

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_form = scope["path"] == "/sign-in"
        largest = LARGEST_BODY if scope["path"].startswith(_LARGE) else LARGEST_ELSEWHERE
        longest = self._longest
        if is_form:
            largest, longest = LARGEST_FORM, min(longest, LONGEST_FORM_SECONDS)
        request_headers = dict(scope["headers"])
        length = request_headers.get(b"content-length", b"0")
        is_chunked = b"transfer-encoding" in request_headers
        try:
            if is_chunked and b"content-length" in request_headers:
                # proxies and servers that read different ones of them can be led to disagree on requests
                text = "The request has both Content-Length and Transfer-Encoding. Send one of them."
                raise ApiError(400, "bad_request", text)
            if length.isdigit() and (len(length) > 18 or int(length) > largest):
                raise ApiError(413, "too_large", _build_too_large_error(largest))
            if (is_chunked or length != b"0") and not is_form:
                await identify_client(Request(scope))
        except (ApiError, TempoptError) as error:
            refusal = as_refusal(error)
            assert refusal is not None
            # the rest of a refused body is not read
            headers = {**(refusal.headers or {}), **_CLOSE}
            await answer(refusal.status, refusal.code, refusal.message, headers)(scope, receive, send)
            return
        await self._app(scope, self._limit(receive, largest, longest), send)

    def _limit(self, receive: Receive, largest: int, longest: float) -> Receive:
        """Return a receive function that counts the bytes of the body and has a timeout."""
        size, is_complete, deadline = 0, False, 0.0

        async def receive_limited() -> Message:
            nonlocal size, is_complete, deadline
            if is_complete:
                # the next message is the disconnection of the client
                return await receive()
            now = asyncio.get_running_loop().time()
            deadline = deadline or now + longest
            try:
                message = await asyncio.wait_for(receive(), max(deadline - now, 0.0))
            except TimeoutError:
                text = f"The body did not arrive within {longest:.0f} seconds. Try again."
                raise HTTPException(408, text, _CLOSE) from None
            if message["type"] == "http.request":
                size += len(message.get("body", b""))
                if size > largest:
                    raise HTTPException(413, _build_too_large_error(largest), _CLOSE)
                is_complete = not message.get("more_body", False)
            return message

        return receive_limited


def _build_too_large_error(largest: int) -> str:
    return f"The body is larger than the limit of {largest} bytes. Send less at a time."


async def check_query(request: Request) -> None:
    """Refuse unknown parameters of a query, since misspelt ones would have no effect."""
    if not (request.query_params and request.scope["path"].startswith("/api/")):
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    param_names = [param["name"] for param in operation.get("parameters", ()) if param["in"] == "query"]
    for name in request.query_params:
        if name not in param_names:
            raise ApiError(422, "invalid_request", unknown("parameter", name, param_names or ["none"]))
