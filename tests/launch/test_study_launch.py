"""What agents are told when a study is launched, and what is made of how they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.observer import NullObserver
from tempopt.errors import StudyFailed, UsageError
from tempopt.launch.launcher import Job
from tempopt.launch.study_launch import PROGRAM, StudyLaunch
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.store import Store
from tests.launch.conftest import LocalRecordingLauncher, RecordingLauncher
from tests.servers import find_or_start


def _spec(**study: Any) -> StudySpec:
    data = {
        "study": {"name": "pairs", "metric": "val_loss", "direction": "minimize", **study},
        "model": {"class_path": "package.module.Model"},
        "trainer": {"max_steps": 10, "accelerator": "cpu"},
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
    }
    return StudySpec.parse(data, source="the test")


class NoteObserver(NullObserver):
    """Keeps the notes."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def _launch(launcher: RecordingLauncher, store: Store, spec: StudySpec, workers: Any = None) -> StudyLaunch:
    return StudyLaunch(launcher, launcher.name, store, spec, workers=workers, program=PROGRAM)


def test_sqlite_is_refused_for_agents_on_other_machines(
    far_launcher: RecordingLauncher, store: Store
) -> None:
    with pytest.raises(UsageError, match=r"recorder starts agents on other machines.*--storage postgresql"):
        _launch(far_launcher, store, _spec())
    assert far_launcher.tasks == []


@pytest.mark.parametrize(
    ("workers_setting", "parallel", "workers"),
    [(None, 8, 3), ("auto", 8, 3), ("auto", 2, 2), (4, 4, 4), (1, 8, 1)],
)
def test_auto_fills_what_there_is_room_for_as_far_as_the_study_allows(
    workers_setting: Any, parallel: int, workers: int, local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    launch = _launch(local_launcher, store, _spec(parallel=parallel), workers_setting)
    notes = launch.start(None, _spec(parallel=parallel), checkpoints_at=None)
    assert launch.workers == sum(task.workers for task in local_launcher.tasks) == workers
    assert any("room for 3 at a time" in note for note in notes) == (workers > 3)


def test_more_workers_than_the_study_allows_and_trials_that_fit_nowhere_are_refused(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    with pytest.raises(UsageError, match=r"study\.parallel allows 1 to 2"):
        _launch(local_launcher, store, _spec(parallel=2), 3)
    local_launcher.places = 0
    with pytest.raises(UsageError, match="no room for one"):
        _launch(local_launcher, store, _spec())


def test_agents_are_told_where_everything_is_by_paths_that_hold_everywhere(
    local_launcher: LocalRecordingLauncher, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "modules:/elsewhere")
    spec = _spec()
    launch = _launch(local_launcher, store, spec, 1)
    launch.start(None, spec, checkpoints_at="runs", overrides=["data.root=/data"])
    (task,) = local_launcher.tasks
    assert task.storage == f"sqlite:///{tmp_path}/tempopt.db"
    assert task.options == ("--checkpoints", f"{tmp_path}/runs", "--set", "data.root=/data")
    assert task.environment == {"PYTHONPATH": f"{tmp_path}/modules:/elsewhere"}
    assert task.folder == str(tmp_path)
    assert StudySpec.from_json(task.spec or {}).identity() == spec.identity()


def test_a_study_that_was_paused_goes_on_once_it_is_launched(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    study = store.create_study("pairs", _spec().to_json(), _spec().identity())
    store.set_state(study.id, "paused")
    _launch(local_launcher, store, _spec(), 1).start(study, None, checkpoints_at=None)
    assert store.load_study("pairs").state == "running"
    assert local_launcher.tasks[0].spec is None


def _watch_jobs(launcher: RecordingLauncher, store: Store, *jobs: Job) -> list[str]:
    observer = NoteObserver()
    launch = _launch(launcher, store, _spec(), len(jobs))
    launch.start(None, _spec(), checkpoints_at=None)
    launcher.stand = list(jobs)
    launch.watch(observer)
    return observer.notes


def _job(number: int, state: Any, message: str = "", code: int | None = None) -> Job:
    return Job(id=f"7_{number}", state=state, message=message, code=code)


def test_a_spec_that_an_agent_cannot_carry_out_is_told_once_and_the_others_are_taken_back(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    job_message = "a warning\ntempopt: error: model: there is no such class\nGive another."
    with pytest.raises(UsageError) as error:
        _watch_jobs(local_launcher, store, _job(0, "failed", job_message, 2), _job(1, "waiting"))
    assert str(error.value) == "model: there is no such class\nGive another."
    assert local_launcher.cancelled == ["7_0", "7_1"]


def test_when_every_agent_has_failed_each_reason_is_told_once(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    jobs = [_job(0, "failed", "killed", -9), _job(1, "failed", "killed", -9), _job(2, "failed", "no disk", 1)]
    with pytest.raises(StudyFailed) as error:
        _watch_jobs(local_launcher, store, *jobs)
    assert str(error.value) == "killed\nno disk"


def test_when_every_agent_has_left_and_the_study_is_not_done_that_is_told(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    with pytest.raises(StudyFailed, match="Every agent has left.*tempopt resume pairs"):
        _watch_jobs(local_launcher, store, _job(0, "done", code=130), _job(1, "gone"))


def test_what_agents_wait_for_is_told_once(local_launcher: LocalRecordingLauncher, store: Store) -> None:
    launch = _launch(local_launcher, store, _spec(), 2)
    launch.start(None, _spec(), checkpoints_at=None)
    local_launcher.stand = [_job(0, "waiting", "no room"), _job(1, "waiting", "no room")]
    observer = NoteObserver()
    with pytest.raises(TimeoutError):
        # it looks more than once
        launch.watch(observer, timeout=1.5)
    assert observer.notes == ["Agent 7_0 waits: no room"]


def test_a_study_that_is_paused_ends_the_watching_and_takes_back_what_waits(
    local_launcher: LocalRecordingLauncher, store: Store
) -> None:
    study = store.create_study("pairs", _spec().to_json(), _spec().identity())
    launch = _launch(local_launcher, store, _spec(), 2)
    launch.start(study, None, checkpoints_at=None)
    local_launcher.stand = [_job(0, "running"), _job(1, "waiting")]
    store.set_state(study.id, "paused")
    assert launch.watch(NoteObserver()).state == "paused"
    assert local_launcher.cancelled == ["7_1"]


@pytest.mark.service
def test_jobs_that_outlive_the_program_are_in_the_store_until_the_study_is_done() -> None:
    server, why_not = find_or_start("postgresql")
    if server is None:
        pytest.skip(why_not)
    name = "tempopt_launching"
    launcher = RecordingLauncher({"partition": "gpu"})
    url = server.create_database(name)
    try:
        with open_store(url, create=True) as store:
            launch = StudyLaunch(launcher, "mine:Recorder", store, _spec(), workers=2, program=PROGRAM)
            notes = launch.start(None, _spec(), checkpoints_at=None)
            assert any("a folder that all machines share" in note for note in notes)
            rows = store.jobs("pairs")
            assert [(row.launcher, row.options, row.id) for row in rows] == [
                ("mine:Recorder", {"partition": "gpu"}, id) for id in ("7_0", "7_1")
            ]
            study = store.create_study("pairs", _spec().to_json(), _spec().identity())
            store.set_state(study.id, "done")
            launcher.stand = [_job(0, "done", code=0), _job(1, "waiting")]
            assert launch.watch(NoteObserver()).state == "done"
            assert store.jobs("pairs") == []
            assert "7_1" in launcher.cancelled
    finally:
        server.drop_database(name)
