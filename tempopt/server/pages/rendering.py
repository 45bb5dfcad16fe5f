"""How a page is made of a template, and what a browser is told about it: what it may load and run."""

from __future__ import annotations

import functools
import math
from datetime import UTC, datetime
from typing import Any, Literal
from urllib.parse import quote

from fastapi import Request
from fastapi.responses import HTMLResponse
from jinja2 import Environment, PackageLoader, StrictUndefined

from tempopt.report.page.shared import cell, coded
from tempopt.results.wording import duration, parameters_text
from tempopt.server.auth import Principal
from tempopt.server.pages import assets
from tempopt.server.sessions import CSRF_FIELD, csrf_token
from tempopt.version import __version__

Place = Literal["studies", "submit", "pool", ""]
"""What the navigation marks as the page that is shown."""

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    # it is about studies that the next person at this browser may not see
    "cache-control": "no-store",
}


def policy(*, plots: bool = False) -> str:
    """Return the content security policy of a page.

    Args:
        plots: Whether plotly draws on it, which writes style attributes.
    """
    styles = "'self' 'unsafe-inline'" if plots else "'self'"
    return (
        f"default-src 'none'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:; "
        "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )


@functools.cache
def environment() -> Environment:
    """Return the templates: whatever they are given is escaped, and what they are not given is an error."""
    loader = PackageLoader("tempopt.server.pages")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)
    made.lstrip_blocks = True
    made.filters |= {"cell": cell, "coded": coded, "segment": segment, "moment": moment, "ago": ago}
    made.filters |= {"value": value, "hours": hours, "parameters": parameters_text, "duration": duration}
    made.globals |= {"asset": assets.address, "csrf_field": CSRF_FIELD, "version": __version__}
    return made


def page(
    request: Request,
    template: str,
    *,
    place: Place = "",
    status: int = 200,
    plots: bool = False,
    headers: dict[str, str] | None = None,
    **context: Any,
) -> HTMLResponse:
    """Return a template as a page for whoever asks.

    The template gets, beside the context, ``principal`` (None where nobody is known), ``may`` (their scopes),
    ``csrf`` (what their forms have to carry; empty where nobody has signed in with a token) and ``place``.

    Args:
        request: As :func:`tempopt.server.auth.require` has left it.
        template: Its name in templates/.
        place: The page that the navigation marks.
        status: HTTP status.
        plots: As for :func:`policy`.
        headers: More headers of the answer.
    """
    text = environment().get_template(template).render(place=place, **about(request), **context)
    told = {**HEADERS, "content-security-policy": policy(plots=plots), **(headers or {})}
    return HTMLResponse(text, status_code=status, headers=told)


def about(request: Request) -> dict[str, Any]:
    """Return what every template is told of whoever asks."""
    known = request.scope.get("state", {})
    principal: Principal | None = known.get("principal")
    session: str | None = known.get("session")
    return {
        "principal": principal,
        "may": frozenset() if principal is None else principal.scopes,
        "csrf": "" if session is None else csrf_token(session),
        "signed_in": session is not None,
    }


def value(found: float | None) -> str:
    """Return a measured number with four digits, and what is none in words."""
    if found is None:
        return "–"
    return f"{found:.4g}".replace("-", "−") if math.isfinite(found) else "not finite"


def hours(found: float) -> str:
    """Return hours with two digits, few hours as minutes."""
    if 0 < found < 1:
        return f"{60 * found:.0f} min" if found >= 1 / 60 else "< 1 min"
    return f"{found:.1f}" if found < 10 else f"{found:,.0f}"


def segment(text: str) -> str:
    """Return a text as one segment of a path."""
    return quote(text, safe="")


def moment(when: datetime) -> str:
    """Return a moment in UTC for people."""
    return f"{when.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def ago(seconds: float) -> str:
    """Return how long ago something was, in one word: 40 s, 12 min, 3 h, 5 d."""
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{max(seconds, 0):.0f} s"
