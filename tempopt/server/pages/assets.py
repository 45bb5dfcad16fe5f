"""Files that every page may load, from this server alone: styles, scripts, the icon, plotly."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from tempopt.report.page import shared
from tempopt.server.errors import ApiError

router = APIRouter(prefix="/assets", include_in_schema=False)

_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def _text(name: str) -> str:
    if name == "colours.css":
        return shared.colours()
    if name == "draw.js":
        return shared.drawing()
    if name == "plotly.js":
        return shared.library()
    return (files("tempopt.server.pages") / "assets" / name).read_text(encoding="utf-8")


@functools.cache
def _names() -> frozenset[str]:
    there = {each.name for each in (files("tempopt.server.pages") / "assets").iterdir()}
    return frozenset(there | {"colours.css", "draw.js", "plotly.js"})


@functools.cache
def _kept(name: str) -> tuple[bytes, bytes, str]:
    """Return a file, the same compressed, and what is the same as long as it is."""
    data = _text(name).encode()
    return data, gzip.compress(data, 6, mtime=0), hashlib.sha256(data).hexdigest()[:16]


def address(name: str) -> str:
    """Return where a page finds a file: another place when the file is another, so browsers keep it."""
    return f"/assets/{name}?v={_kept(name)[2]}"


@router.get("/{name}")
def asset(name: str, request: Request, v: str = "") -> Response:
    """Return a file; it tells nothing of any study, so everybody may have it."""
    if name not in _names():
        raise ApiError(404, "not_found", "There is no such file.")
    data, packed, tag = _kept(name)
    headers = {
        "cache-control": "public, max-age=31536000, immutable" if v == tag else "no-cache",
        "x-content-type-options": "nosniff",
        "vary": "accept-encoding",
    }
    if "gzip" in request.headers.get("accept-encoding", ""):
        data, headers["content-encoding"] = packed, "gzip"
    kind = _KINDS[name.rpartition(".")[2]]
    return Response(data, media_type=f"{kind}; charset=utf-8", headers=headers)
