"""Agents as pods of a Kubernetes cluster: those of a study with the same task are one Indexed Job.

What a Job looks like is kubernetes_manifest.py's, what a pod runs kubernetes_pod.py's, and how the cluster's
words are read kubernetes_state.py's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from kubernetes.utils.quantity import parse_quantity

from tempopt.errors import UsageError
from tempopt.launch import kubernetes_manifest as manifest
from tempopt.launch import kubernetes_options, kubernetes_state
from tempopt.launch.kubernetes_cluster import AwayError, Cluster
from tempopt.launch.launcher import Job, Launcher, Task
from tempopt.launch.nodes import split_over
from tempopt.remote.credentials import token_for
from tempopt.store import checkpoints
from tempopt.workers.machine import Machine
from tempopt.workers.placement import Need, room

# Ids come from the database: none names what tempopt did not create, whose labels are looked at as well.
_ID = re.compile(r"(?P<namespace>[a-z0-9-]+)/(?P<job>tempopt-[a-z0-9-]+):(?P<index>[0-9]{1,6})")
_SELECTED = f"{manifest.MANAGED_BY}={manifest.MANAGER}"
_ALIVE = ("waiting", "running")
# Where nodes cannot be seen or are added, study.parallel and --agents are the only bounds.
_ANY_ROOM = 10_000
_LOOK = 0.5
# What the cluster takes for itself when pods end.
_ENDING = 120.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """The Jobs of one namespace that tempopt created, and their pods by Job and index."""

    jobs: Mapping[str, Mapping[str, Any]]
    pods: Mapping[tuple[str, int], Sequence[Mapping[str, Any]]]


class KubernetesLauncher(Launcher):
    """Starts agents as Indexed Jobs of a Kubernetes cluster, which replaces pods that die or make room.

    Agents of a study that have the same task are one Job, and leave together: Kubernetes cannot end one index
    of a Job. So each agent of the pool is a Job of its own.

    Args:
        options: See ``OPTIONS``.

    Raises:
        UsageError: There is no kubeconfig and this is no pod, or an option cannot be.
    """

    name: ClassVar[str] = "kubernetes"
    OPTIONS: ClassVar[Mapping[str, str]] = kubernetes_options.OPTIONS
    spans_hosts = True
    outlives = True

    def __init__(self, options: Mapping[str, str]) -> None:
        super().__init__(options)
        self._pods = kubernetes_options.read(self.options)
        self._gpus = kubernetes_options.choice(self.options, "gpus")
        self._grows = bool(kubernetes_options.choice(self.options, "autoscaling"))
        given = kubernetes_options.namespace(self.options)
        self._cluster = Cluster(self.options.get("kubeconfig"), self.options.get("context"))
        self._namespace = given or self._cluster.namespace
        self._seen: dict[str, Job] = {}

    def has_gpus(self) -> bool:
        """Return whether agents get GPUs, as the option ``gpus`` says or else the nodes.

        Raises:
            UsageError: Neither says.
        """
        if self._gpus is not None:
            return self._gpus
        machines = self._machines(gpus=1)
        if machines is None:
            raise UsageError(
                f"You may not list the nodes of {self._cluster.shown}, so whether they have GPUs is not "
                "known. Say whether agents get some: --launch gpus=yes or --launch gpus=no"
            )
        return any(machine.has_gpus for machine in machines)

    def room(self, need: Need) -> int:
        """Return how many trials fit on the nodes that pods may go to, were these empty.

        As many as anybody asks for where nodes are added, or cannot be seen.
        """
        machines = self._machines(gpus=need.gpus)
        if machines is None or self._grows:
            return _ANY_ROOM
        return sum(room(need, machine) for machine in machines)

    def split(self, need: Need, workers: int) -> list[int]:
        """Return the workers of each agent, none with more than fit on one node."""
        rooms = [room(need, machine) for machine in self._machines(gpus=need.gpus) or ()]
        return split_over(rooms, need.trials_per_card, workers)

    def _machines(self, gpus: float) -> list[Machine] | None:
        """Return the nodes that pods may go to; None if they cannot be seen."""
        nodes = self._cluster.nodes()
        if nodes is None:
            return None
        tolerated = manifest.tolerations(int(gpus > 0), self._pods)
        return [self._machine(node) for node in nodes if self._is_usable(node, tolerated)]

    def _is_usable(self, node: Mapping[str, Any], tolerated: tuple[Mapping[str, str], ...]) -> bool:
        spec, labels = node.get("spec", {}), node["metadata"].get("labels", {})
        ready = {each["type"]: each["status"] for each in node.get("status", {}).get("conditions", [])}
        return (
            ready.get("Ready") == "True"
            and not spec.get("unschedulable")
            and self._pods.node_selector.items() <= labels.items()
            and all(kubernetes_options.tolerates(tolerated, taint) for taint in spec.get("taints") or [])
        )

    def _machine(self, node: Mapping[str, Any]) -> Machine:
        has = {name: parse_quantity(amount) for name, amount in node["status"]["allocatable"].items()}
        return Machine(
            cores=int(has.get("cpu", 0)),
            memory=int(has.get("memory", 0)),
            cards=tuple(map(str, range(int(has.get(self._pods.gpu_resource, 0))))),
        )

    def start(self, tasks: Sequence[Task]) -> list[str]:
        """Create a Job for agents with the same task, and for each agent of the pool.

        Raises:
            UsageError: The cluster refuses one, or checkpoints would be lost with a pod; no Job is left then.
        """
        for task in tasks:
            self._refuse_lost_checkpoints(task)
        ids: dict[int, str] = {}
        created: list[str] = []
        try:
            for members in _alike(tasks):
                name = manifest.name(tasks[members[0]])
                created.append(f"{self._namespace}/{name}:0")
                self._create(name, tasks[members[0]], len(members))
                ids |= {member: f"{self._namespace}/{name}:{index}" for index, member in enumerate(members)}
        except BaseException:
            # agents that nobody can find again are worse than none
            with contextlib.suppress(UsageError):
                self.cancel(created)
            raise
        return [ids[index] for index in range(len(tasks))]

    def _create(self, name: str, task: Task, agents: int) -> None:
        job = self._cluster.create_job(self._namespace, manifest.job(name, task, agents, self._pods))
        # behind the Job, so that it goes when that goes, and before the first pod, which needs it
        contents = manifest.contents(task, self._pods, self._token(task))
        self._cluster.create_secret(self._namespace, manifest.secret(name, job["metadata"]["uid"], contents))
        if self._pods.queue is None:
            self._cluster.begin_job(self._namespace, name)

    def _token(self, task: Task) -> str | None:
        if task.pool is None or task.pool.token_file is None or self._pods.token_secret is not None:
            return None
        return token_for(task.storage, Path(task.pool.token_file))

    def _refuse_lost_checkpoints(self, task: Task) -> None:
        words = dict(zip(task.options[::2], task.options[1::2], strict=False))
        place = words.get("--checkpoints") or (task.pool.checkpoints if task.pool is not None else None)
        if place is not None and checkpoints.is_local(place) and not self._pods.holds(place):
            raise UsageError(
                f"Checkpoints would go to {place}, a folder that pods lose when they end. Give a bucket "
                "(--checkpoints s3://bucket/runs), or a folder on a claim that all pods share "
                "(--launch volumes=claim/NAME:/runs --checkpoints /runs)."
            )

    def jobs(self, ids: Sequence[str]) -> list[Job]:
        """Return how jobs stand, those of earlier programs, too.

        While the cluster does not answer, as they stood when it last did: a search goes on without it.
        """
        try:
            found = self._stand(ids)
        except AwayError as error:
            return [self._seen.get(id, Job(id=id, state="waiting", message=str(error))) for id in ids]
        self._seen.update({job.id: job for job in found})
        return found

    def _stand(self, ids: Sequence[str]) -> list[Job]:
        parsed = {id: match for id in ids if (match := _ID.fullmatch(id)) is not None}
        spaces = dict.fromkeys(match["namespace"] for match in parsed.values())
        known = {space: self._known(space) for space in spaces}
        found = []
        for id in ids:
            match = parsed.get(id)
            job = None if match is None else known[match["namespace"]].jobs.get(match["job"])
            if match is None or job is None or int(match["index"]) >= job["spec"]["completions"]:
                found.append(
                    Job(id=id, state="gone", message=f"There is no such Job in {self._cluster.shown}.")
                )
                continue
            pods = known[match["namespace"]].pods.get((match["job"], int(match["index"])), ())
            one = kubernetes_state.stand(id, int(match["index"]), job, pods)
            found.append(self._explained(one, match["namespace"], job, pods))
        return found

    def _known(self, namespace: str) -> _Known:
        jobs = {job["metadata"]["name"]: job for job in self._cluster.jobs(namespace, _SELECTED)}
        pods: dict[tuple[str, int], list[Mapping[str, Any]]] = {}
        for pod in self._cluster.pods(namespace, _SELECTED):
            index = kubernetes_state.index_of(pod)
            if index is not None:
                of = pod["metadata"].get("labels", {}).get(kubernetes_state.JOB, "")
                pods.setdefault((of, index), []).append(pod)
        return _Known(jobs, pods)

    def _explained(
        self, job: Job, namespace: str, owner: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]
    ) -> Job:
        """Return a job that waits without a reason with what the cluster warns of, if it does."""
        if job.state != "waiting" or job.message:
            return job
        about = kubernetes_state.newest(pods) or owner
        warned = self._cluster.warnings(namespace, about["metadata"]["name"])
        return dataclasses.replace(job, message=kubernetes_state.warning(warned[-1])) if warned else job

    def of_pool(self, key: str) -> list[str]:
        """Return the ids of jobs that have not ended whose tasks are the pool's with that key."""
        found = self._cluster.jobs(self._namespace, f"{_SELECTED},{manifest.POOL}={key}")
        names = [job["metadata"]["name"] for job in found if not job["metadata"].get("deletionTimestamp")]
        return [
            job.id
            for job in self._stand([f"{self._namespace}/{name}:0" for name in names])
            if job.state in _ALIVE
        ]

    def cancel(self, ids: Sequence[str]) -> None:
        """Delete the Jobs of agents, which has all agents of these leave, and wait until they have.

        Raises:
            UsageError: Agents do not leave, or the cluster does not answer.
        """
        wanted = {
            (found["namespace"], found["job"]) for id in ids if (found := _ID.fullmatch(id)) is not None
        }
        left = self._graces(wanted)
        grace = max(left.values(), default=0.0)
        for namespace, name in left:
            self._cluster.delete_job(namespace, name)
        give_up = time.monotonic() + grace + _ENDING
        while left := self._graces(wanted):
            if time.monotonic() > give_up:
                names = ", ".join(name for _, name in left)
                raise UsageError(
                    f"The agents of {names} have been told to leave, and {self._cluster.shown} has not seen "
                    f"them leave within {grace + _ENDING:g} s: their node may be lost. Look with: kubectl "
                    "get pods --output wide"
                )
            time.sleep(_LOOK)

    def _graces(self, wanted: set[tuple[str, str]]) -> dict[tuple[str, str], float]:
        """Return those Jobs that have not ended, each with the seconds that its pods have to leave.

        The others stay for a while, with what their pods printed.
        """
        return {
            (namespace, name): float(job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"])
            for namespace in dict.fromkeys(namespace for namespace, _ in wanted)
            for job in self._cluster.jobs(namespace, _SELECTED)
            if (namespace, name := job["metadata"]["name"]) in wanted and not kubernetes_state.is_over(job)
        }

    def close(self) -> None:
        """Let go of the cluster; agents go on."""
        self._cluster.close()


def _alike(tasks: Sequence[Task]) -> Iterator[list[int]]:
    """Yield the indices of tasks that one Job is for."""
    found: dict[str, list[int]] = {}
    for index, task in enumerate(tasks):
        alone = f"{index} " if task.pool is not None else ""
        found.setdefault(alone + json.dumps(dataclasses.asdict(task), sort_keys=True), []).append(index)
    yield from found.values()
