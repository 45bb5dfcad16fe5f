"""Who a server takes a client for: what tempopt login verifies a token by."""

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
    """Who asks.

    Args:
        name: Name of the token, or of a person that a proxy has signed in.
        scopes: What it may do.
        user: Whose studies are begun with it.
        prefix: On studies whose names begin so; the empty text: on all.
        server: Version of the server.
    """

    name: Annotated[str, Field(examples=["laptop of Ada"])]
    scopes: Annotated[list[Scope], Field(examples=[["view", "submit"]])]
    user: Annotated[str, Field(examples=["ada"])]
    prefix: Annotated[str, Field(examples=["vision-"])]
    server: Annotated[str, Field(examples=[__version__])]


@router.get("/me", summary="Who asks")
def me(principal: Annotated[Principal, Depends(require(*SCOPES))]) -> Me:
    """Return what the token may do."""
    scopes = [scope for scope in SCOPES if scope in principal.scopes]
    return Me(
        name=principal.name,
        scopes=scopes,
        user=principal.user,
        prefix=principal.studies,
        server=__version__,
    )
