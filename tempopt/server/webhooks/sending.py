"""One message on its way: signed as Standard Webhooks has it (standardwebhooks.com), and posted."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

import httpx
from standardwebhooks import Webhook

from tempopt.server.webhooks.endpoints import Endpoint
from tempopt.version import __version__

LONGEST_SECONDS = 20.0
"""Seconds until an endpoint has to have answered, the connecting included."""
_MOST_ASKED = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of posting a message.

    Args:
        error: Why it counts as not delivered; empty: it is delivered.
        gone: Whether the endpoint says that it wants no more of it.
        wait: Seconds that the endpoint asks to be left alone, >= 0.
    """

    error: str = ""
    gone: bool = False
    wait: float = 0.0


def headers(endpoint: Endpoint, id: str, body: str) -> dict[str, str]:
    """Return the headers of a message that is sent now."""
    now = datetime.now(UTC)
    signatures = [Webhook(each).sign(id, now, body) for each in endpoint.secrets]
    return {
        "content-type": "application/json",
        "user-agent": f"tempopt/{__version__}",
        "webhook-id": id,
        "webhook-timestamp": str(int(now.timestamp())),
        "webhook-signature": " ".join(signatures),
    }


def send(endpoint: Endpoint, id: str, body: str) -> Answer:
    """Post a message once; only an answer 2xx counts, and redirects are not followed."""
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(_send(endpoint, id, body))
    finally:
        # not asyncio.run: it would wait for a name that is being looked up, however long that takes
        loop.close()


async def _send(endpoint: Endpoint, id: str, body: str) -> Answer:
    try:
        # the whole has a limit: one that sends its answer byte by byte would keep each single limit
        async with asyncio.timeout(LONGEST_SECONDS), httpx.AsyncClient(timeout=LONGEST_SECONDS) as client:
            request = client.stream("POST", endpoint.url, content=body, headers=headers(endpoint, id, body))
            async with request as response:
                # what it says beside its status is not read, however much that is
                return _judged(response)
    except (TimeoutError, httpx.TimeoutException):
        return Answer(error=f"no answer within {LONGEST_SECONDS:g} s")
    except Exception as error:
        # whatever it is, it is written to the message; its text could hold the URL, and with it a secret
        return Answer(error=f"not reached ({_reason(error)})")


def _judged(response: httpx.Response) -> Answer:
    if response.is_success:
        return Answer()
    wait = response.headers.get("retry-after", "")
    return Answer(
        error=f"answered {response.status_code}",
        gone=response.status_code == httpx.codes.GONE,
        wait=min(float(wait), _MOST_ASKED) if wait.isascii() and wait.isdecimal() else 0.0,
    )


def _reason(error: Exception) -> str:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
