"""Ray's exceptions in words: what one says, what it means, and whether the same call may work next time."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path

_PER_PROGRAM = "For each program that connects by ray://, the head node starts a process of its own."


@dataclass(frozen=True, slots=True, kw_only=True)
class TransientFailure:
    """A failure that another try may not meet: something was slow, or a process that each try starts ended.

    Args:
        text: What Ray's message contains.
        meaning: What it means and what to do if it stays, for a person.
    """

    text: str
    meaning: str


_PASSING = (
    TransientFailure(
        text="Starting Ray client server failed",
        meaning=f"{_PER_PROGRAM} The one for this program ended as it was started: gRPC sometimes crashes it "
        "(ray-project/ray issue 63202). Run ray start --head with GRPC_ENABLE_FORK_SUPPORT=0 in its "
        "environment, which prevents that, or run this command on a node of the cluster with the address "
        "HOST:PORT.",
    ),
    TransientFailure(
        text="Proxy failed to Connect to backend",
        meaning=f"{_PER_PROGRAM} The one for this program did not answer in time: the head node is busy, or "
        "gRPC crashed it (ray-project/ray issue 63202). Try again later, or run ray start --head with "
        "GRPC_ENABLE_FORK_SUPPORT=0 and RAY_CLIENT_SERVER_CHECK_CHANNEL_TIMEOUT_S=120 in its environment.",
    ),
    TransientFailure(
        text="you called ray.init twice",
        meaning=f"{_PER_PROGRAM} The one for this program is connected already, as happens where several "
        "clusters share a machine and its ports from 23000 on. Try again, or run one cluster per machine.",
    ),
    TransientFailure(
        text="ray client connection timeout",
        meaning="The head node's server for ray:// is slow. Try again when the head node is less busy, or "
        "set RAY_CLIENT_MAX_CONNECTION_TIMEOUT_S=120.",
    ),
    TransientFailure(
        text="Timed out while waiting for GCS",
        meaning="The head node does not answer in time. Try again when it is less busy; ray status, on the "
        "head node, says whether it is well.",
    ),
    TransientFailure(
        text="The current node timed out during startup",
        meaning="This machine is too busy to start a Ray of its own. Try again when it is less busy.",
    ),
)


def summarize_error(error: object) -> str:
    """Return an error of Ray's, which may go on for pages or say nothing at all, in one line."""
    words = " ".join(str(error).split())
    if not words and isinstance(error, BaseException):
        return _textless(error)
    return words if len(words) <= 600 else f"{words[:200]} ... {words[-400:]}"


def classify_transient(error: object) -> TransientFailure | None:
    """Return what is known of an error that another try may not meet; None if the next would be the same."""
    text = str(error)
    return next((passing_error for passing_error in _PASSING if passing_error.text in text), None)


def _textless(error: BaseException) -> str:
    """Return the type of an exception and where it was raised: all that is known of one without a text."""
    location = ""
    for frame in traceback.extract_tb(error.__traceback__)[-1:]:
        location = f", raised in {frame.name} ({Path(frame.filename).name}, line {frame.lineno})"
    return (
        f"{type(error).__name__} without a message{location}. This is an error inside of Ray. Try again; if "
        "it stays, look into Ray's logs on the head node (/tmp/ray/session_latest/logs)."
    )
