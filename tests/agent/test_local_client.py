"""An agent's dealings with the store, without workers."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.observer import NullObserver, Observer
from tempopt.agent.placement import Placement
from tempopt.agent.study_cache import StudyCache
from tempopt.agent.study_client import RunFolders
from tempopt.agent.ticket_transitions import build_attempt_lost
from tempopt.agent.worker_slot import WorkerSlot
from tempopt.errors import StoreUnreachable
from tempopt.sampling.arms import SearchArms
from tempopt.spec.study_spec import StudySpec
from tempopt.storage import checkpoints
from tempopt.storage.changes import (
    AttemptLost,
    ClaimRequest,
    MetricReported,
    RunEnded,
    RunOutcome,
    RunStarted,
)
from tempopt.storage.opening import open_store
from tempopt.storage.optuna_calls import make_study
from tempopt.storage.rows import KINDS, SEARCH_KINDS, Checkpoint, Kind, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import initial_tickets
from tests.toy_study import URL, toy_spec, work_in


class ClientScene:
    """A study in a store, agents' clients of it, and what their runs write."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        self.abandoned_ids: list[int] = []

    def begin(self, *kinds: Kind, **study: Any) -> ClientScene:
        """Begin a study that has tickets of these kinds alone, all if none is given."""
        self.spec = StudySpec.parse(toy_spec(**study), source="the test")
        self.study = self.store.create_study("toy", self.spec.to_json(), self.spec.identity())
        make_study(self.store.url, name="toy", direction="minimize", metric="val_loss")
        tickets = [ticket for ticket in initial_tickets(self.spec) if ticket.kind in (kinds or KINDS)]
        self.store.add_tickets(self.study.id, tickets)
        return self

    def client(self, observer: Observer | None = None) -> LocalStudyClient:
        """Return the client of an agent with one worker."""
        client = LocalStudyClient(
            cache=StudyCache(self.spec, self.study, self.store),
            folders=RunFolders(logs=self.folder, checkpoints=""),
            workers=1,
            observer=observer or NullObserver(),
        )
        client.listeners.abandon = self.abandoned_ids.extend
        return client

    def take(self, agent: str, kind: Kind) -> TicketRow:
        """Have another agent take a ticket."""
        request = ClaimRequest(max_number_by_kind={kind: 0}, lease=60.0, max_attempts=3)
        ticket = self.store.take_ticket(self.study.id, agent, request)
        assert ticket is not None
        return ticket

    def take_over(self, client: LocalStudyClient, ticket: TicketRow) -> None:
        """Let the lease of a ticket pass while its agent is frozen: another agent takes the run over."""
        self.store.write(self.study.id, [], agent=client.outbox.agent, renew={ticket.id: 1}, lease=-1.0)
        assert self.take("another", ticket.kind).id == ticket.id

    def write_checkpoint(
        self, client: LocalStudyClient, ticket: TicketRow, step: int
    ) -> tuple[TicketRow, Path]:
        """Have a run write a checkpoint, and return its ticket and the file."""
        path = self.folder / "toy" / f"{ticket.kind}-{ticket.number:04d}" / f"step-{step}-1.ckpt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
        checkpoint = Checkpoint(step=step, url=str(path), digest="d", size=1)
        return client.record_checkpoint(ticket, checkpoint, trained_seconds=0.0), path


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ClientScene]:
    work_in(tmp_path, monkeypatch)
    with open_store(URL) as store:
        yield ClientScene(store, tmp_path)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The clock of clients, which a test sets."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("tempopt.agent.local_client.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def record_calls(
    patch: pytest.MonkeyPatch, method: str, record: Callable[[Any], Any], owner: type = Store
) -> list[Any]:
    """Return the list that gets something of the arguments of each call of a method."""
    calls: list[Any] = []
    work = getattr(owner, method)

    def recording(*args: Any, **kwargs: Any) -> Any:
        calls.append(record(args))
        return work(*args, **kwargs)

    patch.setattr(owner, method, recording)
    return calls


def next_ticket(client: LocalStudyClient, held_ids: list[int] | None = None) -> TicketRow:
    ticket = client.next_ticket(held_ids or [])
    assert ticket is not None
    return ticket


COMPLETE = RunOutcome(outcome="complete", value=0.5, steps=3, seconds=1.0)


def test_an_agent_that_lost_its_run_keeps_checkpoints_that_the_store_names(scene: ClientScene) -> None:
    client = scene.begin(lease=60).client()
    ticket = next_ticket(client)
    assert ticket.kind == "baseline"
    for steps in ((0, 1), (2, 3)):
        for step in steps:
            ticket, _ = scene.write_checkpoint(client, ticket, step)
        if steps == (0, 1):
            client._deliver()
    scene.take_over(client, ticket)
    client._deliver()
    assert scene.abandoned_ids == [ticket.id]
    checkpoint_urls = [checkpoint.url for checkpoint in scene.store.tickets(scene.study.id)[0].checkpoints]
    assert len(checkpoint_urls) == 2 and all(Path(url).is_file() for url in checkpoint_urls)


def test_who_waits_for_others_only_reads_and_looks_for_what_they_lost_now_and_then(
    scene: ClientScene, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin(parallel=1, trials=1, arms={"baseline": 2, "constant": 1})
    other_tickets = {kind: scene.take(f"at {kind}", kind) for kind in SEARCH_KINDS}
    take_times = record_calls(monkeypatch, "take_ticket", lambda args: clock.now)
    client = scene.client()
    for clock.now in (100.0, 100.1, 101.9, 102.0, 102.1, 103.9):
        assert client.next_ticket([]) is None
    assert take_times == [100.0, 102.0]
    # what another has ended lets the next one begin at once
    first = other_tickets["baseline"]
    scene.store.begin(first.id, 1, {}, {}, None)
    end_change = RunEnded(ticket_id=first.id, attempt=1, outcomes=COMPLETE)
    assert not scene.store.write(scene.study.id, [end_change], agent="at baseline", lease=60.0).refused
    clock.now = 103.95
    ticket = next_ticket(client)
    assert (ticket.kind, ticket.number) == ("baseline", 1)


def test_what_others_were_given_is_read_and_not_drawn_again(
    scene: ClientScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin("search", parallel=4, trials=4)
    first_client, second_client = scene.client(), scene.client()
    held_ids: list[int] = []
    for _ in range(3):
        held_ids.append(next_ticket(first_client, held_ids).id)
    sampled_numbers = record_calls(monkeypatch, "_draw_active_params", lambda args: args[2], SearchArms)
    assert next_ticket(second_client).number == 3
    assert sampled_numbers == [3]


def test_a_run_that_ends_the_study_leaves_no_checkpoint_behind(scene: ClientScene) -> None:
    client = scene.begin("baseline", trials=1, arms={"baseline": 1, "constant": 1}).client()
    ticket = next_ticket(client)
    for step in range(3):
        ticket, path = scene.write_checkpoint(client, ticket, step)
    row = dataclasses.replace(ticket, state="done", outcome="complete", value=0.5)
    client.report_run_ended(RunEnded(ticket_id=ticket.id, attempt=1, outcomes=COMPLETE), ticket, row, {})
    assert len(list(path.parent.iterdir())) == 3  # the store names two of them yet
    client.flush()
    assert not path.parent.exists() or not list(path.parent.iterdir())


def test_who_lost_a_run_deletes_nothing_that_it_has_written(scene: ClientScene) -> None:
    client = scene.begin("search", trials=4).client()
    ticket, path = scene.write_checkpoint(client, next_ticket(client), 8)
    client._deliver()
    scene.take_over(client, ticket)
    outcomes = RunOutcome(outcome="pruned", value=0.9, steps=9, seconds=1.0)
    row = dataclasses.replace(ticket, state="done", outcome="pruned", value=0.9, checkpoints=())
    client.report_run_ended(
        RunEnded(ticket_id=ticket.id, attempt=1, outcomes=outcomes), ticket, row, {8: 0.9}
    )
    client.flush()
    assert scene.abandoned_ids == [ticket.id]
    assert path.is_file()
    rows = scene.store.tickets(scene.study.id)
    assert [checkpoint.url for checkpoint in rows[0].checkpoints] == [str(path)]


def test_what_a_run_that_failed_for_good_has_written_is_deleted(scene: ClientScene) -> None:
    client = scene.begin("search", trials=4).client()
    ticket, path = scene.write_checkpoint(client, next_ticket(client), 8)
    client._deliver()
    worker: Any = SimpleNamespace(placement=Placement())
    slot = WorkerSlot(worker=worker, ticket=ticket, folder=scene.folder)
    change, waiting_row = build_attempt_lost(slot, "it died", max_attempts=2, alone=False)
    assert waiting_row.state == "waiting" and waiting_row.checkpoints == ticket.checkpoints
    change, row = build_attempt_lost(slot, "it died", max_attempts=1, alone=False)
    assert row.state == "failed"
    client.report_attempt_lost(change, ticket, row, {})
    client._deliver()
    assert not path.exists()


def test_an_object_store_that_does_not_answer_delays_no_delivery(
    scene: ClientScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    urls: list[list[str]] = []

    def remove(some_urls: list[str]) -> None:
        urls.append(some_urls)
        assert answers.wait(60)

    monkeypatch.setattr(checkpoints, "remove", remove)
    client = scene.begin("search", trials=4).client()
    ticket = next_ticket(client)
    url = "s3://bucket/toy/search-0000/step-{}-1.ckpt".format
    for step in range(5):
        saved = Checkpoint(step=step, url=url(step), digest="d", size=1)
        ticket = client.record_checkpoint(ticket, saved, trained_seconds=0.0)
        client._deliver()
    # two are kept; one is being deleted, and the others wait for it
    assert urls == [[url(0)]]
    answers.set()
    client.close()
    assert urls == [[url(0)], [url(1), url(2)]]


class Onlooker(NullObserver):
    """An observer that wants to see every five seconds what other agents do."""

    poll_interval_seconds = 5.0


def test_other_workers_are_queried_periodically_only_with_an_observer(
    scene: ClientScene, clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.begin()
    plain_client, watched_client = scene.client(), scene.client(Onlooker())
    other_ticket = scene.take("far:7:8:9", "baseline")
    run = {"ticket_id": other_ticket.id, "attempt": 1}
    start_change = RunStarted(**run, total_steps=24, code="c", machine="far", device="cpu")
    report = MetricReported(**run, step=8, value=0.5)
    scene.store.write(scene.study.id, [start_change, report], agent="far:7:8:9", lease=60.0)
    own_ticket = next_ticket(watched_client)
    ask_times = record_calls(monkeypatch, "news", lambda args: clock.now)
    for clock.now in (100.0, 100.5, 104.9, 105.0, 109.9):
        (view,) = watched_client.other_workers()
        assert plain_client.other_workers() == []
    assert ask_times == [100.0, 105.0]
    assert (view.agent, view.machine, view.kind, view.step, view.value) == (
        "far:7", "far", "baseline", 8, 0.5,
    )  # fmt: skip
    # an end that the store has not heard of goes first, and a store that is away is no reason to stop
    watched_client.outbox.add(AttemptLost(ticket_id=own_ticket.id, attempt=1, error="x", max_attempts=3))
    clock.now = 200.0
    assert watched_client.other_workers() == [view]
    watched_client.flush()
    monkeypatch.setattr(Store, "news", _raise_unreachable)
    assert watched_client.other_workers() == [view]
    assert ask_times == [100.0, 105.0]


def _raise_unreachable(*arguments: object) -> None:
    raise StoreUnreachable("The database failed: refused.")
