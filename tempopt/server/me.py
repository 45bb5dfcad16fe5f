"""Route that returns the client's identity, with which ``tempopt login`` verifies a token."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from tempopt.server.auth import require
from tempopt.server.authenticator import SCOPES, Principal, Scope
from tempopt.server.openapi_responses import REFUSALS
from tempopt.version import __version__

router = APIRouter(prefix="/api", tags=["me"], responses=REFUSALS)


class Me(BaseModel):
    """Identity of the client.

    Args:
        name: Name of the token.
        scopes: Its scopes.
        user: Owner of the studies that are created with it.
        prefix: Prefix of the names of studies that it may access; empty: all studies.
        server: Version of the server.
    """

    name: Annotated[str, Field(examples=["laptop of Ada"])]
    scopes: Annotated[list[Scope], Field(examples=[["view", "submit"]])]
    user: Annotated[str, Field(examples=["ada"])]
    prefix: Annotated[str, Field(examples=["vision-"])]
    server: Annotated[str, Field(examples=[__version__])]


@router.get("/me", summary="Who asks")
def me(principal: Annotated[Principal, Depends(require(*SCOPES))]) -> Me:
    """Return the name and the rights of the token."""
    scopes = [scope for scope in SCOPES if scope in principal.scopes]
    return Me(
        name=principal.name,
        scopes=scopes,
        user=principal.user,
        prefix=principal.studies,
        server=__version__,
    )
