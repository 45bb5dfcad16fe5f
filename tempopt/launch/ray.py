"""Agents on a Ray cluster: one that is there already, or one on this machine for as long as the program runs.

An agent asks for all that its workers need, as one actor: Ray places an actor on one node whole or not at
all, and a cluster that can grow sees what it lacks, so no placement group is needed to hold it together.
Every node needs tempopt in the same version; what else a study imports comes with ``working_dir``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import urlsplit

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tempopt.errors import UsageError
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.nodes import split_over
from tempopt.launch.ray_keeper import NAMESPACE, Keeper, Stand, shortly
from tempopt.workers.machine import Machine
from tempopt.workers.placement import Need, room

_HEAD = "node:__internal_head__"
_LINGER = 60.0
_PATIENCE = 60.0
_LEAVING = 900.0
# Agents meet in the database: next to nothing is put into Ray's store, which else takes much of the memory.
_OBJECT_STORE = 100 * 2**20
# What it takes; Ray would put an actor that asks for nothing at all anywhere, whatever it was told.
_KEEPER_MEMORY = 100 * 2**20
_PROBE = """
import sys, ray
try:
    ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
except Exception as error:
    print(error)
    sys.exit(1)
"""


class RayLauncher(Launcher):
    """Starts agents on a Ray cluster; without an address on one of this machine, which ends with the program.

    A cluster may grow: what does not fit yet waits, and Ray's autoscaler sees it. Room is counted on the
    nodes that are there now, whoever else uses them.

    Args:
        options: ``address``, ``working_dir``, ``autoscaling``.

    Raises:
        UsageError: There is another option, no Ray answers at the address or it is of another version, or
            the folder cannot be sent.
    """

    name: ClassVar[str] = "ray"
    OPTIONS: ClassVar[Mapping[str, str]] = {
        "address": "auto, HOST:PORT or ray://HOST:PORT of a Ray cluster; default: RAY_ADDRESS, else a Ray of "
        "this machine's own, started here and ended with the program",
        "working_dir": "folder that is sent to the nodes, in which agents run and find your modules; "
        "default: none, what is imported is on every node",
        "autoscaling": "yes: the cluster grows as agents ask, so that a trial may fit on no node that is "
        "there yet; default: no",
    }

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        given = self.options.get("address") or os.environ.get("RAY_ADDRESS") or "local"
        self.spans_hosts = self.outlives = given != "local"
        if (autoscaling := self.options.get("autoscaling", "no")) not in ("yes", "no"):
            raise UsageError(f'--launch autoscaling={autoscaling}: give "yes" or "no".')
        self._grows = autoscaling == "yes"
        # it travels once; who looks for the agents later need not have it
        folder = self.options.pop("working_dir", None)
        self._sends = folder is not None
        self._started: list[str] = []
        _CONNECTION.take(given, folder)
        if given == "auto":
            # what is found here may not be found from elsewhere
            self.options["address"] = ray.get_runtime_context().gcs_address
        elif self.outlives:
            self.options["address"] = given

    def has_gpus(self) -> bool:
        """Return whether a node has cards, by Ray's own account."""
        return any(machine.has_gpus for machine in _machines())

    def room(self, need: Need) -> int:
        """Return how many trials fit on the nodes that are there, at least 1 if the cluster grows."""
        return max(int(self._grows), sum(room(need, machine) for machine in _machines()))

    def split(self, need: Need, workers: int) -> list[int]:
        """Return the workers of each agent, none with more than fit on its node, the largest first."""
        return sorted(
            split_over([room(need, machine) for machine in _machines()], need.trials_per_card, workers),
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
            ray.get(keeper.jobs.remote(), timeout=_PATIENCE)
        except BaseException as error:
            # nobody else knows of it: it would start agents that cannot be found
            with contextlib.suppress(Exception):
                ray.kill(keeper)
            if not isinstance(error, RayError):
                raise
            raise UsageError(
                f"Ray cannot start agents on its nodes: {shortly(error)} Every node needs tempopt in the "
                "version of this machine, with all that it needs; modules of your own get there with "
                "--launch working_dir=FOLDER."
            ) from error
        started = [f"{name}:{index}" for index in range(len(tasks))]
        self._started += started
        return started

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return how jobs stand, those of earlier programs, too."""
        found: dict[str, Job] = {}
        for name, indices in _by_keeper(ids).items():
            for index, (state, message, code) in zip(indices, _stand(name, indices), strict=True):
                id = f"{name}:{index}"
                found[id] = Job(id=id, state=state, message=message, code=code)
        return [found.get(id) or Job(id=id, state="gone") for id in ids]

    def cancel(self, ids: Sequence[str]) -> None:
        """Have agents leave, all at once, and wait until they have.

        Raises:
            UsageError: Ray does not answer for a while, or agents do not leave.
        """
        keepers = _by_keeper(ids)
        with ThreadPoolExecutor(max(1, len(keepers))) as pool:
            list(pool.map(_leave, keepers, keepers.values()))

    def close(self) -> None:
        """Let go of the cluster; agents on a Ray of this machine's own leave in good order."""
        if not self.outlives:
            self.cancel(self._started)
        _CONNECTION.release()


class _Connection:
    """This program's connection to Ray, of which it can have one; shared by its launchers."""

    def __init__(self) -> None:
        self._address = ""
        self._users = 0
        self._ours = False

    def take(self, address: str, folder: str | None) -> None:
        """Connect, or share the connection that is there."""
        if not ray.is_initialized():
            _connect(address, folder)
            self._address, self._users, self._ours = address, 1, True
            return
        known = {ray.get_runtime_context().gcs_address, "auto"}
        if self._users and self._ours:
            known = {self._address} if self._address == "local" else {*known, self._address}
        if address not in known or folder is not None:
            raise UsageError(
                f"--launch address={address}{f' working_dir={folder}' if folder else ''}: this program is "
                "connected to a Ray already, and can be to one only. Give address=auto to use that one, or "
                "call ray.shutdown() before."
            )
        self._users += 1

    def release(self) -> None:
        """End the connection with its last user, if it was made here."""
        self._users = max(0, self._users - 1)
        if not self._users and self._ours:
            self._ours = False
            ray.shutdown()


_CONNECTION = _Connection()


def _connect(address: str, folder: str | None) -> None:
    if folder is not None and not Path(folder).is_dir():
        raise UsageError(f"--launch working_dir={folder}: there is no such folder.")
    own: dict[str, Any] = {"include_dashboard": False, "object_store_memory": _OBJECT_STORE}
    if address != "local":
        own = {}
        _probe(address)
    if folder is not None:
        own["runtime_env"] = {"working_dir": folder}
    try:
        with _signals_kept(), warnings.catch_warnings():
            # they are meant for people who program with Ray
            warnings.simplefilter("ignore")
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    # Ray raises whatever it comes upon: ConnectionError, RuntimeError, ValueError, ImportError, ...
    except Exception as error:
        raise _unreachable(address, shortly(error)) from error


def _probe(address: str) -> None:
    """Find out whether a Ray answers; Ray's own way of finding out takes minutes and may end the process."""
    if address != "auto":
        place = urlsplit(address if "://" in address else f"//{address}")
        try:
            host, port = place.hostname, place.port
            if not host or not port:
                raise _unreachable(address, "no host and port.")
            socket.create_connection((host, port), timeout=10.0).close()
        except (OSError, ValueError) as error:
            if isinstance(error, UsageError):
                raise
            raise _unreachable(address, f"{error}.") from error
    if "://" in address:
        # there Ray gives up by itself, with an exception and after half a minute
        return
    command = [sys.executable, "-c", _PROBE, address]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise _unreachable(address, f"nothing that speaks as Ray does, within {_PATIENCE:g} s.") from error
    if done.returncode != 0:
        raise _unreachable(address, shortly(done.stdout.decode(errors="replace") or "it ended at once."))


def _unreachable(address: str, why: str) -> UsageError:
    return UsageError(
        f"--launch address={address}: {why} Give HOST:PORT of the head node as ray start printed it (6379 as "
        "a rule), ray://HOST:10001 from outside of the cluster, or auto on one of its nodes; with no "
        "address, and RAY_ADDRESS not set, a Ray is started on this machine."
    )


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Undo what Ray does to signals: what Ctrl-C and SIGTERM do is for the program to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _nodes() -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _machines() -> list[Machine]:
    """Return what each node has; Ray speaks of cards by number."""
    return [
        Machine(
            cores=int(has.get("CPU", 0)),
            memory=int(has.get("memory", 0)),
            cards=tuple(map(str, range(int(has.get("GPU", 0))))),
        )
        for has in (node["Resources"] for node in _nodes())
    ]


def _place_of_keepers() -> NodeAffinitySchedulingStrategy | None:
    """Return the head node if it is there: what ends it ends the cluster, so a keeper is lost last there."""
    heads = [node["NodeID"] for node in _nodes() if _HEAD in node["Resources"]]
    return NodeAffinitySchedulingStrategy(heads[0], soft=True) if heads else None


def _by_keeper(ids: Sequence[str]) -> dict[str, list[int]]:
    """Return the indices of jobs by the name of their keeper, without what is no id of ours."""
    found: dict[str, list[int]] = {}
    for id in ids:
        name, _, index = id.rpartition(":")
        if name and index.isdecimal():
            found.setdefault(name, []).append(int(index))
    return found


def _stand(name: str, indices: Sequence[int]) -> list[Stand]:
    try:
        keeper: Any = ray.get_actor(name, namespace=NAMESPACE)
        stands: list[Stand] = ray.get(keeper.jobs.remote(), timeout=_PATIENCE)
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
                    f"What keeps the agents {name} on Ray does not answer: {shortly(error)} Try again once "
                    "the cluster has settled."
                ) from error
            time.sleep(1.0)
