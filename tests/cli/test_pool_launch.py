"""``tempopt agent --pool --launcher``: what is refused, and agents of this machine that come and go."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.agent.beginning import stand
from tempopt.cli import pool_agent, pool_launch
from tempopt.launch.launcher import PoolWork, Task
from tempopt.launch.launching import PROGRAM
from tempopt.launch.local import LocalLauncher
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tempopt.testing.toys import PACE
from tempopt.workers.placement import Need
from tests.servers import descendants, strike

REPOSITORY = Path(__file__).parents[2]
URL = "sqlite:///tempopt.db"
PATIENCE = 900.0
LOCAL = ["agent", "--pool", "--launcher", "local"]
FARM = '''\
from tests.launch.test_pool_scaler import Farm as Base


class Farm(Base):
    """Starts nothing, on machines far away."""

    def __init__(self, options):
        super().__init__()
'''


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.fixture
def store() -> Iterator[Store]:
    """An empty database in the folder in which the test works."""
    with Store.open(URL) as opened:
        yield opened


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pool", "--launcher", "slurm"], "--launcher slurm needs to know how many agents"),
        (["--pool", "--launcher", "ray"], "Give --agents N."),
        (["--pool", "--launcher", "farm:Farm"], "Give --agents N."),
        (["--pool", "--agents", "2"], "--agents is for a launcher. Give one, as in --launcher slurm."),
        (["--pool", "--launch", "partition=a"], "--launch is for a launcher."),
        (["--pool", "--address", "auto"], "--address is for a launcher."),
        (["--pool", "--detach"], "--detach is for a launcher."),
        (["--pool", "--cpus-per-agent", "2"], "--cpus-per-agent is for a launcher."),
        (["--pool", "--memory-per-agent", "2GB"], "--memory-per-agent is for a launcher."),
        (["--launcher", "local"], "Give the name of a study, as in tempopt agent NAME, or --pool"),
        (
            ["toy", "--launcher", "local"],
            "tempopt resume NAME --launcher NAME starts the agents of one study",
        ),
        (["toy", "--agents", "2"], "--agents is for agents of the pool. "),
        (["toy", "--idle", "2"], "--idle is for agents of the pool. Give --pool in place of toy"),
        (["toy", "--gpus-per-agent", "0"], "--gpus-per-agent is for agents of the pool."),
        (["toy", "--pool", "--launcher", "local"], '"toy" and --pool were both given'),
        (["--pool", "--launcher", "locla", "--agents", "1"], 'Did you mean "local"?'),
        (["--pool", "--launcher", "local", "--detach"], "agents of the launcher local end with this command"),
        (["--pool", "--launcher", "local", "--launch", "a=b"], 'Unknown option of the launcher local "a"'),
        (["--pool", "--launcher", "local", "--workers", "2"], "--workers is for an agent of one study"),
        (["--pool", "--launcher", "local", "--token-file", "t"], "--token-file is for a server"),
        (["--pool", "--launcher", "local", "--memory-per-agent", "much"], "--memory-per-agent: given 'much'"),
        (
            ["--pool", "--launcher", "local", "--gpus-per-agent", "1"],
            "the launcher local has no room for one",
        ),
        (["--pool", "--launcher", "local", "--agents", "0"], '"0" is not a whole number from 1'),
        (["--pool", "--launcher", "local", "--checkpoints", "s3://me:pw@bucket"], "a password or a key"),
        (["--pool", "--launcher", "farm:Farm", "--agents", "2"], "--storage postgresql://user@host/database"),
        (
            ["--pool", "--launcher", "farm:Farm", "--agents", "2", "--server", "http://127.0.0.1:1"],
            "Give one that all machines share: --token-file FILE",
        ),
        (
            [
                "--pool",
                "--launcher",
                "local",
                "--server",
                "http://127.0.0.1:1",
                "--storage",
                "sqlite:///a.db",
            ],
            "--server and --storage were both given",
        ),
        (
            ["--pool", "--launcher", "local", "--server", "http://127.0.0.1:1", "--checkpoints", "here"],
            "A server keeps the checkpoints of its studies",
        ),
    ],
)
def test_what_cannot_be_done_as_asked_is_told_in_one_message(
    words: list[str], message: str, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (folder / "farm.py").write_text(FARM)
    monkeypatch.syspath_prepend(str(folder))
    assert cli.main(["agent", *words]) == cli.USAGE
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("tempopt: error: ") == 1
    assert "Started" not in captured.out


def test_a_database_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(LOCAL) == cli.USAGE
    assert "There is no file" in capsys.readouterr().err


def test_as_many_agents_as_fit_if_no_number_is_given_and_cores_may_be_shared_by_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = LocalLauncher({})
    monkeypatch.setattr(launcher, "room", lambda need: 3)
    assert pool_launch._most(launcher, Need(), None) == (3, "")
    assert pool_launch._most(launcher, Need(), 2) == (2, "")
    assert pool_launch._most(launcher, Need(), 5) == (
        5,
        "There are CPU cores for 3; more agents than that share them.",
    )
    with pytest.raises(cli.UsageError, match="--agents 5: this machine has free GPUs for 3 of them"):
        pool_launch._most(launcher, Need(gpus=1.0), 5)


def test_the_same_command_has_the_same_key_and_another_one_another(store: Store) -> None:
    def key(**changed: object) -> str:
        given = argparse.Namespace(queues=["b", "a"], labels=[])
        for name, value in changed.items():
            setattr(given, name, value)
        found = pool_agent.Place(source=None, url="", shown=str(changed.get("shown", "x")))  # type: ignore[arg-type]
        return pool_launch._key(found, Need(cpus=int(changed.get("cpus", 1))), given)  # type: ignore[call-overload]

    assert key() == key(queues=["a", "b"])
    assert len({key(), key(queues=["a"]), key(labels=["l"]), key(cpus=2), key(shown="y")}) == 5
    assert re.fullmatch("[0-9a-f]{12}", key())


# ---- real agents


def _spec(name: str, trials: int = 4, parallel: int = 2) -> StudySpec:
    data = {
        "study": {
            "name": name,
            "metric": "val_loss",
            "direction": "minimize",
            "trials": trials,
            "arms": {"baseline": 1, "constant": 1},
            "candidates": 1,
            "seeds": {"choose": 1, "confirm": 2},
            "parallel": parallel,
        },
        "search": {"temperature_init": {"low": 0.25, "high": 4.0}},
        "model": {"class_path": "tempopt.testing.toys.Toy"},
        "data": {"class_path": "tempopt.testing.toys.ToyData"},
        "trainer": {"max_steps": 8, "val_check_interval": 4, "check_val_every_n_epoch": None},
    }
    data["trainer"]["accelerator"] = "cpu"
    return StudySpec.parse(data, source="the test")


def _begin(store: Store, spec: StudySpec) -> None:
    """Begin a study, and leave it to the pool."""
    stand(store, spec, None, checkpoints=str(Path("runs").absolute()))


def _wait(so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE
    while not so():
        assert time.monotonic() < give_up, f"waited {PATIENCE:g} s in vain: {what}"
        time.sleep(0.1)


class Command:
    """A command that keeps agents started on this machine, and what it has said."""

    def __init__(self, folder: Path, *words: str, **environment: str) -> None:
        self.log = folder / "command.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tempopt", *LOCAL, *words],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def agents(self) -> list[int]:
        """Return the process ids of its agents."""
        found = []
        for pid in descendants(self.process.pid):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes()
            except OSError:
                continue
            if b"tempopt.cli.launched" in line:
                found.append(pid)
        return found

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE)


@pytest.mark.long
def test_agents_of_this_machine_come_with_a_study_and_leave_when_nothing_is_left(
    store: Store, folder: Path
) -> None:
    command = Command(folder, "--agents", "2", "--idle", "3", "--launch", "logs=logs")
    try:
        _wait(lambda: "Keeps up to 2 agents" in command.said, "the command to begin")
        time.sleep(3.0)
        assert command.agents() == []
        _begin(store, _spec("toy"))
        _wait(lambda: len(command.agents()) == 2, "two agents")
        _wait(lambda: store.load_study("toy").state == "done", "the verdict")
        _wait(lambda: command.agents() == [] and store.pool.read().agents == (), "no agents")
        _wait(lambda: "0 of at most 2 started" in command.said, "the command to notice")
        assert store.pool.read().agents == ()
        # and with the next one again
        _begin(store, _spec("next", trials=2))
        _wait(lambda: store.load_study("next").state == "done", "the next verdict")
        _wait(lambda: command.agents() == [], "no agents again")
        logs = [log.read_text() for log in Path("logs").iterdir()]
        assert all("Nothing to do for 3 s." in log for log in logs) and len(logs) >= 3
    finally:
        code = command.end()
    assert code == cli.INTERRUPTED, command.said
    assert "failed" not in command.said


@pytest.mark.long
@pytest.mark.parametrize("signum", [pytest.param(signal.SIGTERM, marks=pytest.mark.nightly), signal.SIGKILL])
def test_agents_of_this_machine_save_their_runs_and_leave_when_the_command_ends(
    store: Store, folder: Path, signum: int
) -> None:
    _begin(store, _spec("toy", trials=20))
    command = Command(folder, "--agents", "2", "--launch", "logs=logs", **{PACE: "0.5"})

    def at_work() -> int:
        return sum(each.study_id is not None for each in store.pool.read().agents)

    _wait(lambda: at_work() == 2, "two agents at work")
    id = store.load_study("toy").id
    _wait(lambda: any(row.state == "running" for row in store.tickets(id)), "a run")
    agents = command.agents()
    assert len(agents) == 2
    strike(command.process.pid, signum)
    command.process.wait(PATIENCE)
    _wait(lambda: not [pid for pid in agents if Path(f"/proc/{pid}").exists()], "the agents to leave")
    assert store.pool.read().agents == ()
    states = {row.state for row in store.tickets(id)}
    assert "running" not in states and "waiting" in states
    if signum == signal.SIGTERM:
        assert "Leaving: 2 agents will save the runs and leave." in command.said
        assert command.process.returncode == cli.INTERRUPTED


@pytest.mark.long
def test_a_file_without_a_token_ends_an_agent_with_a_message_that_names_it(folder: Path) -> None:
    work = PoolWork(key="k", idle=5.0, token_file="no-such-token")
    launcher = LocalLauncher({})
    task = Task(program=PROGRAM, pool=work, storage="http://127.0.0.1:1", folder=str(folder))
    (id,) = launcher.start([task])
    _wait(lambda: launcher.jobs([id])[0].state != "running", "the end of the agent")
    (job,) = launcher.jobs([id])
    assert (job.state, job.code) == ("failed", 2)
    assert "no-such-token" in job.message
