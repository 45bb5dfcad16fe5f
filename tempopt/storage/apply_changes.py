"""What agents have to say about their runs: many changes to many tickets in one transaction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, case, delete, select, update

from tempopt.storage import claims, optuna_tables
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    Change,
    CheckpointRecorded,
    ClaimRequest,
    MetricReported,
    RunEnded,
    RunStarted,
    WriteResult,
    clamp_seconds,
)
from tempopt.storage.claims import (
    LOCKED_TICKET_COLUMNS,
    change,
    now,
    sanitize_text,
    shorten_text,
    stale_reason,
    values_after_lost_attempt,
    values_after_readoption,
)
from tempopt.storage.clock import Clock
from tempopt.storage.database import Repository, write_transaction
from tempopt.storage.models import ATTENTION_MAP, LOG, MEASUREMENT, TICKET
from tempopt.storage.queries import checkpoints, document, study_state
from tempopt.storage.rows import TicketState, checkpoints_to_resume
from tempopt.storage.trial_changes import TrialChange, TrialEnd
from tempopt.storage.upsert import upsert

MAX_LOG = 64 * 1024
"""Bytes of a log that are kept: its end."""


class RunRepository(Repository):
    """The part of :class:`tempopt.storage.Store` that is about what agents say of their runs."""

    @write_transaction
    def write(
        self,
        connection: Connection,
        study_id: int,
        changes: Sequence[Change],
        *,
        agent: str,
        renew: Mapping[int, int] | None = None,
        steps: Mapping[int, int] | None = None,
        lease: float,
        allow_readoption: bool = True,
        take: ClaimRequest | None = None,
        version: int | None = None,
    ) -> WriteResult:
        """Write all that happened to runs and renew leases; see ``refused`` for what was not written.

        Changes that were written before, and come again because the answer was lost, are accepted. A ticket
        that others took from this agent for its silence, and that have not been begun since, is its own again
        and runs on, its lease renewed and that failure taken back; unless the changes end in Lost or
        Returned: then it waits as it is, and they are accepted and not written. A ticket is taken after all
        that, in the same transaction, unless anything was refused.

        Args:
            changes: In the order in which they happened.
            agent: Whose runs these are, as it was named in :meth:`take_ticket`.
            renew: Attempt by id of the tickets whose runs have made a step since the last time.
            steps: Optimizer steps that those have done, by id, as far as they are known.
            lease: Seconds that these get from now on.
            allow_readoption: Whether tickets may become this agent's again; False for a dead agent's changes.
            take: The ticket to take; None: none.
            version: Take it only while the study is running and its tickets are of this version.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        attempts: dict[int, int] = dict(renew or {})
        for event in changes:
            attempts[event.ticket_id] = max(event.attempt, attempts.get(event.ticket_id, 0))
        changes_by_ticket: dict[int, list[Change]] = {ticket_id: [] for ticket_id in attempts}
        for event in changes:
            # Of a ticket that its agent has taken again, the earlier attempt has nothing more to say.
            if event.attempt == attempts[event.ticket_id]:
                changes_by_ticket[event.ticket_id].append(event)
        rows = _lock(connection, study_id, attempts)
        refusals: dict[int, str] = {}
        tickets: list[_Ticket] = []
        for ticket_id, attempt in attempts.items():
            row, ticket_changes = rows.get(ticket_id), changes_by_ticket[ticket_id]
            why = stale_reason(row, ticket_id, attempt, agent)
            if row is not None and not why:
                ticket = _Ticket(row)
            elif row is not None and _is_replay(row, attempt, ticket_changes):
                continue
            elif row is not None and allow_readoption and _may_come_back(row, attempt, agent):
                ticket = _Ticket(row, values=values_after_readoption(row, lease))
            else:
                refusals[ticket_id] = why
                continue
            ticket.take_in(ticket_changes)
            tickets.append(ticket)
        _write_down(connection, tickets, renew or {}, steps or {}, lease)
        state, now_version, age = study_state(connection, study_id)
        taken_ticket = None
        # an agent that errs in what is over errs in what may begin
        if take is not None and not refusals and (state, now_version) == ("running", version):
            taken_ticket = claims.claim_ticket(connection, study_id, agent, take)
        return WriteResult(
            refused=refusals, state=state, version=now_version, age=age, claimed_ticket=taken_ticket
        )


def _lock(connection: Connection, study_id: int, ids: Mapping[int, int]) -> dict[int, Row[Any]]:
    """Return the tickets by id, locked until the transaction ends; by id, lest writers lock crosswise."""
    if not ids:
        return {}
    query = select(*LOCKED_TICKET_COLUMNS).where(TICKET.c.id.in_(sorted(ids)), TICKET.c.study_id == study_id)
    return {row.id: row for row in connection.execute(query.order_by(TICKET.c.id).with_for_update())}


def _is_replay(row: Row[Any], attempt: int, changes: Sequence[Change]) -> bool:
    """Return whether changes were written before, and only the answer to that was lost."""
    if row.attempt != attempt:
        return False
    ending = next((c for c in changes if isinstance(c, RunEnded | AttemptLost | AttemptReleased)), None)
    if isinstance(ending, RunEnded):
        return bool(row.outcome == ending.outcomes.outcome)
    if ending is not None:
        return row.state in ("waiting", "failed")
    return bool(row.state == "done")


def _may_come_back(row: Row[Any], attempt: int, agent: str) -> bool:
    """Return whether a ticket was taken from this agent for its silence, and has not been begun since."""
    return (row.state, row.attempt, row.agent) == ("waiting", attempt, agent)


@dataclass(slots=True)
class _Ticket:
    """One ticket that is held, and what the changes make of it."""

    row: Row[Any]
    values: dict[str, Any] = field(default_factory=dict)
    measured: dict[tuple[str, int], float] = field(default_factory=dict)
    trial: TrialChange = field(default_factory=TrialChange)
    last_step: int | None = None
    log: str = ""
    maps: dict[str, Any] | None = None

    @property
    def state(self) -> TicketState:
        state: TicketState = self.values.get("state", self.row.state)
        return state

    def take_in(self, changes: Sequence[Change]) -> None:
        """Apply the changes in their order."""
        for event in changes:
            assert self.state == "running", "nothing happens to a run after its end"
            match event:
                case RunStarted():
                    self.values |= {
                        "total_steps": event.total_steps,
                        "code": sanitize_text(event.code),
                        "machine": shorten_text(event.machine),
                        "device": shorten_text(event.device),
                    }
                case MetricReported():
                    self.measured["report", event.step] = event.value
                    self.trial.values[event.step] = event.value
                case CheckpointRecorded():
                    self._keep(event)
                case RunEnded():
                    self._end(event)
                case AttemptLost():
                    self._lose(event)
                case AttemptReleased():
                    self._spend(event.seconds, event.gpu_seconds, event.log)
                    self._peak(event.peak_memory)
                    self.values |= {"state": "waiting", "agent": None, "lease": None}

    def _keep(self, event: CheckpointRecorded) -> None:
        before = self.values.get("checkpoints", self.row.checkpoints)
        other_checkpoints = [c for c in checkpoints(before) if c.url != event.checkpoint.url]
        self.values["checkpoints"] = document(checkpoints_to_resume([event.checkpoint, *other_checkpoints]))

    def _end(self, event: RunEnded) -> None:
        outcomes = event.outcomes
        assert all(m.ticket_id == self.row.id for m in outcomes.measurements), "another ticket's measurements"
        self._spend(outcomes.seconds, outcomes.gpu_seconds, event.log)
        self._peak(outcomes.peak_memory)
        self.measured |= {(m.name, m.step): m.value for m in outcomes.measurements}
        self.maps = outcomes.maps
        if self.row.attempt > 1:
            # An earlier attempt may have gone further than the one that counts.
            self.last_step = self.trial.last_step = outcomes.steps
        error = sanitize_text(outcomes.error)
        self.values |= {
            "state": "failed" if outcomes.outcome == "failed" else "done",
            "outcome": outcomes.outcome,
            "value": outcomes.value,
            "steps": outcomes.steps,
            "diverged_at": outcomes.diverged_at,
            "checkpoint_seconds": clamp_seconds(self.row.checkpoint_seconds + outcomes.checkpoint_seconds),
            "checkpoints": None,
            "lease": None,
            "finished": now(),
        }
        if error is not None:
            # what an earlier attempt was lost by stays known
            self.values["error"] = error
        self.trial.end = TrialEnd(
            outcome=outcomes.outcome,
            value=outcomes.value,
            diverged_at=outcomes.diverged_at,
            error=error,
            numbers=outcomes.attributes,
            constraints=outcomes.constraints,
        )

    def _lose(self, event: AttemptLost) -> None:
        self._spend(event.seconds, event.gpu_seconds, event.log)
        values = values_after_lost_attempt(self.row, event.error, event.max_attempts)
        self.values |= values
        if event.alone:
            self.values["alone"] = True
        if values["state"] == "failed":
            self.trial.end = TrialEnd(outcome="failed", error=values["error"])

    def _spend(self, seconds: float, gpu_seconds: float, log: str) -> None:
        self.values["seconds"] = clamp_seconds(self.row.seconds + seconds)
        if gpu_seconds:
            self.values["gpu_seconds"] = clamp_seconds(self.row.gpu_seconds + gpu_seconds)
        self.log = log

    def _peak(self, memory: int | None) -> None:
        if memory is not None:
            self.values["peak_memory"] = max(memory, self.row.peak_memory or 0)


def _write_down(
    connection: Connection,
    tickets: Sequence[_Ticket],
    renew: Mapping[int, int],
    steps: Mapping[int, int],
    lease: float,
) -> None:
    only_renewed = []
    for ticket in tickets:
        if ticket.last_step is not None:
            _forget_after(connection, ticket.row.id, ticket.last_step)
        if ticket.row.id in renew and ticket.state == "running":
            if not ticket.values:
                only_renewed.append(ticket.row.id)
                continue
            ticket.values["lease"] = Clock() + lease
            if ticket.row.id in steps:
                ticket.values["steps"] = steps[ticket.row.id]
        if ticket.values:
            change(connection, ticket.row.id, **ticket.values)
    if only_renewed:
        moved_steps = {id: steps[id] for id in only_renewed if id in steps}
        values: dict[str, Any] = {"lease": Clock() + lease}
        if moved_steps:
            values["steps"] = case(moved_steps, value=TICKET.c.id, else_=TICKET.c.steps)
        connection.execute(update(TICKET).where(TICKET.c.id.in_(only_renewed)).values(values))
    _write_beside(connection, tickets)


def _write_beside(connection: Connection, tickets: Sequence[_Ticket]) -> None:
    """Write what is kept beside the tickets: measurements, logs, maps and Optuna's trials."""
    measurements = [
        {"ticket_id": t.row.id, "name": name, "step": step, "value": value}
        for t in tickets
        for (name, step), value in t.measured.items()
    ]
    upsert(connection, MEASUREMENT, measurements, key=("ticket_id", "name", "step"), replace=("value",))
    logs = [
        {
            "ticket_id": t.row.id,
            "attempt": t.row.attempt,
            "agent": t.row.agent,
            "text": _log_tail(t.log),
            "written": now(),
        }
        for t in tickets
        if t.log
    ]
    upsert(connection, LOG, logs, key=("ticket_id", "attempt"), replace=("agent", "text", "written"))
    maps = [{"ticket_id": t.row.id, "maps": t.maps} for t in tickets if t.maps is not None]
    upsert(connection, ATTENTION_MAP, maps, key=("ticket_id",), replace=("maps",))
    trial_changes = {
        t.row.trial_id: t.trial
        for t in tickets
        if t.row.trial_id is not None and (t.trial.values or t.trial.end is not None)
    }
    optuna_tables.write_trials(connection, trial_changes)


def _forget_after(connection: Connection, ticket_id: int, step: int) -> None:
    conditions = (MEASUREMENT.c.ticket_id == ticket_id, MEASUREMENT.c.name == "report")
    connection.execute(delete(MEASUREMENT).where(*conditions, MEASUREMENT.c.step > step))


def _log_tail(log: str) -> str:
    """Return the last bytes of a log, as many as are stored, in whole characters."""
    text = (sanitize_text(log) or "").encode()
    return text[-MAX_LOG:].decode(errors="ignore")
