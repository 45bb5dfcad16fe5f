"""An agent's dealings with the store, without workers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.agent.local_client import LocalStudyClient
from tempopt.agent.observer import NullObserver, Observer
from tempopt.agent.placement import Placement
from tempopt.agent.ticket_transitions import build_attempt_lost
from tempopt.agent.worker_slot import WorkerSlot
from tempopt.errors import StoreUnreachable
from tempopt.sampling.arms import SearchArms
from tempopt.spec.study_spec import StudySpec
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
from tempopt.storage.rows import SEARCH_KINDS, Checkpoint, StudyRow, TicketRow
from tempopt.storage.store import Store
from tempopt.verdict.stages import first_tickets
from tests.toy_study import URL, toy_spec, work_in


def _client(
    spec: StudySpec,
    study: StudyRow,
    store: Store,
    folder: Path,
    abandon: Callable[[Collection[int]], None] = lambda ids: None,
    observer: Observer | None = None,
) -> LocalStudyClient:
    """Return the client of an agent with one worker, without an observer unless one is given."""
    return LocalStudyClient(
        spec=spec,
        study=study,
        store=store,
        folder=folder,
        workers=1,
        on_abandoned=abandon,
        observer=observer or NullObserver(),
    )


def test_an_agent_that_lost_its_run_keeps_checkpoints_that_the_store_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    abandoned_ids: list[int] = []
    spec = StudySpec.parse(toy_spec(lease=60), source="the test")
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, first_tickets(spec))
        client = _client(spec, study, store, tmp_path, abandoned_ids.extend)
        ticket = client.next_ticket([])
        assert ticket is not None and ticket.kind == "baseline"
        folder = tmp_path / "toy" / "baseline-0000"
        folder.mkdir(parents=True)

        def keep(step: int, row: TicketRow) -> TicketRow:
            path = folder / f"step-{step}-1.ckpt"
            path.write_bytes(b"x")
            return client.keep(
                row, Checkpoint(step=step, url=str(path), digest="d", size=1), trained_seconds=0.0
            )

        ticket = keep(1, keep(0, ticket))
        client._deliver()
        ticket = keep(3, keep(2, ticket))
        # frozen now, past the lease: another takes the run over
        store.write(study.id, [], agent=client._name, renew={ticket.id: 1}, lease=-1.0)
        other_ticket = store.take_ticket(
            study.id, "another", ClaimRequest(limits={"baseline": 0}, lease=60.0, max_attempts=3)
        )
        assert other_ticket is not None and other_ticket.id == ticket.id
        client._deliver()
        assert abandoned_ids == [ticket.id]
        checkpoint_urls = [ticket.url for ticket in store.tickets(study.id)[0].checkpoints]
        assert len(checkpoint_urls) == 2 and all(Path(url).is_file() for url in checkpoint_urls)


def test_who_waits_for_others_only_reads_and_looks_for_what_they_lost_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("tempopt.agent.local_client.time", SimpleNamespace(monotonic=lambda: clock.now))
    take_times: list[float] = []
    take = Store.take_ticket

    def count_call(self: Store, *args: Any, **kwargs: Any) -> TicketRow | None:
        take_times.append(clock.now)
        return take(self, *args, **kwargs)

    monkeypatch.setattr(Store, "take_ticket", count_call)
    spec = StudySpec.parse(
        toy_spec(parallel=1, trials=1, arms={"baseline": 2, "constant": 1}), source="the test"
    )
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, first_tickets(spec))
        other_tickets = {
            kind: take(
                store, study.id, f"at {kind}", ClaimRequest(limits={kind: 0}, lease=60.0, max_attempts=3)
            )
            for kind in SEARCH_KINDS
        }
        client = _client(spec, study, store, tmp_path)
        for clock.now in (100.0, 100.1, 101.9, 102.0, 102.1, 103.9):
            assert client.next_ticket([]) is None
        assert take_times == [100.0, 102.0]
        # what another has ended lets the next one begin at once
        outcomes = RunOutcome(outcome="complete", value=0.5, steps=1, seconds=1.0)
        first = other_tickets["baseline"]
        assert first is not None
        store.begin(first.id, 1, {}, {}, None)
        end_change = RunEnded(ticket_id=first.id, attempt=1, outcomes=outcomes)
        assert not store.write(study.id, [end_change], agent="at baseline", lease=60.0).refused
        clock.now = 103.95
        ticket = client.next_ticket([])
        assert ticket is not None and (ticket.kind, ticket.number) == ("baseline", 1)


def test_what_others_were_given_is_read_and_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(parallel=4, trials=4), source="the test")
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, [ticket for ticket in first_tickets(spec) if ticket.kind == "search"])
        first_client, second_client = (_client(spec, study, store, tmp_path) for _ in range(2))
        held_ids: list[int] = []
        for _ in range(3):
            ticket = first_client.next_ticket(held_ids)
            assert ticket is not None
            held_ids.append(ticket.id)
        sampled_numbers: list[int] = []
        draw = SearchArms._draw_active_params

        def count_call(self: SearchArms, arm: Any, number: int) -> dict[str, Any]:
            sampled_numbers.append(number)
            return draw(self, arm, number)

        monkeypatch.setattr(SearchArms, "_draw_active_params", count_call)
        ticket = second_client.next_ticket([])
        assert ticket is not None and ticket.number == 3
        assert sampled_numbers == [3]


def test_a_run_that_ends_the_study_leaves_no_checkpoint_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(trials=1, arms={"baseline": 1, "constant": 1}), source="the test")
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        store.add_tickets(study.id, first_tickets(spec)[:1])
        client = _client(spec, study, store, tmp_path)
        ticket = client.next_ticket([])
        assert ticket is not None
        folder = tmp_path / "toy" / "baseline-0000"
        folder.mkdir(parents=True)
        for step in range(3):
            path = folder / f"step-{step}-1.ckpt"
            path.write_bytes(b"x")
            ticket = client.keep(
                ticket, Checkpoint(step=step, url=str(path), digest="d", size=1), trained_seconds=0.0
            )
        outcomes = RunOutcome(outcome="complete", value=0.5, steps=3, seconds=1.0)
        row = dataclasses.replace(ticket, state="done", outcome="complete", value=0.5)
        client.report_run_ended(RunEnded(ticket_id=ticket.id, attempt=1, outcomes=outcomes), ticket, row, {})
        assert len(list(folder.iterdir())) == 3  # the store names two of them yet
        client.flush()
        assert not folder.exists() or not list(folder.iterdir())


def _write_checkpoint(client: LocalStudyClient, folder: Path, number: int) -> tuple[TicketRow, Path]:
    """Take a search ticket whose run then writes a checkpoint."""
    ticket = client.next_ticket([])
    assert ticket is not None and (ticket.kind, ticket.number) == ("search", number)
    path = folder / "toy" / f"search-{number:04d}" / "step-8-1.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 10)
    return client.keep(
        ticket, Checkpoint(step=8, url=str(path), digest="d", size=10), trained_seconds=0.0
    ), path


@pytest.fixture
def search_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A study of search tickets alone."""
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(trials=4), source="the test")
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, [ticket for ticket in first_tickets(spec) if ticket.kind == "search"])
        yield spec, study, store


def test_who_lost_a_run_deletes_nothing_that_it_has_written(search_study: Any, tmp_path: Path) -> None:
    spec, study, store = search_study
    abandoned_ids: list[int] = []
    client = _client(spec, study, store, tmp_path, abandoned_ids.extend)
    ticket, path = _write_checkpoint(client, tmp_path, 0)
    client._deliver()
    # frozen now, past the lease: another takes the run over
    store.write(study.id, [], agent=client._name, renew={ticket.id: 1}, lease=-1.0)
    other_ticket = store.take_ticket(
        study.id, "another", ClaimRequest(limits={"search": 0}, lease=60.0, max_attempts=3)
    )
    assert other_ticket is not None and other_ticket.id == ticket.id
    outcomes = RunOutcome(outcome="pruned", value=0.9, steps=9, seconds=1.0)
    row = dataclasses.replace(ticket, state="done", outcome="pruned", value=0.9, checkpoints=())
    client.report_run_ended(
        RunEnded(ticket_id=ticket.id, attempt=1, outcomes=outcomes), ticket, row, {8: 0.9}
    )
    client.flush()
    assert abandoned_ids == [ticket.id]
    assert path.is_file()
    assert [checkpoint.url for checkpoint in store.tickets(study.id)[0].checkpoints] == [str(path)]


def test_what_a_run_that_failed_for_good_has_written_is_deleted(search_study: Any, tmp_path: Path) -> None:
    spec, study, store = search_study
    client = _client(spec, study, store, tmp_path)
    ticket, path = _write_checkpoint(client, tmp_path, 0)
    client._deliver()
    worker: Any = SimpleNamespace(placement=Placement())
    work = WorkerSlot(worker=worker, ticket=ticket, folder=tmp_path)
    change, waiting_row = build_attempt_lost(work, "it died", attempts=2, alone=False)
    assert waiting_row.state == "waiting" and waiting_row.checkpoints == ticket.checkpoints
    change, row = build_attempt_lost(work, "it died", attempts=1, alone=False)
    assert row.state == "failed"
    client.lost(change, ticket, row, {})
    client._deliver()
    assert not path.exists()


class Onlooker(NullObserver):
    """An observer that wants to see every five seconds what other agents do."""

    poll_interval_seconds = 5.0


def test_other_workers_are_queried_periodically_only_with_an_observer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("tempopt.agent.local_client.time", SimpleNamespace(monotonic=lambda: clock.now))
    ask_times: list[float] = []
    news = Store.news

    def count_call(self: Store, *args: Any, **kwargs: Any) -> Any:
        ask_times.append(clock.now)
        return news(self, *args, **kwargs)

    monkeypatch.setattr(Store, "news", count_call)
    spec = StudySpec.parse(toy_spec(), source="the test")
    with open_store(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        store.add_tickets(study.id, first_tickets(spec))
        plain_client = _client(spec, study, store, tmp_path)
        watched_client = _client(spec, study, store, tmp_path, observer=Onlooker())
        other_ticket = store.take_ticket(
            study.id, "far:7:8:9", ClaimRequest(limits={"baseline": 0}, lease=60.0, max_attempts=3)
        )
        assert other_ticket is not None
        start_change = RunStarted(
            ticket_id=other_ticket.id, attempt=1, total_steps=24, code="c", machine="far", device="cpu"
        )
        report = MetricReported(ticket_id=other_ticket.id, attempt=1, step=8, value=0.5)
        store.write(study.id, [start_change, report], agent="far:7:8:9", lease=60.0)
        own_ticket = watched_client.next_ticket([])
        assert own_ticket is not None
        ask_times.clear()
        for clock.now in (100.0, 100.5, 104.9, 105.0, 109.9):
            (worker_view,) = watched_client.other_workers()
            assert plain_client.other_workers() == []
        assert ask_times == [100.0, 105.0]
        assert (
            worker_view.agent,
            worker_view.machine,
            worker_view.kind,
            worker_view.step,
            worker_view.value,
        ) == (
            "far:7",
            "far",
            "baseline",
            8,
            0.5,
        )
        # an end that the store has not heard of goes first, and a store that is away is no reason to stop
        watched_client.enqueue_change(
            AttemptLost(ticket_id=own_ticket.id, attempt=1, error="x", max_attempts=3)
        )
        clock.now = 200.0
        assert watched_client.other_workers() == [worker_view]
        watched_client.flush()
        monkeypatch.setattr(Store, "news", _raise_unreachable)
        assert watched_client.other_workers() == [worker_view]
        assert ask_times == [100.0, 105.0]


def _raise_unreachable(*arguments: object) -> None:
    raise StoreUnreachable("The database failed: refused.")
