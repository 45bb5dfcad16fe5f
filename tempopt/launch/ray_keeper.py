"""What runs on a Ray cluster itself: a keeper for the agents of one launch, and each agent on its node.

The keeper outlives the program that asked for the agents, and its node, too; how it is reached is ray.py's.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError
from ray.experimental import internal_kv

from tempopt.launch.launcher import State, Task
from tempopt.launch.ray_errors import summarize_error
from tempopt.launch.supervise import ExitInfo, RestartPolicy, Supervisor

NAMESPACE = "tempopt"
"""Where on the cluster the keepers are found."""

AgentStatus = tuple[State, str, int | None]
"""State, message and exit code of an agent; see :class:`tempopt.launch.launcher.Job`."""

_DONE_STATUS: AgentStatus = ("done", "", None)


class _FinalStatusStore:
    """How agents ended, kept by the cluster's head node: a keeper that is lost takes nothing along.

    Ray offers nothing else that outlives an actor and needs no other; its own libraries keep their state so.

    Args:
        keeper: Name of the keeper.
    """

    def __init__(self, keeper: str) -> None:
        self._keeper = keeper

    def read(self, index: int) -> AgentStatus | None:
        """Return how an agent ended; None if it has not."""
        data = internal_kv._internal_kv_get(self._key(index), namespace=NAMESPACE)
        return None if data is None else tuple(json.loads(data))

    def write(self, index: int, stand: AgentStatus) -> None:
        """Note how an agent ended."""
        internal_kv._internal_kv_put(self._key(index), json.dumps(stand), namespace=NAMESPACE)

    def clear(self) -> None:
        """Forget them all."""
        internal_kv._internal_kv_del(f"{self._keeper}:", del_by_prefix=True, namespace=NAMESPACE)

    def _key(self, index: int) -> str:
        return f"{self._keeper}:{index}"


class Keeper:
    """Keeps agents running on the cluster, without the command that started them; ends soon after the last.

    If it is lost with its node, Ray starts it again elsewhere with the same tasks, and ends the agents that
    it had started; it then starts those anew that had neither ended nor been told to leave.

    Args:
        name: What it is called.
        linger: Seconds for which it still answers when all agents have ended.
        tasks: The agents.
    """

    def __init__(self, name: str, linger: float, *tasks: Task) -> None:
        self._ends = _FinalStatusStore(name)
        self._agents = [_SupervisedAgent(task, index, self._ends) for index, task in enumerate(tasks)]
        threading.Thread(target=self._end_after_them, args=(linger,), daemon=True).start()

    def jobs(self) -> list[AgentStatus]:
        """Return how each agent stands."""
        return [agent.stand for agent in self._agents]

    def leave(self, indices: Sequence[int]) -> None:
        """Have agents leave and start them no more; return once they have left."""
        leaving = [threading.Thread(target=self._agents[i].leave) for i in indices if i < len(self._agents)]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join()

    def _end_after_them(self, linger: float) -> None:
        for agent in self._agents:
            agent.join()
        time.sleep(linger)
        self._ends.clear()
        ray.kill(ray.get_runtime_context().current_actor)


class _SupervisedAgent:
    """One agent and the thread that starts it again, wherever there is room, when it is lost."""

    def __init__(self, task: Task, index: int, ends: _FinalStatusStore) -> None:
        ending = ends.read(index)
        self.stand: AgentStatus = ending or ("waiting", "", None)
        self._task, self._index, self._ends = task, index, ends
        self._actor: Any = None
        self._ran_from = math.inf
        self._leaving = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, daemon=True)
        if ending is None:
            self._thread.start()

    def join(self) -> None:
        """Wait until the agent has ended for good."""
        if self._thread.ident is not None:
            self._thread.join()

    def leave(self) -> None:
        """Have the agent leave and start it no more; return once it has left."""
        with self._lock:
            if self.stand[0] in ("done", "failed"):
                return
            # before it has left: a keeper that is lost meanwhile is not to start it again
            self._ends.write(self._index, _DONE_STATUS)
            self._leaving.set()
            actor, is_waiting = self._actor, self.stand[0] == "waiting"
        if actor is not None:
            with contextlib.suppress(RayError):
                if is_waiting:
                    ray.kill(actor)
                else:
                    ray.get(actor.leave.remote())
        self.join()

    def _run(self) -> None:
        lives = RestartPolicy()
        while True:
            self._ran_from = math.inf
            try:
                ending = self._once()
            except RayError as error:
                pause = lives.next_restart_delay(time.monotonic() - self._ran_from)
                if self._leaving.is_set():
                    self._end(_DONE_STATUS)
                    return
                if pause is None:
                    self._end(("failed", summarize_error(error), None))
                    return
                self.stand = ("waiting", f"to be started again: {summarize_error(error)}", None)
                self._leaving.wait(pause)
            else:
                self._end(("done" if ending.is_clean else "failed", ending.message, ending.code))
                return

    def _end(self, stand: AgentStatus) -> None:
        with self._lock:
            self.stand = stand
            self._ends.write(self._index, stand)

    def _once(self) -> ExitInfo:
        with self._lock:
            if self._leaving.is_set():
                return ExitInfo(code=130)
            self._actor = actor = _create_agent_actor(self._task)
        try:
            ray.get(actor.ready.remote())
            with self._lock:
                self.stand = ("running", "", None)
                self._ran_from = time.monotonic()
            ending: ExitInfo = ray.get(actor.run.remote())
            return ending
        finally:
            # it holds its cards for as long as it is there
            ray.kill(actor)


def _create_agent_actor(task: Task) -> Any:
    """Ask Ray for a node with room for an agent."""
    resources: dict[str, Any] = {"num_cpus": task.cpus, "num_gpus": task.gpus}
    if task.memory is not None:
        resources["memory"] = task.memory
    # it is its keeper that starts it again, which thus knows what waits for room
    return ray.remote(_Agent).options(max_restarts=0, max_concurrency=3, **resources).remote(task)


class _Agent:
    """An agent on a node, as a child process that ends with its worker."""

    def __init__(self, task: Task) -> None:
        self._supervisor = Supervisor(replace(task, environment=_environment(task)))

    def ready(self) -> None:
        """Return as soon as there is room."""

    def run(self) -> ExitInfo:
        """Run the agent until it has ended for good."""
        return self._supervisor.run()

    def leave(self) -> None:
        """Have the agent leave in good order."""
        self._supervisor.leave()


def _environment(task: Task) -> dict[str, str]:
    """Return the variables of an agent: those of its task, with what Ray has said about this node."""
    variables = dict(task.environment)
    paths = [path for path in (variables.get("PYTHONPATH"), os.environ.get("PYTHONPATH")) if path]
    if paths:
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    if not task.gpus:
        # Ray says nothing to a worker without cards, which then sees those of all others
        variables["CUDA_VISIBLE_DEVICES"] = ""
    return variables
