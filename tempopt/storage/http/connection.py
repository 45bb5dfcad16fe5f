"""Requests to one server: with a token, answers as plain data, errors as tempopt's own classes.

An error of the server has a stable code, and is raised as the class that it has with a database.
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
_RETRY_SECONDS = (0.1, 0.5)

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
"""Code and HTTP status of the answer to an error, by class; the first class that matches is used."""
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
"""Class of an error by its stable code in an answer; for other codes UsageError is raised."""
# statuses after which a request is repeated: this server, or one that replaces it, may answer later
_RETRY_STATUSES = (500, 502, 503, 504)


def _build_bearer_auth(source: Callable[[], str | None]) -> httpx.Auth:
    """Return an authentication by token; a refused token is read again, and used if it has changed."""

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
        url: URL of the server, as in ``https://tempopt.example.com``.
        token: The token, or a function that returns it, which is called again when the server refuses the
            token, so that a token in a file can be replaced. None: no token is sent.

    Raises:
        UsageError: It is not the URL of a server, or httpx is not installed.
    """

    def __init__(self, url: str, token: str | Callable[[], str | None] | None) -> None:
        self.url = server_url(url)
        headers = {"user-agent": f"tempopt/{__version__}", "tempopt-protocol": str(PROTOCOL)}
        verify: Any = os.environ.get("TEMPOPT_SERVER_CA") or True
        timeout = httpx.Timeout(READ_SECONDS, connect=CONNECT_SECONDS)
        auth = None if token is None else _build_bearer_auth(token if callable(token) else lambda: token)
        self.client = httpx.Client(
            base_url=self.url, headers=headers, timeout=timeout, verify=verify, auth=auth
        )

    def __repr__(self) -> str:
        return f"ServerConnection({self.url!r})"

    def close(self) -> None:
        """Close every connection."""
        self.client.close()

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON data at a path."""
        return self.request("GET", path, params=parameters)

    def post(self, path: str, body: Mapping[str, Any] | None = None, *, timeout: float | None = None) -> Any:
        """Post a body of JSON data, and return the JSON data of the answer."""
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
        """Send a request, and return the JSON data of the answer; None if it has none.

        Raises:
            StoreUnreachable: The server, or the database behind it, cannot be reached now.
            AccessDenied: The token is missing, invalid, or does not allow the request.
            UsageError: The server refuses the request; other errors have the class that they have with a
                database.
        """
        kwargs: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
        if params:
            kwargs["params"] = {name: value for name, value in params.items() if value is not None}
        if json is not None:
            kwargs["json"] = json
        # a request that only reads is repeated silently when its answer is lost
        pauses = [*_RETRY_SECONDS] if method == "GET" else []
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
    """Return the error in an answer of a server."""
    try:
        error = answer.json()["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        if answer.status_code in _RETRY_STATUSES:
            return StoreUnreachable(f"The server {url} cannot be reached (status {answer.status_code}).")
        return UsageError(
            f"{url} answered with status {answer.status_code}, but not as a tempopt server. "
            "Give the URL of tempopt serve."
        )
    if answer.status_code in _RETRY_STATUSES and code not in ERRORS:
        return StoreUnreachable(message)
    return ERRORS.get(code, UsageError)(message)
