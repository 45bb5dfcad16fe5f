"""An agent that says to a server over HTTP what its test passes, and trains nothing."""

from __future__ import annotations

from typing import Any

import httpx

from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import (
    Change,
    CheckpointRecorded,
    MetricReported,
    RunEnded,
    RunOutcome,
    RunStarted,
)
from tempopt.storage.http.protocol import RunReports, SyncRequest, TakeRequest
from tempopt.storage.http.wire import change_to_plain, deserialize
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import Checkpoint, Measurement, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import initial_tickets
from tests.server.http_server import RunningServer
from tests.toy_study import toy_spec

STEPS = 24


class HttpAgent:
    """An agent that trains nothing: it says what its caller passes.

    Args:
        server: The server.
        name: Name of the agent.
        token: That it shows; None: one with the scope ``agent`` and the name ``other``.
    """

    def __init__(self, server: RunningServer, name: str = "here:1:m:1.1", token: str | None = None) -> None:
        self.server = server
        self.http: httpx.Client = server.client(token or server.new_token("agent"))
        self.name, self.session = name, f"session{name.encode().hex()}"[:40]
        self.study_id = 0
        self.num_claims = 0

    def join(self, study: str = "toy") -> dict[str, Any]:
        """Join a study, and return the answer."""
        body = {"study": study, "agent": self.name, "session": self.session}
        answer: dict[str, Any] = self.http.post("/api/agents/join", json=body).raise_for_status().json()
        self.study_id = answer["study"]["id"]
        return answer

    def sync_response(self, *changes: Change, **fields: Any) -> httpx.Response:
        """Say what happened; return the raw answer."""
        body = SyncRequest(
            study="toy",
            study_id=self.study_id,
            agent=self.name,
            session=self.session,
            changes=[change_to_plain(change) for change in changes],
            **fields,
        )
        return self.http.post("/api/agents/sync", json=body.model_dump(mode="json", exclude_defaults=True))

    def sync(self, *changes: Change, **fields: Any) -> dict[str, Any]:
        """Say what happened; return what the server answers."""
        answer = self.sync_response(*changes, **fields)
        assert answer.status_code == 200, answer.text
        reply: dict[str, Any] = answer.json()
        return reply

    def take_request(self, held_ids: list[int] | None = None, wait: float = 0.0) -> TakeRequest:
        """Return the next request for a ticket."""
        self.num_claims += 1
        return TakeRequest(number=self.num_claims, held_ticket_ids=held_ids or [], wait=wait)

    def take(self, held_ids: list[int] | None = None, wait: float = 0.0) -> TicketRow | None:
        """Return a ticket, None if there is none just now."""
        reply = self.sync(take=self.take_request(held_ids, wait))["claim"]
        return None if reply is None else deserialize(TicketRow, reply["ticket"])

    def take_next(self, held_ids: list[int] | None = None) -> TicketRow:
        """Return a ticket, which there must be."""
        ticket = self.take(held_ids)
        assert ticket is not None
        return ticket

    def row(self, ticket: TicketRow) -> TicketRow:
        """Return a ticket as it is now."""
        row = self.server.store.ticket(ticket.study_id, ticket.kind, ticket.number)
        assert row is not None
        return row

    def report_training(self, ticket: TicketRow, values: list[float]) -> dict[str, Any]:
        """Say that a run reported these values, evenly, and came to its end; return the answer."""
        steps = [STEPS // len(values) * (index + 1) for index in range(len(values))]
        report_changes = [
            MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=s, value=v)
            for s, v in zip(steps, values, strict=True)
        ]
        start_change = RunStarted(ticket_id=ticket.id, attempt=ticket.attempt, total_steps=STEPS, code="code")
        return self.sync(
            start_change,
            *report_changes,
            make_end(ticket, values[-1]),
            runs=run_counts(ticket, dict(zip(steps, values, strict=True))),
        )


def make_end(ticket: TicketRow, value: float) -> RunEnded:
    measurements = [Measurement(ticket_id=ticket.id, step=STEPS, name="validate", value=value)]
    outcomes = RunOutcome(
        outcome="complete", value=value, steps=STEPS, seconds=1.0, measurements=measurements
    )
    return RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes)


def run_counts(ticket: TicketRow, reports: dict[int, float]) -> dict[int, RunReports]:
    return {ticket.id: RunReports(attempt=ticket.attempt, total_steps=STEPS, reports=list(reports.items()))}


def begin(store: Store, **study: Any) -> StudyRow:
    """Begin a study as a server does, ``toy`` if it has no other name, and return its row."""
    spec = StudySpec.parse(toy_spec(**study), source="the test")
    row = store.create_study(spec.study.name, spec.to_json(), spec.identity())
    make_study(store.url, name=row.name, direction="minimize", metric="val_loss")
    store.add_tickets(row.id, initial_tickets(spec))
    return row


# ---- the checkpoint that an agent puts of the run that it holds

RUN = "baseline-0000"
FILE = "step-8-1.ckpt"
URL = f"tempopt://toy/{RUN}/{FILE}"


def held_ticket(holder: HttpAgent) -> TicketRow:
    """Return the ticket of that run as it is now."""
    ticket = holder.server.store.ticket(1, "baseline", 0)
    assert ticket is not None
    return ticket


def put_piece(
    agent: HttpAgent, offset: int, content: bytes, total: int, upload: str = "0" * 16, file: str = FILE
) -> httpx.Response:
    """Put a piece of a file of that run."""
    params: dict[str, Any] = {"upload": upload, "offset": offset, "total": total}
    return agent.http.put(f"/api/checkpoints/toy/{RUN}/{file}", params=params, content=content)


def record_checkpoint(agent: HttpAgent, ticket: TicketRow, content: bytes, step: int = 8) -> None:
    """Have the study record a checkpoint of that run."""
    url = f"tempopt://toy/{RUN}/step-{step}-{ticket.attempt}.ckpt"
    checkpoint = Checkpoint(step=step, url=url, digest="d", size=len(content))
    agent.sync(CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint))
