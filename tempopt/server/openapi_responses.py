"""Descriptions of refusals, and of a study's name in a path, for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import BaseModel, Field


class RefusalError(BaseModel):
    """Why a request was refused."""

    code: Annotated[str, Field(description="Stable code, for programs.", examples=["study_not_found"])]
    message: Annotated[str, Field(description="For people: the given value, what is allowed and what to do.")]


class Refusal(BaseModel):
    """The body of every answer to a request that was refused."""

    error: RefusalError


_REFUSED = {
    400: "The request is invalid: `usage`, `bad_request`.",
    401: "The token is not valid: `token_missing`, `token_unknown`, `token_expired`, `token_revoked`.",
    403: "The token does not allow this: `forbidden`.",
    404: "There is no such study among those that the token may see: `study_not_found`.",
    408: "The body came too slowly: `too_slow`.",
    409: "The study is not in the state that the request expects: `study_changed`, `study_failed`.",
    413: "The body is too large: `too_large`.",
    422: "The body or the query is not as documented, or a spec is invalid: `invalid_request`, `spec`.",
    429: "Too many at a time: `rate_limited`, `too_many_listeners`.",
    500: "The database failed, or an unexpected error: `storage`, `internal`.",
    503: "The database cannot be reached now; try again: `storage_away`, `storage_busy`.",
}
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": text} for status, text in _REFUSED.items()
}
"""``responses`` of a router: the meaning of each status of a refusal."""
REFUSALS_OF_TEXT: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
    }
    for status, text in _REFUSED.items()
}
"""``responses`` of a route that answers with a page or a text, and refuses in JSON as all do."""


def error_response_doc(text: str) -> dict[str, Any]:
    """Return the description of a further status of a refusal."""
    return {"model": Refusal, "description": text}


Name = Annotated[
    str,
    Path(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,254}$",
        description="Name of the study.",
        examples=["max_retrieval"],
    ),
]
"""A study's name in a path."""
