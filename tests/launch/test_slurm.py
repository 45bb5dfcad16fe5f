"""Agents as jobs of a real Slurm, which is started here: what becomes of them, whatever is done to them."""

from __future__ import annotations

import math
import re
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import make_url

pytest.importorskip("submitit", reason="Slurm's tests are of the tier service, which needs tempopt[slurm].")

from tempopt.agent.study_creation import ensure_study_exists
from tempopt.errors import UsageError
from tempopt.launch import slurm, slurm_entrypoint
from tempopt.launch.launcher import Job, Task
from tempopt.launch.slurm import SlurmLauncher
from tempopt.spec.resources import Need
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.opening import open_store
from tempopt.testing import LauncherTests
from tests.cluster import slurm as cluster
from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.cluster.slurm import CPUS, GPUS, PARTITION, Slurm
from tests.servers import empty_database, strike

pytestmark = pytest.mark.service

_FINAL_STATES = ("done", "failed", "gone")
# nothing that crawls is done before its time limit
_CRAWL, _SLOW, _FAST = 3.0, 0.2, 0.0
_SECRET = "s3cret"


@pytest.fixture(scope="session")
def shared_slurm() -> Iterator[Slurm]:
    """A Slurm for the tests of one process: it is there in a second."""
    if reason := cluster.why_not():
        pytest.skip(reason)
    slurm_cluster = Slurm()
    yield slurm_cluster
    slurm_cluster.stop()


@pytest.fixture
def a_slurm(shared_slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slurm]:
    """A Slurm on which nothing runs."""
    for name, value in shared_slurm.environment.items():
        monkeypatch.setenv(name, value)
    yield shared_slurm
    shared_slurm.clear()


class SlurmScene:
    """A study, its database, and the jobs that work on it at a pace that can be set.

    Args:
        a_slurm: Where they run.
        folder: For everything.
        url: The database.
    """

    def __init__(self, a_slurm: Slurm, folder: Path, url: str) -> None:
        self.slurm, self.folder, self.url = a_slurm, folder, url
        self.launcher = self.make_launcher()
        self.ids: list[str] = []
        self.known_agents: set[str] = set()

    def make_launcher(self, **options: str) -> SlurmLauncher:
        """Return a launcher with these options."""
        self.launcher = SlurmLauncher({"folder": str(self.folder / "slurm"), **options})
        return self.launcher

    def set_pace(self, seconds: float) -> None:
        """Let every training step last so much longer."""
        studies.set_pace(self.folder, seconds)

    def task(self, spec: dict[str, Any], **options: Any) -> Task:
        """Return an agent for a study."""
        return studies.launch_task(self.folder, self.url, spec, grace=10.0, **options)

    def start(self, *tasks: Task) -> list[str]:
        """Start agents."""
        self.ids = self.launcher.start(tasks)
        return self.ids

    def job(self, index: int = 0) -> Job:
        """Return how a job stands."""
        return self.launcher.jobs(self.ids)[index]

    def wait_for(self, states: Sequence[str], index: int = 0) -> Job:
        """Wait until a job has reached one of these states, and return it."""
        wait_until(lambda: self.job(index).state in states, f"a job that is one of {states}")
        return self.job(index)

    def wait_for_work(self) -> None:
        """Wait until a ticket is at work, of an agent that was not there when this was last called."""

        def agents() -> set[str]:
            return {
                row.agent for row in studies.read_tickets(self.url) if row.state == "running" and row.agent
            }

        wait_until(lambda: bool(agents() - self.known_agents), "an agent at work")
        self.known_agents |= agents()

    def search_states(self) -> set[str]:
        """Return the states in which there are search tickets."""
        return {row.state for row in studies.read_tickets(self.url) if row.kind == "search"}

    def let_time_run_out(self) -> None:
        """Have the time limit of a job come as soon as Slurm, which looks every half minute, warns of it."""
        hours, minutes, seconds = self._job_numbers(r"RunTime=(\d+):(\d+):(\d+)")
        limit = math.ceil((60 * (60 * hours + minutes) + seconds + 45) / 60)
        self.slurm.command("scontrol", "update", f"JobId={self.ids[0]}", f"TimeLimit={limit}")

    def job_text(self, index: int = 0) -> str:
        """Return what Slurm tells of a job."""
        return self.slurm.command("scontrol", "show", "job", self.ids[index])

    def restarts(self, index: int = 0) -> int:
        """Return how often a job was queued again."""
        return self._job_numbers(r"Restarts=(\d+)", index)[0]

    def _job_numbers(self, pattern: str, index: int = 0) -> list[int]:
        match = re.search(pattern, self.job_text(index))
        assert match is not None, self.job_text(index)
        return [int(number) for number in match.groups()]

    def log_text(self) -> str:
        """Return what the agents printed."""
        return "".join(log.read_text() for log in sorted(self.folder.glob("slurm/*/*_agent.log")))

    def check_privacy(self) -> Path:
        """Check that jobs show no user the password or their files; return their folder."""
        (folder,) = self.folder.glob("slurm/*")
        assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
        assert self.processes(_SECRET) == []
        assert [path for path in folder.iterdir() if _SECRET in _text(path)] == []
        return folder

    def unreachable_config(self) -> Path:
        """Return the configuration of a Slurm whose controller is not there."""
        config_text = Path(self.slurm.environment["SLURM_CONF"]).read_text()
        config = self.folder / "deserted.conf"
        config.write_text(re.sub(r"SlurmctldPort=\d+", "SlurmctldPort=1", config_text) + "MessageTimeout=2\n")
        return config

    def processes(self, words: str) -> list[int]:
        """Return the processes of this Slurm whose command line has these words in it."""
        pids = []
        for pid in self.slurm.processes():
            line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
            if re.search(words, line):
                pids.append(pid)
        return pids


@pytest.fixture
def database(a_slurm: Slurm, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database, with a password."""
    with empty_database("postgresql", tmp_path, "slurm") as url:
        yield make_url(url).set(password=_SECRET).render_as_string(hide_password=False)
        a_slurm.clear()


@pytest.fixture
def scene(a_slurm: Slurm, database: str, tmp_path: Path) -> SlurmScene:
    """A study that is not slowed down."""
    slurm_scene = SlurmScene(a_slurm, tmp_path, database)
    slurm_scene.set_pace(_FAST)
    return slurm_scene


class TestContract(LauncherTests):
    """What every launcher owes, on a real Slurm."""

    @pytest.fixture
    def launcher(self, a_slurm: Slurm, tmp_path: Path) -> SlurmLauncher:
        return SlurmLauncher({"folder": str(tmp_path / "slurm")})

    @pytest.fixture
    def storage(self, database: str) -> str:
        return database


@pytest.mark.long
class TestTimeLimit:
    def test_a_job_that_meets_its_time_limit_goes_on_in_another_life_as_if_nothing_had_been(
        self, scene: SlurmScene, tmp_path: Path
    ) -> None:
        spec = studies.spec(12)
        scene.make_launcher(signal="10")
        scene.set_pace(_SLOW)
        scene.start(scene.task(spec))
        wait_until(lambda: "done" in scene.search_states(), "a search ticket")
        scene.set_pace(_CRAWL)
        scene.let_time_run_out()
        (tmp_path / "peace").mkdir()
        undisturbed = studies.run_undisturbed(tmp_path / "peace", spec)
        wait_until(lambda: scene.restarts() == 1, "a job that is queued again")
        assert scene.search_states() > {"done"}
        scene.slurm.command("scontrol", "update", f"JobId={scene.ids[0]}", "TimeLimit=60")
        scene.set_pace(_FAST)
        assert scene.wait_for(_FINAL_STATES) == Job(id=scene.ids[0], state="done", code=0)
        assert "Interrupted. Everything that was reported is saved." in scene.log_text()
        assert studies.read(scene.url, 12).differences(undisturbed) == []


AGENTS = """\
#!/bin/bash
#SBATCH --partition=low --requeue --open-mode=append --cpus-per-task=8
trap : TERM
srun {python} -m tempopt agent --any --until-idle --workers 2 --storage-file studies.url
code=$?
if [ $code = 130 ] && scontrol show job $SLURM_JOB_ID | grep -q PreemptTime=2; then
    scontrol requeue $SLURM_JOB_ID
fi
exit $code
"""


@pytest.mark.long
class TestPreemption:
    """A job of a partition with a higher priority takes the node for a while."""

    def _start_by_sbatch(self, scene: SlurmScene, spec: dict[str, Any], patch: pytest.MonkeyPatch) -> None:
        """Submit an agent of every study as the docs have it."""
        patch.chdir(scene.folder)
        for name, value in studies.environment(PACE=str(scene.folder / "pace")).items():
            patch.setenv(name, value)
        with open_store(scene.url) as store:
            ensure_study_exists(
                store,
                StudySpec.from_json(studies.stored_spec(spec)),
                None,
                checkpoints=f"{scene.folder}/runs",
            )
        (scene.folder / "studies.url").write_text(scene.url)
        script = scene.folder / "agents.sh"
        script.write_text(AGENTS.format(python=sys.executable))
        output_option = f"--output={scene.folder}/agents.txt"
        job_id = scene.slurm.command(
            "sbatch", "--parsable", f"--chdir={scene.folder}", output_option, str(script)
        )
        scene.ids = [job_id.strip()]

    @pytest.mark.parametrize("submission", ["sbatch", "launcher"])
    def test_an_agent_that_makes_room_is_queued_again_and_goes_on_to_the_same_numbers(
        self, scene: SlurmScene, submission: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = studies.spec(12)
        scene.set_pace(_SLOW)
        if submission == "sbatch":
            self._start_by_sbatch(scene, spec, monkeypatch)
        else:
            scene.make_launcher(partition=cluster.LOW)
            scene.start(scene.task(spec, cpus=CPUS, workers=2))
        wait_until(lambda: "done" in scene.search_states(), "a search ticket")
        scene.set_pace(_CRAWL)
        scene.slurm.command(
            "sbatch", f"--partition={cluster.HIGH}", f"--cpus-per-task={CPUS}", "--output=/dev/null",
            "--wrap=sleep 2",
        )  # fmt: skip
        wait_until(lambda: scene.restarts() == 1, "a job that is queued again")
        assert not [row for row in studies.read_tickets(scene.url) if row.state == "running"]
        scene.set_pace(_FAST)
        (tmp_path / "peace").mkdir()
        undisturbed = studies.run_undisturbed(tmp_path / "peace", spec)
        wait_until(lambda: "JobState=COMPLETED" in scene.job_text(), "the end of the job")
        output = scene.log_text() if submission == "launcher" else (scene.folder / "agents.txt").read_text()
        assert "Interrupted. Everything that was reported is saved." in output
        assert studies.read(scene.url, 12).differences(undisturbed) == []


@pytest.mark.long
class TestDeaths:
    def test_a_job_whose_process_or_node_is_lost_is_queued_again_each_time(self, scene: SlurmScene) -> None:
        scene.set_pace(1.0)
        scene.start(scene.task(studies.spec(1)))
        job, step = r"^(?!srun).*submitit\.core\._submit", r"slurmstepd: \[\d+\.0\]"
        for restarts, target in enumerate((job, step)):
            scene.wait_for_work()
            for pid in scene.processes(target):
                strike(pid, signal.SIGKILL)
            wait_until(
                lambda num_restarts=restarts: scene.restarts() == num_restarts + 1,
                "a job that is queued again",
            )  # type: ignore[misc]
        scene.wait_for_work()
        scene.slurm.kill_node()
        scene.slurm.command("scontrol", "update", f"NodeName={cluster.NODE}", "State=DOWN", "Reason=lost")
        wait_until(lambda: scene.job().state == "waiting", "a job that is queued again")
        scene.slurm.start_node()
        scene.set_pace(_FAST)
        assert scene.wait_for(_FINAL_STATES) == Job(id=scene.ids[0], state="done", code=0)
        assert {row.state for row in studies.tickets(scene.url)} == {"done"}


class TestJobs:
    def test_jobs_wait_with_a_reason_run_and_are_known_when_slurm_has_forgotten_them_or_is_away(
        self, scene: SlurmScene, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        launcher = scene.make_launcher(parallel="1")
        spec = studies.spec(1, steps=8)
        bad_spec = {**spec, "study": {**spec["study"], "name": "another", "metric": "no_such_metric"}}
        scene.set_pace(_SLOW)
        scene.start(scene.task(spec), replace(scene.task(bad_spec), study="another"))
        scene.wait_for(["running"])
        jobs = launcher.jobs(scene.ids)
        assert jobs[0] == Job(id=scene.ids[0], state="running")
        assert jobs[1] == Job(id=scene.ids[1], state="waiting", message="JobArrayTaskLimit")
        folder = scene.check_privacy()
        with monkeypatch.context() as patch:
            patch.setattr(slurm, "_RETRY_PAUSE_SECONDS", ())
            patch.setenv("SLURM_CONF", str(scene.unreachable_config()))
            assert launcher.jobs(scene.ids) == jobs
            (job,) = SlurmLauncher(launcher.options).jobs(scene.ids[:1])
            assert job.state == "waiting" and job.message.startswith("Slurm does not answer: squeue failed")
            with pytest.raises(UsageError, match="squeue failed"):
                launcher.cancel(scene.ids)
        scene.set_pace(_FAST)
        ended_jobs = [scene.wait_for(_FINAL_STATES, index) for index in (0, 1)]
        assert [(job.state, job.code) for job in ended_jobs] == [("done", 0), ("failed", 2)]
        assert "no_such_metric" in ended_jobs[1].message
        files_with_secret = [
            path for path in scene.folder.rglob("*") if path.is_file() and _SECRET in _text(path)
        ]
        assert files_with_secret == []
        assert {path.suffix for path in folder.iterdir()} == {".err", ".json", ".log", ".out"}
        scene.slurm.forget()
        # a later launcher
        second_launcher = SlurmLauncher(launcher.options)
        assert second_launcher.jobs([*scene.ids, "4711_0"]) == [*ended_jobs, Job(id="4711_0", state="gone")]
        assert second_launcher.jobs(["4711"]) == [Job(id="4711", state="gone")]

    def test_jobs_that_wait_are_cancelled_at_once_and_need_nothing_any_more(self, scene: SlurmScene) -> None:
        scene.slurm.command("scontrol", "update", f"PartitionName={PARTITION}", "State=DOWN")
        try:
            ids = scene.start(scene.task(studies.spec(1)), scene.task(studies.spec(1)))
            assert [job.state for job in scene.launcher.jobs(ids)] == ["waiting"] * 2
            scene.launcher.cancel(ids)
        finally:
            scene.slurm.command("scontrol", "update", f"PartitionName={PARTITION}", "State=UP")
        assert [job.state for job in scene.launcher.jobs(ids)] == ["done"] * 2
        assert list(scene.folder.glob("slurm/*/*.pkl")) == []
        assert studies.read_tickets(scene.url) == []


class TestWhatIsAsked:
    def test_an_agent_gets_the_cards_the_cores_and_the_setup_that_were_asked_for(
        self, scene: SlurmScene
    ) -> None:
        environment = scene.folder / "environment"
        scene.make_launcher(setup=f"env > {environment}", extra="comment=hello;nice", partition=PARTITION)
        scene.start(scene.task(studies.spec(1), gpus=2, cpus=3, memory=2_000_000_000))
        wait_until(environment.exists, "the setup")
        job_text = scene.job_text()
        wait_until(lambda: "CUDA_VISIBLE_DEVICES=0,1\n" in environment.read_text(), "the cards")
        assert "NumCPUs=3 NumTasks=1" in job_text and "Comment=hello" in job_text
        assert "TresPerNode=gres:gpu:2" in job_text and "MinMemoryNode=1908M" in job_text

    def test_a_setup_that_fails_ends_the_job_with_its_message_at_hand(self, scene: SlurmScene) -> None:
        scene.make_launcher(setup="echo no such module >&2; false")
        scene.start(scene.task(studies.spec(1)))
        ended_job = scene.wait_for(_FINAL_STATES)
        assert ended_job.state == "failed" and "Slurm ended it: FAILED" in ended_job.message
        (log,) = scene.folder.glob(f"slurm/*/{scene.ids[0]}_*.err")
        assert "no such module" in log.read_text() and str(log.parent) in ended_job.message

    def test_room_is_what_fits_on_the_nodes_of_the_partition(self, a_slurm: Slurm, tmp_path: Path) -> None:
        launcher = SlurmLauncher({"folder": str(tmp_path), "partition": PARTITION})
        assert launcher.has_gpus()
        assert launcher.capacity(Need(cpus=3)) == CPUS // 3
        assert launcher.capacity(Need(gpus=0.5)) == min(2 * GPUS, CPUS)
        assert launcher.capacity(Need(gpus=3, memory=1)) == GPUS // 3
        assert launcher.capacity(Need(memory=cluster.MEMORY * 2**20)) == 1
        with pytest.raises(UsageError, match=f'Unknown Slurm partition "test".*"{PARTITION}"'):
            SlurmLauncher({"partition": "test"}).capacity(Need())
        a_slurm.command("scontrol", "update", f"NodeName={cluster.NODE}", "State=DRAIN", "Reason=broken")
        try:
            assert launcher.capacity(Need()) == 0
        finally:
            a_slurm.command("scontrol", "update", f"NodeName={cluster.NODE}", "State=RESUME")

    def test_what_slurm_refuses_is_said_in_its_words_and_nothing_is_left(self, scene: SlurmScene) -> None:
        fits = scene.task(studies.spec(1))
        with pytest.raises(UsageError, match="Requested node configuration is not available"):
            scene.launcher.start([fits, replace(fits, gpus=GPUS + 1)])
        with pytest.raises(UsageError, match="Invalid feature specification"):
            scene.make_launcher(constraint="a100").start([fits])
        assert list(scene.folder.glob("slurm/*")) == []
        assert scene.slurm.command("squeue", "--noheader") == ""

    @pytest.mark.parametrize(
        "options",
        [
            {"time": "soon"},
            {"time": "0"},
            {"time": "1:30"},
            {"signal": "-1"},
            {"parallel": "many"},
            {"extra": "array=0-7"},
            {"extra": "=1"},
        ],
    )
    def test_a_value_that_cannot_be_is_refused(self, commands: None, options: dict[str, str]) -> None:
        (name,) = options
        with pytest.raises(UsageError, match=f"--launch {name}={re.escape(options[name])}: "):
            SlurmLauncher(options)

    def test_a_warning_that_leaves_no_time_to_train_is_refused(self, commands: None, tmp_path: Path) -> None:
        launcher = SlurmLauncher({"folder": str(tmp_path), "time": "2", "signal": "61"})
        with pytest.raises(UsageError, match="have to leave 61 s before the end have no time"):
            launcher.start([Task(study="any", storage="postgresql://host/any")])
        assert list(tmp_path.iterdir()) == []

    def test_a_machine_without_slurm_says_so(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(UsageError, match="needs Slurm's commands, and sbatch, .* cannot be found"):
            SlurmLauncher({})


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm's commands, as far as it takes to look for them."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")


def test_a_job_that_asked_for_no_cards_sees_none() -> None:
    task = Task(study="any", storage="", environment={"A": "b"})
    assert slurm_entrypoint._build_environment(task) == {"A": "b", "CUDA_VISIBLE_DEVICES": ""}
    assert slurm_entrypoint._build_environment(replace(task, gpus=1)) == {"A": "b"}


@pytest.mark.parametrize(
    ("gres", "cards"),
    [
        ("(null)", 0),
        ("gpu", 1),
        ("gpu:4", 4),
        ("gpu:a100:4(S:0-1)", 4),
        ("gpu:a100:4(S:0-1),gpu:v100:2,mps:400", 6),
        ("craynetwork:4,gpu:2(S:0)", 2),
    ],
)
def test_cards_are_counted_in_all_ways_in_which_slurm_writes_them(gres: str, cards: int) -> None:
    assert slurm._count_gpus(gres) == cards


@pytest.mark.parametrize(
    ("time_limit", "minutes"), [("90", 90), ("01:30:00", 90), ("00:00:30", 1), ("2-01:00:00", 2940)]
)
def test_a_time_is_given_as_slurm_writes_it(time_limit: str, minutes: int) -> None:
    assert slurm._parse_minutes(time_limit) == minutes


def _text(path: Path) -> str:
    return path.read_bytes().decode(errors="replace")
