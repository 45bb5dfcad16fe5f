"""Commands to a study from outside: the database is real (SQLite), agents and runs are rows and files."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec  # noqa: F401  # loads its registry
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tempopt.errors import StudyNotFound, UsageError
from tempopt.service import lifecycle
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import (
    AttemptLost,
    AttemptReleased,
    CheckpointRecorded,
    ClaimRequest,
    RunEnded,
    RunOutcome,
)
from tempopt.storage.checkpoints import DEFAULT_FOLDER
from tempopt.storage.liveness import machine_id
from tempopt.storage.opening import open_store
from tempopt.storage.rows import Checkpoint, Kind, NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store

FAR = "far:7:0a1b2c3d:99"
NEAR = f"{socket.gethostname()}:7:{machine_id()}:no such start"
COUNTS: dict[Kind, int] = {"baseline": 1, "constant": 2, "search": 3, "choose": 1}
PRINTED = "epoch 1\nepoch 2\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def url(folder: Path) -> str:
    return f"sqlite:///{folder / 'tempopt.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


@pytest.fixture
def study(store: Store, folder: Path, make_spec: Callable[..., StudySpec]) -> StudyRow:
    """A study of seven tickets, all waiting, whose checkpoints lie in this machine's folder ``runs``."""
    spec = make_spec()
    row = store.create_study("pairs", spec.to_json(), spec.identity())
    store.set_checkpoints(row.id, str(folder / "runs"))
    store.add_tickets(
        row.id,
        [NewTicket(kind=k, arm=k, number=i, seed=i) for k, count in COUNTS.items() for i in range(count)],
    )
    return row


@pytest.fixture
def take(store: Store, study: StudyRow) -> Callable[..., TicketRow]:
    """Return a taker of the next ticket of a kind for an agent."""

    held_ids: list[int] = []

    def take_ticket(kind: Kind = "search", agent: str = FAR, lease: float = 60.0) -> TicketRow:
        ticket = store.take_ticket(
            study.id,
            agent,
            ClaimRequest(limits={kind: None}, lease=lease, max_attempts=3, held_ticket_ids=held_ids),
        )
        assert ticket is not None
        held_ids.append(ticket.id)
        return ticket

    return take_ticket


def _states(store: Store, study: StudyRow, kind: Kind) -> list[str]:
    return [ticket.state for ticket in store.tickets(study.id, [kind])]


def _end(ticket: TicketRow, text: str = "") -> RunEnded:
    outcomes = RunOutcome(outcome="complete", value=0.5, steps=10, seconds=1.0)
    return RunEnded(ticket_id=ticket.id, attempt=ticket.attempt, outcomes=outcomes, log=text)


def _run(folder: Path, ticket: TicketRow) -> Path:
    """Return the folder of a ticket's run, made."""
    path = folder / "runs" / "pairs" / f"{ticket.kind}-{ticket.number:04d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _keep(store: Store, ticket: TicketRow, run: Path, *steps: int) -> None:
    """Write checkpoints of 100 bytes and record them."""
    for step in steps:
        path = run / f"step-{step}-{ticket.attempt}.ckpt"
        path.write_bytes(bytes(100))
        _record(store, ticket, str(path), step)


def _record(store: Store, ticket: TicketRow, url: str, step: int = 8) -> None:
    checkpoint = Checkpoint(step=step, url=url, digest="0", size=100)
    change = CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint)
    store.write(ticket.study_id, [change], agent=FAR, lease=60.0)


# ---- pause and stop


def test_a_study_is_paused_and_those_at_work_are_named(
    store: Store, study: StudyRow, url: str, take: Callable[..., TicketRow]
) -> None:
    take()
    take()
    assert lifecycle.pause(url, "pairs") == lifecycle.StopResult(before="running", agents=["far:7"])
    assert store.load_study("pairs").state == "paused"
    assert lifecycle.pause(url, "pairs").before == "paused"


def test_a_stop_withdraws_what_was_still_to_be_searched_and_nothing_else(
    store: Store, study: StudyRow, url: str, take: Callable[..., TicketRow]
) -> None:
    take()
    assert lifecycle.stop(url, "pairs") == lifecycle.StopResult(
        before="running", agents=["far:7"], withdrawn=5
    )
    assert _states(store, study, "search") == ["running", "withdrawn", "withdrawn"]
    assert _states(store, study, "baseline") == ["withdrawn"]
    assert _states(store, study, "choose") == ["waiting"]
    assert store.load_study("pairs").state == "running"
    assert lifecycle.stop(url, "pairs").withdrawn == 0


@pytest.mark.parametrize("change_state", [lifecycle.pause, lifecycle.stop])
def test_a_study_that_is_done_stays_as_it_is(
    change_state: Callable[[str, str], lifecycle.StopResult], store: Store, study: StudyRow, url: str
) -> None:
    store.set_state(study.id, "done")
    assert change_state(url, "pairs") == lifecycle.StopResult(before="done", agents=[])
    assert store.load_study("pairs").state == "done"
    assert _states(store, study, "search") == ["waiting"] * 3


@pytest.mark.parametrize(
    "admin_call",
    [lifecycle.pause, lifecycle.stop, lifecycle.delete, lifecycle.collect_garbage, lifecycle.logs],
)
def test_a_name_that_is_not_there_is_told(
    admin_call: Callable[[str, str], object], study: StudyRow, url: str
) -> None:
    with pytest.raises(StudyNotFound, match='Did you mean "pairs"'):
        admin_call(url, "pears")


# ---- delete


def test_a_study_is_deleted_with_its_checkpoints_and_logs(
    store: Store, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    ticket = take(lease=-1.0)
    run = _run(folder, ticket)
    _keep(store, ticket, run, 10)
    (run / "log.txt").write_bytes(bytes(11))
    other_folder = folder / "runs" / "others"
    other_folder.mkdir()
    assert lifecycle.delete(url, "pairs") == lifecycle.DeleteResult(agents=[], freed=111, not_removed={})
    assert store.list_studies() == []
    assert list((folder / "runs").iterdir()) == [other_folder]


def test_a_deletion_leaves_all_that_tempopt_did_not_write(
    store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    # a folder of the person's, which has the study's name
    store.set_checkpoints(study.id, str(folder))
    own_files = ["search-0000/log.txt", "search-0001/step-8-1.ckpt", "search-0001/step-9-1.ckpt.writing"]
    own_files += ["baseline-0000/resume-2.ckpt.writing", "undelivered-a+1+b+2.1.jsonl"]
    foreign_files = [
        "train.py",
        "log.txt",
        "step-1-1.ckpt",
        "models/step-1-1.ckpt",
        "old/search-0000/step-1-1.ckpt",
    ]
    foreign_files += ["search-0000/best.ckpt", "search-0000/kept/step-1-1.ckpt", "search-1/step-1-1.ckpt"]
    foreign_files += ["weights-0001/step-1-1.ckpt", "data/undelivered-1.jsonl"]
    for name in (*own_files, *foreign_files):
        path = folder / "pairs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10))
    (folder / "pairs" / "empty").mkdir()
    deletion = lifecycle.delete(url, "pairs")
    assert deletion.freed == 10 * len(own_files)
    assert deletion.not_removed == {
        str(folder / "pairs"): "tempopt did not write data, empty, log.txt, models, old and 6 more"
    }
    remaining_paths = {str(path.relative_to(folder / "pairs")) for path in (folder / "pairs").rglob("*")}
    assert {name for name in remaining_paths if (folder / "pairs" / name).is_file()} == set(foreign_files)
    assert "empty" in remaining_paths
    assert not {"search-0001", "baseline-0000"} & remaining_paths


def test_what_a_link_leads_to_stays(store: Store, study: StudyRow, url: str, folder: Path) -> None:
    kept_file = folder / "kept" / "step-8-1.ckpt"
    kept_file.parent.mkdir()
    kept_file.touch()
    (folder / "runs" / "pairs").mkdir(parents=True)
    (folder / "runs" / "pairs" / "search-0000").symlink_to(kept_file.parent)
    remaining_places = lifecycle.delete(url, "pairs").not_removed
    assert remaining_places == {str(folder / "runs" / "pairs"): "tempopt did not write search-0000"}
    assert kept_file.exists()


FOREIGN = [
    "{0}/code/best.ckpt",
    "{0}/code/step-8-1.ckpt",
    "{0}/code/src/pairs/step-8-1.ckpt",
    "{0}/code/others/search-0000/step-8-1.ckpt",
    "{0}/code/pairs/search-0001/step-8-1.ckpt",
    "{0}/code/pairs/search-0000/weights.pt",
]


@pytest.mark.parametrize("location", FOREIGN)
def test_a_row_that_names_another_file_has_nothing_removed(
    location: str, store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    ticket = take(lease=-1.0)
    path = Path(location.format(folder))
    path.parent.mkdir(parents=True)
    (path.parent / "step-9-1.ckpt").touch()
    path.touch()
    _record(store, ticket, str(path))
    reason = "this is not where tempopt keeps a checkpoint of that run"
    [collection] = lifecycle.collect_garbage(url)
    assert (collection.files, collection.not_removed) == ({}, {str(path): reason})
    assert lifecycle.delete(url, "pairs").not_removed[str(path)] == reason
    assert path.exists()
    assert (path.parent / "step-9-1.ckpt").exists()


def test_checkpoints_at_an_agents_own_place_are_removed_too(
    store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    ticket = take(lease=-1.0)
    path = folder / "elsewhere" / "pairs" / "search-0000" / "step-8-1.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(10))
    _record(store, ticket, f"file://{path}")
    (folder / "runs" / "pairs").mkdir(parents=True)
    assert lifecycle.delete(url, "pairs") == lifecycle.DeleteResult(agents=[], freed=10, not_removed={})
    assert list((folder / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("location", ["nonesuch://bucket", "s3://bucket"])
def test_a_place_that_cannot_be_reached_keeps_no_study_from_being_deleted(
    location: str, store: Store, study: StudyRow, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    store.set_checkpoints(study.id, location)
    assert list(lifecycle.delete(url, "pairs").not_removed) == [f"{location}/pairs"]
    assert store.list_studies() == []


def test_a_study_with_agents_at_work_is_deleted_by_force_alone(
    store: Store, url: str, take: Callable[..., TicketRow]
) -> None:
    take()
    with pytest.raises(UsageError, match=r"worked on by far:7\. .*tempopt pause pairs\), or give --force"):
        lifecycle.delete(url, "pairs")
    assert len(store.list_studies()) == 1
    assert lifecycle.delete(url, "pairs", force=True).agents == ["far:7"]
    assert store.list_studies() == []


# ---- gc


def test_only_checkpoints_that_no_run_needs_are_removed(
    store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    ended_ticket, running_ticket, young = take(), take(), take()
    for ticket in (ended_ticket, running_ticket, young):
        _keep(store, ticket, _run(folder, ticket), 10, 20, 30)
    store.write(study.id, [_end(ended_ticket)], agent=FAR, lease=60.0)
    needless = [_run(folder, ended_ticket) / f"step-{step}-1.ckpt" for step in (10, 20, 30)]
    needless += [
        _run(folder, ended_ticket) / "step-40-1.ckpt.writing",
        _run(folder, ended_ticket) / "resume-2.ckpt.writing",
    ]
    needless += [_run(folder, running_ticket) / "step-10-1.ckpt", _run(folder, young) / "step-10-1.ckpt"]
    needed_paths = [_run(folder, running_ticket) / f"step-{step}-1.ckpt" for step in (20, 30)]
    needed_paths += [
        _run(folder, running_ticket) / "step-40-1.ckpt",
        _run(folder, running_ticket) / "step-50-1.ckpt.writing",
    ]
    needed_paths += [_run(folder, young) / f"step-{step}-1.ckpt" for step in (20, 30)]
    needed_paths += [_run(folder, ended_ticket) / "log.txt", folder / "runs" / "pairs" / "undelivered.jsonl"]
    for name in ("notes", "notes/search-0000", "search-0000/notes"):
        (folder / "runs" / "pairs" / name).mkdir()
        needed_paths += [folder / "runs" / "pairs" / name / "step-1-1.ckpt"]
    for path in [*needless, *needed_paths]:
        path.write_bytes(bytes(100))

    [dry_collection] = lifecycle.collect_garbage(url, dry_run=True)
    assert dry_collection == lifecycle.GarbageCollectionResult(
        study="pairs", files={str(path): 100 for path in needless}, not_removed={}
    )
    assert all(path.exists() for path in needless)

    [collection] = lifecycle.collect_garbage(url, "pairs")
    assert (collection.files, collection.freed) == (dry_collection.files, 700)
    assert not any(path.exists() for path in needless)
    assert all(path.exists() for path in needed_paths)
    assert lifecycle.collect_garbage(url)[0].files == {}


def test_a_run_that_waits_keeps_what_it_will_go_on_from(
    store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    ticket = take()
    run = _run(folder, ticket)
    _keep(store, ticket, run, 10, 20)
    store.write(study.id, [AttemptReleased(ticket_id=ticket.id, attempt=1)], agent=FAR, lease=60.0)
    (run / "step-30-1.ckpt").touch()
    assert lifecycle.collect_garbage(url)[0].files == {}


# ---- logs


def test_logs_have_a_line_for_each_attempt_in_the_order_of_the_runs(
    store: Store, study: StudyRow, url: str, take: Callable[..., TicketRow]
) -> None:
    assert lifecycle.logs(url, "pairs") == []
    search = take()
    lost_change = AttemptLost(ticket_id=search.id, attempt=1, error="killed", max_attempts=3, log=PRINTED)
    store.write(study.id, [lost_change], agent=FAR, lease=60.0)
    retaken = take()
    assert (retaken.id, retaken.attempt) == (search.id, 2)
    baseline = take("baseline", agent="near:3:0:1")
    store.write(study.id, [_end(retaken, "done")], agent=FAR, lease=60.0)
    store.write(study.id, [_end(baseline, "\n")], agent="near:3:0:1", lease=60.0)
    assert lifecycle.logs(url, "pairs") == [
        lifecycle.RunLog(ticket="baseline-0", attempt=1, agent="near:3", running=False, lines=1, text=""),
        lifecycle.RunLog(ticket="search-0", attempt=1, agent="far:7", running=False, lines=2, text="epoch 2"),
        lifecycle.RunLog(ticket="search-0", attempt=2, agent="far:7", running=False, lines=1, text="done"),
    ]


@pytest.mark.parametrize("run_name", ["search-0", "search 0", "search-0000"])
def test_one_run_shows_all_that_it_printed(
    run_name: str, store: Store, study: StudyRow, url: str, take: Callable[..., TicketRow]
) -> None:
    first, _ = take(), take()
    store.write(study.id, [_end(first, PRINTED)], agent=FAR, lease=60.0)
    [log_entry] = lifecycle.logs(url, "pairs", run_name)
    assert (log_entry.ticket, log_entry.text, log_entry.running) == ("search-0", PRINTED, False)


def test_a_run_at_work_shows_its_log_where_that_is(
    store: Store, study: StudyRow, url: str, folder: Path, take: Callable[..., TicketRow]
) -> None:
    near_ticket, far_ticket = take(agent=NEAR), take(agent=FAR)
    for ticket in (near_ticket, far_ticket):
        (_run(folder, ticket) / "log.txt").write_text(PRINTED, encoding="utf-8")
    [log_entry] = lifecycle.logs(url, "pairs", "search-0")
    assert (log_entry.running, log_entry.lines, log_entry.text) == (True, 2, PRINTED)
    [log_entry] = lifecycle.logs(url, "pairs", "search-1")
    assert (log_entry.running, log_entry.agent, log_entry.text) == (True, "far:7", None)


@pytest.mark.parametrize(
    ("run_name", "message"),
    [
        ("search-3", 'Study "pairs" has no search-3; it has search-0 to search-2.'),
        ("confirm-0", 'Study "pairs" has no confirm-0; it has no confirm yet.'),
        ("serch-1", '"serch-1" is no run. Give kind and number, as in search-12; the kinds are baseline,'),
        ("12", '"12" is no run.'),
    ],
)
def test_a_run_that_there_is_not_is_told(run_name: str, message: str, study: StudyRow, url: str) -> None:
    with pytest.raises(UsageError) as error:
        lifecycle.logs(url, "pairs", run_name)
    assert str(error.value).startswith(message)


def test_checkpoints_that_lie_elsewhere_are_named(
    store: Store,
    study: StudyRow,
    url: str,
    folder: Path,
    take: Callable[..., TicketRow],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ticket = take(lease=-1.0)
    _record(store, ticket, "/nowhere/runs/pairs/search-0000/step-1-1.ckpt", 1)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", MemoryFileSystem)
    store.set_checkpoints(study.id, "s3://bucket")
    log_folder = folder / DEFAULT_FOLDER / "pairs"
    log_folder.mkdir(parents=True)
    (log_folder / "search-0000").mkdir()
    (log_folder / "search-0000" / "log.txt").write_bytes(bytes(5))
    assert lifecycle.delete(url, "pairs") == lifecycle.DeleteResult(
        agents=[], freed=5, not_removed={"/nowhere/runs/pairs": "there is no such folder on this machine"}
    )
    assert not log_folder.exists()
