"""Agents on a real Ray of two nodes: who loses which node, and what becomes of the study."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tempopt.errors import UsageError
from tempopt.launch.launcher import Job, Task, tasks
from tempopt.launch.registry import make_launcher
from tempopt.launch.study_launch import PROGRAM
from tempopt.spec.resources import Need
from tempopt.testing import LauncherTests
from tests.cluster import conftest as cluster_fixtures
from tests.cluster import ray_cluster, studies
from tests.cluster.crew import wait_until
from tests.cluster.ray_cluster import CPUS, GPUS, RayCluster
from tests.servers import descendants, find_or_start, strike, worker_pids

if TYPE_CHECKING:
    from tempopt.launch.ray import RayLauncher

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

TICKETS = 8
_PASSWORD = "geheim4711"
_WATCHED = PROGRAM[-1].encode()
_KEEPER = b"ray::Keeper"

undisturbed_record = cluster_fixtures.undisturbed_record


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Two nodes, the same for all tests here; who removes one adds another."""
    with ray_cluster.run_cluster() as running_cluster:
        first = make_launcher("ray", {"address": running_cluster.address})  # others share its connection
        yield running_cluster
        first.close()


@pytest.fixture
def launcher(cluster: RayCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[RayLauncher]:
    """A launcher on the cluster, whose agents are gone when its test is over."""
    from tempopt.launch import ray

    monkeypatch.setattr(ray, "_LINGER", 15.0)
    launcher = ray.RayLauncher({"address": cluster.address})
    yield launcher
    launcher.cancel(launcher._started)
    launcher.close()


@pytest.fixture
def url() -> Iterator[str]:
    """A database that every process reaches; its password is not asked for."""
    server, why_not = find_or_start("postgresql")
    if server is None:
        pytest.skip(why_not)
    name = f"ray_{uuid.uuid4().hex}"
    yield server.create_database(name).replace("@", f":{_PASSWORD}@", 1)
    server.drop_database(name)


@pytest.fixture
def task(tmp_path: Path, url: str) -> Task:
    """An agent that fills a node, of a study that is slow until a test speeds it up."""
    _set_pace(tmp_path, 0.3)
    environment = {name: studies.environment()[name] for name in ("PYTHONPATH", "OMP_NUM_THREADS")}
    return Task(
        program=PROGRAM,
        study=studies.NAME,
        storage=url,
        spec=studies.stored_spec(studies.spec(TICKETS, lease=5)),
        options=("--checkpoints", str(tmp_path / "runs")),
        cpus=CPUS,
        folder=str(tmp_path),
        environment={**environment, "PACE": str(tmp_path / "pace")},
    )


class TestRay(LauncherTests):
    """What every launcher owes."""

    @pytest.fixture
    def launcher(self, launcher: RayLauncher) -> RayLauncher:
        return launcher

    @pytest.fixture
    def storage(self, url: str) -> str:
        return url


def _set_pace(folder: Path, seconds: float) -> None:
    (folder / "pace.new").write_text(str(seconds))
    (folder / "pace.new").replace(folder / "pace")


def _at_work(url: str) -> set[str | None]:
    return {row.agent for row in studies.read_tickets(url) if row.state == "running" and row.checkpoints}


def _states(launcher: RayLauncher, ids: list[str]) -> list[str]:
    return [job.state for job in launcher.jobs(ids)]


def _wait_for_jobs(launcher: RayLauncher, ids: list[str]) -> list[Job]:
    wait_until(lambda: set(_states(launcher, ids)) <= {"done", "failed"}, "the end of agents")
    return launcher.jobs(ids)


def _alive_pids(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}/exe").exists()]


def _pids_of(node: Any, program: bytes) -> list[int]:
    """Return the processes of a node that run a program."""
    pids = []
    for pid in descendants(ray_cluster.raylet(node)):
        with contextlib.suppress(OSError):
            if program in Path(f"/proc/{pid}/cmdline").read_bytes():
                pids.append(pid)
    return pids


def _workers(node: Any) -> list[int]:
    return worker_pids(ray_cluster.raylet(node))


def _shell(home: Path, **extra_vars: str) -> dict[str, str]:
    """Return the environment of a user's shell, in which this program's connection has set nothing."""
    env_vars = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    return {**env_vars, "HOME": str(home), **extra_vars}


def _script(cluster: RayCluster, code: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", code, cluster.address, *words]


@pytest.mark.long
def test_a_study_that_loses_a_node_with_its_keeper_and_another_without_ends_as_it_would_have(
    cluster: RayCluster,
    launcher: RayLauncher,
    task: Task,
    url: str,
    tmp_path: Path,
    undisturbed_record: Callable[[int], studies.Record],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tempopt.launch import ray

    strategy = ray.NodeAffinitySchedulingStrategy(cluster.second_node.node_id, soft=True)
    monkeypatch.setattr(ray, "_place_of_keepers", lambda: strategy)
    ids = launcher.start([task, task])
    wait_until(lambda: len(_at_work(url)) == 2, "both agents at work")
    assert _states(launcher, ids) == ["running", "running"]
    for keeper_too in (True, False):
        assert bool(_pids_of(cluster.second_node, _KEEPER)) is keeper_too
        # nothing is to end before the next node is lost
        _set_pace(tmp_path, 3.0)
        pids = cluster.remove(cluster.second_node)
        wait_until(
            lambda pids_of_node=pids: not _alive_pids(pids_of_node),
            "the end of all that ran on the lost node",
        )  # type: ignore[misc]
        wait_until(lambda: "waiting" in _states(launcher, ids), "the news that an agent is lost")
        cluster.second_node = cluster.add()
        wait_until(lambda: bool(_workers(cluster.second_node)), "an agent on the node that is new")
    _set_pace(tmp_path, 0.0)
    assert [job.state for job in _wait_for_jobs(launcher, ids)] == ["done", "done"]
    assert not studies.read(url, TICKETS).differences(undisturbed_record(TICKETS))


_DRIVER = """
import json, sys, time
from tempopt.launch.launcher import Task
from tempopt.launch.ray import RayLauncher

launcher = RayLauncher({"address": sys.argv[1]})
print(json.dumps(launcher.start([Task(**json.loads(sys.argv[2]))])), flush=True)
time.sleep(600)
"""


def test_a_study_continues_when_its_launching_process_is_killed(
    cluster: RayCluster, launcher: RayLauncher, task: Task, url: str, tmp_path: Path
) -> None:
    import json

    _set_pace(tmp_path, 1.0)
    short_task = replace(task, spec=studies.stored_spec(studies.spec(1, steps=8)))
    task_data = json.dumps({name: getattr(short_task, name) for name in Task.__slots__})
    with subprocess.Popen(_script(cluster, _DRIVER, task_data), stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        ids = json.loads(driver.stdout.readline())
        wait_until(
            lambda: any(row.state == "running" for row in studies.read_tickets(url)), "an agent at work"
        )
        driver.send_signal(signal.SIGKILL)
    _set_pace(tmp_path, 0.0)
    assert [job.state for job in _wait_for_jobs(launcher, ids)] == ["done"]
    assert studies.state(url) == "done"


def test_two_trials_share_a_card_and_their_agent_ends_with_its_worker_and_is_started_again(
    cluster: RayCluster, launcher: RayLauncher, task: Task, url: str
) -> None:
    from tempopt.launch.ray import ray

    def program_pids(program: bytes) -> list[int]:
        return [pid for node in (cluster.head, cluster.second_node) for pid in _pids_of(node, program)]

    need = Need(gpus=0.5)
    (joint_task,) = tasks(task, need, launcher.split(need, 2))
    num_gpus = ray.available_resources()["GPU"]
    ids = launcher.start([joint_task])
    wait_until(
        lambda: sum(row.state == "running" for row in studies.read_tickets(url)) == 2,
        "two trials side by side",
    )
    assert num_gpus - ray.available_resources()["GPU"] == 1.0
    workers = [*_workers(cluster.head), *_workers(cluster.second_node)]
    agents = program_pids(_WATCHED)
    assert len(workers) == 2
    assert [ray_cluster.variable(pid, "CUDA_VISIBLE_DEVICES") in ("0", "1") for pid in agents] == [True]
    assert strike(ray_cluster.parent(agents[0]), signal.SIGKILL)
    wait_until(lambda: not _alive_pids([*agents, *workers]), "the end of an agent without a worker")
    wait_until(lambda: bool(program_pids(_WATCHED)), "the next agent")
    launcher.cancel(ids)
    assert _states(launcher, ids) == ["done"]
    assert not program_pids(_WATCHED)
    wait_until(lambda: ray.available_resources()["GPU"] == num_gpus, "the card to be free again")


def test_a_killed_keeper_starts_nothing_again_that_had_ended_and_no_password_is_written_down(
    cluster: RayCluster, launcher: RayLauncher, task: Task
) -> None:
    unknown_task = replace(task, spec=None, study="nowhere")
    ids = launcher.start([unknown_task, replace(task, cpus=CPUS + 1)])
    wait_until(lambda: _states(launcher, ids)[0] == "failed", "the end of the agent that has no study")
    launcher.cancel(ids[1:])
    jobs_before = launcher.jobs(ids)
    assert [(job.state, job.code) for job in jobs_before] == [("failed", 2), ("done", None)]
    keepers = [pid for node in (cluster.head, cluster.second_node) for pid in _pids_of(node, _KEEPER)]
    assert keepers and [strike(pid, signal.SIGKILL) for pid in keepers]
    wait_until(lambda: not _alive_pids(keepers), "the end of the keeper")
    job_lists: list[list[Job]] = []

    def is_back() -> bool:
        job_lists.append(launcher.jobs(ids))
        return not any("keeps it" in job.message for job in job_lists[-1])

    wait_until(is_back, "the keeper")
    assert job_lists[-1] == jobs_before
    log_paths = [path for path in Path(os.environ["RAY_TMPDIR"], "ray").rglob("*") if path.is_file()]
    log_texts = [path.read_bytes() for path in log_paths if "logs" in path.parts]
    assert any(b"Keeper" in text or b"launched" in text for text in log_texts)
    assert not [text for text in log_texts if _PASSWORD.encode() in text]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("late")], ids=repr)
def test_agents_of_a_start_that_is_broken_off_are_not_left_on_the_cluster(
    launcher: RayLauncher, task: Task, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    from tempopt.launch.ray import ray

    def broken_off(*_: object, **__: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(ray, "get", broken_off)
        with pytest.raises(type(error)):
            launcher.start([replace(task, study="broken", cpus=CPUS + 1)])

    def actor_names() -> list[str]:
        return [actor["name"] for actor in ray.util.list_named_actors(all_namespaces=True)]

    wait_until(lambda: not any(name.startswith("broken-") for name in actor_names()), "the end of the keeper")


def test_a_keeper_that_does_not_answer_is_asked_again_and_then_said_to_be_away(
    launcher: RayLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempopt.launch import ray

    monkeypatch.setattr(ray, "_PATIENCE", 1.5)
    requests = []

    class UnreachableActor:
        leave = property(lambda self: self)

        def remote(self, indices: list[int]) -> list[int]:
            requests.append(indices)
            raise ray.ActorUnavailableError("its node is slow", None)

    monkeypatch.setattr(ray.ray, "get_actor", lambda *_, **__: UnreachableActor())
    with pytest.raises(UsageError, match="What keeps the agents chaos-1 on Ray does not answer"):
        launcher.cancel(["chaos-1:0"])
    assert len(requests) > 1


def test_an_agent_without_cards_sees_none(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    from tempopt.launch.ray_keeper import _environment

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert _environment(task)["CUDA_VISIBLE_DEVICES"] == ""
    assert "CUDA_VISIBLE_DEVICES" not in _environment(replace(task, gpus=1))


def test_what_ray_says_of_python_paths_comes_after_what_the_task_says(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempopt.launch.ray_keeper import _environment

    monkeypatch.setenv("PYTHONPATH", "sent")
    python_path = _environment(replace(task, environment={"PYTHONPATH": "own"}))["PYTHONPATH"]
    assert python_path == f"own{os.pathsep}sent"


def test_a_trial_fits_on_one_node_or_not_at_all(launcher: RayLauncher) -> None:
    assert launcher.has_gpus()
    assert launcher.capacity(Need(cpus=CPUS)) == 2
    assert launcher.capacity(Need(gpus=GPUS, cpus=1)) == 2
    assert launcher.capacity(Need(gpus=GPUS + 1, cpus=1)) == 0
    assert launcher.capacity(Need(gpus=0.5)) == 2 * CPUS
    assert launcher.capacity(Need(memory=2**60)) == 0


def test_no_agent_has_more_workers_than_a_node_has_room_for(launcher: RayLauncher) -> None:
    # a card would take four, but a node has two cores
    assert launcher.split(Need(gpus=0.25), 4) == [2, 2]
    # those beyond wait, and no node that is there would ever have room for four
    assert launcher.split(Need(gpus=0.25), 9) == [2, 2, 2, 2, 1]


def test_a_cluster_that_grows_has_room_for_a_trial(launcher: RayLauncher) -> None:
    from tempopt.launch.ray import RayLauncher

    grows = RayLauncher({"address": "auto", "autoscaling": "yes"})
    assert grows.capacity(Need(cpus=1_000)) == 1
    assert grows.options["address"] == launcher.options["address"]
    grows.close()


def test_what_waits_is_cancelled_and_nothing_is_left_on_the_cluster(
    launcher: RayLauncher, task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempopt.launch import ray

    monkeypatch.setattr(ray, "_LINGER", 1.0)
    ids = launcher.start([replace(task, cpus=CPUS + 1)])
    assert _states(launcher, ids) == ["waiting"]
    launcher.cancel(ids)
    wait_until(lambda: _states(launcher, ids) == ["gone"], "the end of the keeper")
    keeper = ids[0].partition(":")[0]
    assert keeper not in {actor["name"] for actor in ray.ray.util.list_named_actors(all_namespaces=True)}
    launcher.cancel(ids)


def test_jobs_that_are_not_known_are_gone(launcher: RayLauncher) -> None:
    ids = ["chaos-00000000:0", "none of ours", "17_1"]
    assert launcher.jobs(ids) == [Job(id=id, state="gone") for id in ids]
    launcher.cancel(ids)


_SENDS = """
import json, signal, sys, time
from tempopt.launch.launcher import Task
from tempopt.launch.ray import RayLauncher

handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
launcher = RayLauncher({"address": sys.argv[1], "working_dir": sys.argv[2]})
assert handlers == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
ids = launcher.start([Task(**json.loads(sys.argv[3]))])
while (job := launcher.jobs(ids)[0]).state in ("waiting", "running"):
    time.sleep(0.1)
launcher.close()
print(job.state, job.message)
"""


def test_modules_come_with_the_folder_that_is_sent(cluster: RayCluster, task: Task, tmp_path: Path) -> None:
    import json

    sent_folder = tmp_path / "sent"
    sent_folder.mkdir()
    (sent_folder / "only_here.py").write_text("raise RuntimeError('found where it was sent')\n")
    spec = {**(task.spec or {}), "model": {"class_path": "only_here.Model"}}
    task_data = {name: getattr(task, name) for name in Task.__slots__} | {"spec": spec}
    command = _script(cluster, _SENDS, str(sent_folder), json.dumps(task_data))
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert process.stdout.startswith("failed") and "found where it was sent" in process.stdout, process.stderr
    assert not process.stderr


_ALONE = """
import json, os, sys, time
from tempopt.launch.launcher import Task
from tempopt.launch.ray import RayLauncher, ray
from tempopt.spec.resources import Need

launcher = RayLauncher({})
assert ray.get_runtime_context().gcs_address != sys.argv[1]
assert (launcher.is_multi_host, launcher.survives_command, launcher.has_gpus()) == (False, False, False)
assert launcher.capacity(Need()) >= 1
ids = launcher.start([Task(**json.loads(sys.argv[2]))])
while launcher.jobs(ids)[0].state == "waiting":
    time.sleep(0.1)
launcher.close()
assert not ray.is_initialized()
assert not [name for name in os.environ if name.startswith("RAY_AUTH")]
"""


def test_without_an_address_ray_is_this_machine_and_ends_with_the_program(
    cluster: RayCluster, task: Task, tmp_path: Path
) -> None:
    import json

    task_data = {name: getattr(task, name) for name in Task.__slots__} | {"cpus": 1}
    command = _script(cluster, _ALONE, json.dumps(task_data))
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_shell(tmp_path))
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")
    # Ray makes one by default, for others to read
    for token_path in tmp_path.glob(".ray/auth_token"):
        assert token_path.stat().st_mode & 0o777 == 0o600


_ASKED_FOR_NONE = """
import json, os, sys, time
import ray
from tempopt.launch.launcher import Task
from tempopt.launch.ray import RayLauncher

if sys.argv[3] == "by default":
    # what a later Ray does by itself
    ray._raylet.Config.initialize('{"AUTH_MODE": "token"}')
    assert ray._raylet.get_authentication_mode() == ray._raylet.AuthenticationMode.TOKEN
options = {"token_file": sys.argv[3]} if os.path.isfile(sys.argv[3]) else {}
launcher = RayLauncher({"address": sys.argv[4], **options})
ids = launcher.start([Task(**json.loads(sys.argv[2]))])
while (job := launcher.jobs(ids)[0]).state in ("waiting", "running"):
    time.sleep(0.1)
launcher.close()
print(job.state, job.message)
"""


@pytest.mark.parametrize("source", ["file", "home", "mode", "by default"])
def test_a_cluster_that_asks_for_no_token_is_shown_none_and_works(
    cluster: RayCluster, task: Task, tmp_path: Path, source: str
) -> None:
    import json

    # plain Ray shows what it finds, and loses its actors
    token_path = tmp_path / "home" / ".ray" / "auth_token"
    token_path.parent.mkdir(parents=True)
    if source != "by default":
        token_path.touch(mode=0o600)
        token_path.write_text("0123456789")
    extra_vars = {"RAY_AUTH_MODE": "token"} if source == "mode" else {}
    address = "auto" if source == "home" else cluster.address
    task_data = {name: getattr(task, name) for name in Task.__slots__} | {"spec": None, "study": "nowhere"}
    words = (json.dumps(task_data), str(token_path) if source == "file" else source, address)
    process = subprocess.run(
        _script(cluster, _ASKED_FOR_NONE, *words),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=_shell(tmp_path / "home", **extra_vars),
    )
    assert process.stdout.startswith("failed") and "holds no tempopt studies" in process.stdout, (
        process.stderr
    )


def test_a_program_is_connected_to_one_ray_only(launcher: RayLauncher) -> None:
    with pytest.raises(UsageError, match="address=127.0.0.1:9: this program is connected to a Ray already"):
        make_launcher("ray", {"address": "127.0.0.1:9"})
    with pytest.raises(UsageError, match="address=local: this program is connected"):
        make_launcher("ray", {})
    with pytest.raises(UsageError, match="address=auto token_file=mine: this program is connected"):
        make_launcher("ray", {"address": "auto", "token_file": "mine"})
