"""The page of Optuna's dashboard below a path, and its files with that path in their addresses.

They hold nothing of any study.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import re
from importlib.resources import files

from tempopt.errors import StorageError
from tempopt.report.dashboard.mounted import Answer
from tempopt.report.dashboard.overlay import overlay_file

PREFIX = "/dashboard"
"""The path below which the dashboard is."""
FILES = ("bundle.js", "overlay.css", "overlay.js")
"""Names of its files."""
# Where the addresses are in the script of Optuna's page, and what stands in their place.
_ADDRESSES = {
    r"\$\{this\.baseURL\}/api/": f"${{this.baseURL}}{PREFIX}/api/",
    r"(?<!/api)/artifacts/\$\{": f"{PREFIX}/artifacts/${{",
    r"`/csv/\$\{": f"`{PREFIX}/csv/${{",
}
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; frame-src 'self'; object-src 'none'; "
    "connect-src 'self'; "
    # the parallel coordinates, which use WebGL, are made by a script that writes scripts
    "style-src 'self' data: 'unsafe-inline'; script-src 'self' 'unsafe-eval'; base-uri 'none'; "
    "form-action 'self'; frame-ancestors 'none'"
)


@functools.cache
def _kept(name: str) -> tuple[bytes, bytes, str, str]:
    """Return a file, the same compressed, its type, and what is the same as long as it is."""
    if name == "bundle.js":
        data, kind = _bundle(), "text/javascript"
    else:
        data, kind = overlay_file(name)
    return data, gzip.compress(data, 6, mtime=0), kind, hashlib.sha256(data).hexdigest()[:16]


def _bundle() -> bytes:
    text = (files("optuna_dashboard") / "public" / "bundle.js").read_text(encoding="utf-8")
    for pattern, address in _ADDRESSES.items():
        text, count = re.subn(pattern, lambda found, address=address: address, text)  # type: ignore[misc]
        if not count:
            raise StorageError(
                "The installed optuna-dashboard cannot be served below a path. Install the version that "
                "constraints.txt names."
            )
    return text.encode()


def file(name: str, tag: str, *, packed: bool) -> Answer | None:
    """Return a file of the page, None if there is none of that name.

    Args:
        tag: What the page's address of it ends in; with the right one browsers keep it.
        packed: Whether it may come compressed.
    """
    if name not in FILES:
        return None
    plain, small, kind, now = _kept(name)
    headers = [
        ("cache-control", "public, max-age=31536000, immutable" if tag == now else "no-cache"),
        ("vary", "accept-encoding"),
    ]
    if packed:
        headers.append(("content-encoding", "gzip"))
    return Answer(kind=f"{kind}; charset=utf-8", body=small if packed else plain, headers=tuple(headers))


@functools.cache
def page(icon: str) -> Answer:
    """Return Optuna's page with what belongs to tempopt in its head; it holds nothing of any study.

    Args:
        icon: Address of the icon that browsers show.
    """
    text = (files("optuna_dashboard") / "index.html").read_text(encoding="utf-8")
    there = "/static/bundle.js"
    assert there in text
    tags = {name: _kept(name)[3] for name in FILES}
    text = text.replace(there, f"{PREFIX}/files/bundle.js?v={tags['bundle.js']}")
    head = (
        f'<link rel="icon" href="{icon}" type="image/svg+xml">'
        f'<link rel="stylesheet" href="{PREFIX}/files/overlay.css?v={tags["overlay.css"]}">'
        f'<script defer src="{PREFIX}/files/overlay.js?v={tags["overlay.js"]}"></script>'
    )
    text = text.replace("</head>", f"{head}</head>", 1)
    headers = (("content-security-policy", _POLICY), ("cache-control", "no-cache"))
    return Answer(kind="text/html; charset=utf-8", body=text.encode(), headers=headers)
