"""What agents are told when a study is launched, and what is made of how they stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tempopt.agent.machine import Machine
from tempopt.errors import StudyFailed, UsageError
from tempopt.launch.launcher import Job
from tempopt.launch.study_launch import StudyLaunch
from tempopt.spec.resources import Need
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.storage.rows import StudyRow
from tempopt.storage.store import Store
from tests.launch.conftest import RecordingLauncher
from tests.servers import empty_database
from tests.toy_study import Watcher


def _spec(**study: Any) -> StudySpec:
    data = {
        "study": {"name": "pairs", "metric": "val_loss", "direction": "minimize", **study},
        "model": {"class_path": "package.module.Model"},
        "trainer": {"max_steps": 10, "accelerator": "cpu"},
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
    }
    return StudySpec.parse(data, source="the test")


def _create(store: Store) -> StudyRow:
    return store.create_study("pairs", _spec().to_json(), _spec().identity())


def _launch(launcher: RecordingLauncher, store: Store, spec: StudySpec, workers: Any = None) -> StudyLaunch:
    return StudyLaunch(launcher, launcher.name, store, spec, workers=workers)


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
    workers_setting: Any, parallel: int, workers: int, local_launcher: RecordingLauncher, store: Store
) -> None:
    launch = _launch(local_launcher, store, _spec(parallel=parallel), workers_setting)
    notes = launch.start(None, _spec(parallel=parallel), checkpoints_at=None)
    assert launch.workers == sum(task.workers for task in local_launcher.tasks) == workers
    assert any("room for 3 at a time" in note for note in notes) == (workers > 3)


def test_more_workers_than_the_study_allows_and_trials_that_fit_nowhere_are_refused(
    local_launcher: RecordingLauncher, store: Store
) -> None:
    with pytest.raises(UsageError, match=r"study\.parallel allows 1 to 2"):
        _launch(local_launcher, store, _spec(parallel=2), 3)
    local_launcher.rooms = []
    with pytest.raises(UsageError, match="no room for one"):
        _launch(local_launcher, store, _spec())


def test_agents_are_told_where_everything_is_by_paths_that_hold_everywhere(
    local_launcher: RecordingLauncher, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
    local_launcher: RecordingLauncher, store: Store
) -> None:
    study = _create(store)
    store.set_state(study.id, "paused")
    _launch(local_launcher, store, _spec(), 1).start(study, None, checkpoints_at=None)
    assert store.load_study("pairs").state == "running"
    assert local_launcher.tasks[0].spec is None


def _job(number: int, state: Any, message: str = "", code: int | None = None) -> Job:
    return Job(id=f"7_{number}", state=state, message=message, code=code)


_BAD_SPEC = "a warning\ntempopt: error: model: there is no such class\nGive another."


@pytest.mark.parametrize(
    ("jobs", "error", "message"),
    [
        # a spec that cannot be carried out is told once, and the others are taken back
        (
            [_job(0, "failed", _BAD_SPEC, 2), _job(1, "waiting")],
            UsageError,
            "model: there is no such class\nGive another.",
        ),
        # each reason once
        (
            [
                _job(0, "failed", "killed", -9),
                _job(1, "failed", "killed", -9),
                _job(2, "failed", "no disk", 1),
            ],
            StudyFailed,
            "killed\nno disk",
        ),
        ([_job(0, "done", code=130), _job(1, "gone")], StudyFailed, "Every agent has left"),
    ],
)
def test_when_no_agent_can_go_on_the_reasons_are_told_and_all_are_taken_back(
    local_launcher: RecordingLauncher,
    store: Store,
    jobs: list[Job],
    error: type[Exception],
    message: str,
) -> None:
    launch = _launch(local_launcher, store, _spec(), len(jobs))
    launch.start(None, _spec(), checkpoints_at=None)
    local_launcher.stand = jobs
    with pytest.raises(error) as excinfo:
        launch.watch(Watcher())
    assert str(excinfo.value).startswith(message)
    assert local_launcher.cancelled == [job.id for job in jobs]


def test_what_agents_wait_for_is_told_once(local_launcher: RecordingLauncher, store: Store) -> None:
    launch = _launch(local_launcher, store, _spec(), 2)
    launch.start(None, _spec(), checkpoints_at=None)
    local_launcher.stand = [_job(0, "waiting", "no room"), _job(1, "waiting", "no room")]
    observer = Watcher()
    with pytest.raises(TimeoutError):
        # it looks more than once
        launch.watch(observer, timeout=1.5)
    assert observer.notes == ["Agent 7_0 waits: no room"]


def test_a_study_that_is_paused_ends_the_watching_and_takes_back_what_waits(
    local_launcher: RecordingLauncher, store: Store
) -> None:
    study = _create(store)
    launch = _launch(local_launcher, store, _spec(), 2)
    launch.start(study, None, checkpoints_at=None)
    local_launcher.stand = [_job(0, "running"), _job(1, "waiting")]
    store.set_state(study.id, "paused")
    assert launch.watch(Watcher()).state == "paused"
    assert local_launcher.cancelled == ["7_1"]


@pytest.mark.service
def test_jobs_that_outlive_the_program_are_in_the_store_until_the_study_is_done(tmp_path: Path) -> None:
    launcher = RecordingLauncher({"partition": "gpu"})
    with empty_database("postgresql", tmp_path, "launching") as url, open_store(url, create=True) as store:
        launch = StudyLaunch(launcher, "mine:Recorder", store, _spec(), workers=2)
        notes = launch.start(None, _spec(), checkpoints_at=None)
        assert any("a folder that all machines share" in note for note in notes)
        assert [(row.launcher, row.options, row.id) for row in store.jobs("pairs")] == [
            ("mine:Recorder", {"partition": "gpu"}, id) for id in ("7_0", "7_1")
        ]
        store.set_state(_create(store).id, "done")
        launcher.stand = [_job(0, "done", code=0), _job(1, "waiting")]
        assert launch.watch(Watcher()).state == "done"
        assert store.jobs("pairs") == []
        assert "7_1" in launcher.cancelled


@pytest.mark.parametrize(
    ("need", "workers", "split"),
    [
        # a card would take four, but a node has the cores for two
        (Need(gpus=0.25, cpus=2), 4, [2, 2]),
        # those beyond wait, and no node that is there would ever have room for more
        (Need(gpus=0.25, cpus=2), 7, [2, 2, 2, 1]),
        (Need(gpus=0.25), 5, [4, 1]),
    ],
)
def test_no_agent_has_more_workers_than_a_node_has_room_for(
    local_launcher: RecordingLauncher, need: Need, workers: int, split: list[int]
) -> None:
    local_launcher.rooms = [Machine(cores=4, cards=("0",))] * 2
    assert local_launcher.split(need, workers) == split
