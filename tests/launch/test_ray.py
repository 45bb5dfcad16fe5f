"""Agents on a real Ray of two nodes: who loses which node, and what becomes of the study."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tempopt.errors import UsageError
from tempopt.launch.launcher import Job, Task, build_tasks
from tempopt.launch.registry import make_launcher
from tempopt.launch.supervise import AGENT_MODULE
from tempopt.spec.resources import Need
from tempopt.testing import LauncherTests
from tests.cluster import conftest as cluster_fixtures
from tests.cluster import ray_cluster, studies
from tests.cluster.crew import wait_until
from tests.cluster.ray_cluster import CPUS, GPUS, RayCluster
from tests.servers import descendants, empty_database, strike, worker_pids

if TYPE_CHECKING:
    from tempopt.launch.ray import RayLauncher

_MISSING = ray_cluster.why_not()
pytestmark = [pytest.mark.service, pytest.mark.skipif(bool(_MISSING), reason=_MISSING), ray_cluster.PATIENTLY]

TICKETS = 8
_PASSWORD = "geheim4711"
_WATCHED = AGENT_MODULE.encode()
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

    monkeypatch.setattr(ray, "_LINGER_SECONDS", 15.0)
    launcher = ray.RayLauncher({"address": cluster.address})
    yield launcher
    launcher.cancel(launcher._started)
    launcher.close()


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """A database that every process reaches; its password is not asked for."""
    with empty_database("postgresql", tmp_path, "ray") as database:
        yield database.replace("@", f":{_PASSWORD}@", 1)


@pytest.fixture
def task(tmp_path: Path, url: str) -> Task:
    """An agent that fills a node, of a study that is slow until a test speeds it up."""
    studies.set_pace(tmp_path, 0.3)
    return studies.launch_task(tmp_path, url, studies.spec(TICKETS, lease=5), cpus=CPUS)


class TestRay(LauncherTests):
    """What every launcher owes."""

    @pytest.fixture
    def launcher(self, launcher: RayLauncher) -> RayLauncher:
        return launcher

    @pytest.fixture
    def storage(self, url: str) -> str:
        return url


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


def _script(cluster: RayCluster, code: str, *words: str) -> list[str]:
    return [sys.executable, "-W", "error", "-c", code, cluster.address, *words]


def _run_script(
    cluster: RayCluster, folder: Path, code: str, *words: str
) -> subprocess.CompletedProcess[str]:
    command = _script(cluster, code, *words)
    return subprocess.run(command, capture_output=True, text=True, cwd=folder)


def _to_json(task: Task) -> str:
    return json.dumps({name: getattr(task, name) for name in Task.__slots__})


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
    monkeypatch.setattr(ray, "_make_keeper_strategy", lambda: strategy)
    ids = launcher.start([task, task])
    wait_until(lambda: len(_at_work(url)) == 2, "both agents at work")
    assert _states(launcher, ids) == ["running", "running"]
    for keeper_too in (True, False):
        assert bool(_pids_of(cluster.second_node, _KEEPER)) is keeper_too
        # nothing is to end before the next node is lost
        studies.set_pace(tmp_path, 3.0)
        pids = cluster.remove(cluster.second_node)
        wait_until(
            lambda pids_of_node=pids: not _alive_pids(pids_of_node),
            "the end of all that ran on the lost node",
        )  # type: ignore[misc]
        wait_until(lambda: "waiting" in _states(launcher, ids), "the news that an agent is lost")
        cluster.second_node = cluster.add()
        wait_until(lambda: bool(_workers(cluster.second_node)), "an agent on the node that is new")
    studies.set_pace(tmp_path, 0.0)
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
    studies.set_pace(tmp_path, 1.0)
    short_task = replace(task, spec=studies.stored_spec(studies.spec(1, steps=8)))
    with subprocess.Popen(_script(cluster, _DRIVER, _to_json(short_task)), stdout=subprocess.PIPE) as driver:
        assert driver.stdout is not None
        ids = json.loads(driver.stdout.readline())
        wait_until(
            lambda: any(row.state == "running" for row in studies.read_tickets(url)), "an agent at work"
        )
        driver.send_signal(signal.SIGKILL)
    studies.set_pace(tmp_path, 0.0)
    assert [job.state for job in _wait_for_jobs(launcher, ids)] == ["done"]
    assert studies.state(url) == "done"


def test_two_trials_share_a_card_and_their_agent_ends_with_its_worker_and_is_started_again(
    cluster: RayCluster, launcher: RayLauncher, task: Task, url: str
) -> None:
    from tempopt.launch.ray import ray

    def program_pids(program: bytes) -> list[int]:
        return [pid for node in (cluster.head, cluster.second_node) for pid in _pids_of(node, program)]

    need = Need(gpus=0.5)
    (joint_task,) = build_tasks(task, need, launcher.split(need, 2))
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

    monkeypatch.setattr(ray, "_QUERY_TIMEOUT_SECONDS", 1.5)
    requests = []

    class UnreachableActor:
        leave = property(lambda self: self)

        def remote(self, indices: list[int]) -> list[int]:
            requests.append(indices)
            raise ray.ActorUnavailableError("its node is slow", None)

    monkeypatch.setattr(ray.ray, "get_actor", lambda *_, **__: UnreachableActor())
    with pytest.raises(UsageError, match="The agents chaos-1 on Ray were asked to leave"):
        launcher.cancel(["chaos-1:0"])
    assert len(requests) > 1


def test_an_agent_without_cards_sees_none_and_paths_of_its_task_come_before_those_of_the_node(
    task: Task, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tempopt.launch.ray import _build_environment

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("PYTHONPATH", "sent")
    env_vars = _build_environment(replace(task, environment={"PYTHONPATH": "own"}))
    assert env_vars == {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": f"own{os.pathsep}sent"}
    assert "CUDA_VISIBLE_DEVICES" not in _build_environment(replace(task, gpus=1))


def test_a_trial_fits_on_one_node_or_not_at_all(launcher: RayLauncher) -> None:
    assert launcher.has_gpus()
    assert launcher.capacity(Need(cpus=CPUS)) == 2
    assert launcher.capacity(Need(gpus=GPUS, cpus=1)) == 2
    assert launcher.capacity(Need(gpus=GPUS + 1, cpus=1)) == 0
    assert launcher.capacity(Need(gpus=0.5)) == 2 * CPUS
    assert launcher.capacity(Need(memory=2**60)) == 0


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

    monkeypatch.setattr(ray, "_LINGER_SECONDS", 1.0)
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
    sent_folder = tmp_path / "sent"
    sent_folder.mkdir()
    (sent_folder / "only_here.py").write_text("raise RuntimeError('found where it was sent')\n")
    task = replace(task, spec={**(task.spec or {}), "model": {"class_path": "only_here.Model"}})
    process = _run_script(cluster, tmp_path, _SENDS, str(sent_folder), _to_json(task))
    assert process.stdout.startswith("failed") and "found where it was sent" in process.stdout, process.stderr
    assert not process.stderr


_ALONE = """
import json, sys, time
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
"""


def test_without_an_address_ray_is_this_machine_and_ends_with_the_program(
    cluster: RayCluster, task: Task, tmp_path: Path
) -> None:
    process = _run_script(cluster, tmp_path, _ALONE, _to_json(replace(task, cpus=1)))
    assert (process.returncode, process.stdout, process.stderr) == (0, "", "")


def test_a_program_is_connected_to_one_ray_only(launcher: RayLauncher) -> None:
    with pytest.raises(UsageError, match="address=127.0.0.1:9: this program is already connected to a Ray"):
        make_launcher("ray", {"address": "127.0.0.1:9"})
    with pytest.raises(UsageError, match="address=local: this program is already connected"):
        make_launcher("ray", {})
    with pytest.raises(UsageError, match=r"address=auto working_dir=\.: this program is already connected"):
        make_launcher("ray", {"address": "auto", "working_dir": "."})
