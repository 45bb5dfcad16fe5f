"""Agents that lie: of runs of others nothing is changed, and what no run can have measured is refused."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import httpx
import pytest
from sqlalchemy import update

from tempopt.errors import StorageError, StoreBusy, StoreUnreachable
from tempopt.server.tokens import create_token
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    CheckpointRecorded,
    MetricReported,
    RunEnded,
    RunOutcome,
    RunStarted,
)
from tempopt.storage.http.protocol import Renewal, RunReports
from tempopt.storage.models import TICKET
from tempopt.storage.rows import Checkpoint, TicketRow
from tempopt.storage.store import Store
from tests.server.http_agent import STEPS, HttpAgent, make_end, run_counts
from tests.storage.scenes import assert_fields

REPORTS = {8: 3.0, 16: 2.0, 24: 1.0}


@pytest.fixture
def liar(agent: HttpAgent) -> Iterator[HttpAgent]:
    """An agent with a token of another name."""
    liar_agent = HttpAgent(
        agent.server, "there:2:m:1.1", create_token(agent.server.store, name="liar", scopes=["agent"])[0]
    )
    liar_agent.join()
    yield liar_agent
    liar_agent.http.close()


def _prunable(agent: HttpAgent) -> TicketRow:
    """Return a search ticket that the agent has taken, whose run would be pruned if it did badly."""
    for _ in range(13):
        ticket = agent.take_next()
        agent.report_training(ticket, [3.0, 2.0, 1.0])
    ticket = agent.take()
    assert ticket is not None and ticket.kind == "search" and ticket.number == 8
    return ticket


def _said_of(ticket: TicketRow, step: int, value: float) -> tuple[MetricReported, dict[int, RunReports]]:
    return MetricReported(ticket_id=ticket.id, attempt=ticket.attempt, step=step, value=value), run_counts(
        ticket, {}
    )


# ---- runs of others


@pytest.mark.parametrize(("step", "value"), [(17, 99.0), (16, 99.0), (2**52, 0.0)])
def test_what_others_say_of_a_run_neither_prunes_it_nor_keeps_it_from_being_pruned(
    agent: HttpAgent, liar: HttpAgent, step: int, value: float
) -> None:
    ticket = _prunable(agent)
    start_change = RunStarted(ticket_id=ticket.id, attempt=1, total_steps=STEPS, code="code")
    agent.sync(start_change, runs=run_counts(ticket, {}))
    forged_report, _ = _said_of(ticket, step, value)
    answer = liar.sync(forged_report, runs=run_counts(ticket, {16: value}))
    assert answer["refused"] == [ticket.id] and answer["pruned"] == {}
    first, runs = _said_of(ticket, 8, 3.0)
    assert agent.sync(first, runs=runs)["pruned"] == {}
    bad_report, _ = _said_of(ticket, 16, 9.0)
    assert agent.sync(bad_report, runs=run_counts(ticket, {8: 3.0}))["pruned"] == {str(ticket.id): 16}
    agent.sync(make_end(ticket, 0.5), runs=run_counts(ticket, {8: 3.0, 16: 9.0}))
    assert (agent.row(ticket).outcome, agent.row(ticket).value) == ("pruned", 9.0)


def test_nothing_that_others_say_of_a_run_is_kept(agent: HttpAgent, liar: HttpAgent) -> None:
    ticket = agent.take_next()
    file = f"tempopt://toy/{ticket.kind}-{ticket.number:04d}/step-8-1.ckpt"
    checkpoint = Checkpoint(step=8, url=file, digest="d", size=5)
    of_it: dict[str, Any] = {"ticket_id": ticket.id, "attempt": ticket.attempt}
    row_before = agent.row(ticket)
    for change in (
        RunStarted(**of_it, total_steps=1, code="forged"),
        CheckpointRecorded(**of_it, checkpoint=checkpoint),
        AttemptLost(**of_it, error="forged", max_attempts=1),
        AttemptReleased(**of_it, seconds=1.0),
        make_end(ticket, 0.0),
    ):
        answer = liar.sync(change, renew={ticket.id: Renewal(attempt=1, step=23)})
        assert answer["refused"] == [ticket.id]
        row_after = agent.row(ticket)
        assert_fields(
            row_after,
            state="running",
            agent=row_before.agent,
            code=None,
            steps=None,
            checkpoints=(),
            error=None,
        )
    assert "forged" not in liar.join()["codes"]
    assert agent.report_training(ticket, [3.0, 2.0, 1.0])["refused"] == []


def test_of_tickets_that_are_not_there_nothing_is_taken(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    of_it: dict[str, Any] = {"ticket_id": 2**31 - 1, "attempt": 1}
    checkpoint = Checkpoint(step=8, url="tempopt://toy/search-0000/step-8-1.ckpt", digest="d", size=5)
    report = MetricReported(ticket_id=ticket.id, attempt=1, step=8, value=3.0)
    changes = (CheckpointRecorded(**of_it, checkpoint=checkpoint), AttemptReleased(**of_it), report)
    assert agent.sync(*changes)["refused"] == [2**31 - 1]
    (measurement,) = agent.server.store.measurements(ticket.study_id, [ticket.id], ["report"])
    assert (measurement.step, measurement.value) == (8, 3.0)


def test_a_run_whose_pruning_report_is_told_no_more_still_ends(agent: HttpAgent) -> None:
    ticket = _prunable(agent)
    agent.sync(*(_said_of(ticket, step, value)[0] for step, value in ((8, 3.0), (16, 9.0))))
    answer = agent.sync_response(make_end(ticket, 0.5), runs=run_counts(ticket, {8: 3.0}))
    assert answer.status_code == 200, answer.text
    assert (agent.row(ticket).outcome, agent.row(ticket).value) == ("pruned", 9.0)


def test_an_attempt_that_is_ended_before_an_older_one_is_judged_all_the_same(agent: HttpAgent) -> None:
    first = agent.take_next()
    agent.sync(AttemptReleased(ticket_id=first.id, attempt=1))
    retaken = agent.take()
    assert retaken is not None and (retaken.id, retaken.attempt) == (first.id, 2)
    older = AttemptReleased(ticket_id=first.id, attempt=1, seconds=5.0)
    assert agent.sync(make_end(retaken, 1.0), older, runs=run_counts(retaken, REPORTS))["refused"] == []
    assert (agent.row(first).outcome, agent.row(first).seconds) == ("complete", 1.0)


# ---- time


def test_no_more_time_counts_than_has_passed_since_a_run_was_taken(agent: HttpAgent) -> None:
    max_seconds = 3600.0
    for change in (RunEnded, AttemptLost, AttemptReleased):
        ticket = agent.take_next()
        of_it: dict[str, Any] = {"ticket_id": ticket.id, "attempt": ticket.attempt}
        times: dict[str, Any] = {"seconds": 1e9, "gpu_seconds": 1e9}
        if change is RunEnded:
            outcomes = RunOutcome(outcome="complete", value=1.0, steps=STEPS, checkpoint_seconds=1e9, **times)
            late_change: Any = RunEnded(**of_it, outcomes=outcomes)
        elif change is AttemptLost:
            late_change = AttemptLost(**of_it, error="it fell", max_attempts=3, **times)
        else:
            late_change = AttemptReleased(**of_it, **times)
        assert agent.sync(late_change, runs=run_counts(ticket, REPORTS))["refused"] == []
        row = agent.row(ticket)
        assert (
            0 < row.seconds < max_seconds
            and 0 < row.gpu_seconds < max_seconds
            and row.checkpoint_seconds < max_seconds
        )
        max_seconds += 3600.0


def test_time_that_has_passed_counts_as_it_was_told(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    assert ticket.started is not None
    earlier = ticket.started - timedelta(days=30)
    agent.server.store._database.write(
        lambda c: c.execute(update(TICKET).where(TICKET.c.id == ticket.id).values(started=earlier))
    )
    agent.server.app.state.tempopt.study_sessions.close("toy")
    outcomes = RunOutcome(outcome="complete", value=1.0, steps=STEPS, seconds=86400.0, gpu_seconds=86400.0)
    change = RunEnded(ticket_id=ticket.id, attempt=1, outcomes=outcomes)
    agent.sync(change, runs=run_counts(ticket, REPORTS))
    agent.sync(change, runs=run_counts(ticket, REPORTS))
    assert_fields(agent.row(ticket), seconds=86400.0, gpu_seconds=86400.0)


# ---- values


# ---- what no run can have done


def test_what_no_run_can_have_done_is_refused_and_nothing_is_written(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    rows_before = agent.row(ticket)
    body = {"study": "toy", "study_id": agent.study_id, "agent": agent.name, "session": agent.session}
    report = {"type": "MetricReported", "ticket_id": ticket.id, "attempt": 1, "step": 4, "value": 0.5}
    for bad_change in ({**report, "step": -5}, {**report, "type": "Dropped"}, {}):
        answer = agent.http.post("/api/agents/sync", json={**body, "changes": [report, bad_change]})
        assert answer.status_code == 400, answer.text
        assert replace(agent.row(ticket), lease=None) == replace(rows_before, lease=None)
    assert agent.server.store.measurements(ticket.study_id, [ticket.id]) == []
    assert agent.report_training(ticket, [3.0, 2.0, 1.0])["refused"] == []


# ---- where the database is


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (StorageError, 500, "storage"),
        (StoreUnreachable, 503, "storage_away"),
        (StoreBusy, 503, "storage_busy"),
    ],
)
def test_an_error_response_hides_the_database_url_and_the_log_names_the_failure(
    agent: HttpAgent,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: type[StorageError],
    status: int,
    code: str,
) -> None:
    def fail(store: Store, name: str) -> None:
        raise error(f"The database postgresql://team:hush@db7:5432/{code} failed: out of range.")

    monkeypatch.setattr(Store, "load_study", fail)
    headers = {"authorization": f"Bearer {agent.server.token}"}
    body = {"study": "toy", "agent": agent.name, "session": agent.session}
    with caplog.at_level(logging.ERROR, logger="tempopt.server"):
        answers = [
            httpx.get(f"{agent.server.url}/api/studies/toy", headers=headers),
            httpx.get(f"{agent.server.url}/studies/toy", headers=headers | {"accept": "text/html"}),
            agent.http.post("/api/agents/join", json=body),
        ]
    for answer in answers:
        assert answer.status_code == status
        assert not any(word in answer.text for word in ("db7", "hush", "postgresql", "5432"))
    assert answers[0].json()["error"]["code"] == answers[2].json()["error"]["code"] == code
    assert f"db7:5432/{code} failed: out of range" in caplog.text and "hush" not in caplog.text
