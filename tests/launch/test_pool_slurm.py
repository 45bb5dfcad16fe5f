"""Agents of the pool as jobs of a real Slurm: as many as there is work for, whatever the command meets."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("submitit", reason="Slurm's tests are of the tier service, which needs tempopt[slurm].")

from tempopt import cli
from tempopt.agent.beginning import stand
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.slurm import Slurm
from tests.launch.test_slurm import a_slurm as a_slurm
from tests.launch.test_slurm import database as database
from tests.launch.test_slurm import shared_slurm as shared_slurm
from tests.servers import strike

pytestmark = [pytest.mark.service, pytest.mark.long]

AGENTS = 3
SECRET = "s3cret"
TOKEN = "of-another-server"


class Scene:
    """A pool, a Slurm, and commands that keep agents started on it.

    Args:
        a_slurm: Where agents run.
        folder: For everything.
        url: The database, with a password.
    """

    def __init__(self, a_slurm: Slurm, folder: Path, url: str) -> None:
        self.slurm, self.folder, self.url = a_slurm, folder, url
        self.store = Store.open(url)
        self.commands: list[subprocess.Popen[bytes]] = []
        file = folder / "studies.url"
        file.touch(mode=0o600)
        file.write_text(url)
        self.set_pace(0.0)

    def set_pace(self, seconds: float) -> None:
        """Let every training step last so much longer."""
        new = self.folder / "pace.new"
        new.write_text(str(seconds))
        new.replace(self.folder / "pace")

    def begin(self, name: str, tickets: int, *, parallel: int = AGENTS) -> None:
        """Begin a study, and leave it to the pool."""
        spec = studies.spec(tickets, name=name, parallel=parallel)
        parsed = StudySpec.parse(spec, source="the test")
        stand(self.store, parsed, None, checkpoints=str(self.folder / "runs"))

    def command(self, *words: str) -> None:
        """Start a command that keeps agents started; it writes into ``command-N.log``."""
        given = ["agent", "--pool", "--launcher", "slurm", "--storage-file", "studies.url"]
        given += ["--launch", f"folder={self.folder / 'slurm'}", "--gpus-per-agent", "0", "--idle", "5"]
        with (self.folder / f"command-{len(self.commands)}.log").open("wb") as log:
            self.commands.append(
                subprocess.Popen(
                    studies.tempopt(*given, "--agents", str(AGENTS), *words),
                    cwd=self.folder,
                    env=studies.environment(PACE=str(self.folder / "pace"), TEMPOPT_TOKEN=TOKEN),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def said(self, number: int = -1) -> str:
        """Return what a command has said, the last one if none is meant."""
        number %= len(self.commands)
        return (self.folder / f"command-{number}.log").read_text()

    def jobs(self) -> list[str]:
        """Return the states of the jobs that have not ended."""
        return self.slurm.command("squeue", "--noheader", "--array", "--format=%T").split()

    def agents(self) -> int:
        """Return how many agents the pool has."""
        return len(self.store.pool.read().agents)

    def at_work(self) -> int:
        """Return how many agents of the pool serve a study."""
        return sum(each.study_id is not None for each in self.store.pool.read().agents)

    def wait(self, so: Callable[[], bool], what: str) -> None:
        """Wait until something is so, while the command is there."""

        def come() -> bool:
            assert self.commands[-1].poll() is None, self.said()
            return so()

        wait_until(come, what)

    def end(self, signum: int = signal.SIGTERM) -> int:
        """End the last command."""
        self.commands[-1].send_signal(signum)
        return self.commands[-1].wait(300)


@pytest.fixture
def scene(a_slurm: Slurm, database: str, tmp_path: Path) -> Iterator[Scene]:
    made = Scene(a_slurm, tmp_path, database)
    yield made
    for each in made.commands:
        if each.poll() is None:
            each.kill()
            each.wait()
    made.store.close()


def test_jobs_come_with_studies_and_leave_when_nothing_is_left_to_do(scene: Scene) -> None:
    scene.command()
    scene.wait(lambda: f"Keeps up to {AGENTS} agents" in scene.said(), "the command to begin")
    time.sleep(6.0)
    assert scene.jobs() == []
    scene.set_pace(0.2)
    scene.begin("first", 4)
    scene.begin("second", 1, parallel=1)
    scene.wait(lambda: scene.at_work() == AGENTS, "all agents at work")
    assert scene.jobs() == ["RUNNING"] * AGENTS
    shown = {pid: _text(Path(f"/proc/{pid}/cmdline")) for pid in scene.slurm.processes()}
    agents = [pid for pid, line in shown.items() if "tempopt.cli.launched" in line]
    assert agents and not [line for line in shown.values() if SECRET in line]
    assert not [pid for pid in agents if TOKEN in _text(Path(f"/proc/{pid}/environ"))]
    scene.set_pace(0.0)
    for name in ("first", "second"):
        scene.wait(lambda name=name: studies_done(scene, name), f"the verdict of {name}")  # type: ignore[misc]
    scene.wait(lambda: scene.jobs() == [] and scene.agents() == 0, "the last agent to leave")
    scene.wait(lambda: f"0 of at most {AGENTS} started" in scene.said(), "the command to notice")
    # what is said nowhere: the password; and what is kept of jobs that ended
    written = [path for path in (scene.folder / "slurm").rglob("*") if path.is_file()]
    assert written and not [path for path in written if SECRET in _text(path)]
    assert scene.end() == cli.INTERRUPTED
    assert "failed" not in scene.said() and "Leaving" not in scene.said()


def test_a_command_that_was_killed_finds_its_jobs_again_and_starts_no_others(scene: Scene) -> None:
    scene.set_pace(2.0)
    scene.begin("long", 30)
    scene.command()
    scene.wait(lambda: len(scene.jobs()) >= 1, "the first job")
    strike(scene.commands[-1].pid, signal.SIGKILL)
    scene.commands[-1].wait()
    begun = len(scene.jobs())
    scene.command("--detach")
    scene.wait(lambda: f"Found {begun} agent" in scene.said(), "the jobs to be found")
    scene.wait(lambda: scene.at_work() == AGENTS, "all agents at work")
    _never_more_for(scene, 15.0)
    # with --detach agents go on alone
    assert scene.end() == cli.INTERRUPTED
    assert f"Agents that go on: {AGENTS}." in scene.said()
    assert scene.jobs() == ["RUNNING"] * AGENTS
    scene.command()
    scene.wait(lambda: f"Found {AGENTS} agents of an earlier command" in scene.said(), "the jobs to be found")
    _never_more_for(scene, 15.0)
    # and without it they save their runs and leave
    assert scene.end(signal.SIGINT) == cli.INTERRUPTED
    assert scene.jobs() == [] and scene.agents() == 0
    rows = scene.store.tickets(scene.store.load_study("long").id)
    assert {row.state for row in rows} == {"waiting"} or "done" in {row.state for row in rows}
    assert "running" not in {row.state for row in rows}
    assert "Interrupted. Everything that was reported is saved." in _logs(scene)


@pytest.mark.nightly
def test_jobs_that_cannot_start_are_told_once_and_tried_ever_more_seldom(scene: Scene) -> None:
    scene.begin("first", 6)
    broken = scene.folder / "broken"
    broken.touch()
    scene.command("--launch", f"setup=test ! -e {broken} || (echo no such module >&2; false)")
    scene.wait(lambda: "has failed" in scene.said(), "a job that fails")
    time.sleep(30.0)
    said = scene.said()
    assert said.count("has failed: Slurm ended it: FAILED") == 1
    assert said.count("agents are started one at a time, the next in 5 s") == 1
    # the first attempt has three, or one if the others were not lacking yet; then after 5, 10 and 20 s
    assert 2 <= said.count("Started ") <= 4
    broken.unlink()
    scene.wait(lambda: scene.at_work() >= 1, "an agent at work after all")


@pytest.mark.nightly
def test_jobs_that_wait_for_room_in_vain_are_taken_back(scene: Scene) -> None:
    scene.slurm.command("scontrol", "update", "PartitionName=tests", "State=DOWN")
    try:
        scene.begin("first", 6)
        scene.command()
        scene.wait(lambda: "waits: PartitionDown" in scene.said(), "a job that waits")
        scene.store.delete_study("first")
        scene.wait(lambda: scene.jobs() == [], "no jobs")
        assert "that waited for room: taken back." in scene.said()
    finally:
        scene.slurm.command("scontrol", "update", "PartitionName=tests", "State=UP")


def studies_done(scene: Scene, name: str) -> bool:
    """Return whether a study has its verdict."""
    return scene.store.load_study(name).state == "done"


def _never_more_for(scene: Scene, seconds: float) -> None:
    """Check for a while that there are as many jobs as there may be."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert len(scene.jobs()) == AGENTS
        time.sleep(0.5)


def _logs(scene: Scene) -> str:
    return "".join(_text(path) for path in scene.folder.glob("slurm/*/*_agent.log"))


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode(errors="replace")
    except OSError:
        return ""
