"""Render a template as a page, with headers that restrict what a browser loads and runs."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib.resources import files
from typing import Any
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from tempopt.report.page import shared
from tempopt.server.authenticator import Principal
from tempopt.version import __version__

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    # not cached, since the next user of this browser may not be allowed to see it
    "cache-control": "no-store",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
MEDIA_TYPES = {
    "colours.css": "text/css",
    "pages.css": "text/css",
    "live.js": "text/javascript",
    "plotly.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}
"""The files that pages load, by name."""


@functools.cache
def asset(name: str) -> tuple[bytes, str]:
    """Return a file of the pages, compressed by gzip, and its tag, which changes with its content."""
    if name == "colours.css":
        text = shared.colours()
    elif name == "plotly.js":
        text = shared.library()
    else:
        text = (files("tempopt.server.pages") / "assets" / name).read_text(encoding="utf-8")
    data = text.encode()
    return gzip.compress(data, 6, mtime=0), hashlib.sha256(data).hexdigest()[:16]


def asset_url(name: str) -> str:
    """Return the address of a file; it changes with the content, so that browsers may keep the file."""
    return f"/assets/{name}?v={asset(name)[1]}"


def study_url(name: str) -> str:
    """Return the path of a study's page."""
    return f"/studies/{quote(name, safe='')}"


def format_value(value: float | None) -> str:
    """Format a measured number with four digits."""
    return "–" if value is None else f"{value:.4g}".replace("-", "−")


def format_hours(hours: float) -> str:
    """Format hours with two digits, less than one hour as minutes."""
    if 0 < hours < 1:
        return f"{60 * hours:.0f} min" if hours >= 1 / 60 else "< 1 min"
    return f"{hours:.1f}" if hours < 10 else f"{hours:,.0f}"


def format_age(seconds: float) -> str:
    """Format an age in one unit, as in 40 s, 12 min, 3 h and 5 d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"


@functools.cache
def environment() -> Environment:
    """Return the templates, with their filters."""
    templates = shared.create_environment("tempopt.server.pages")
    templates.filters |= {"study_url": study_url, "value": format_value}
    templates.filters |= {"hours": format_hours, "age": format_age}
    templates.globals |= {"asset_url": asset_url, "version": __version__}
    return templates


def render_page(
    request: Request,
    template: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    **context: Any,
) -> HTMLResponse:
    """Render a template as a page for the client of a request.

    Args:
        request: With ``state.principal``, if a route has identified the client.
        template: Its name in templates/.
        status: HTTP status.
        headers: More headers of the response.
        context: Variables of the template, beside ``principal`` and ``signed_in``.
    """
    state = request.scope.get("state", {})
    principal: Principal | None = state.get("principal")
    text = (
        environment()
        .get_template(template)
        .render(principal=principal, signed_in="session" in state, **context)
    )
    policy = {"content-security-policy": _POLICY}
    return HTMLResponse(text, status_code=status, headers={**HEADERS, **policy, **(headers or {})})
