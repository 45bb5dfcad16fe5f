"""What a store keeps for webhooks: events as they stand, and messages until they are delivered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MessageState = Literal["waiting", "delivered", "given_up", "past"]
"""How a message stands. ``past`` is not sent: its event is older than the endpoint, or tells nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """An event that an endpoint is told of, or has been.

    Args:
        id: Unique, the same in every attempt; receivers tell by it what they have had already.
        endpoint: Name of the endpoint.
        event: Type of the event, as in ``study.done``.
        key: What the event is about; unique for an endpoint, so that servers side by side add it once.
        body: What is signed and sent, as JSON text; empty for one that is ``past``.
        state: How it stands.
        attempts: How often it was sent, or is being sent.
        due: When it is sent next, in epoch seconds of the database's clock.
        created: When it was added, by the same clock.
        error: What the last attempt failed with; empty: it did not fail, or there was none.
    """

    id: str
    endpoint: str
    event: str
    key: str
    body: str = ""
    state: MessageState = "waiting"
    attempts: int = 0
    due: float = 0.0
    created: float = 0.0
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """Messages of one endpoint that are not delivered.

    Args:
        waiting: Those that are sent, or sent again.
        oldest: Seconds since the oldest of them was added; 0 without any.
        given_up: Those that are not sent again.
    """

    waiting: int
    oldest: float
    given_up: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyMark:
    """A study that is done, as it is told apart from itself when it is done again.

    Args:
        study_id: Its id.
        name: Its name.
        version: That of its tickets; grows whenever it goes on.
    """

    study_id: int
    name: str
    version: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMark:
    """A run that was given up.

    Args:
        ticket_id: Its id.
        study_id: Its study's.
        study: Name of the study.
        attempt: How often it was taken; grows if it is tried again.
    """

    ticket_id: int
    study_id: int
    study: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """What there is to tell of studies, as of one moment.

    Args:
        done: Studies that are done.
        failed: Runs that were given up.
        studies: Ids of all studies.
    """

    done: tuple[StudyMark, ...]
    failed: tuple[RunMark, ...]
    studies: frozenset[int] = frozenset()
