"""What agents say to a server: judged there as an agent on the database judges it, and safe to repeat."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from tempopt.agent.remote_client import _split_changes
from tempopt.server import agents, authenticator
from tempopt.server.tokens import create_token
from tempopt.storage.changes import AttemptReleased, CheckpointRecorded, MetricReported, RunStarted
from tempopt.storage.http.protocol import Renewal
from tempopt.storage.http.wire import deserialize
from tempopt.storage.rows import Checkpoint, Measurement, TicketRow
from tests.server.http_agent import STEPS, HttpAgent, begin, make_end, run_counts


def test_a_ticket_comes_with_all_that_a_worker_needs_and_nothing_of_where_things_lie(
    agent: HttpAgent,
) -> None:
    reply = agent.sync(take=agent.take_request())["claim"]
    ticket, request = reply["ticket"], reply["request"]
    assert ticket["agent"] == f"{agent.name}@other" and ticket["parameters"] == request["parameters"]
    assert request["checkpoints"] == "tempopt://toy/baseline-0000"
    assert request["folder"] is request["program"] is None
    text = str(reply) + str(agent.join())
    assert str(agent.server.checkpoints) not in text and "sqlite" not in text


def test_a_run_is_pruned_where_it_would_be_on_the_database_however_late_that_is_told(
    agent: HttpAgent,
) -> None:
    values = {"baseline": [3.0, 2.0, 1.0], "constant": [3.0, 2.0, 1.0], "search": [3.0, 2.0, 1.0]}
    pruned_rows: list[TicketRow] = []
    for _ in range(17):
        ticket = agent.take_next()
        is_bad = ticket.kind == "search" and ticket.number >= 8
        answer = agent.report_training(ticket, [3.0, 9.0, 0.5] if is_bad else values[ticket.kind])
        assert answer["pruned"] == ({str(ticket.id): 16} if is_bad else {})
        if is_bad:
            pruned_rows.append(agent.row(ticket))
    assert len(pruned_rows) == 4
    # the run went on to its end, and its last report was better than any other: it does not count
    assert {(row.state, row.outcome, row.value) for row in pruned_rows} == {("done", "pruned", 9.0)}
    reports = agent.server.store.measurements(agent.study_id, [pruned_rows[0].id])
    assert [(report.name, report.step) for report in reports] == [("report", 8), ("report", 16)]


def test_a_server_that_was_started_anew_judges_a_run_by_all_of_its_reports(agent: HttpAgent) -> None:
    for _ in range(13):
        ticket = agent.take_next()
        agent.report_training(ticket, [3.0, 2.0, 1.0])
    ticket = agent.take()
    assert ticket is not None and ticket.kind == "search" and ticket.number == 8
    report_changes = [
        MetricReported(ticket_id=ticket.id, attempt=1, step=step, value=2.5) for step in (8, 16)
    ]
    start_change = RunStarted(ticket_id=ticket.id, attempt=1, total_steps=STEPS, code="code")
    assert agent.sync(start_change, report_changes[0], runs=run_counts(ticket, {8: 2.5}))["pruned"] == {}
    agent.server.app.state.tempopt.study_sessions.close("toy")
    # nothing is said of the reports before: the store knows them
    assert agent.sync(report_changes[1])["pruned"] == {str(ticket.id): 16}
    agent.server.app.state.tempopt.study_sessions.close("toy")
    assert agent.sync(make_end(ticket, 0.1))["pruned"] == {str(ticket.id): 16}
    assert (agent.row(ticket).outcome, agent.row(ticket).value) == ("pruned", 2.5)


def test_who_comes_late_is_refused_and_what_another_does_stays(agent: HttpAgent) -> None:
    late, other_agent = agent.take(), HttpAgent(agent.server, "there:2:m:1.1")
    assert late is not None
    other_agent.join()
    agent.server.store.write(late.study_id, [], agent=f"{agent.name}@other", renew={late.id: 1}, lease=-1.0)
    agent.server.app.state.tempopt.study_sessions._started -= 3600
    agent.server.app.state.tempopt.study_sessions.close("toy")
    retaken = other_agent.take()
    assert retaken is not None and (retaken.id, retaken.attempt) == (late.id, 2)
    answer = agent.report_training(late, [3.0, 2.0, 0.1])
    assert answer["refused"] == [late.id] and answer["claim"] is None
    assert agent.row(late).agent == f"{other_agent.name}@other" and agent.row(late).state == "running"
    assert other_agent.report_training(retaken, [3.0, 2.0, 1.0])["refused"] == []
    assert agent.row(late).value == 1.0
    other_agent.http.close()


def test_a_token_of_another_name_cannot_speak_for_an_agent(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    thief = HttpAgent(
        agent.server, agent.name, create_token(agent.server.store, name="thief", scopes=["agent"])[0]
    )
    thief.join()
    assert thief.sync(make_end(ticket, 0.0))["refused"] == [ticket.id]
    assert agent.row(ticket).state == "running"
    thief.http.close()


def test_two_agents_of_one_name_are_told_apart(agent: HttpAgent) -> None:
    double = HttpAgent(agent.server, agent.name)
    double.session = "anothersession"
    answer = double.http.post(
        "/api/agents/join", json={"study": "toy", "agent": double.name, "session": double.session}
    )
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "agent_name_taken")
    double.study_id = agent.study_id
    assert double.sync_response(take=double.take_request()).status_code == 409
    double.http.close()


def test_checkpoints_are_recorded_where_the_server_has_them_and_come_back_for_the_next_attempt(
    agent: HttpAgent,
) -> None:
    ticket = agent.take_next()
    url = "tempopt://toy/baseline-0000/step-8-1.ckpt"
    checkpoint = Checkpoint(step=8, url=url, digest="d", size=5)
    folder = agent.server.checkpoints / "toy" / "baseline-0000"
    folder.mkdir(parents=True)
    (folder / "step-8-1.ckpt").write_bytes(b"12345")
    agent.sync(CheckpointRecorded(ticket_id=ticket.id, attempt=1, checkpoint=checkpoint))
    (row_checkpoint,) = agent.row(ticket).checkpoints
    assert row_checkpoint.url.endswith(str(folder / "step-8-1.ckpt"))
    agent.sync(AttemptReleased(ticket_id=ticket.id, attempt=1))
    reply = agent.sync(take=agent.take_request())["claim"]
    assert [entry["url"] for entry in reply["request"]["resume"]] == [url]
    ticket = deserialize(TicketRow, reply["ticket"])
    agent.report_training(ticket, [3.0, 2.0, 1.0])
    assert list(folder.iterdir()) == [], "the server deletes what no run needs any more"


@pytest.mark.parametrize(
    "url",
    [
        "tempopt://toy/baseline-0001/step-8-1.ckpt",
        "tempopt://other/baseline-0000/step-8-1.ckpt",
        "tempopt://toy/baseline-0000/../../../etc/step-8-1.ckpt",
        "/etc/passwd",
        "s3://bucket/toy/baseline-0000/step-8-1.ckpt",
        "tempopt://toy/baseline-0000/step-8-1.ckpt\n",
        "tempopt://toy/baseline-0000/step-8-1.ckpt.writing",
        "tempopt://toy/baseline-0000/resume-1.ckpt",
        "tempopt://toy/baseline-0000/step-8-9.ckpt",
        "tempopt://toy/baseline-0000/step-9-1.ckpt",
        "tempopt://toy/baseline-0000/step-8-01.ckpt",
    ],
)
def test_a_checkpoint_of_another_place_is_refused(agent: HttpAgent, url: str) -> None:
    ticket = agent.take_next()
    change = CheckpointRecorded(
        ticket_id=ticket.id, attempt=1, checkpoint=Checkpoint(step=8, url=url, digest="d", size=5)
    )
    answer = agent.sync_response(change)
    assert answer.status_code == 400 and "not a checkpoint of the run" in answer.json()["error"]["message"]
    assert agent.row(ticket).checkpoints == ()


def test_reporting_the_last_run_opens_the_next_stage_and_ends_the_study(agent: HttpAgent) -> None:
    kinds: list[str] = []
    while (ticket := agent.take()) is not None:
        kinds.append(ticket.kind)
        change = make_end(ticket, 1.0 + 0.001 * ticket.number)
        names = ("validate", "validate_current", "test")
        measurements = [
            Measurement(ticket_id=ticket.id, step=STEPS, name=name, value=1.0 + 0.001 * ticket.number)
            for name in names
        ]
        outcomes = dataclasses.replace(change.outcomes, measurements=measurements)
        agent.sync(dataclasses.replace(change, outcomes=outcomes))
    assert {"baseline", "constant", "search", "choose", "confirm"} <= set(kinds)
    assert agent.server.store.load_study("toy").state == "done"
    assert agent.sync(take=agent.take_request())["over"]


def _train_until_the_search_waits(agent: HttpAgent) -> TicketRow:
    """Train all runs of the first design but one, and return that: with its end the search begins."""
    tickets: list[TicketRow] = []
    while (ticket := agent.take([row.id for row in tickets])) is not None:
        tickets.append(ticket)
    assert {row.kind for row in tickets} == {"baseline", "constant"}
    for ticket in tickets[:-1]:
        agent.report_training(ticket, [3.0, 2.0, 1.0])
    return tickets[-1]


def _take_while(waiting: HttpAgent, seconds: float, act: Callable[[], object]) -> TicketRow | None:
    """Return what an agent is given that waits for a ticket while something is done."""
    waiting.join()
    with ThreadPoolExecutor() as pool:
        answer = pool.submit(waiting.take, None, seconds)
        while len(waiting.server.app.state.tempopt.study_sessions.get("toy").listeners) == 0:
            assert not answer.done()
            threading.Event().wait(0.01)
        act()
        return answer.result()


def test_who_waits_for_a_ticket_is_answered_as_soon_as_there_is_one(agent: HttpAgent) -> None:
    last = _train_until_the_search_waits(agent)
    waiting = HttpAgent(agent.server, "there:2:m:1.1")
    start_time = time.monotonic()
    next_ticket = _take_while(waiting, 25.0, lambda: agent.report_training(last, [3.0, 2.0, 1.0]))
    assert next_ticket is not None and next_ticket.kind == "search" and time.monotonic() - start_time < 20
    waiting.http.close()


def test_who_waits_for_a_ticket_with_a_token_that_is_revoked_gets_none(
    agent: HttpAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def revoke_and_train() -> None:
        agent.server.store.revoke_token(token.split("_")[1])
        agent.report_training(last, [3.0, 2.0, 1.0])

    # tokens are read from the store at each request
    monkeypatch.setattr(authenticator, "FRESH_SECONDS", -1.0)
    last, token = _train_until_the_search_waits(agent), agent.server.new_token("agent")
    waiting = HttpAgent(agent.server, "there:2:m:1.1", token)
    assert _take_while(waiting, 2.0, revoke_and_train) is None
    assert waiting.sync_response().status_code == 401
    waiting.http.close()


def test_who_leaves_gives_back_what_was_given_a_moment_ago(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    body = {"study": "toy", "study_id": agent.study_id, "agent": agent.name, "session": agent.session}
    assert agent.http.post("/api/agents/leave", json=body).json() == {"released": 1, "status": "left"}
    assert (agent.row(ticket).state, agent.row(ticket).failures) == ("waiting", 0)


def test_a_late_copy_of_a_request_takes_nothing_and_a_repeated_one_gets_the_same_ticket(
    agent: HttpAgent,
) -> None:
    first_request = agent.take_request()
    first = agent.sync(take=first_request)["claim"]["ticket"]
    # the answer was lost
    assert agent.sync(take=first_request)["claim"]["ticket"]["id"] == first["id"]
    second = agent.take([first["id"]])
    assert second is not None
    agent.server.app.state.tempopt.study_sessions.close("toy")
    assert agent.sync(take=first_request)["claim"] is None
    rows = agent.server.store.tickets(agent.study_id)
    running = [(row.id, row.attempt) for row in rows if row.state == "running"]
    assert running == [(first["id"], 1), (second.id, 1)]
    assert agent.report_training(second, [3.0, 2.0, 1.0])["refused"] == []
    # a ticket whose answer never came is given out again
    assert agent.take_next([second.id]).id == first["id"]


def test_a_study_that_was_deleted_or_begun_anew_is_none_of_the_agents(agent: HttpAgent) -> None:
    agent.server.store.delete_study("toy")
    assert agent.sync_response(take=agent.take_request()).json()["error"]["code"] == "study_not_found"
    begin(agent.server.store)
    assert agent.sync_response(take=agent.take_request()).json()["error"]["code"] == "study_not_found"
    agent.join()
    assert agent.take() is not None


def test_a_paused_study_gives_no_tickets_and_takes_what_was_trained(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    agent.server.store.set_state(agent.study_id, "paused")
    answer = agent.sync(make_end(ticket, 1.0), take=agent.take_request())
    assert answer["state"] == "paused" and answer["claim"] is None and not answer["over"]
    assert agent.row(ticket).state == "done"
    body = {"study": "toy", "agent": agent.name, "session": agent.session}
    error = agent.http.post("/api/agents/join", json=body).json()["error"]
    assert "tempopt resume toy" in error["message"]


@pytest.mark.parametrize(
    ("version", "status", "code"),
    [
        (None, 422, "invalid_request"),
        ("x", 422, "invalid_request"),
        ("²", 422, "invalid_request"),
        ("1" * 50, 422, "invalid_request"),
        ("3", 426, "agent_too_old"),
        ("6", 400, "agent_too_new"),
        ("4", 200, ""),
        ("5", 200, ""),
    ],
)
def test_agents_of_this_version_and_the_one_before_are_served(
    agent: HttpAgent, monkeypatch: pytest.MonkeyPatch, version: str | None, status: int, code: str
) -> None:
    monkeypatch.setattr(agents, "PROTOCOL", 5)
    del agent.http.headers["tempopt-protocol"]
    headers = {} if version is None else {"tempopt-protocol": version.encode()}
    body = {"study": "toy", "agent": agent.name, "session": agent.session}
    answer = agent.http.post("/api/agents/join", json=body, headers=headers)
    assert answer.status_code == status
    assert not code or answer.json()["error"]["code"] == code


def test_an_outage_that_was_long_is_told_in_parts_that_keep_the_order() -> None:
    logs = [AttemptReleased(ticket_id=number, attempt=1, log="x" * 1_000_000) for number in range(10)]
    parts = _split_changes(logs)
    assert len(parts) > 1 and [log_line for part in parts for log_line in part] == logs
    assert _split_changes([]) == [[]]
    huge = [AttemptReleased(ticket_id=1, attempt=1, log="x" * 9_000_000)]
    assert _split_changes(huge) == [huge]


def test_leases_are_renewed_by_steps_and_for_no_longer_than_a_run_may_take(agent: HttpAgent) -> None:
    ticket = agent.take_next()
    agent.sync(renew={ticket.id: Renewal(attempt=1, step=7)}, lease=80_000.0)
    row = agent.row(ticket)
    assert row.steps == 7 and row.lease is not None and 100 < row.lease <= 180
