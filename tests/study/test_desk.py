"""An agent's dealings with the store, without trainers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tempopt.errors import StoreUnreachable
from tempopt.store.rows import (
    SEARCHING,
    Began,
    Checkpoint,
    Ended,
    Lost,
    Outcomes,
    Reported,
    StudyRow,
    TicketRow,
    Wanted,
)
from tempopt.store.store import Store
from tempopt.study.arms import Arms
from tempopt.study.assignment import Assignment
from tempopt.study.closing import lost
from tempopt.study.desk import Desk
from tempopt.study.progress import Observer, Unobserved
from tempopt.study.spec import StudySpec
from tempopt.study.stages import first_tickets
from tempopt.study.trials import make_study
from tempopt.training.places import Place
from tests.study.toy_study import URL, toy_spec, work_in


def _desk(
    spec: StudySpec,
    study: StudyRow,
    store: Store,
    folder: Path,
    abandon: Callable[[Collection[int]], None] = lambda ids: None,
    observer: Observer | None = None,
) -> Desk:
    """Return the desk of an agent with one trainer, whom nobody looks on at unless an observer is given."""
    return Desk(
        spec=spec,
        study=study,
        store=store,
        folder=folder,
        trainers=1,
        abandon=abandon,
        observer=observer or Unobserved(),
    )


def test_checkpoints_that_the_store_still_names_are_not_deleted_by_whoever_lost_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    abandoned: list[int] = []
    spec = StudySpec.parse(toy_spec(lease=60), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, first_tickets(spec))
        desk = _desk(spec, study, store, tmp_path, abandoned.extend)
        ticket = desk.next_ticket([])
        assert ticket is not None and ticket.kind == "unit"
        folder = tmp_path / "toy" / "unit-0000"
        folder.mkdir(parents=True)

        def keep(step: int, row: TicketRow) -> TicketRow:
            path = folder / f"step-{step}-1.ckpt"
            path.write_bytes(b"x")
            return desk.keep(row, Checkpoint(step=step, url=str(path), digest="d", size=1), age=0.0)

        ticket = keep(1, keep(0, ticket))
        desk._deliver()
        ticket = keep(3, keep(2, ticket))
        # frozen now, past the lease: another takes the run over
        store.write(study.id, [], agent=desk._name, renew={ticket.id: 1}, lease=-1.0)
        other = store.take_ticket(study.id, "another", Wanted(limits={"unit": 0}, lease=60.0, max_attempts=3))
        assert other is not None and other.id == ticket.id
        desk._deliver()
        assert abandoned == [ticket.id]
        named = [each.url for each in store.tickets(study.id)[0].checkpoints]
        assert len(named) == 2 and all(Path(url).is_file() for url in named)


def test_who_waits_for_others_only_reads_and_looks_for_what_they_lost_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("tempopt.study.desk.time", SimpleNamespace(monotonic=lambda: clock.now))
    taken: list[float] = []
    take = Store.take_ticket

    def counted(self: Store, *args: Any, **kwargs: Any) -> TicketRow | None:
        taken.append(clock.now)
        return take(self, *args, **kwargs)

    monkeypatch.setattr(Store, "take_ticket", counted)
    spec = StudySpec.parse(toy_spec(parallel=1, trials=1, arms={"unit": 2, "constant": 1}), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, first_tickets(spec))
        theirs = {
            kind: take(store, study.id, f"at {kind}", Wanted(limits={kind: 0}, lease=60.0, max_attempts=3))
            for kind in SEARCHING
        }
        desk = _desk(spec, study, store, tmp_path)
        for clock.now in (100.0, 100.1, 101.9, 102.0, 102.1, 103.9):
            assert desk.next_ticket([]) is None
        assert taken == [100.0, 102.0]
        # what another has ended lets the next one begin at once
        done = Outcomes(outcome="complete", value=0.5, steps=1, seconds=1.0)
        first = theirs["unit"]
        assert first is not None
        store.begin(first.id, 1, {}, {}, None)
        ended = Ended(ticket_id=first.id, attempt=1, outcomes=done)
        assert not store.write(study.id, [ended], agent="at unit", lease=60.0).refused
        clock.now = 103.95
        ticket = desk.next_ticket([])
        assert ticket is not None and (ticket.kind, ticket.number) == ("unit", 1)


def test_what_others_were_given_is_read_and_not_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(parallel=4, trials=4), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, [ticket for ticket in first_tickets(spec) if ticket.kind == "search"])
        one, other = (_desk(spec, study, store, tmp_path) for _ in range(2))
        held: list[int] = []
        for _ in range(3):
            ticket = one.next_ticket(held)
            assert ticket is not None
            held.append(ticket.id)
        drawn: list[int] = []
        draw = Arms._sampled

        def counted(self: Arms, arm: Any, number: int) -> dict[str, Any]:
            drawn.append(number)
            return draw(self, arm, number)

        monkeypatch.setattr(Arms, "_sampled", counted)
        ticket = other.next_ticket([])
        assert ticket is not None and ticket.number == 3
        assert drawn == [3]


def test_a_run_that_ends_the_study_leaves_no_checkpoint_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(trials=1, arms={"unit": 1, "constant": 1}), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        store.add_tickets(study.id, first_tickets(spec)[:1])
        desk = _desk(spec, study, store, tmp_path)
        ticket = desk.next_ticket([])
        assert ticket is not None
        folder = tmp_path / "toy" / "unit-0000"
        folder.mkdir(parents=True)
        for step in range(3):
            path = folder / f"step-{step}-1.ckpt"
            path.write_bytes(b"x")
            ticket = desk.keep(ticket, Checkpoint(step=step, url=str(path), digest="d", size=1), age=0.0)
        done = Outcomes(outcome="complete", value=0.5, steps=3, seconds=1.0)
        desk.tell(Ended(ticket_id=ticket.id, attempt=1, outcomes=done))
        desk.discard(ticket)
        desk.board.take_in(dataclasses.replace(ticket, state="done", outcome="complete", value=0.5), {})
        assert len(list(folder.iterdir())) == 3  # the store names two of them yet
        desk.speak()
        assert not folder.exists() or not list(folder.iterdir())


def _written(desk: Desk, folder: Path, number: int) -> tuple[TicketRow, Path]:
    """Take a search ticket whose run then writes a checkpoint."""
    ticket = desk.next_ticket([])
    assert ticket is not None and (ticket.kind, ticket.number) == ("search", number)
    path = folder / "toy" / f"search-{number:04d}" / "step-8-1.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 10)
    return desk.keep(ticket, Checkpoint(step=8, url=str(path), digest="d", size=10), age=0.0), path


def _ended_with(desk: Desk, folder: Path, number: int, value: float) -> tuple[TicketRow, Path]:
    """Take a search ticket, and end its run with a checkpoint that others may begin from."""
    ticket, path = _written(desk, folder, number)
    kept = desk.shared(ticket, "pruned", value)
    outcomes = Outcomes(outcome="pruned", value=value, steps=9, seconds=1.0)
    desk.tell(Ended(ticket_id=ticket.id, attempt=1, outcomes=outcomes, checkpoints=kept))
    desk.discard(ticket, kept=kept)
    row = dataclasses.replace(ticket, state="done", outcome="pruned", value=value, checkpoints=kept)
    desk.board.take_in(row, {})
    return row, path


@pytest.fixture
def sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A study of search tickets alone, whose quota has room for two checkpoints."""
    work_in(tmp_path, monkeypatch)
    spec = StudySpec.parse(toy_spec(trials=4, checkpoint_quota=25, seeds={"search": 2}), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        make_study(store.url, name="toy", direction="minimize", metric="val_loss")
        store.add_tickets(study.id, [ticket for ticket in first_tickets(spec) if ticket.kind == "search"])
        yield spec, study, store


def test_what_is_kept_for_other_runs_is_within_the_quota_and_goes_when_the_search_is_over(
    sharing: Any, tmp_path: Path
) -> None:
    spec, study, store = sharing
    desk = _desk(spec, study, store, tmp_path)
    there = []
    # the loss is minimized: 0.9 is the worst
    for number, value in enumerate((0.5, 0.9, 0.4, 0.95)):
        _, path = _ended_with(desk, tmp_path, number, value)
        there.append(path)
        assert path.is_file()  # until the store has been told
    desk.speak()
    assert [path.is_file() for path in there] == [True, False, True, False]
    assert [bool(row.checkpoints) for row in store.tickets(study.id)] == [True, False, True, False]
    assert desk.over()
    assert [path.is_file() for path in there] == [False] * 4
    assert not any(row.checkpoints for row in store.tickets(study.id))


def test_who_lost_a_run_deletes_nothing_that_it_would_have_kept_for_others(
    sharing: Any, tmp_path: Path
) -> None:
    spec, study, store = sharing
    abandoned: list[int] = []
    desk = _desk(spec, study, store, tmp_path, abandoned.extend)
    ticket, path = _written(desk, tmp_path, 0)
    desk._deliver()
    # frozen now, past the lease: another takes the run over
    store.write(study.id, [], agent=desk._name, renew={ticket.id: 1}, lease=-1.0)
    other = store.take_ticket(study.id, "another", Wanted(limits={"search": 0}, lease=60.0, max_attempts=3))
    assert other is not None and other.id == ticket.id
    kept = desk.shared(ticket, "pruned", 0.9)
    outcomes = Outcomes(outcome="pruned", value=0.9, steps=9, seconds=1.0)
    desk.tell(Ended(ticket_id=ticket.id, attempt=1, outcomes=outcomes, checkpoints=kept))
    desk.discard(ticket, kept=kept)
    row = dataclasses.replace(ticket, state="done", outcome="pruned", value=0.9, checkpoints=kept)
    desk.board.take_in(row, {})
    desk._evict([row])
    desk.speak()
    assert abandoned == [ticket.id]
    assert path.is_file()
    assert [each.url for each in store.tickets(study.id)[0].checkpoints] == [str(path)]
    desk._read()
    desk._deliver()
    assert path.is_file()


def test_what_is_at_work_again_keeps_its_checkpoint_whatever_a_stale_agent_gives_up(
    sharing: Any, tmp_path: Path
) -> None:
    spec, study, store = sharing
    desk = _desk(spec, study, store, tmp_path)
    ticket, path = _written(desk, tmp_path, 0)
    (kept,) = ticket.checkpoints
    desk._deliver()
    # for this agent the run is over; for the store it is at work, another having gone on with it
    over = dataclasses.replace(ticket, state="done", outcome="pruned", value=0.9, checkpoints=(kept,))
    desk.board.take_in(over, {})
    desk._evict([over])
    desk._delete_evicted()
    assert path.is_file()
    assert store.tickets(study.id)[0].checkpoints == (kept,)


def test_what_a_run_that_failed_for_good_has_written_is_deleted(sharing: Any, tmp_path: Path) -> None:
    spec, study, store = sharing
    desk = _desk(spec, study, store, tmp_path)
    ticket, path = _written(desk, tmp_path, 0)
    desk._deliver()
    trainer: Any = SimpleNamespace(place=Place())
    work = Assignment(trainer=trainer, ticket=ticket, folder=tmp_path)
    change, again = lost(work, "it died", attempts=2, alone=False)
    assert again.state == "waiting" and again.checkpoints == ticket.checkpoints
    change, row = lost(work, "it died", attempts=1, alone=False)
    assert row.state == "failed"
    desk.tell(change)
    desk.discard(ticket, kept=row.checkpoints)
    desk._deliver()
    assert not path.exists()


def test_what_others_gave_up_is_deleted_by_who_kept_it(sharing: Any, tmp_path: Path) -> None:
    spec, study, store = sharing
    desk = _desk(spec, study, store, tmp_path)
    _, path = _ended_with(desk, tmp_path, 0, 0.5)
    desk._deliver()
    assert path.is_file()
    # an agent on another machine, from which this file is out of reach
    store.forget_checkpoints(study.id)
    desk._read()
    assert not path.is_file()


class Onlooker(Unobserved):
    """Somebody who wants to see every five seconds what other agents do."""

    others_every = 5.0


def test_what_others_do_is_asked_as_often_as_somebody_looks_and_not_at_all_if_nobody_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work_in(tmp_path, monkeypatch)
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("tempopt.study.desk.time", SimpleNamespace(monotonic=lambda: clock.now))
    asked: list[float] = []
    news = Store.news

    def counted(self: Store, *args: Any, **kwargs: Any) -> Any:
        asked.append(clock.now)
        return news(self, *args, **kwargs)

    monkeypatch.setattr(Store, "news", counted)
    spec = StudySpec.parse(toy_spec(), source="the test")
    with Store.open(URL) as store:
        study = store.create_study("toy", spec.to_json(), spec.identity())
        store.add_tickets(study.id, first_tickets(spec))
        alone = _desk(spec, study, store, tmp_path)
        watched = _desk(spec, study, store, tmp_path, observer=Onlooker())
        other = store.take_ticket(
            study.id, "far:7:8:9", Wanted(limits={"unit": 0}, lease=60.0, max_attempts=3)
        )
        assert other is not None
        began = Began(ticket_id=other.id, attempt=1, total_steps=24, code="c", machine="far", device="cpu")
        report = Reported(ticket_id=other.id, attempt=1, step=8, value=0.5)
        store.write(study.id, [began, report], agent="far:7:8:9", lease=60.0)
        mine = watched.next_ticket([])
        assert mine is not None
        asked.clear()
        for clock.now in (100.0, 100.5, 104.9, 105.0, 109.9):
            (seen,) = watched.others()
            assert alone.others() == []
        assert asked == [100.0, 105.0]
        assert (seen.agent, seen.machine, seen.kind, seen.step, seen.value) == (
            "far:7",
            "far",
            "unit",
            8,
            0.5,
        )
        # an end that the store has not heard of goes first, and a store that is away is no reason to stop
        watched.tell(Lost(ticket_id=mine.id, attempt=1, error="x", max_attempts=3))
        clock.now = 200.0
        assert watched.others() == [seen]
        watched.speak()
        monkeypatch.setattr(Store, "news", _away)
        assert watched.others() == [seen]
        assert asked == [100.0, 105.0]


def _away(*arguments: object) -> None:
    raise StoreUnreachable("The database failed: refused.")
