"""One server and how it is asked: requests with a token, answers as plain data, errors as tempopt's own.

An error of the server has a stable code, and is raised here as the class that it has on a database.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any

from tempopt.errors import (
    AccessDenied,
    CheckpointNotFound,
    SpecError,
    StaleAttempt,
    StorageError,
    StoreBusy,
    StoreUnreachable,
    StudyChanged,
    StudyFailed,
    StudyNotFound,
    TempoptError,
    UsageError,
)
from tempopt.storage.http.address import server_url
from tempopt.storage.http.lazy_httpx import httpx
from tempopt.storage.http.wire import PROTOCOL
from tempopt.version import __version__

CONNECT_SECONDS = 10.0
READ_SECONDS = 60.0
_AGAIN_SECONDS = (0.1, 0.5)

ERROR_RESPONSES: tuple[tuple[type[TempoptError], str, int], ...] = (
    (StoreBusy, "storage_busy", 503),
    (StoreUnreachable, "storage_away", 503),
    (StudyNotFound, "study_not_found", 404),
    (StorageError, "storage", 500),
    (SpecError, "spec", 422),
    (StudyChanged, "study_changed", 409),
    (AccessDenied, "forbidden", 403),
    (UsageError, "usage", 400),
    (StaleAttempt, "stale_attempt", 409),
    (StudyFailed, "study_failed", 409),
)
"""Code and status with which a server answers an error: those of the first class that it is of."""
ERRORS: dict[str, type[TempoptError]] = {
    **{code: error_class for error_class, code, _ in ERROR_RESPONSES},
    "checkpoint_not_found": CheckpointNotFound,
    "rate_limited": StoreBusy,
    "unauthenticated": AccessDenied,
    "token_missing": AccessDenied,
    "token_unknown": AccessDenied,
    "token_expired": AccessDenied,
    "token_revoked": AccessDenied,
}
"""Stable code of an error in an answer to the class that it is raised as; other codes: UsageError."""
# a server that fails at one request is asked again: it, or the one that replaces it, may answer then
_AWAY = (500, 502, 503, 504)


def _bearer(source: Callable[[], str | None]) -> httpx.Auth:
    """Return what shows the token; a refused one is read again, and shown if it has changed by then."""

    class Bearer(httpx.Auth):
        def __init__(self) -> None:
            self._token = source()

        def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
            old_token = self._token
            if old_token is not None:
                request.headers["authorization"] = f"Bearer {old_token}"
            answer = yield request
            if answer.status_code == httpx.codes.UNAUTHORIZED and (token := source()) not in (
                None,
                old_token,
            ):
                self._token = token
                request.headers["authorization"] = f"Bearer {token}"
                yield request

    return Bearer()


class ServerConnection:
    """Requests to one server; threads may share it.

    Args:
        url: Of the server, as in ``https://tempopt.example.com``.
        token: What this client may do, or what returns it: asked again when the server does not know it any
            more, so that a token in a file can be replaced. None: nothing that asks for a token.

    Raises:
        UsageError: It is no URL of a server, or httpx is not installed.
    """

    def __init__(self, url: str, token: str | Callable[[], str | None] | None) -> None:
        self.url = server_url(url)
        headers = {"user-agent": f"tempopt/{__version__}", "tempopt-protocol": str(PROTOCOL)}
        verify: Any = os.environ.get("TEMPOPT_SERVER_CA") or True
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        auth = None if token is None else _bearer(token if callable(token) else lambda: token)
        self.client = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout, verify=verify, auth=auth
        )

    def __repr__(self) -> str:
        return f"ServerConnection({self.url!r})"

    def close(self) -> None:
        """Close every connection."""
        self.client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON data that the server has under a path."""
        return self.request("GET", path, params=parameters)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Return what the server answers to a body of JSON data."""
        return self.request("POST", path, json=dict(body or {}), timeout=timeout)

    def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        json: Any = None,
        timeout: float | None = None,
    ) -> Any:
        """Return the JSON data of an answer; None if it has none.

        Raises:
            StoreUnreachable: The server, or the database behind it, cannot be reached just now.
            AccessDenied: The token is missing, wrong, or does not allow this.
            UsageError: The server refuses the request; the class is that of the same error on a database.
        """
        kwargs: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if params:
            kwargs["params"] = {name: value for name, value in params.items() if value is not None}
        if json is not None:
            kwargs["json"] = json
        # what only reads can be asked again: a reply that was lost is nothing that a person has to know
        pauses = [*_AGAIN_SECONDS] if method == "GET" else []
        while True:
            try:
                answer = self.client.request(method, path, **kwargs)
                break
            except httpx.InvalidURL as error:
                raise UsageError(f"{self.url} cannot be read as a URL ({error}).") from error
            except httpx.HTTPError as error:
                if not pauses or not isinstance(error, httpx.NetworkError | httpx.RemoteProtocolError):
                    why = str(error) or type(error).__name__
                    raise StoreUnreachable(f"The server {self.url} cannot be reached ({why}).") from error
            time.sleep(pauses.pop(0))
        if answer.is_success:
            return answer.json() if answer.content else None
        raise error_from_response(self.url, answer)


def error_from_response(url: str, answer: httpx.Response) -> TempoptError:
    """Return the error that an answer of a server tells of."""
    try:
        error = answer.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        if answer.status_code in _AWAY:
            return StoreUnreachable(f"The server {url} cannot be reached (status {answer.status_code}).")
        return UsageError(
            f"{url} answered with status {answer.status_code}, and not as a tempopt server does. "
            "Give the URL under which tempopt serve is reached."
        )
    if answer.status_code in _AWAY and code not in ERRORS:
        return StoreUnreachable(message)
    return ERRORS.get(code, UsageError)(message)
