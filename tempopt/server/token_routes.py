"""Tokens over HTTP, for users with the scope ``admin``."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field

from tempopt.server.auth import annotate_audit, require
from tempopt.server.authenticator import Principal, Scope
from tempopt.server.errors import ApiError
from tempopt.server.openapi_responses import REFUSALS
from tempopt.server.study_dependencies import Shared
from tempopt.server.tokens import create_token, lifetime
from tempopt.storage.access_rows import TokenRow

router = APIRouter(prefix="/api/tokens", tags=["access"], responses=REFUSALS)
Asking = Annotated[Principal, Depends(require("admin"))]


class TokenResponse(BaseModel):
    """A token without its digest."""

    id: str
    name: str
    scopes: list[str]
    studies: str
    created: datetime
    expires: datetime | None
    used: datetime | None
    revoked: datetime | None
    created_by: str
    user: str


class TokenRequest(BaseModel):
    """A token to be created.

    Args:
        expires: Lifetime, as in ``30d``; null: until it is revoked.
        user: Owner of the studies that are created with it; empty: the name.
    """

    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(max_length=64, examples=["cluster-a"])]
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=4, examples=[["agent"]])]
    studies: Annotated[str, Field(max_length=255, examples=["vision-"])] = ""
    expires: Annotated[str | None, Field(max_length=10, examples=["30d"])] = None
    user: Annotated[str, Field(max_length=100, examples=["ada"])] = ""


class TokenCreated(TokenResponse):
    """A new token with its secret, which is shown only once."""

    token: str


def _build_response(row: TokenRow) -> TokenResponse:
    return TokenResponse.model_validate(row, from_attributes=True)


@router.get("", summary="List tokens")
def list_tokens(principal: Asking, shared: Shared) -> list[TokenResponse]:
    """Return all tokens, oldest first, without their secrets."""
    principal.check_whole()
    return [_build_response(row) for row in shared.store.tokens()]


@router.post("", status_code=201, summary="Create a token")
def create(body: TokenRequest, principal: Asking, shared: Shared, request: Request) -> TokenCreated:
    """Create a token; only this answer has its secret."""
    life = None if body.expires is None else lifetime(body.expires)
    principal.check_whole()
    token, row = create_token(
        shared.store,
        name=body.name,
        scopes=body.scopes,
        studies=body.studies,
        life=life,
        by=principal.name,
        user=body.user,
    )
    scopes, where = ", ".join(row.scopes), f'"{row.studies}..."' if row.studies else "all studies"
    annotate_audit(request, detail=f"token {row.id} {row.name}: {scopes} on {where}")
    return TokenCreated(**_build_response(row).model_dump(), token=token)


@router.delete("/{id}", summary="Revoke a token")
def revoke(
    id: Annotated[str, Path(pattern=r"^[A-Za-z0-9]{1,64}$", examples=["3f9a1c02b7de"])],
    principal: Asking,
    shared: Shared,
) -> TokenResponse:
    """Revoke a token; all servers refuse it within a few seconds."""
    principal.check_whole()
    shared.store.revoke_token(id)
    row = shared.store.token(id)
    if row is None:
        raise ApiError(404, "token_not_found", "There is no token of that id.")
    return _build_response(row)
