"""Agents on a Ray cluster: one that is there already, or one on this machine for as long as the program runs.

An agent asks for all that its workers need, as one actor: Ray places an actor on one node whole or not at
all, and a cluster that can grow sees what it lacks, so no placement group is needed to hold it together.
Every node needs tempopt in the same version; what else a study imports comes with ``working_dir``.
"""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, ClassVar

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tempopt.agent.machine import Machine
from tempopt.agent.placement import capacity
from tempopt.errors import UsageError
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.node_split import split_over
from tempopt.launch.ray_connection import CONNECTION
from tempopt.launch.ray_errors import summarize_error
from tempopt.launch.ray_keeper import NAMESPACE, AgentStatus, Keeper
from tempopt.spec.resources import Need

_HEAD = "node:__internal_head__"
_LINGER = 60.0
_PATIENCE = 60.0
# A node that is busy takes a while to start the process of an actor.
_STARTING = 180.0
_LEAVING = 900.0
# What it takes; Ray would put an actor that asks for nothing at all anywhere, whatever it was told.
_KEEPER_MEMORY = 100 * 2**20


class RayLauncher(Launcher):
    """Starts agents on a Ray cluster; without an address on one of this machine, which ends with the program.

    A cluster may grow: what does not fit yet waits, and Ray's autoscaler sees it. Room is counted on the
    nodes that are there now, others may use them too.

    Args:
        options: ``address``, ``working_dir``, ``autoscaling``, ``token_file``.

    Raises:
        UsageError: There is another option, no Ray answers at the address or it is of another version, the
            folder cannot be sent, or the cluster asks for a token that is not given.
    """

    name: ClassVar[str] = "ray"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "address": "auto, HOST:PORT or ray://HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a Ray of "
        "this machine's own, started here and ended with the program",
        "working_dir": "folder that is sent to the nodes, in which agents run and find your modules; "
        "default: none, what is imported is on every node",
        "autoscaling": "yes: the cluster grows as agents ask, so that a trial may fit on no node that is "
        "there yet; default: no",
        "token_file": "file whose only word is the token of a cluster that asks for one; default: "
        "RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH, else ~/.ray/auth_token",
    }

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        address = self.options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
        self.is_multi_host = self.survives_command = address != "local"
        if (autoscaling := self.options.get("autoscaling", "no")) not in ("yes", "no"):
            raise UsageError(f'--launch autoscaling={autoscaling}: give "yes" or "no".')
        self._grows = autoscaling == "yes"
        # it travels once; who looks for the agents later need not have it
        folder = self.options.pop("working_dir", None)
        # nor its token, whose file is another's nowhere else
        token_file = self.options.pop("token_file", None)
        self._sends = folder is not None
        self._started: list[str] = []
        CONNECTION.acquire(address, folder, token_file)
        if address == "auto":
            # what is found here may not be found from elsewhere
            self.options["address"] = ray.get_runtime_context().gcs_address
        elif self.survives_command:
            self.options["address"] = address

    def has_gpus(self) -> bool:
        """Return whether a node has cards, by Ray's own account."""
        return any(machine.has_gpus for machine in _machines())

    def capacity(self, need: Need) -> int:
        """Return how many trials fit on the nodes that are there, at least 1 if the cluster grows."""
        return max(int(self._grows), sum(capacity(need, machine) for machine in _machines()))

    def split(self, need: Need, workers: int) -> list[int]:
        """Return the workers of each agent, none with more than fit on its node, the largest first."""
        return sorted(
            split_over([capacity(need, machine) for machine in _machines()], need.trials_per_card, workers),
            reverse=True,
        )

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Start an agent for each task as soon as a node has room for it, and return the ids of their jobs.

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
                memory=_KEEPER_MEMORY,
                max_restarts=-1,
                max_task_retries=-1,
                max_concurrency=8,
                scheduling_strategy=_place_of_keepers(),
            )
            # one by one: a small argument is kept by the cluster, a large one would go with this program
            .remote(name, _LINGER, *tasks)
        )
        try:
            ray.get(keeper.jobs.remote(), timeout=_STARTING)
        except BaseException as error:
            # nothing else knows of it: it would start agents that cannot be found
            with contextlib.suppress(Exception):
                ray.kill(keeper)
            if not isinstance(error, RayError):
                raise
            raise UsageError(_not_started(error)) from error
        started = [f"{name}:{index}" for index in range(len(tasks))]
        self._started += started
        return started

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return how jobs stand, those of earlier programs, too."""
        jobs_by_id: dict[str, Job] = {}
        for name, indices in _by_keeper(ids).items():
            for index, (state, message, code) in zip(indices, _stand(name, indices), strict=True):
                id = f"{name}:{index}"
                jobs_by_id[id] = Job(id=id, state=state, message=message, code=code)
        return [jobs_by_id.get(id) or Job(id=id, state="gone") for id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        """Have agents leave, all at once, and wait until they have.

        Raises:
            UsageError: Ray does not answer for a while, or agents do not leave.
        """
        keepers = _by_keeper(ids)
        with ThreadPoolExecutor(max(1, len(keepers))) as pool:
            list(pool.map(_leave, keepers, keepers.values()))

    def close(self) -> None:
        """Disconnect from the cluster; agents on a Ray of this machine's own leave in good order."""
        if not self.survives_command:
            self.cancel(self._started)
        CONNECTION.release()


def _not_started(error: RayError) -> str:
    """Return what to tell a person whose agents' keeper has not been started."""
    if isinstance(error, GetTimeoutError):
        return (
            f"Ray has started nothing on its nodes within {_STARTING:g} s. What keeps agents running asks "
            f"for {_KEEPER_MEMORY // 2**20} MiB of memory: ray status, on the head node, says whether a node "
            "has that free. If one has, the nodes are busy: try again later."
        )
    return (
        f"Ray cannot start agents on its nodes: {summarize_error(error)} Every node needs tempopt in the "
        "version of this machine, with all that it needs; modules of your own get there with --launch "
        "working_dir=FOLDER."
    )


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _machines() -> list[Machine]:
    """Return what each node has; Ray speaks of cards by number."""
    return [
        Machine(
            cores=int(node_resources.get("CPU", 0)),
            memory=int(node_resources.get("memory", 0)),
            cards=tuple(map(str, range(int(node_resources.get("GPU", 0))))),
        )
        for node_resources in (node["Resources"] for node in _nodes())
    ]


def _place_of_keepers() -> NodeAffinitySchedulingStrategy | None:
    """Return the head node if it is there: what ends it ends the cluster, so a keeper is lost last there."""
    heads = [node["NodeID"] for node in _nodes() if _HEAD in node["Resources"]]
    return NodeAffinitySchedulingStrategy(heads[0], soft=True) if heads else None


def _by_keeper(ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of jobs by the name of their keeper, without what is no id of ours."""
    indices_by_keeper: dict[str, list[int]] = {}
    for id in ids:
        name, _, index = id.rpartition(":")
        if name and index.isdecimal():
            indices_by_keeper.setdefault(name, []).append(int(index))
    return indices_by_keeper


def _stand(name: str, indices: Sequence[int]) -> list[AgentStatus]:
    try:
        keeper: Any = ray.get_actor(name, namespace=NAMESPACE)
        stands: list[AgentStatus] = ray.get(keeper.jobs.remote(), timeout=_PATIENCE)
        return [stands[index] if index < len(stands) else ("gone", "", None) for index in indices]
    except (GetTimeoutError, ActorUnavailableError):
        return [("waiting", "what keeps it is being started again on another node", None)] * len(indices)
    except (ValueError, ActorDiedError):
        return [("gone", "", None)] * len(indices)


def _leave(name: str, indices: Sequence[int]) -> None:
    """Have agents of a keeper leave, and wait until they have."""
    give_up = time.monotonic() + _PATIENCE
    while True:
        try:
            keeper: Any = ray.get_actor(name, namespace=NAMESPACE)
            ray.get(keeper.leave.remote(indices), timeout=_LEAVING)
            return
        except (ValueError, ActorDiedError):
            # a keeper that is not there has no agents any more
            return
        except GetTimeoutError as error:
            raise UsageError(
                f"The agents {name} on Ray have been told to leave, and have not left within {_LEAVING:g} s. "
                "They go on leaving; look again with tempopt show."
            ) from error
        except ActorUnavailableError as error:
            if time.monotonic() > give_up:
                raise UsageError(
                    f"What keeps the agents {name} on Ray does not answer: {summarize_error(error)} Try "
                    "again once the cluster has settled."
                ) from error
            time.sleep(1.0)
