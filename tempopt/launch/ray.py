"""Agents on a Ray cluster: an existing one, or one on this machine that ends with the program.

An agent is one actor with the resources of all its workers: Ray places an actor on one node or not at all,
and the autoscaler sees the missing resources, so that no placement group is needed. Another actor, the
keeper, restarts the agents of one launch; it outlives the program that started it, and its node. Every node
needs the same version of tempopt; ``working_dir`` sends other modules that a study imports.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, ClassVar

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.experimental import internal_kv
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tempopt.agent.machine import Machine
from tempopt.errors import UsageError
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.ray_connection import CONNECTION, summarize_error
from tempopt.launch.supervise import ExitInfo, RestartPolicy, Supervisor
from tempopt.spec.resources import Need

NAMESPACE = "tempopt"
"""Ray namespace of the keepers."""

_HEAD = "node:__internal_head__"
_LINGER_SECONDS = 60.0
_QUERY_TIMEOUT_SECONDS = 60.0
# A busy node takes a while to start the process of an actor.
_START_TIMEOUT_SECONDS = 180.0
_LEAVE_TIMEOUT_SECONDS = 900.0
# Memory of a keeper; Ray ignores the scheduling strategy of an actor that requests no resources.
_KEEPER_MEMORY_BYTES = 100 * 2**20


class RayLauncher(Launcher):
    """Starts agents on a Ray cluster; without an address, on a Ray that ends with the program.

    Agents that do not fit yet wait, and Ray's autoscaler sees them. Room is counted on the existing nodes,
    which other programs may use, too.

    Args:
        options: ``address``, ``working_dir``, ``autoscaling``.

    Raises:
        UsageError: An option is unknown, no Ray of the same version answers at the address, or the folder
            cannot be sent.
    """

    name: ClassVar[str] = "ray"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "address": "auto, HOST:PORT or ray://HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a Ray on "
        "this machine, which ends with the program",
        "working_dir": "folder with your modules that is sent to the nodes, in which agents run; "
        "default: none, all modules are installed on every node",
        "autoscaling": "yes: the cluster grows on demand, so that a trial need not fit on an existing node; "
        "default: no",
    }

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        address = self.options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
        self.is_multi_host = self.survives_command = address != "local"
        if (autoscaling := self.options.get("autoscaling", "no")) not in ("yes", "no"):
            raise UsageError(f'--launch autoscaling={autoscaling}: give "yes" or "no".')
        self._grows = autoscaling == "yes"
        # sent once; processes that look the agents up later do not need it
        folder = self.options.pop("working_dir", None)
        self._sends = folder is not None
        self._started: list[str] = []
        CONNECTION.acquire(address, folder)
        if address == "auto":
            # "auto" may mean another cluster on another machine
            self.options["address"] = ray.get_runtime_context().gcs_address
        elif self.survives_command:
            self.options["address"] = address

    def machines(self) -> list[Machine]:
        """Return the resources of each node; Ray names GPUs by number."""
        return [
            Machine(
                cores=int(node_resources.get("CPU", 0)),
                memory=int(node_resources.get("memory", 0)),
                cards=tuple(map(str, range(int(node_resources.get("GPU", 0))))),
            )
            for node_resources in (node["Resources"] for node in _list_nodes())
        ]

    def capacity(self, need: Need) -> int:
        """Return how many trials fit on the existing nodes, at least 1 if the cluster grows."""
        return max(int(self._grows), super().capacity(need))

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start an agent for each task as soon as a node has room for it, and return the ids of the jobs.

        Raises:
            UsageError: No node can run tempopt.
        """
        if not tasks:
            return []
        name = f"{tasks[0].study}-{uuid.uuid4().hex[:8]}"
        if self._sends:
            tasks = [replace(task, folder=None) for task in tasks]
        keeper: Any = (
            ray.remote(Keeper)
            .options(
                name=name,
                namespace=NAMESPACE,
                lifetime="detached",
                num_cpus=0,
                memory=_KEEPER_MEMORY_BYTES,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=8,
                scheduling_strategy=_make_keeper_strategy(),
            )
            # separate arguments: the cluster keeps small arguments, but a large one is lost with this program
            .remote(name, _LINGER_SECONDS, *tasks)
        )
        try:
            ray.get(keeper.jobs.remote(), timeout=_START_TIMEOUT_SECONDS)
        except BaseException as error:
            # the keeper is not recorded yet: it would start agents that cannot be found
            with contextlib.suppress(Exception):
                ray.kill(keeper)
            if not isinstance(error, RayError):
                raise
            raise UsageError(_explain_not_started(error)) from error
        started = [f"{name}:{index}" for index in range(len(tasks))]
        self._started += started
        return started

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return the jobs, including those of earlier programs."""
        keepers = _group_by_keeper(ids)
        jobs_by_id = {
            job.id: job for name, indices in keepers.items() for job in _query_keeper(name, indices)
        }
        return [jobs_by_id.get(id) or Job(id=id, state="gone") for id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        """Shut down agents, all at once, and wait until they have left.

        Raises:
            UsageError: Ray does not answer for a minute, or agents do not leave.
        """
        keepers = _group_by_keeper(ids)
        with ThreadPoolExecutor(max(1, len(keepers))) as pool:
            list(pool.map(_leave, keepers, keepers.values()))

    def close(self) -> None:
        """Disconnect from the cluster; agents on a Ray of this program shut down gracefully."""
        if not self.survives_command:
            self.cancel(self._started)
        CONNECTION.release()


def _explain_not_started(error: RayError) -> str:
    """Return the message for a keeper that could not be started."""
    reason = summarize_error(error)
    if isinstance(error, GetTimeoutError):
        reason = (
            f"nothing was started within {_START_TIMEOUT_SECONDS:g} s. The nodes are busy, or none has room."
        )
    return (
        f"Ray cannot start agents on its nodes: {reason} The actor that supervises agents needs "
        f"{_KEEPER_MEMORY_BYTES // 2**20} MiB of memory: ray status, on the head node, shows whether a "
        "node has that free. Every node needs the version of tempopt of this machine, with its dependencies; "
        "your own modules are sent with --launch working_dir=FOLDER."
    )


def _list_nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _make_keeper_strategy() -> NodeAffinitySchedulingStrategy | None:
    """Return the strategy to place keepers on the head node, whose end is the end of the cluster."""
    heads = [node["NodeID"] for node in _list_nodes() if _HEAD in node["Resources"]]
    return NodeAffinitySchedulingStrategy(heads[0], soft=True) if heads else None


def _group_by_keeper(ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of jobs by the name of their keeper, without ids of other kinds."""
    indices_by_keeper: dict[str, list[int]] = {}
    for id in ids:
        name, _, index = id.rpartition(":")
        if name and index.isdecimal():
            indices_by_keeper.setdefault(name, []).append(int(index))
    return indices_by_keeper


def _query_keeper(name: str, indices: Sequence[int]) -> list[Job]:
    """Return the jobs of all agents of a keeper, none if the keeper is gone."""
    try:
        keeper: Any = ray.get_actor(name, namespace=NAMESPACE)
        jobs: list[Job] = ray.get(keeper.jobs.remote(), timeout=_QUERY_TIMEOUT_SECONDS)
        return jobs
    except (GetTimeoutError, ActorUnavailableError):
        message = "its supervisor is being restarted on another node"
        return [Job(id=f"{name}:{index}", state="waiting", message=message) for index in indices]
    except (ValueError, ActorDiedError):
        return []


def _leave(name: str, indices: Sequence[int]) -> None:
    """Shut down agents of a keeper, and wait until they have left."""
    deadline = time.monotonic() + _QUERY_TIMEOUT_SECONDS
    while True:
        try:
            keeper: Any = ray.get_actor(name, namespace=NAMESPACE)
            ray.get(keeper.leave.remote(indices), timeout=_LEAVE_TIMEOUT_SECONDS)
            return
        except (ValueError, ActorDiedError):
            # a keeper that is gone has no agents
            return
        except (GetTimeoutError, ActorUnavailableError) as error:
            if isinstance(error, GetTimeoutError) or time.monotonic() > deadline:
                raise UsageError(
                    f"The agents {name} on Ray were asked to leave, and it is not known whether they have: "
                    f"{summarize_error(error)} Check with tempopt show."
                ) from error
            time.sleep(1.0)


# ---- on the cluster


# The ends of agents are stored on the cluster's head node, so that they outlive a lost keeper. Ray has no
# public store that outlives an actor; its own libraries use this one.


def _read_ended(id: str) -> Job | None:
    """Return the job of an agent that has ended; None if it has not."""
    data = internal_kv._internal_kv_get(id, namespace=NAMESPACE)
    return None if data is None else Job(**json.loads(data))


def _write_ended(job: Job) -> None:
    """Store the job of an agent that has ended."""
    internal_kv._internal_kv_put(job.id, json.dumps(asdict(job)), namespace=NAMESPACE)


class Keeper:
    """Keeps agents running on the cluster after the end of the command; ends soon after the last agent.

    If it is lost with its node, Ray restarts it on another node with the same tasks, and ends the agents that
    it had started; it then restarts those that had neither ended nor been asked to leave.

    Args:
        name: Its name.
        linger: Seconds for which it still answers after all agents have ended.
        tasks: The agents.
    """

    def __init__(self, name: str, linger: float, *tasks: Task) -> None:
        self._name = name
        self._agents = [_SupervisedAgent(task, f"{name}:{index}") for index, task in enumerate(tasks)]
        threading.Thread(target=self._end_after_agents, args=(linger,), daemon=True).start()

    def jobs(self) -> list[Job]:
        """Return the job of each agent."""
        return [agent.job for agent in self._agents]

    def leave(self, indices: Sequence[int]) -> None:
        """Shut down agents without a restart; return once they have left."""
        leaving = [threading.Thread(target=self._agents[i].leave) for i in indices if i < len(self._agents)]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()

    def _end_after_agents(self, linger: float) -> None:
        for agent in self._agents:
            agent.join()
        time.sleep(linger)
        internal_kv._internal_kv_del(f"{self._name}:", del_by_prefix=True, namespace=NAMESPACE)
        ray.kill(ray.get_runtime_context().current_actor)


class _SupervisedAgent:
    """One agent, and the thread that restarts it where there is room when it is lost."""

    def __init__(self, task: Task, id: str) -> None:
        stored_job = _read_ended(id)
        self.job = stored_job or Job(id=id, state="waiting")
        self._task = task
        self._actor: Any = None
        self._ran_from = math.inf
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if stored_job is None:
            self._thread.start()

    def join(self) -> None:
        """Wait until the agent has ended permanently."""
        if self._thread.ident is not None:
            self._thread.join()

    def leave(self) -> None:
        """Shut down the agent without a restart; return once it has left."""
        with self._lock:
            if self.job.state in ("done", "failed"):
                return
            # stored before it has left, so that a restarted keeper does not restart it
            _write_ended(Job(id=self.job.id, state="done"))
            self._leaving.set()
            actor, is_waiting = self._actor, self.job.state == "waiting"
        if actor is not None:
            with contextlib.suppress(RayError):
                if is_waiting:
                    ray.kill(actor)
                else:
                    ray.get(actor.leave.remote())
        self.join()

    def _run(self) -> None:
        restart_policy = RestartPolicy()
        while True:
            self._ran_from = math.inf
            try:
                exit_info = self._run_once()
            except RayError as error:
                pause = restart_policy.next_restart_delay(time.monotonic() - self._ran_from)
                if self._leaving.is_set():
                    return self._end(Job(id=self.job.id, state="done"))
                if pause is None:
                    return self._end(Job(id=self.job.id, state="failed", message=summarize_error(error)))
                message = f"will be restarted: {summarize_error(error)}"
                self.job = Job(id=self.job.id, state="waiting", message=message)
                self._leaving.wait(pause)
            else:
                return self._end(exit_info.to_job(self.job.id))

    def _end(self, job: Job) -> None:
        with self._lock:
            self.job = job
            _write_ended(job)

    def _run_once(self) -> ExitInfo:
        with self._lock:
            if self._leaving.is_set():
                return ExitInfo(code=130)
            self._actor = actor = _create_agent_actor(self._task)
        try:
            ray.get(actor.ready.remote())
            with self._lock:
                self.job = Job(id=self.job.id, state="running")
                self._ran_from = time.monotonic()
            exit_info: ExitInfo = ray.get(actor.run.remote())
            return exit_info
        finally:
            # an actor holds its GPUs until it is killed
            ray.kill(actor)


def _create_agent_actor(task: Task) -> Any:
    """Create the actor of an agent, which Ray places on a node with room."""
    resources: dict[str, Any] = {"num_cpus": task.cpus, "num_gpus": task.gpus}
    if task.memory is not None:
        resources["memory"] = task.memory
    # not restarted by Ray but by its keeper, which thus knows which agents wait for room
    return ray.remote(_Agent).options(max_restarts=0, max_concurrency=3, **resources).remote(task)


class _Agent:
    """An agent on a node, as a child process that ends with its actor."""

    def __init__(self, task: Task) -> None:
        self._supervisor = Supervisor(replace(task, environment=_build_environment(task)))

    def ready(self) -> None:
        """Return once the actor has been placed."""

    def run(self) -> ExitInfo:
        """Run the agent until it has ended permanently."""
        return self._supervisor.run()

    def leave(self) -> None:
        """Shut down the agent gracefully."""
        self._supervisor.leave()


def _build_environment(task: Task) -> dict[str, str]:
    """Return the environment variables of an agent: those of its task, and Ray's for this node."""
    variables = dict(task.environment)
    python_paths = [
        python_path
        for python_path in (variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH"))
        if python_path
    ]
    if python_paths:
        variables["PYTHONPATH"] = os.pathsep.join(python_paths)
    if not task.gpus:
        # Ray does not set this for an actor without GPUs, which would see all GPUs of the node
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables
