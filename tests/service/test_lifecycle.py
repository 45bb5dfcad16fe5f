"""Commands to a study from outside: the database is real (SQLite), agents and runs are rows and files."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fsspec  # noqa: F401  # loads its registry
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tempopt.errors import UsageError
from tempopt.service import lifecycle
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.changes import AttemptLost, Change, CheckpointRecorded
from tempopt.storage.checkpoints import DEFAULT_FOLDER
from tempopt.storage.liveness import machine_id
from tempopt.storage.opening import open_store
from tempopt.storage.rows import Checkpoint, Kind, NewTicket, StudyRow, TicketRow
from tempopt.storage.store import Store
from tests.storage.scenes import HOUR, make_end, take_next

FAR = "far:7:0a1b2c3d:99"
NEAR = f"{socket.gethostname()}:7:{machine_id()}:no such start"
COUNTS: dict[Kind, int] = {"baseline": 1, "constant": 2, "search": 3, "choose": 1}
PRINTED = "epoch 1\nepoch 2\n"


@dataclass
class Scene:
    """A study of seven tickets, all waiting, whose checkpoints lie in this machine's folder ``runs``."""

    folder: Path
    url: str
    store: Store
    study: StudyRow

    def take(self, kind: Kind = "search", agent: str = FAR, lease: float = HOUR) -> TicketRow:
        """Take the next ticket of a kind for an agent."""
        return take_next(self.store, self.study, agent, max_number_by_kind={kind: None}, lease=lease)

    def write(self, *changes: Change, agent: str = FAR) -> None:
        """Write what an agent has to say."""
        self.store.write(self.study.id, changes, agent=agent, lease=HOUR)

    def states(self, kind: Kind) -> list[str]:
        """Return the states of the tickets of a kind."""
        return [ticket.state for ticket in self.store.tickets(self.study.id, [kind])]

    def run_folder(self, ticket: TicketRow) -> Path:
        """Return the folder of a ticket's run, made."""
        path = self.folder / "runs" / "pairs" / f"{ticket.kind}-{ticket.number:04d}"
        path.mkdir(parents=True, exist_ok=True)
        return path

    def record(self, ticket: TicketRow, url: str, step: int = 8) -> None:
        """Record a checkpoint."""
        checkpoint = Checkpoint(step=step, url=url, digest="0", size=100)
        self.write(CheckpointRecorded(ticket_id=ticket.id, attempt=ticket.attempt, checkpoint=checkpoint))

    def keep(self, ticket: TicketRow, *steps: int) -> Path:
        """Write checkpoints of 100 bytes, record them, and return their folder."""
        run = self.run_folder(ticket)
        for step in steps:
            path = run / f"step-{step}-{ticket.attempt}.ckpt"
            path.write_bytes(bytes(100))
            self.record(ticket, str(path), step)
        return run


@pytest.fixture(autouse=True)
def scene(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_spec: Callable[..., StudySpec]
) -> Iterator[Scene]:
    monkeypatch.chdir(tmp_path)
    url, spec = f"sqlite:///{tmp_path / 'tempopt.db'}", make_spec()
    with open_store(url) as store:
        study = store.create_study("pairs", spec.to_json(), spec.identity())
        store.set_checkpoints(study.id, str(tmp_path / "runs"))
        store.add_tickets(
            study.id,
            [NewTicket(kind=k, arm=k, number=i, seed=i) for k, count in COUNTS.items() for i in range(count)],
        )
        yield Scene(tmp_path, url, store, study)


# ---- pause and stop


def test_a_study_is_paused_and_those_at_work_are_named(scene: Scene) -> None:
    scene.take()
    scene.take()
    assert lifecycle.pause(scene.url, "pairs") == lifecycle.StopResult(before="running", agents=["far:7"])
    assert scene.store.load_study("pairs").state == "paused"
    assert lifecycle.pause(scene.url, "pairs").before == "paused"


def test_a_stop_withdraws_what_was_still_to_be_searched_and_nothing_else(scene: Scene) -> None:
    scene.take()
    assert lifecycle.stop(scene.url, "pairs") == lifecycle.StopResult(
        before="running", agents=["far:7"], withdrawn=5
    )
    assert scene.states("search") == ["running", "withdrawn", "withdrawn"]
    assert scene.states("baseline") == ["withdrawn"]
    assert scene.states("choose") == ["waiting"]
    assert scene.store.load_study("pairs").state == "running"
    assert lifecycle.stop(scene.url, "pairs").withdrawn == 0


@pytest.mark.parametrize("change_state", [lifecycle.pause, lifecycle.stop])
def test_a_study_that_is_done_stays_as_it_is(
    change_state: Callable[[str, str], lifecycle.StopResult], scene: Scene
) -> None:
    scene.store.set_state(scene.study.id, "done")
    assert change_state(scene.url, "pairs") == lifecycle.StopResult(before="done", agents=[])
    assert scene.store.load_study("pairs").state == "done"
    assert scene.states("search") == ["waiting"] * 3


# ---- delete


def test_a_study_is_deleted_with_its_checkpoints_and_logs(scene: Scene) -> None:
    ticket = scene.take(lease=-1.0)
    run = scene.keep(ticket, 10)
    (run / "log.txt").write_bytes(bytes(11))
    other_folder = scene.folder / "runs" / "others"
    other_folder.mkdir()
    assert lifecycle.delete(scene.url, "pairs") == lifecycle.DeleteResult(
        agents=[], freed=111, not_removed={}
    )
    assert scene.store.list_studies() == []
    assert list((scene.folder / "runs").iterdir()) == [other_folder]


def test_a_deletion_leaves_all_that_tempopt_did_not_write(scene: Scene) -> None:
    # a folder of the person's, which has the study's name
    scene.store.set_checkpoints(scene.study.id, str(scene.folder))
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
    pairs = scene.folder / "pairs"
    for name in (*own_files, *foreign_files):
        path = pairs / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(10))
    (pairs / "empty").mkdir()
    deletion = lifecycle.delete(scene.url, "pairs")
    assert deletion.freed == 10 * len(own_files)
    assert deletion.not_removed == {
        str(pairs): "tempopt did not write data, empty, log.txt, models, old and 6 more"
    }
    remaining_paths = {str(path.relative_to(pairs)) for path in pairs.rglob("*")}
    assert {name for name in remaining_paths if (pairs / name).is_file()} == set(foreign_files)
    assert "empty" in remaining_paths
    assert not {"search-0001", "baseline-0000"} & remaining_paths


def test_what_a_link_leads_to_stays(scene: Scene) -> None:
    kept_file = scene.folder / "kept" / "step-8-1.ckpt"
    kept_file.parent.mkdir()
    kept_file.touch()
    (scene.folder / "runs" / "pairs").mkdir(parents=True)
    (scene.folder / "runs" / "pairs" / "search-0000").symlink_to(kept_file.parent)
    remaining_places = lifecycle.delete(scene.url, "pairs").not_removed
    assert remaining_places == {str(scene.folder / "runs" / "pairs"): "tempopt did not write search-0000"}
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
def test_a_row_that_names_another_file_has_nothing_removed(location: str, scene: Scene) -> None:
    ticket = scene.take(lease=-1.0)
    path = Path(location.format(scene.folder))
    path.parent.mkdir(parents=True)
    (path.parent / "step-9-1.ckpt").touch()
    path.touch()
    scene.record(ticket, str(path))
    reason = "this is not the folder of that run's checkpoints"
    [collection] = lifecycle.collect_garbage(scene.url)
    assert (collection.files, collection.not_removed) == ({}, {str(path): reason})
    assert lifecycle.delete(scene.url, "pairs").not_removed[str(path)] == reason
    assert path.exists()
    assert (path.parent / "step-9-1.ckpt").exists()


def test_checkpoints_at_an_agents_own_place_are_removed_too(scene: Scene) -> None:
    ticket = scene.take(lease=-1.0)
    path = scene.folder / "elsewhere" / "pairs" / "search-0000" / "step-8-1.ckpt"
    path.parent.mkdir(parents=True)
    path.write_bytes(bytes(10))
    scene.record(ticket, f"file://{path}")
    (scene.folder / "runs" / "pairs").mkdir(parents=True)
    assert lifecycle.delete(scene.url, "pairs") == lifecycle.DeleteResult(agents=[], freed=10, not_removed={})
    assert list((scene.folder / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("location", ["nonesuch://bucket", "s3://bucket"])
def test_a_place_that_cannot_be_reached_keeps_no_study_from_being_deleted(
    location: str, monkeypatch: pytest.MonkeyPatch, scene: Scene
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)
    scene.store.set_checkpoints(scene.study.id, location)
    assert list(lifecycle.delete(scene.url, "pairs").not_removed) == [f"{location}/pairs"]
    assert scene.store.list_studies() == []


def test_a_study_with_agents_at_work_is_deleted_by_force_alone(scene: Scene) -> None:
    scene.take()
    with pytest.raises(
        UsageError, match=r"Agents work on .*far:7\. .*tempopt pause pairs\), or give --force"
    ):
        lifecycle.delete(scene.url, "pairs")
    assert len(scene.store.list_studies()) == 1
    assert lifecycle.delete(scene.url, "pairs", force=True).agents == ["far:7"]
    assert scene.store.list_studies() == []


# ---- gc


def test_only_checkpoints_that_no_run_needs_are_removed(scene: Scene) -> None:
    tickets = [scene.take() for _ in range(3)]
    finished, running, young = (scene.keep(ticket, 10, 20, 30) for ticket in tickets)
    scene.write(make_end(tickets[0]))
    needless = [finished / f"step-{step}-1.ckpt" for step in (10, 20, 30)]
    needless += [finished / "step-40-1.ckpt.writing", finished / "resume-2.ckpt.writing"]
    needless += [running / "step-10-1.ckpt", young / "step-10-1.ckpt"]
    needed_paths = [run / f"step-{step}-1.ckpt" for run in (running, young) for step in (20, 30)]
    needed_paths += [running / "step-40-1.ckpt", running / "step-50-1.ckpt.writing"]
    needed_paths += [finished / "log.txt", scene.folder / "runs" / "pairs" / "undelivered.jsonl"]
    for name in ("notes", "notes/search-0000", "search-0000/notes"):
        (scene.folder / "runs" / "pairs" / name).mkdir()
        needed_paths += [scene.folder / "runs" / "pairs" / name / "step-1-1.ckpt"]
    for path in [*needless, *needed_paths]:
        path.write_bytes(bytes(100))

    [dry_collection] = lifecycle.collect_garbage(scene.url, dry_run=True)
    assert dry_collection == lifecycle.GarbageCollectionResult(
        study="pairs", files={str(path): 100 for path in needless}, not_removed={}
    )
    assert all(path.exists() for path in needless)

    [collection] = lifecycle.collect_garbage(scene.url, "pairs")
    assert (collection.files, collection.freed) == (dry_collection.files, 700)
    assert not any(path.exists() for path in needless)
    assert all(path.exists() for path in needed_paths)
    assert lifecycle.collect_garbage(scene.url)[0].files == {}


# ---- logs


def test_logs_have_a_line_for_each_attempt_in_the_order_of_the_runs(scene: Scene) -> None:
    assert lifecycle.logs(scene.url, "pairs") == []
    search = scene.take()
    scene.write(AttemptLost(ticket_id=search.id, attempt=1, error="killed", max_attempts=3, log=PRINTED))
    retaken = scene.take()
    assert (retaken.id, retaken.attempt) == (search.id, 2)
    baseline = scene.take("baseline", agent="near:3:0:1")
    scene.write(make_end(retaken, log="done"))
    scene.write(make_end(baseline, log="\n"), agent="near:3:0:1")
    assert lifecycle.logs(scene.url, "pairs") == [
        lifecycle.RunLog(ticket="baseline-0", attempt=1, agent="near:3", running=False, lines=1, text=""),
        lifecycle.RunLog(ticket="search-0", attempt=1, agent="far:7", running=False, lines=2, text="epoch 2"),
        lifecycle.RunLog(ticket="search-0", attempt=2, agent="far:7", running=False, lines=1, text="done"),
    ]


@pytest.mark.parametrize("run_name", ["search-0", "search 0", "search-0000"])
def test_one_run_shows_all_that_it_printed(run_name: str, scene: Scene) -> None:
    first, _ = scene.take(), scene.take()
    scene.write(make_end(first, log=PRINTED))
    [log_entry] = lifecycle.logs(scene.url, "pairs", run_name)
    assert (log_entry.ticket, log_entry.text, log_entry.running) == ("search-0", PRINTED, False)


def test_a_run_at_work_shows_its_log_where_that_is(scene: Scene) -> None:
    near_ticket, far_ticket = scene.take(agent=NEAR), scene.take(agent=FAR)
    for ticket in (near_ticket, far_ticket):
        (scene.run_folder(ticket) / "log.txt").write_text(PRINTED, encoding="utf-8")
    [log_entry] = lifecycle.logs(scene.url, "pairs", "search-0")
    assert (log_entry.running, log_entry.lines, log_entry.text) == (True, 2, PRINTED)
    [log_entry] = lifecycle.logs(scene.url, "pairs", "search-1")
    assert (log_entry.running, log_entry.agent, log_entry.text) == (True, "far:7", None)


@pytest.mark.parametrize(
    ("run_name", "message"),
    [
        ("search-3", 'Study "pairs" has no search-3; it has search-0 to search-2.'),
        ("confirm-0", 'Study "pairs" has no confirm-0; it has no confirm yet.'),
        ("serch-1", '"serch-1" is not a run. Give kind and number, as in search-12. Kinds: baseline,'),
        ("12", '"12" is not a run.'),
    ],
)
def test_a_run_that_there_is_not_is_told(run_name: str, message: str, scene: Scene) -> None:
    with pytest.raises(UsageError) as error:
        lifecycle.logs(scene.url, "pairs", run_name)
    assert str(error.value).startswith(message)


def test_checkpoints_that_lie_elsewhere_are_named(monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
    ticket = scene.take(lease=-1.0)
    scene.record(ticket, "/nowhere/runs/pairs/search-0000/step-1-1.ckpt", 1)
    monkeypatch.setitem(sys.modules["fsspec.registry"]._registry, "s3", MemoryFileSystem)
    scene.store.set_checkpoints(scene.study.id, "s3://bucket")
    log_folder = scene.folder / DEFAULT_FOLDER / "pairs"
    log_folder.mkdir(parents=True)
    (log_folder / "search-0000").mkdir()
    (log_folder / "search-0000" / "log.txt").write_bytes(bytes(5))
    assert lifecycle.delete(scene.url, "pairs") == lifecycle.DeleteResult(
        agents=[], freed=5, not_removed={"/nowhere/runs/pairs": "there is no such folder on this machine"}
    )
    assert not log_folder.exists()
