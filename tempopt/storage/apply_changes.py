"""Write the changes that agents report: many changes of many tickets in one transaction."""

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
    change_ticket,
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

MAX_LOG_BYTES = 64 * 1024
"""Maximal bytes of a stored log: its end."""


class RunRepository(Repository):
    """The method of :class:`tempopt.storage.Store` that writes the changes of agents."""

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
        """Write changes of runs, renew leases, and claim a ticket; the result lists refused tickets.

        Changes that were already written, and are sent again because the answer was lost, are accepted. If
        the lease of a ticket has expired, and no other agent has claimed it since, it is assigned to this
        agent again: its lease is renewed and the failure is not counted. If the changes end in AttemptLost or
        AttemptReleased, it stays waiting instead, and the changes are accepted without being written. The
        claim is made last, in the same transaction, and only if nothing was refused.

        Args:
            changes: The changes, in the order in which they happened.
            agent: Name of the agent, as in :meth:`take_ticket`.
            renew: Attempt by ticket id, of the runs that have made progress since the last call.
            steps: Optimizer steps of these runs by ticket id, where known.
            lease: Seconds of their new leases.
            allow_readoption: Whether tickets may be assigned to this agent again; False for changes of a dead
                agent.
            take: Request for a ticket; None: no ticket is claimed.
            version: Claim only while the study is running and its tickets have this version.

        Raises:
            StudyNotFound: The study has been deleted.
        """
        attempts: dict[int, int] = dict(renew or {})
        for event in changes:
            attempts[event.ticket_id] = max(event.attempt, attempts.get(event.ticket_id, 0))
        changes_by_ticket: dict[int, list[Change]] = {ticket_id: [] for ticket_id in attempts}
        for event in changes:
            # If the agent has claimed the ticket again, changes of the earlier attempt are void.
            if event.attempt == attempts[event.ticket_id]:
                changes_by_ticket[event.ticket_id].append(event)
        rows = _lock_tickets(connection, study_id, attempts)
        refusals: dict[int, str] = {}
        tickets: list[_TicketUpdate] = []
        for ticket_id, attempt in attempts.items():
            row, ticket_changes = rows.get(ticket_id), changes_by_ticket[ticket_id]
            why = stale_reason(row, ticket_id, attempt, agent)
            if row is not None and not why:
                ticket = _TicketUpdate(row)
            elif row is not None and _is_replay(row, attempt, ticket_changes):
                continue
            elif row is not None and allow_readoption and _can_readopt(row, attempt, agent):
                ticket = _TicketUpdate(row, values=values_after_readoption(row, lease))
            else:
                refusals[ticket_id] = why
                continue
            ticket.apply(ticket_changes)
            tickets.append(ticket)
        _write_tickets(connection, tickets, renew or {}, steps or {}, lease)
        state, now_version, age = study_state(connection, study_id)
        claimed_ticket = None
        # an agent whose tickets are out of date does not know which may begin
        if take is not None and not refusals and (state, now_version) == ("running", version):
            claimed_ticket = claims.claim_ticket(connection, study_id, agent, take)
        return WriteResult(
            refused=refusals, state=state, version=now_version, age=age, claimed_ticket=claimed_ticket
        )


def _lock_tickets(connection: Connection, study_id: int, ids: Mapping[int, int]) -> dict[int, Row[Any]]:
    """Return the tickets by id, locked until the transaction ends; locks in order of id avoid deadlocks."""
    if not ids:
        return {}
    query = select(*LOCKED_TICKET_COLUMNS).where(TICKET.c.id.in_(sorted(ids)), TICKET.c.study_id == study_id)
    return {row.id: row for row in connection.execute(query.order_by(TICKET.c.id).with_for_update())}


def _is_replay(row: Row[Any], attempt: int, changes: Sequence[Change]) -> bool:
    """Return whether changes were already written, so that only the answer was lost."""
    if row.attempt != attempt:
        return False
    ending = next((c for c in changes if isinstance(c, RunEnded | AttemptLost | AttemptReleased)), None)
    if isinstance(ending, RunEnded):
        return bool(row.outcome == ending.outcomes.outcome)
    if ending is not None:
        return row.state in ("waiting", "failed")
    return bool(row.state == "done")


def _can_readopt(row: Row[Any], attempt: int, agent: str) -> bool:
    """Return whether the ticket's lease has expired, and no other agent has claimed it since."""
    return (row.state, row.attempt, row.agent) == ("waiting", attempt, agent)


@dataclass(slots=True)
class _TicketUpdate:
    """A locked ticket, and the new values that follow from its changes."""

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

    def apply(self, changes: Sequence[Change]) -> None:
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
                    self._record_checkpoint(event)
                case RunEnded():
                    self._end_run(event)
                case AttemptLost():
                    self._lose_attempt(event)
                case AttemptReleased():
                    self._add_seconds(event.seconds, event.gpu_seconds, event.log)
                    self._update_peak_memory(event.peak_memory)
                    self.values |= {"state": "waiting", "agent": None, "lease": None}

    def _record_checkpoint(self, event: CheckpointRecorded) -> None:
        before = self.values.get("checkpoints", self.row.checkpoints)
        other_checkpoints = [c for c in checkpoints(before) if c.url != event.checkpoint.url]
        self.values["checkpoints"] = document(checkpoints_to_resume([event.checkpoint, *other_checkpoints]))

    def _end_run(self, event: RunEnded) -> None:
        outcomes = event.outcomes
        assert all(m.ticket_id == self.row.id for m in outcomes.measurements), "another ticket's measurements"
        self._add_seconds(outcomes.seconds, outcomes.gpu_seconds, event.log)
        self._update_peak_memory(outcomes.peak_memory)
        self.measured |= {(m.name, m.step): m.value for m in outcomes.measurements}
        self.maps = outcomes.maps
        if self.row.attempt > 1:
            # An earlier attempt may have made more steps than the one that counts.
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
            # else the error of an earlier attempt is preserved
            self.values["error"] = error
        self.trial.end = TrialEnd(
            outcome=outcomes.outcome,
            value=outcomes.value,
            diverged_at=outcomes.diverged_at,
            error=error,
            numbers=outcomes.attributes,
            constraints=outcomes.constraints,
        )

    def _lose_attempt(self, event: AttemptLost) -> None:
        self._add_seconds(event.seconds, event.gpu_seconds, event.log)
        values = values_after_lost_attempt(self.row, event.error, event.max_attempts)
        self.values |= values
        if event.alone:
            self.values["alone"] = True
        if values["state"] == "failed":
            self.trial.end = TrialEnd(outcome="failed", error=values["error"])

    def _add_seconds(self, seconds: float, gpu_seconds: float, log: str) -> None:
        self.values["seconds"] = clamp_seconds(self.row.seconds + seconds)
        if gpu_seconds:
            self.values["gpu_seconds"] = clamp_seconds(self.row.gpu_seconds + gpu_seconds)
        self.log = log

    def _update_peak_memory(self, memory: int | None) -> None:
        if memory is not None:
            self.values["peak_memory"] = max(memory, self.row.peak_memory or 0)


def _write_tickets(
    connection: Connection,
    tickets: Sequence[_TicketUpdate],
    renew: Mapping[int, int],
    steps: Mapping[int, int],
    lease: float,
) -> None:
    only_renewed = []
    for ticket in tickets:
        if ticket.last_step is not None:
            _delete_reports_after(connection, ticket.row.id, ticket.last_step)
        if ticket.row.id in renew and ticket.state == "running":
            if not ticket.values:
                only_renewed.append(ticket.row.id)
                continue
            ticket.values["lease"] = Clock() + lease
            if ticket.row.id in steps:
                ticket.values["steps"] = steps[ticket.row.id]
        if ticket.values:
            change_ticket(connection, ticket.row.id, **ticket.values)
    if only_renewed:
        moved_steps = {id: steps[id] for id in only_renewed if id in steps}
        values: dict[str, Any] = {"lease": Clock() + lease}
        if moved_steps:
            values["steps"] = case(moved_steps, value=TICKET.c.id, else_=TICKET.c.steps)
        connection.execute(update(TICKET).where(TICKET.c.id.in_(only_renewed)).values(values))
    _write_results(connection, tickets)


def _write_results(connection: Connection, tickets: Sequence[_TicketUpdate]) -> None:
    """Write the measurements, logs, attention maps and Optuna trials of tickets."""
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


def _delete_reports_after(connection: Connection, ticket_id: int, step: int) -> None:
    conditions = (MEASUREMENT.c.ticket_id == ticket_id, MEASUREMENT.c.name == "report")
    connection.execute(delete(MEASUREMENT).where(*conditions, MEASUREMENT.c.step > step))


def _log_tail(log: str) -> str:
    """Return the end of a log, at most ``MAX_LOG_BYTES`` bytes, in whole characters."""
    text = (sanitize_text(log) or "").encode()
    return text[-MAX_LOG_BYTES:].decode(errors="ignore")
