"""What agents and a server say to each other: the bodies of requests and answers, validated on both sides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tempopt.storage.rows import WITHOUT_NUL, Attempt, Step, StudyState, TicketId, is_finite

MOST_CHANGES = 100_000
LONGEST_WAIT = 30.0
"""Seconds that a request for a ticket is held back at most until there is one."""

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:+-]{1,150}$", examples=["gpu1:4711:9f86d081:83.1"])]
Session = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{8,64}$", examples=["5f3a9c0e7b21"])]
StudyName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=WITHOUT_NUL, examples=["max_retrieval"])
]


def _as_counted(value: float | None) -> float | None:
    return value if value is not None and is_finite(value) else None


Metric = Annotated[float | None, AfterValidator(_as_counted)]
"""A metric; null for what is not finite, or counts as that (:func:`tempopt.storage.rows.is_finite`)."""


class Body(BaseModel):
    """A body of plain data; keys that are not known are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class JoinRequest(Body):
    """An agent offers its workers to a study."""

    study: StudyName
    agent: AgentName
    session: Session
    workers: Annotated[int, Field(ge=1, le=4096)] = 1


class JoinResponse(Body):
    """What an agent has to know of its study: its row, and how it stands."""

    study: dict[str, Any]
    codes: list[str]
    snapshot: dict[str, Any]
    server: str


class Renewal(Body):
    """A run has made progress: its lease is renewed."""

    attempt: Attempt
    step: Step | None = None


class RunReports(Body):
    """What counts of a run's reports so far, earlier attempts included; null for what is not finite."""

    attempt: Attempt
    total_steps: Step | None = None
    reports: Annotated[list[tuple[Step, Metric]], Field(max_length=MOST_CHANGES)] = []


class TakeRequest(Body):
    """An agent has room for a run.

    Args:
        held_ticket_ids: Ids of the tickets that it knows it holds.
        wait: Seconds that the answer may be held back until there is one.
    """

    held_ticket_ids: Annotated[list[TicketId], Field(max_length=4096)] = []
    wait: Annotated[float, Field(ge=0, le=LONGEST_WAIT)] = 0.0


class SyncRequest(Body):
    """What happened to an agent's runs, the leases that they have earned, and the ticket that it would take.

    All of it may be said again: a change that was written is accepted and changes nothing.

    Args:
        study_id: Id of the study, as its row told; another study of the same name is none of the agent's.
        changes: In the order in which they happened, each with its ``type``, as in RunStarted
            (:data:`tempopt.storage.changes.Change`).
        renew: Runs that have made a step, by the id of their ticket.
        lease: Seconds that these have for the next.
        runs: What counts of the reports of the runs that the changes are about, by the id of their ticket.
        dead: Whether the agent has died, and another on its machine delivers what it could not.
    """

    study: StudyName
    study_id: TicketId
    agent: AgentName
    session: Session
    workers: Annotated[int, Field(ge=1, le=4096)] = 1
    changes: Annotated[list[dict[str, Any]], Field(max_length=MOST_CHANGES)] = []
    renew: dict[TicketId, Renewal] = {}
    lease: Annotated[float, Field(gt=0, le=86_400.0)] = 60.0
    runs: dict[TicketId, RunReports] = {}
    take: TakeRequest | None = None
    dead: bool = False


class TakeResponse(Body):
    """A ticket, with what a worker is to do.

    Args:
        ticket: Its row.
        request: The request for a worker, but for what is the agent's: program, folder, share of a card.
        reports: What earlier attempts have reported, step and value.
        pruned: Whether the pruner ends the run by these.
    """

    ticket: dict[str, Any]
    request: dict[str, Any]
    reports: list[tuple[int, float | None]] = []
    pruned: bool = False


class SyncResponse(Body):
    """What became of it.

    Args:
        refused: Tickets that are others' by now: what was said of them was discarded, and so should their
            runs be.
        pruned: Step of the report at which a run is pruned, by the id of its ticket: it is to end.
        state: State of the study.
        version: Version of its tickets.
        age: Seconds since it was begun.
        over: Whether nothing is left to do.
        claim: The ticket that was taken; None: none was wanted, or there is none just now.
        snapshot: How the study stands, for people.
    """

    refused: list[int] = []
    pruned: dict[int, int] = {}
    state: StudyState
    version: int
    age: float
    over: bool = False
    claim: TakeResponse | None = None
    snapshot: dict[str, Any] = {}


class Leave(Body):
    """An agent leaves: what it was given a moment ago waits again, and no failure is counted."""

    study: StudyName
    study_id: TicketId
    agent: AgentName
    session: Session


class LeaveResponse(Body):
    """How many tickets wait again."""

    released: int
    status: Literal["left"] = "left"
