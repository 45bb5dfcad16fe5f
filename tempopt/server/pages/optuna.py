"""Optuna's dashboard behind the same sign-in: of each study for whoever may see it, and of no other."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import Depends, FastAPI, Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from tempopt.server.asked import VIEW, Shared
from tempopt.server.auth import Principal, Scope, about, asking
from tempopt.server.errors import ApiError
from tempopt.server.pages import assets, routing
from tempopt.server.pages.rendering import segment
from tempopt.server.pages.shown import Pages
from tempopt.store.store import Store

if TYPE_CHECKING:
    from tempopt.report.dashboard.mounted import Answer, MountedDashboard

T = TypeVar("T")
router = routing.router()
Seeing = Annotated[Principal, Depends(VIEW)]

LARGEST_NOTE = 256 * 1024
"""Bytes of a note that is written at the most."""
_WRITING: tuple[Scope, ...] = ("submit",)
# Its plots take a core for seconds. In threads of its own, for agents are not to wait for a free one.
_AT_ONCE = 4
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Dashboard:
    """The dashboard of one server, which is opened when somebody asks for it.

    Args:
        store: Where the studies are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._opened: MountedDashboard | None = None
        self._limiter: CapacityLimiter | None = None

    def opened(self) -> MountedDashboard:
        """Return it; StorageError if Optuna's tables cannot be read."""
        # Optuna's dashboard and plotly take a while to load
        from tempopt.report.dashboard.mounted import MountedDashboard

        with self._lock:
            if self._opened is None:
                self._opened = MountedDashboard(self._store)
            return self._opened

    async def do(self, work: Callable[[MountedDashboard], T]) -> T:
        """Return what work makes of the dashboard, in one of its threads."""
        if self._limiter is None:
            self._limiter = CapacityLimiter(_AT_ONCE)
        return await anyio.to_thread.run_sync(lambda: work(self.opened()), limiter=self._limiter)

    def close(self) -> None:
        """Let go of the database."""
        with self._lock:
            if self._opened is not None:
                self._opened.close()
            self._opened = None


def install(app: FastAPI, store: Store) -> None:
    """Have an application serve the dashboard."""
    app.state.dashboard = Dashboard(store)
    app.include_router(router)


async def _of(request: Request) -> Dashboard:
    found: Dashboard = request.app.state.dashboard
    return found


Opened = Annotated[Dashboard, Depends(_of)]


async def _noting(
    request: Request,
    shared: Shared,
    shown: Annotated[HTTPAuthorizationCredentials | None, Security(HTTPBearer(auto_error=False))] = None,
) -> Principal:
    # Optuna's page knows nothing of our proof, and a browser says which page has sent a request
    return await asking(request, shared, _WRITING, None if shown is None else shown.credentials, forms=False)


_noting.__dict__["scopes"] = _WRITING


def _answered(answer: Answer) -> Response:
    headers = {"cache-control": "no-store", **_HEADERS, **dict(answer.headers)}
    # without a type nobody guesses one
    kind = answer.kind or "application/octet-stream"
    return Response(answer.body, status_code=answer.status, headers={**headers, "content-type": kind})


# ---- what holds nothing of any study


@router.get("/dashboard/files/{name}")
async def file(request: Request, principal: Seeing, name: str, v: str = "") -> Response:
    """Return a file of the page."""
    from tempopt.report.dashboard import mounted_page

    packed = "gzip" in request.headers.get("accept-encoding", "")
    found = await anyio.to_thread.run_sync(lambda: mounted_page.file(name, v, packed=packed))
    if found is None:
        raise ApiError(404, "not_found", "There is no such file.")
    return _answered(found)


@router.get("/dashboard/api/meta")
async def meta(principal: Seeing, dashboard: Opened) -> Response:
    """Return what the page asks of the server that it is on."""
    from tempopt.report.dashboard.mounted import META

    return _answered(META)


# ---- all studies that may be seen


@router.get("/dashboard/api/studies")
async def studies(principal: Seeing, pages: Pages, dashboard: Opened) -> Response:
    """Return Optuna's list of studies."""

    def listed(opened: MountedDashboard) -> Answer:
        lines = [each for each in pages.overview.now() if principal.may_see(each.name)]
        return opened.listed({each.name: each.direction for each in lines})

    return _answered(await dashboard.do(listed))


@router.get("/dashboard/tempopt/studies")
async def headlines(principal: Seeing, pages: Pages, dashboard: Opened) -> Response:
    """Return what the page leads with: states and verdicts of studies."""

    def led(opened: MountedDashboard) -> Answer:
        lines = [each for each in pages.overview.now() if principal.may_see(each.name)]
        runs = {each.name: f"{each.over} of {each.asked} runs" if each.asked else "" for each in lines}
        return opened.headlines(
            {
                each.name: {
                    "state": each.state,
                    "runs": runs[each.name],
                    "page": f"/studies/{segment(each.name)}",
                }
                for each in lines
            }
        )

    return _answered(await dashboard.do(led))


# ---- one study


@router.put("/dashboard/api/{path:path}")
async def note(
    request: Request, path: str, principal: Annotated[Principal, Depends(_noting)], dashboard: Opened
) -> Response:
    """Write a note; nothing else is written here."""
    body = await request.body()
    if len(body) > LARGEST_NOTE:
        raise ApiError(413, "too_large", f"The note is larger than {LARGEST_NOTE} bytes. Give a shorter one.")
    name = await dashboard.do(lambda opened: opened.name_of(f"/api/{path}", principal.may_see))
    about(request, study=name)
    return _answered(
        await dashboard.do(lambda opened: opened.write_note(f"/api/{path}", body, principal.may_see))
    )


async def _read(request: Request, principal: Principal, dashboard: Dashboard, path: str) -> Response:
    query = request.scope["query_string"].decode("latin-1")
    return _answered(await dashboard.do(lambda opened: opened.read(path, query, principal.may_see)))


@router.get("/dashboard/api/{path:path}")
async def of_study(request: Request, path: str, principal: Seeing, dashboard: Opened) -> Response:
    """Return what a study has to show: its trials, a plot."""
    return await _read(request, principal, dashboard, f"/api/{path}")


@router.get("/dashboard/csv/{path:path}")
async def table(request: Request, path: str, principal: Seeing, dashboard: Opened) -> Response:
    """Return the trials of a study as a table."""
    return await _read(request, principal, dashboard, f"/csv/{path}")


@router.get("/dashboard/artifacts/{path:path}")
async def picture(request: Request, path: str, principal: Seeing, dashboard: Opened) -> Response:
    """Return the picture of a run."""
    return await _read(request, principal, dashboard, f"/artifacts/{path}")


# ---- the page, which is the same for every study


@router.get("/dashboard")
@router.get("/dashboard/{path:path}")
async def page(principal: Seeing) -> Response:
    """Return the page of the dashboard."""
    from tempopt.report.dashboard import mounted_page

    icon = assets.address("icon.svg")
    return _answered(await anyio.to_thread.run_sync(mounted_page.page, icon))
