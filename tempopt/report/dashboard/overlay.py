"""A layer over Optuna's dashboard that shows tempopt's verdicts first and puts its plots in order.

Owns a stylesheet and a script, which it adds to the dashboard's page, and what they ask for. Both come from
the dashboard's own address, which is all that its content security policy allows. They rely on ids and
labels of Optuna's page; ``tests/report/test_browser_overlay.py`` fails where a new version lacks one.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from tempopt.errors import StorageError
from tempopt.records.rows import StudySummary
from tempopt.report.dashboard.study_page import HEADLINE
from tempopt.report.plots import PLOTS
from tempopt.store.store import Store

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_ROOT = "/tempopt"
_LINK = f'<link rel="stylesheet" href="{_ROOT}/overlay.css">'
_SCRIPT = f'<script defer src="{_ROOT}/overlay.js"></script>'
# With these the answer would be a part of Optuna's page, or the word that the browser has it already.
_CONDITIONS = ("HTTP_IF_MODIFIED_SINCE", "HTTP_IF_NONE_MATCH", "HTTP_RANGE", "HTTP_ACCEPT_ENCODING")
_OF_THE_FILE = {"content-length", "last-modified", "etag", "accept-ranges"}


def overlaid(app: WSGIApplication, store: Store) -> WSGIApplication:
    """Return Optuna's dashboard with the stylesheet and the script in its page.

    Args:
        app: Optuna's dashboard.
        store: Where the studies are.
    """

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == _ROOT or path.startswith(f"{_ROOT}/"):
            return _own(path, store, start_response, body=environ["REQUEST_METHOD"] != "HEAD")
        if environ["REQUEST_METHOD"] == "GET" and (path == "/dashboard" or path.startswith("/dashboard/")):
            return _with_head(app, environ, start_response)
        return app(environ, start_response)

    return answer


def _with_head(
    app: WSGIApplication, environ: WSGIEnvironment, start_response: StartResponse
) -> Iterable[bytes]:
    """Answer with Optuna's page and, in its head, what belongs to tempopt."""
    told: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        told[:] = status, headers, exc_info
        return lambda data: None

    found = app({name: value for name, value in environ.items() if name not in _CONDITIONS}, start)
    try:
        body = b"".join(found)
    finally:
        if hasattr(found, "close"):
            found.close()
    status, headers, exc_info = told
    body = body.replace(b"</head>", f"{_LINK}{_SCRIPT}</head>".encode(), 1)
    kept = [(name, value) for name, value in headers if name.lower() not in _OF_THE_FILE]
    kept += [("Content-Length", str(len(body))), ("Cache-Control", "no-cache")]
    start_response(status, kept, exc_info)
    return [body]


def _own(path: str, store: Store, start_response: StartResponse, *, body: bool) -> Iterable[bytes]:
    status, kind, text = "200 OK", "text/plain", ""
    if path == f"{_ROOT}/overlay.css":
        kind, text = "text/css", _stylesheet()
    elif path == f"{_ROOT}/overlay.js":
        kind, text = "text/javascript", _asset("overlay.js")
    elif path == f"{_ROOT}/studies":
        kind = "application/json"
        try:
            text = json.dumps(headlines(store))
        except StorageError as error:
            status, text = "503 Service Unavailable", json.dumps({"reason": str(error)})
    else:
        status, text = "404 Not Found", "There is nothing at this address.\n"
    data = text.encode()
    start_response(
        status,
        [
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("Cache-Control", "no-cache"),
        ],
    )
    return [data] if body else []


def headlines(store: Store) -> list[dict[str, Any]]:
    """Return what the dashboard leads with, a dict for each of tempopt's studies that Optuna has.

    The keys are ``id`` (Optuna's), ``name``, ``state``, ``runs`` (how many are over, in words; empty before
    there are any), and, once its
    page was written, ``answer``, ``verdict``, ``todo`` and ``in_short``.

    Raises:
        StorageError: The database cannot be read.
    """
    kept = store.page_attributes(HEADLINE)
    found = []
    for summary in store.list_studies():
        name = summary.study.name
        if name in kept:
            number, lead = kept[name]
            facts = {"id": number, "name": name, "state": summary.study.state, "runs": _runs(summary)}
            found.append({**facts, **(lead or {})})
    return found


def _runs(summary: StudySummary) -> str:
    counts = [
        (state, count)
        for states in summary.tickets.values()
        for state, count in states.items()
        if state != "withdrawn"
    ]
    over = sum(count for state, count in counts if state in ("done", "failed"))
    asked = sum(count for _, count in counts)
    return f"{over} of {asked} runs" if asked else ""


def overlay_file(name: str) -> tuple[bytes, str]:
    """Return what ``overlay.css`` or ``overlay.js`` holds, and its type."""
    if name == "overlay.css":
        return _stylesheet().encode(), "text/css"
    return _asset(name).encode(), "text/javascript"


@functools.cache
def _stylesheet() -> str:
    """Return the stylesheet, with the plots in the order of the report."""
    order = "".join(
        f'.MuiGrid-root:not(.MuiGrid-container):has([id="user-defined-plot:tempopt-{key}"])'
        f" {{ order: {place - len(PLOTS)}; }}\n"
        for place, key in enumerate(PLOTS)
    )
    return f"{_asset('overlay.css')}\n{order}"


@functools.cache
def _asset(name: str) -> str:
    return (files("tempopt.report.dashboard") / "assets" / name).read_text(encoding="utf-8")
