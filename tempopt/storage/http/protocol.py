"""Bodies of the requests and answers between agents and a server, validated on both sides."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from tempopt.storage.rows import MAX_ID, WITHOUT_NUL, Attempt, Step, StudyState, TicketId, is_finite

MAX_CHANGES = 100_000
MAX_WAIT_SECONDS = 30.0
"""Maximal seconds for which the answer to a request for a ticket is held back until one may begin."""

AgentName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_.:+-]{1,150}$", examples=["gpu1:4711:9f86d081:83.1"])]
Session = Annotated[str, Field(pattern=r"^[A-Za-z0-9]{8,64}$", examples=["5f3a9c0e7b21"])]
StudyName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=WITHOUT_NUL, examples=["max_retrieval"])
]


def _drop_infinite(value: float | None) -> float | None:
    return value if value is not None and is_finite(value) else None


Metric = Annotated[float | None, AfterValidator(_drop_infinite)]
"""A metric; null if it does not count as finite (:func:`tempopt.storage.rows.is_finite`)."""


class Body(BaseModel):
    """A body of plain data; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class JoinRequest(Body):
    """An agent offers its workers to a study."""

    study: StudyName
    agent: AgentName
    session: Session
    workers: Annotated[int, Field(ge=1, le=4096)] = 1


class JoinResponse(Body):
    """The study's row, and its state for display."""

    study: dict[str, Any]
    codes: list[str]
    snapshot: dict[str, Any]
    server: str


class Renewal(Body):
    """A run has made progress: its lease is renewed."""

    attempt: Attempt
    step: Step | None = None


class RunReports(Body):
    """The reports of a run that count, earlier attempts included; null for values that are not finite."""

    attempt: Attempt
    total_steps: Step | None = None
    reports: Annotated[list[tuple[Step, Metric]], Field(max_length=MAX_CHANGES)] = []


class TakeRequest(Body):
    """An agent requests a ticket.

    Args:
        number: Number of the request in the agent's session, which increases with each answer: a repeated
            request gets the same ticket, and a late copy of an earlier one none.
        held_ticket_ids: Ids of the tickets that the agent knows that it holds.
        wait: Seconds for which the answer may be held back until a ticket may begin.
    """

    number: Annotated[int, Field(ge=1, le=MAX_ID)]
    held_ticket_ids: Annotated[list[TicketId], Field(max_length=4096)] = []
    wait: Annotated[float, Field(ge=0, le=MAX_WAIT_SECONDS)] = 0.0


class SyncRequest(Body):
    """Changes of an agent's runs, leases to renew, and a request for a ticket.

    The request can be repeated: a change that is already written is accepted and has no effect.

    Args:
        study_id: Id of the study; refused if another study has the name by now.
        changes: In the order in which they happened, each with its ``type``, as in RunStarted
            (:data:`tempopt.storage.changes.Change`).
        renew: Runs that have made progress, by ticket id.
        lease: Seconds of their new leases.
        runs: Reports of the runs that have changes, by ticket id.
        dead: Whether the agent has died, and another agent on its machine delivers its changes.
    """

    study: StudyName
    study_id: TicketId
    agent: AgentName
    session: Session
    workers: Annotated[int, Field(ge=1, le=4096)] = 1
    changes: Annotated[list[dict[str, Any]], Field(max_length=MAX_CHANGES)] = []
    renew: dict[TicketId, Renewal] = {}
    lease: Annotated[float, Field(gt=0, le=86_400.0)] = 60.0
    runs: dict[TicketId, RunReports] = {}
    take: TakeRequest | None = None
    dead: bool = False


class TakeResponse(Body):
    """A ticket, with the request for a worker.

    Args:
        ticket: Its row.
        request: The request for a worker, without the fields that the agent adds: program, folder, share of a
            GPU.
        reports: Reports of earlier attempts, step and value.
        pruned: Whether the pruner ends the run by these reports.
    """

    ticket: dict[str, Any]
    request: dict[str, Any]
    reports: list[tuple[int, float | None]] = []
    pruned: bool = False


class SyncResponse(Body):
    """The answer to a :class:`SyncRequest`.

    Args:
        refused: Ids of tickets that other agents hold by now: their changes were discarded, and their runs
            should be, too.
        pruned: Step of the report at which a run is pruned and has to end, by ticket id.
        state: State of the study.
        version: Version of its tickets.
        age: Seconds since it was created.
        over: Whether nothing is left to do.
        claim: The ticket that was claimed; None: none was requested, or none may begin now.
        snapshot: State of the study, for display.
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
    """An agent leaves: its tickets wait again, and no failure is counted."""

    study: StudyName
    study_id: TicketId
    agent: AgentName
    session: Session


class LeaveResponse(Body):
    """The number of tickets that wait again."""

    released: int
    status: Literal["left"] = "left"
