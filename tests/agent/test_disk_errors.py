"""What a disk refuses is told once, waited for, and uses up no attempt."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt.agent import disk_errors
from tempopt.agent.disk_errors import DiskErrorTracker
from tempopt.agent.study_client import RunFolders
from tempopt.api.calls import resume, search
from tempopt.errors import StudyFailed
from tempopt.spec.study_spec import StudySpec
from tempopt.training.messages import CheckpointFailed, Failed, RunRequest
from tests.fake_worker import FakeWorker
from tests.toy_study import URL, EndedStudy, Watcher, is_same_study, read_study, tickets, toy_spec

FULL = "OSError: [Errno 28] No space left on device"


@pytest.fixture
def notes() -> list[str]:
    return []


@pytest.fixture
def watch(notes: list[str]) -> DiskErrorTracker:
    spec = StudySpec.parse(toy_spec(), source="a test")
    folders = RunFolders(logs=Path("/runs/toy"), checkpoints="s3://bucket/toy")
    return DiskErrorTracker(spec, folders, note=notes.append)


def test_checkpoints_that_cannot_be_written_are_told_once_and_when_they_can_be(
    watch: DiskErrorTracker, notes: list[str]
) -> None:
    for error_text in ("", "Disk quota exceeded", "Disk quota exceeded", "Access Denied", "", ""):
        watch.record_checkpoint(error_text)
    assert len(notes) == 2
    assert "s3://bucket/toy (Disk quota exceeded)" in notes[0]
    assert notes[1].startswith("Checkpoints are written again after ")
    watch.record_checkpoint("Disk quota exceeded")
    assert len(notes) == 3


def test_a_run_that_prints_nothing_does_not_show_that_logs_are_written_again(
    watch: DiskErrorTracker, notes: list[str]
) -> None:
    for error_text in ("No space left on device", None, "No space left on device"):
        watch.record_log(error_text)
    assert len(notes) == 1 and "/runs/toy (No space left on device)" in notes[0]
    watch.record_log("")
    assert notes[1].startswith("Logs are written again after ")


@pytest.fixture
def refusals(fake_workers: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., bool]], None]:
    """Return what has workers fail for want of disk space where a function of the request says so."""
    monkeypatch.setattr(disk_errors, "_MAX_PAUSE_SECONDS", 0.05)
    train = FakeWorker._train

    def install(refuses: Callable[[RunRequest], bool]) -> None:
        def refuse(worker: FakeWorker, request: RunRequest) -> None:
            if request.task == "train" and refuses(request):
                run: dict[str, Any] = {"ticket": request.ticket, "attempt": request.attempt}
                worker._say(CheckpointFailed(**run, why="No space left on device"))
                worker._say(Failed(**run, kind="disk", message=FULL))
            else:
                train(worker, request)

        monkeypatch.setattr(FakeWorker, "_train", refuse)

    return install


def test_one_full_disk_is_told_once(
    undisturbed_fake: EndedStudy, refusals: Callable[[Callable[..., bool]], None]
) -> None:
    refused_tickets: list[int] = []

    def should_refuse(request: RunRequest) -> bool:
        refused_tickets.append(request.ticket)
        return 4 <= len(refused_tickets) <= 9

    refusals(should_refuse)
    watcher = Watcher()
    result = search(toy_spec(), storage=URL, workers=1, observer=watcher)
    assert is_same_study(read_study(result), undisturbed_fake)
    assert sum("the training could not write" in note for note in watcher.notes) == 1
    assert sum("the training could write again" in note for note in watcher.notes) == 1
    assert sum("Checkpoints cannot be written" in note for note in watcher.notes) == 1
    assert sum("Checkpoints are written again" in note for note in watcher.notes) == 1


def test_code_that_may_never_write_ends_the_search_which_can_be_resumed(
    undisturbed_fake: EndedStudy, refusals: Callable[[Callable[..., bool]], None]
) -> None:
    is_blocked = True
    refusals(lambda request: is_blocked and request.seed % 2 == 0)
    with pytest.raises(StudyFailed, match=r"study.store_timeout allows 0.2 s.*tempopt resume toy"):
        search(toy_spec(store_timeout=0.2), storage=URL, workers=1)
    assert {t.failures for t in tickets()} == {0}
    assert {t.state for t in tickets()} <= {"waiting", "done"}
    is_blocked = False
    assert is_same_study(read_study(resume("toy", storage=URL, workers=1)), undisturbed_fake)
