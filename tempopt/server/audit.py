"""The audit log: a row without secrets for each change and each refusal, with the user."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tempopt.errors import StorageError, mask_secrets
from tempopt.server.app_state import ServerState
from tempopt.server.auth import require
from tempopt.server.authenticator import READS, Principal, client_address
from tempopt.server.openapi_responses import REFUSALS
from tempopt.server.study_dependencies import Shared
from tempopt.storage.access_rows import AuditRow
from tempopt.storage.rows import WITHOUT_NUL

LOGGER = logging.getLogger("tempopt.server")
# The frequent requests of agents are recorded in the study itself.
_UNAUDITED_PATHS = ("/api/agents/sync", "/api/checkpoints/")

router = APIRouter(prefix="/api/audit", tags=["access"], responses=REFUSALS)


class Audit:
    """Writes a row for each request that may change something, and for refused authentications."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answered = False

        async def send_and_note(message: Message) -> None:
            nonlocal answered
            if message["type"] == "http.response.start":
                # written before the answer, so that its reader finds the row
                answered = True
                await _build_note(scope, message["status"])
            await send(message)

        scope.setdefault("state", {})
        try:
            await self._app(scope, receive, send_and_note)
        except Exception:
            # unexpected errors are answered by an outer handler
            if not answered:
                await _build_note(scope, 500)
            raise


async def _build_note(scope: Scope, status: int) -> None:
    row = _build_row(scope, status)
    if row is not None:
        await run_in_threadpool(_write_row, scope["app"].state.tempopt, row)


def _write_row(state: ServerState, row: AuditRow) -> None:
    try:
        state.store.audit([row])
    except StorageError as error:
        LOGGER.warning("not audited: %s %s: %s", row.action, row.status, error)


def _build_row(scope: Scope, status: int) -> AuditRow | None:
    state: dict[str, Any] = scope["state"]
    principal: Principal | None = state.get("principal")
    changes = scope["method"] not in READS and not scope["path"].startswith(_UNAUDITED_PATHS)
    unwritten: int | None = state.get("unwritten")
    if principal is None and unwritten is None:
        return None
    if principal is not None and not changes and status != 403:
        return None
    path: dict[str, str] = scope.get("path_params", {})
    study, detail = state.get("about", (path.get("name") or path.get("study") or "", ""))
    if unwritten:
        detail = f"{unwritten} earlier refusals have no row"
    return AuditRow(
        number=0,
        moment=datetime.now(UTC),
        name="" if principal is None else principal.name,
        token="" if principal is None else principal.id,
        address=client_address(Request(scope)),
        action=mask_secrets(f"{scope['method']} {scope['path']}"),
        status=status,
        # a token may be pasted where a name is asked for
        study=mask_secrets(study),
        detail=mask_secrets(detail),
    )


@router.get("", summary="Who did what")
def list_audit(
    principal: Annotated[Principal, Depends(require("admin"))],
    shared: Shared,
    before: Annotated[int | None, Query(ge=0, le=2**53)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    study: Annotated[
        str, Query(pattern=WITHOUT_NUL, max_length=255, description="Only rows of the study of this name.")
    ] = "",
) -> list[AuditRow]:
    """Return rows, newest first; `before` the number of the last row is the next page."""
    principal.check_whole()
    return shared.store.audit_rows(before=before, limit=limit, study=study)
