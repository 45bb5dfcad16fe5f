"""The list of studies: how each that whoever asks may see stands, filtered and sorted as they like."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import Depends, Query, Request, Response
from fastapi.responses import HTMLResponse

from tempopt.server.asked import LARGEST, VIEW
from tempopt.server.auth import Principal
from tempopt.server.pages import routing
from tempopt.server.pages.overview import SORTS, STATES, Line, sorted_by
from tempopt.server.pages.rendering import HEADERS, about, environment, page
from tempopt.server.pages.shown import Pages

router = routing.router()
Seeing = Annotated[Principal, Depends(VIEW)]
PER_PAGE = 100

COLUMNS = (
    ("name", "Study"),
    ("state", "State"),
    ("progress", "Runs"),
    ("", "Best so far"),
    ("verdict", "Verdict"),
    ("owner", "Owner"),
    ("queue", "Queue"),
    ("hours", "GPU-hours"),
    ("age", "Age"),
)
"""What the list is sorted by where there is something, and the heading."""
# What is most of it first.
_DESCENDING = ("progress", "priority", "hours")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which studies somebody wants to see, and in which order.

    Args:
        q: A part of the name, of the owner, of the metric, of a label or of the verdict.
        state: One of STATES; empty: any.
        owner: Whose; empty: anybody's.
        sort: One of SORTS, with ``-`` before it from the greatest on; empty: those at work first, then the
            newest.
        page: From 1.
    """

    q: str = ""
    state: str = ""
    owner: str = ""
    sort: str = ""
    page: int = 1

    def fits(self, line: Line) -> bool:
        """Return whether a study is one of these."""
        texts = (line.name, line.owner, line.metric, line.answer, line.todo, line.queue, *line.labels)
        return (
            (not self.state or line.state == self.state)
            and (not self.owner or line.owner == self.owner)
            and all(any(word in text.lower() for text in texts) for word in self.q.lower().split())
        )

    def query(self) -> str:
        """Return it as the query of a URL, with what is not as usual."""
        told = {"q": self.q, "state": self.state, "owner": self.owner, "sort": self.sort}
        found = {name: value for name, value in told.items() if value}
        return urlencode({**found, "page": self.page} if self.page > 1 else found)

    def sorted(self, lines: list[Line]) -> list[Line]:
        """Return lines in the order that is wanted."""
        key, descending = self.sort.removeprefix("-"), self.sort.startswith("-")
        return sorted_by(lines, key if key in SORTS else "state", descending=descending and key in SORTS)

    def by(self, key: str) -> Wish:
        """Return the wish that a click on a heading is."""
        first, second = (f"-{key}", key) if key in _DESCENDING else (key, f"-{key}")
        return replace(self, sort=second if self.sort == first else first, page=1)


def _wished(
    q: Annotated[str, Query(max_length=200)] = "",
    state: Annotated[str, Query(max_length=20)] = "",
    owner: Annotated[str, Query(max_length=255)] = "",
    sort: Annotated[str, Query(max_length=20)] = "",
    page: Annotated[int, Query(ge=1, le=LARGEST)] = 1,
) -> Wish:
    # what is no state, and no order, is as if it was not given: links may be old
    known = state if state in STATES else ""
    return Wish(
        q=q, state=known, owner=owner, sort=sort if sort.removeprefix("-") in SORTS else "", page=page
    )


Wished = Annotated[Wish, Depends(_wished)]


def _shown(wish: Wish, principal: Principal, pages: Pages) -> dict[str, Any]:
    mine = [each for each in pages.overview.now() if principal.may_see(each.name)]
    found = wish.sorted([each for each in mine if wish.fits(each)])
    last = max(1, -(-len(found) // PER_PAGE))
    wish = replace(wish, page=min(wish.page, last))
    first = (wish.page - 1) * PER_PAGE
    return {
        "wish": wish,
        "lines": found[first : first + PER_PAGE],
        "first": first,
        "found": len(found),
        "all": len(mine),
        "last": last,
        "counts": {state: sum(each.state == state for each in mine) for state in STATES},
        "owners": sorted({each.owner for each in mine if each.owner} | ({wish.owner} - {""})),
        "columns": COLUMNS,
        "pages": {place: replace(wish, page=place).query() for place in (wish.page - 1, wish.page + 1)},
    }


@router.get("/")
def listed(request: Request, wish: Wished, principal: Seeing, pages: Pages, done: str = "") -> Response:
    """Return the list of studies."""
    said = "The study is deleted." if done == "deleted" else ""
    return page(request, "studies.html", place="studies", done=said, **_shown(wish, principal, pages))


@router.get("/fragments/studies")
def fragment(request: Request, wish: Wished, principal: Seeing, pages: Pages) -> Response:
    """Return the table of the list alone; 304 while it is as whoever asks has it."""
    text = environment().get_template("studies_table.html")
    return part(request, text.render(**about(request), **_shown(wish, principal, pages)))


def part(request: Request, text: str) -> Response:
    """Return a part of a page; 304, without it, where it is as whoever asks has it."""
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    headers = {**HEADERS, "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return HTMLResponse(text, headers=headers)
