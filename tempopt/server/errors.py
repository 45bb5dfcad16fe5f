"""Answers to refused requests: a status, and an error with a stable code and a message."""

from __future__ import annotations

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from tempopt.errors import TempoptError, mask_secrets, shorten_message
from tempopt.storage.http.connection import ERROR_RESPONSES

LOGGER = logging.getLogger("tempopt.server")

# Shown to clients instead of the error itself, which would name all studies and the database's URL.
_PUBLIC_MESSAGES = {
    "study_not_found": "There is no such study, or it has been deleted.",
    "storage_busy": "The database of this server is too busy now (see its log). Try again later.",
    "storage_away": "The database of this server cannot be reached now (see its log). Try again later.",
    "storage": "The database of this server failed at this request. The server's log has details.",
}
# Of refusals that Starlette and the limits of bodies raise.
_CODES = {
    400: "bad_request",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    413: "too_large",
}


class ApiError(Exception):
    """A refusal with its own code.

    Args:
        status: HTTP status.
        code: Stable code, for programs.
        message: For people: the given value, what is allowed, what to do.
        headers: Headers of the answer.
    """

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.headers = status, code, message, headers


def answer(status: int, code: str, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return the answer to a refused request."""
    # a request may be repeated in a message
    content = {"error": {"code": code, "message": shorten_message(mask_secrets(message))}}
    return JSONResponse(content, status_code=status, headers=headers)


def as_refusal(error: Exception) -> ApiError | None:
    """Return an error as a refusal, None if it is unexpected."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TempoptError):
        responses = ((code, status) for kind, code, status in ERROR_RESPONSES if isinstance(error, kind))
        code, status = next(responses, ("usage", 400))
        if status >= 500:
            LOGGER.error("%s: %s", type(error).__name__, mask_secrets(str(error)))
        return ApiError(status, code, _PUBLIC_MESSAGES.get(code, str(error)))
    if isinstance(error, RequestValidationError):
        return ApiError(422, "invalid_request", _list_faults(error))
    if isinstance(error, HTTPException):
        code = _CODES.get(error.status_code, "error")
        return ApiError(error.status_code, code, str(error.detail), dict(error.headers or {}))
    return None


def install(app: FastAPI) -> None:
    """Install handlers that answer every error of an app in this form."""

    def answer_refusal(request: Request, error: Exception) -> JSONResponse:
        refusal = as_refusal(error)
        assert refusal is not None
        return answer(refusal.status, refusal.code, refusal.message, refusal.headers)

    def unforeseen(request: Request, error: Exception) -> JSONResponse:
        LOGGER.error("unforeseen: %s", mask_secrets(repr(error)), exc_info=error)
        return answer(500, "internal", "The server met an unexpected error. Its log has details.")

    for error_type in (ApiError, TempoptError, RequestValidationError, HTTPException):
        app.add_exception_handler(error_type, answer_refusal)
    app.add_exception_handler(Exception, unforeseen)


def _list_faults(error: RequestValidationError) -> str:
    faults: list[Any] = list(error.errors())
    lines = [f"{'.'.join(str(part) for part in fault['loc'])}: {fault['msg']}" for fault in faults[:5]]
    # a body with another content type is not read as JSON
    header = (
        " Send it with the header Content-Type: application/json." if isinstance(error.body, bytes) else ""
    )
    return f"The request is not as documented in /openapi.json. {'; '.join(lines)}.{header}"
