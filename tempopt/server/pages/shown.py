"""What the pages of one server share: pictures of the store that several people look at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from tempopt.pool.dispatcher import picture
from tempopt.server.app_state import State
from tempopt.server.pages.findings import Findings
from tempopt.server.pages.overview import Line, look
from tempopt.server.pages.recent import Recent
from tempopt.server.pages.results import Results
from tempopt.study.pool import pool_view

FRESH_SECONDS = 2.0
"""A picture of the store is shown for so long before another is taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What the pages of one server share; threads may.

    Args:
        overview: How all studies stand, the newest first.
        pool: How the pool stands, as :func:`tempopt.study.pool.pool_view`.
        results: Studies that were read as a whole.
    """

    overview: Recent[list[Line]]
    pool: Recent[dict[str, Any]]
    results: Results


def made(state: State) -> Shown:
    """Return what the pages of a server share."""
    findings = Findings(state.store, state.leaving.is_set)
    return Shown(
        overview=Recent(lambda: look(state.store, findings), seconds=FRESH_SECONDS),
        pool=Recent(lambda: pool_view(picture(state.store)), seconds=FRESH_SECONDS),
        results=Results(state.store),
    )


async def shown_of(request: Request) -> Shown:
    """Return what the pages of the server share; a dependency."""
    shown: Shown = request.app.state.pages
    return shown


Pages = Annotated[Shown, Depends(shown_of)]
