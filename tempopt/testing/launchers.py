"""The duties of launchers as tests: subclass :class:`LauncherTests` and override the fixture ``launcher``.

The studies are small and real; with every launcher they have to give the result of a single agent.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import optuna
import pytest

from tempopt.errors import StorageError, UsageError
from tempopt.launch.launcher import Job, Launcher, Task, build_tasks
from tempopt.service import lifecycle, studies
from tempopt.service.requests import SearchRequest
from tempopt.spec.resources import Need
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.liveness import machine_id
from tempopt.storage.opening import open_store
from tempopt.storage.rows import TicketRow
from tempopt.testing.toys import PACE, PROBE, WORDS

_NUM_TRIALS = 8
_TERMINAL_JOB_STATES = ("done", "failed", "gone")
_T = TypeVar("_T")


def _make_spec(metric: str = "val_loss") -> StudySpec:
    """Return the spec of a small study."""
    data = {
        "study": {
            "name": "launched",
            "metric": metric,
            "direction": "minimize",
            "trials": _NUM_TRIALS,
            "arms": {"baseline": 1, "constant": 2},
            "candidates": 1,
            "seeds": {"choose": 1, "confirm": 2},
            "parallel": 2,
            # the loss of an agent on another machine shows only by its lease; lost runs are repeated
            "lease": 15,
            "max_attempts": 100,
        },
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
        "model": {"class_path": "tempopt.testing.toys.Toy"},
        "data": {"class_path": "tempopt.testing.toys.ToyData"},
        "trainer": {
            "max_steps": 24,
            "val_check_interval": 4,
            "check_val_every_n_epoch": None,
            "accelerator": "cpu",
        },
    }
    return StudySpec.parse(data, source="the tests of launchers")


_NAME = _make_spec().study.name


def _collect_facts(storage: str) -> list[Any]:
    """Return all facts of a study that must not depend on its agents, or on their failures."""
    with open_store(storage, create=False) as store:
        id = store.load_study(_NAME).id
        rows, measurements = store.tickets(id), store.measurements(id)
    key_by_id = {row.id: (row.kind, row.number) for row in rows}
    return [
        *((key_by_id[row.id], row.arm, row.seed, row.parameters, row.outcome, row.value) for row in rows),
        *sorted(
            (key_by_id[measurement.ticket_id], measurement.name, measurement.step, measurement.value)
            for measurement in measurements
        ),
    ]


@functools.cache
def _run_alone() -> list[Any]:
    """Return the result of the study carried out by one agent in this process, without failures."""
    with tempfile.TemporaryDirectory(prefix="tempopt-") as folder:
        storage = f"sqlite:///{folder}/alone.db"
        options = studies.RunOptions(storage=storage, workers=1, checkpoints=f"{folder}/runs")
        studies.carry_out(SearchRequest(spec=_make_spec()), options)
        return _collect_facts(storage)


class LauncherTests:
    """Tests that every launcher has to pass. In a file of tests::

        from tempopt.testing import LauncherTests

        class TestMine(LauncherTests):
            @pytest.fixture
            def launcher(self):
                launcher = Mine({})
                yield launcher
                launcher.close()

    A launcher whose agents run on other machines overrides ``storage`` and ``folder``, too, and perhaps
    :meth:`kill_agent`.
    """

    PATIENCE: ClassVar[float] = 600.0
    """Maximal seconds of a wait, so that tests do not hang."""

    @pytest.fixture
    def launcher(self) -> Iterator[Launcher]:
        """The launcher that is tested; override it."""
        raise NotImplementedError("override the fixture launcher: yield yours, then close it")

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """An empty folder that this process and all agents can access by the same path."""
        return tmp_path

    @pytest.fixture
    def storage(self, launcher: Launcher, folder: Path) -> str:
        """URL of an empty database that this process and all agents can reach."""
        if launcher.is_multi_host:
            pytest.fail("override the fixture storage: SQLite is for the agents of one machine")
        return f"sqlite:///{folder}/launched.db"

    def kill_agent(self, agent: str) -> None:
        """Kill (SIGKILL) an agent's process.

        Args:
            agent: Its name in the store: ``host:pid:machine:...``.
        """
        host, pid, where, *_ = agent.split(":")
        if where != machine_id():
            pytest.fail(f"override kill_agent: {agent} runs on {host}, and this is {socket.gethostname()}")
        os.kill(int(pid), signal.SIGKILL)

    # ---- what is asked before anything is started

    def test_an_option_that_is_not_known_is_refused_with_those_that_are(self, launcher: Launcher) -> None:
        with pytest.raises(UsageError) as excinfo:
            type(launcher)({"no_such_option": "1"})
        assert "no_such_option" in str(excinfo.value)
        assert not [name for name in launcher.OPTIONS if name not in str(excinfo.value)]

    def test_there_is_room_for_a_small_trial_and_none_for_an_impossible_one(self, launcher: Launcher) -> None:
        assert launcher.capacity(Need()) >= 1
        assert launcher.capacity(Need(cpus=1_000_000)) == 0

    @pytest.mark.parametrize("gpus", [0.0, 0.25, 0.3, 0.5, 1.0, 2.0])
    @pytest.mark.parametrize("workers", [1, 2, 5, 8])
    def test_agents_get_the_cards_that_their_trainers_need(
        self, launcher: Launcher, gpus: float, workers: int
    ) -> None:
        need = Need(gpus=gpus, cpus=2)
        split = launcher.split(need, workers)
        assert sum(split) == workers and min(split) >= 1
        agent_tasks = build_tasks(Task(study="any", storage="sqlite:///any.db"), need, split)
        for task in agent_tasks:
            assert task.cpus == 2 * task.workers
            capacity = task.gpus * need.trials_per_gpu if gpus < 1 else task.gpus / gpus
            assert capacity >= task.workers if gpus else task.gpus == 0

    # ---- studies

    def test_a_study_through_two_agents_has_exactly_the_trials_that_were_asked(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        ids = launcher.start([self._make_task(storage, folder)] * 2)
        assert len(set(ids)) == 2
        self._wait_for_result(launcher, ids, storage)
        rows = [row for row in _load_tickets(storage) if row.kind == "search"]
        assert sorted(row.trial_number for row in rows if row.trial_number is not None) == list(
            range(_NUM_TRIALS)
        )
        trials = _load_trials(storage)
        assert len(trials) == _NUM_TRIALS and all(trial.state.is_finished() for trial in trials)
        assert _collect_facts(storage) == _run_alone()
        result = studies.load_study(storage, _NAME)
        assert result.state == "done" and result.verdict is not None

    def test_an_agent_that_is_killed_is_started_again_and_the_study_ends_as_in_peace(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        ids = launcher.start([self._make_task(storage, folder, pace=0.05)])
        killed_agent = self._wait_for_training_agent(launcher, ids, storage)
        self.kill_agent(killed_agent)
        self._wait_for_result(launcher, ids, storage)
        assert [row for row in _load_tickets(storage) if row.attempt > 1 and row.agent != killed_agent]
        assert _collect_facts(storage) == _run_alone()

    def test_agents_that_are_cancelled_leave_in_good_order_and_another_goes_on(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        ids = launcher.start([self._make_task(storage, folder, pace=0.2)] * 2)
        self._wait_for_training_agent(launcher, ids, storage)
        launcher.cancel(ids)
        assert not [job for job in launcher.jobs(ids) if job.state not in _TERMINAL_JOB_STATES]
        rows = _load_tickets(storage)
        assert not [row for row in rows if row.state == "running"]
        assert [row for row in rows if row.state == "waiting"], "the study had ended before it was cancelled"
        self._wait_for_result(launcher, launcher.start([self._make_task(storage, folder)]), storage)
        assert _collect_facts(storage) == _run_alone()

    def test_a_spec_that_cannot_be_carried_out_comes_back_as_a_message(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        ids = launcher.start([self._make_task(storage, folder, metric="val_never_logged")])
        (job,) = self._wait_until_ended(launcher, ids)
        assert job.state == "failed"
        assert "val_never_logged" in job.message
        with open_store(storage, create=True) as store:
            assert store.list_studies() == []

    def test_a_study_that_is_paused_is_left_and_not_taken_up_again(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        ids = launcher.start([self._make_task(storage, folder, pace=0.2)])
        self._wait_for_training_agent(launcher, ids, storage)
        lifecycle.pause(storage, _NAME)
        assert [job.state for job in self._wait_until_ended(launcher, ids)] == ["done"]
        assert not [row for row in _load_tickets(storage) if row.state == "running"]
        # like an agent that waited for room while the study was paused
        late_ids = launcher.start([self._make_task(storage, folder)])
        assert [job.state for job in self._wait_until_ended(launcher, late_ids)] == ["done"]
        with open_store(storage, create=False) as store:
            assert store.load_study(_NAME).state == "paused"

    def test_each_agent_has_the_folder_the_environment_and_the_cores_of_its_task(
        self, launcher: Launcher, storage: str, folder: Path
    ) -> None:
        cpus = 2 if launcher.capacity(Need(cpus=2)) else 1
        agent_tasks = []
        for name in ("one", "two"):
            (folder / name).mkdir()
            words = {PROBE: str(folder / name / "probe.json"), f"{WORDS}WORD": name}
            # slow, so that the study is still in progress when the last agent starts
            task = self._make_task(storage, folder, pace=1.0, words=words)
            agent_tasks.append(dataclasses.replace(task, cpus=cpus, folder=str(folder / name)))
        tasks_by_id = dict(zip(launcher.start(agent_tasks), agent_tasks, strict=True))
        while tasks_by_id:
            id = self._wait_for_agents(
                lambda: next((id for id, task in tasks_by_id.items() if _probe_file(task).is_file()), None),
                "each agent to begin",
                launcher,
                list(tasks_by_id),
            )
            # there may be room for one at a time
            launcher.cancel([id])
            task = tasks_by_id.pop(id)
            probe = json.loads(_probe_file(task).read_text(encoding="utf-8"))
            assert Path(probe["folder"]).resolve() == Path(task.folder or "").resolve()
            assert probe["environment"] == task.environment
            assert probe["cores"] >= cpus

    # ---- how it is done

    def _make_task(
        self,
        storage: str,
        folder: Path,
        *,
        metric: str = "val_loss",
        pace: float = 0.0,
        words: Mapping[str, str] | None = None,
    ) -> Task:
        return Task(
            study=_NAME,
            storage=storage,
            spec=_make_spec(metric).to_json(),
            options=("--checkpoints", str(folder / "runs")),
            folder=str(folder),
            environment={PACE: str(pace), **(words or {})},
            grace=60.0,
        )

    def _wait(self, find_value: Callable[[], _T | None], what: str) -> _T:
        """Wait for a value, and return it."""
        deadline = time.monotonic() + self.PATIENCE
        while (value := find_value()) is None:
            assert time.monotonic() < deadline, f"waited {self.PATIENCE:g} s for {what}"
            time.sleep(0.1)
        return value

    def _wait_for_agents(
        self, find_value: Callable[[], _T | None], what: str, launcher: Launcher, ids: Sequence[str]
    ) -> _T:
        """Wait for a value, and return it; fail if all agents end before."""

        def find() -> _T | None:
            jobs = launcher.jobs(ids)
            if (value := find_value()) is not None:
                return value
            assert [job.id for job in jobs] == list(ids)
            assert not [job for job in jobs if job.state in ("failed", "gone")], f"waited for {what}"
            assert not all(job.state == "done" for job in jobs), f"all have left; waited for {what}"
            return None

        return self._wait(find, what)

    def _wait_until_ended(self, launcher: Launcher, ids: Sequence[str]) -> list[Job]:
        """Wait until all jobs have ended, and return them."""

        def ended_jobs() -> list[Job] | None:
            jobs = launcher.jobs(ids)
            return jobs if all(job.state in _TERMINAL_JOB_STATES for job in jobs) else None

        return self._wait(ended_jobs, f"the end of {ids}")

    def _wait_for_result(self, launcher: Launcher, ids: Sequence[str], storage: str) -> None:
        """Wait until all agents have ended and the study is done."""
        jobs = self._wait_until_ended(launcher, ids)
        assert [job.state for job in jobs] == ["done"] * len(ids), jobs
        with open_store(storage, create=False) as store:
            assert store.load_study(_NAME).state == "done"

    def _wait_for_training_agent(self, launcher: Launcher, ids: Sequence[str], storage: str) -> str:
        """Wait until an agent trains a search ticket, and return its name in the store."""

        def training() -> str | None:
            rows = [row for row in _load_tickets(storage) if row.kind == "search" and row.state == "running"]
            return next((row.agent for row in rows), None)

        return self._wait_for_agents(training, "a search ticket in progress", launcher, ids)


def _probe_file(task: Task) -> Path:
    """Return the file into which a worker of an agent writes its environment."""
    return Path(task.environment[PROBE])


def _load_tickets(storage: str) -> list[TicketRow]:
    """Return the study's tickets, none before it exists."""
    try:
        with open_store(storage, create=False) as store:
            return store.tickets(store.load_study(_NAME).id)
    except StorageError:
        return []


def _load_trials(storage: str) -> list[optuna.trial.FrozenTrial]:
    """Return the trials as loaded by Optuna."""
    with open_store(storage, create=False) as store:
        url = store.url
    rdb_storage = optuna.storages.RDBStorage(url)
    try:
        return optuna.load_study(study_name=_NAME, storage=rdb_storage).trials
    finally:
        rdb_storage.remove_session()
        rdb_storage.engine.dispose()
