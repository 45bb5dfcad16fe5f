"""What a command that keeps agents of the pool started does at each look, on a launcher of the tests' own."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest

from tempopt.errors import StoreUnreachable, UsageError
from tempopt.launch import scaler as scaler_module
from tempopt.launch.launcher import Job, Launcher, PoolWork, Task
from tempopt.launch.scaler import Retries, Scaler
from tempopt.pool.scaling import Shortage
from tempopt.records.pool import PoolAgent
from tempopt.workers.placement import Need

WORK = PoolWork(key="k1", queues=("fast",), labels=("h100",))
TASK = Task(program=("-m", "agent"), pool=WORK, storage="sqlite://", gpus=1)


class Farm(Launcher):
    """Starts nothing: its jobs stand as a test says."""

    name: ClassVar[str] = "farm"
    OPTIONS: ClassVar[Mapping[str, str]] = {}
    spans_hosts = True
    outlives = True

    def __init__(self) -> None:
        super().__init__({})
        self.stand: dict[str, Job] = {}
        self.cancelled: list[str] = []
        self.refusal = ""
        self._number = itertools.count()

    def has_gpus(self) -> bool:
        return True

    def room(self, need: Need) -> int:
        return 8

    def start(self, tasks: Sequence[Task]) -> list[str]:
        if self.refusal:
            raise UsageError(self.refusal)
        ids = [f"job{next(self._number)}" for _ in tasks]
        self.stand |= {id: Job(id=id, state="running") for id in ids}
        return ids

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        return [self.stand.get(id, Job(id=id, state="gone")) for id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        self.cancelled += ids
        self.end("done", *ids)

    def of_pool(self, key: str) -> list[str]:
        return [id for id, job in self.stand.items() if job.state in ("waiting", "running")]

    def end(self, state: Any, *ids: str, message: str = "", code: int | None = 1) -> None:
        """Have jobs come to a state."""
        for id in ids:
            self.stand[id] = Job(id=id, state=state, message=message, code=code)

    @property
    def alive(self) -> list[str]:
        return self.of_pool("k1")


class Demands:
    """A pool that wants so many agents, of which those report that a test says."""

    def __init__(self) -> None:
        self.wanted = 0
        self.reported = 0
        self.unable: dict[int, str] = {}
        self.error: Exception | None = None
        self.asked: list[PoolAgent] = []

    def shortage(self, agent: PoolAgent, *, most: int) -> Shortage:
        self.asked.append(agent)
        if self.error is not None:
            raise self.error
        lacking = max(0, self.wanted - self.reported)
        return Shortage(lacking=min(most, lacking), reported=self.reported, unable=self.unable)


class Scene:
    """A scaler with a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.farm, self.pool = Farm(), Demands()
        self.lines: list[str] = []
        self.now = 1000.0
        monkeypatch.setattr(scaler_module.time, "monotonic", lambda: self.now)
        self.scaler = self.make()

    def make(self) -> Scaler:
        """Return the scaler of another command that was given the same."""
        return Scaler(self.farm, self.pool, TASK, most=4, told=self.lines.append)

    def look(self, seconds: float = 5.0) -> list[str]:
        """Let time pass and have it look; return the jobs that are there then."""
        self.now += seconds
        self.scaler.look()
        return self.farm.alive

    def arrive(self) -> None:
        """Have all agents that are there report to the pool."""
        self.pool.reported = len(self.farm.alive)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_as_many_are_started_as_are_lacking_once_and_never_more_than_there_may_be(scene: Scene) -> None:
    assert scene.look() == []
    scene.pool.wanted = 3
    assert len(scene.look()) == 3
    # they are on their way, then they are there: neither is a reason to start more
    assert len(scene.look()) == 3
    scene.arrive()
    assert len(scene.look()) == 3
    scene.pool.wanted = 9
    assert len(scene.look()) == 4
    scene.arrive()
    assert len(scene.look()) == 4
    assert scene.lines[0] == "Started 3 agents: job0, job1, job2; 3 of at most 4 started."
    asked = scene.pool.asked[-1]
    assert (asked.launch, asked.queues, asked.labels, asked.gpus) == ("k1", {"fast"}, {"h100"}, 1)


def test_those_that_left_are_replaced_only_if_there_is_work(scene: Scene) -> None:
    scene.pool.wanted = 2
    scene.look()
    scene.arrive()
    scene.pool.wanted = 1
    scene.farm.end("done", "job0", code=0)
    scene.arrive()
    assert scene.look() == ["job1"]
    scene.farm.end("done", "job1", code=0)
    scene.pool.wanted = scene.pool.reported = 0
    assert scene.look() == scene.look() == []
    assert scene.farm.cancelled == []
    scene.pool.wanted = 1
    assert scene.look() == ["job2"]


def test_an_agent_that_left_and_is_remembered_by_the_pool_does_not_stand_for_one_that_comes(
    scene: Scene,
) -> None:
    scene.pool.wanted = 2
    scene.look()
    scene.pool.reported = 3
    scene.pool.wanted = 4
    assert len(scene.look()) == 3


def test_jobs_that_wait_for_room_are_taken_back_once_there_is_no_work_for_a_while(scene: Scene) -> None:
    scene.pool.wanted = 3
    scene.look()
    scene.farm.end("waiting", "job1", "job2", message="Resources", code=None)
    scene.pool.reported = 1
    scene.look()
    scene.pool.wanted = 2
    for _ in range(2):
        scene.look()
        assert scene.farm.cancelled == []
    scene.look()
    assert len(scene.farm.cancelled) == 1 and len(scene.farm.alive) == 2
    # a moment without work changes nothing
    for scene.pool.wanted in (1, 2, 1, 2):
        scene.look(6.0)
    assert len(scene.farm.cancelled) == 1
    assert [line for line in scene.lines if "waits: Resources" in line] == ["Agent job1 waits: Resources"]


def test_agents_that_fail_are_tried_again_one_at_a_time_after_pauses_that_grow_and_said_once(
    scene: Scene,
) -> None:
    scene.pool.wanted = 4
    scene.look()
    attempts = []
    for _ in range(400):
        scene.farm.end("failed", *scene.farm.alive, message="tempopt: error: no token in 12")
        before = len(scene.farm.stand)
        scene.look()
        attempts += [scene.now] * (len(scene.farm.stand) - before)
    pauses = [round(later - earlier) for earlier, later in itertools.pairwise(attempts)]
    assert pauses[:4] == [15, 25, 45, 85]
    assert max(pauses) <= 610 and pauses == sorted(pauses)
    assert len(attempts) < 12
    said = [line for line in scene.lines if "failed: no token" in line]
    assert said == ["Agent job0 has failed: no token in 12"]
    assert sum("the pause doubles" in line for line in scene.lines) == 1


def test_when_agents_come_again_all_that_are_lacking_are_started_and_failures_are_news(scene: Scene) -> None:
    scene.pool.wanted = 3
    scene.look()
    scene.farm.end("failed", "job0", "job1", "job2", message="the node is broken")
    scene.look()
    assert len(scene.look(6.0)) == 1
    scene.arrive()
    # one by one, until nothing has failed for a minute
    assert len(scene.look()) == 2
    assert len(scene.look()) == 2
    scene.arrive()
    scene.farm.end("done", *scene.farm.alive, code=0)
    scene.pool.reported = 0
    assert len(scene.look(120.0)) == 3
    scene.farm.end("failed", scene.farm.alive[0], message="the node is broken")
    scene.look()
    assert sum("the node is broken" in line for line in scene.lines) == 2


def test_jobs_that_somebody_cancelled_count_as_failed(scene: Scene) -> None:
    scene.pool.wanted = 1
    scene.look()
    scene.farm.end("gone", "job0")
    assert scene.look() == []
    assert "Agent job0 has failed: it was cancelled, or forgotten" in scene.lines
    assert len(scene.look(6.0)) == 1


def test_what_cannot_be_started_is_an_error_at_once_and_later_tried_again(scene: Scene) -> None:
    scene.farm.refusal = "Slurm does not take the job: no partition 7"
    scene.pool.wanted = 1
    with pytest.raises(UsageError, match="no partition"):
        scene.look()
    assert scene.look() == scene.look() == []
    assert sum("no partition" in line for line in scene.lines) == 1
    scene.farm.refusal = ""
    assert len(scene.look(60.0)) == 1


def test_a_pool_that_is_away_is_an_error_at_once_and_later_waited_for(scene: Scene) -> None:
    scene.pool.error = StoreUnreachable("The database is away.")
    with pytest.raises(StoreUnreachable):
        scene.look()
    scene.pool.error = None
    scene.pool.wanted = 2
    scene.look()
    scene.pool.error = StoreUnreachable("The database is away.")
    assert len(scene.look()) == len(scene.look()) == 2
    assert scene.lines.count("The database is away. Looking again until it answers.") == 1
    scene.pool.error = None
    scene.pool.wanted = 3
    assert len(scene.look()) == 3


def test_studies_that_agents_could_not_serve_are_no_demand_for_a_while_after_they_left(scene: Scene) -> None:
    scene.pool.wanted = 1
    scene.look()
    scene.arrive()
    scene.pool.unable = {7: "There is no class mine.Model."}
    scene.look()
    scene.pool.unable = {}
    scene.look()
    assert scene.pool.asked[-1].unable == {7: ""}
    assert scene.lines.count("Agents cannot serve a study: There is no class mine.Model.") == 1
    scene.look(700.0)
    assert scene.pool.asked[-1].unable == {}


class _Once:
    """An interrupt that comes after one look."""

    wake = None

    def __init__(self) -> None:
        self.looks = 0

    @property
    def asked(self) -> bool:
        self.looks += 1
        return self.looks > 1


def _run(scaler: Scaler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaler_module.select, "select", lambda *words: ([], [], []))
    scaler.run(_Once())  # type: ignore[arg-type]


def test_a_command_that_is_given_again_finds_the_agents_and_starts_none_beside_them(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.pool.wanted = 3
    scene.look()
    again = scene.make()
    _run(again, monkeypatch)
    assert len(scene.farm.alive) == 3
    assert scene.lines[-1] == "Found 3 agents of an earlier command: job0, job1, job2."
    again.leave()
    assert scene.farm.cancelled == ["job0", "job1", "job2"]
    assert scene.lines[-1] == "Leaving: 3 agents will save the runs and leave."


def test_what_was_started_when_the_command_was_interrupted_is_cancelled_all_the_same(scene: Scene) -> None:
    scene.pool.wanted = 1
    scene.look()
    # as a start that an interrupt cut short: nobody has heard its ids
    scene.farm.start([TASK])
    scene.scaler.leave()
    assert scene.farm.cancelled == ["job0", "job1"]


def test_pauses_double_only_for_failures_after_the_last_one_and_are_forgotten() -> None:
    retries = Retries(first=5.0, longest=20.0)
    assert retries.allowed(0.0, 0) == float("inf")
    for now, pause in ((0.0, 5.0), (4.0, 5.0), (5.0, 10.0), (15.0, 20.0), (35.0, 20.0)):
        retries.failed(now)
        assert retries.pause == pause
    assert [retries.allowed(54.0, 0), retries.allowed(56.0, 1), retries.allowed(56.0, 0)] == [0, 0, 1]
    assert retries.allowed(116.0, 3) == float("inf")


def test_a_task_is_a_studys_or_the_pools_and_is_called_as_no_study_is() -> None:
    for more in ({}, {"study": "pairs", "pool": WORK}):
        with pytest.raises(ValueError, match="give one of study and pool"):
            Task(program=(), storage="", **more)  # type: ignore[arg-type]
    assert Task(program=(), storage="", study="pairs").label == "pairs"
    assert TASK.label == "pool+k1"
    plain = json.loads(json.dumps(dataclasses.asdict(TASK)))
    assert PoolWork(**plain["pool"]) == dataclasses.replace(WORK, queues=["fast"], labels=["h100"])  # type: ignore[arg-type]
