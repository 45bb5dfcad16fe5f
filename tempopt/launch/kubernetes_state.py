"""How an agent on Kubernetes stands, from what the cluster says of its Job and of its pods; asks nobody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tempopt.errors import shortened
from tempopt.launch.kubernetes_manifest import CONTAINER, HOPELESS, QUEUE, TOLD
from tempopt.launch.launcher import Job

INDEX = "batch.kubernetes.io/job-completion-index"
"""Annotation of a pod with its agent's index."""
JOB = "batch.kubernetes.io/job-name"
"""Label of a pod with the name of its Job."""
_OVER = ("Succeeded", "Failed")
_WAITS_FOR_IMAGE = ("ErrImagePull", "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull")
# Of a pod that comes up as it should.
_USUAL = ("ContainerCreating", "PodInitializing")


def stand(id: str, index: int, job: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> Job:
    """Return how an agent stands.

    Args:
        id: What its launcher calls it.
        index: Its index.
        job: The Job, as the cluster has it.
        pods: The pods of that Job and index, in any order.
    """
    status = job.get("status", {})
    last = newest(pods)
    phase = None if last is None else _phase(last)
    if index in ranges(status.get("completedIndexes")):
        return Job(id=id, state="done", code=0)
    if index in ranges(status.get("failedIndexes")):
        return _failed(id, last)
    if ending := _condition(job, "Failed"):
        return Job(id=id, state="failed", message=f"Kubernetes ended the Job: {ending.get('message', '')}")
    if last is not None and phase not in _OVER and phase != "Pending":
        return Job(id=id, state="running")
    if job["metadata"].get("deletionTimestamp"):
        return Job(id=id, state="gone" if last is None or phase in _OVER else "running")
    if job["spec"].get("suspend"):
        return Job(id=id, state="waiting", message=_suspended(job))
    if last is None:
        return Job(id=id, state="waiting")
    if phase == "Pending":
        return Job(id=id, state="waiting", message=_pending(last))
    return _between(id, last)


def is_over(job: Mapping[str, Any]) -> bool:
    """Return whether all agents of a Job have ended for good."""
    return bool(_condition(job, "Complete") or _condition(job, "Failed"))


def newest(pods: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the pod that an index has now, None if it has none."""

    def order(pod: Mapping[str, Any]) -> tuple[str, bool]:
        # a time in whole seconds may be that of the one before, too
        return str(pod["metadata"].get("creationTimestamp", "")), _phase(pod) not in _OVER

    return max(pods, key=order, default=None)


def _phase(pod: Mapping[str, Any]) -> str | None:
    found: str | None = pod.get("status", {}).get("phase")
    return found


def ranges(given: str | None) -> set[int]:
    """Return the indexes that the status of a Job has as ``1,3-5``."""
    found: set[int] = set()
    for part in filter(None, (given or "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def index_of(pod: Mapping[str, Any]) -> int | None:
    """Return the index of a pod's agent; None if it has none."""
    given = pod["metadata"].get("annotations", {}).get(INDEX, "")
    return int(given) if given.isdecimal() else None


def warning(said: str) -> str:
    """Return what the cluster warns of a Job or a pod that does not begin, in words for a person."""
    if "exceeded quota" in said:
        return f"The quota of its namespace is used up: {shortened(said)}"
    return f"Kubernetes warns: {shortened(said)}"


def _failed(id: str, pod: Mapping[str, Any] | None) -> Job:
    ended = _terminated(pod)
    code = ended.get("exitCode")
    if code in HOPELESS:
        return Job(id=id, state="failed", message=ended.get("message", "").strip(), code=code)
    again = "Its pod has died as often as --launch retries=N allows, the last time so: "
    return Job(id=id, state="failed", message=again + _death(pod), code=code)


def _between(id: str, pod: Mapping[str, Any]) -> Job:
    """Return how an agent stands whose pod is over, when the Job has not taken note of that yet."""
    ended = _terminated(pod)
    if pod["status"]["phase"] == "Succeeded":
        return Job(id=id, state="done", code=0)
    if ended.get("exitCode") in HOPELESS and not _disrupted(pod):
        return _failed(id, pod)
    if ended.get("exitCode") == TOLD or _disrupted(pod):
        return Job(id=id, state="waiting", message="Its pod had to make room, and another is to come.")
    return Job(id=id, state="waiting", message=f"Its pod has died, and another is to come: {_death(pod)}")


def _terminated(pod: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for status in _containers(pod):
        state = status.get("state", {})
        found: Mapping[str, Any] = (
            state.get("terminated") or status.get("lastState", {}).get("terminated") or {}
        )
        return found
    return {}


def _containers(pod: Mapping[str, Any] | None) -> Iterator[Mapping[str, Any]]:
    statuses = [] if pod is None else pod.get("status", {}).get("containerStatuses") or []
    return (each for each in statuses if each.get("name") == CONTAINER)


def _death(pod: Mapping[str, Any] | None) -> str:
    ended = _terminated(pod)
    if ended.get("reason") == "OOMKilled":
        return "it was killed for the memory that it took. Give more memory in resources:."
    status = {} if pod is None else pod.get("status", {})
    said = ended.get("message") or status.get("message") or ended.get("reason") or status.get("reason")
    code = f"exit code {ended['exitCode']}" if "exitCode" in ended else "no exit code"
    return f"{shortened(str(said).strip())} ({code})" if said else f"{code}."


def _disrupted(pod: Mapping[str, Any]) -> bool:
    return bool(_condition(pod, "DisruptionTarget"))


def _condition(of: Mapping[str, Any], kind: str, status: str = "True") -> Mapping[str, Any] | None:
    conditions = of.get("status", {}).get("conditions") or []
    return next((each for each in conditions if each["type"] == kind and each["status"] == status), None)


def _suspended(job: Mapping[str, Any]) -> str:
    queue = job["metadata"].get("labels", {}).get(QUEUE)
    if queue is None:
        return "The Job is suspended. To have it go on, set suspend: false in its spec."
    return f"Kueue has not admitted it yet from the queue {queue}: kubectl get workloads shows its place."


def _pending(pod: Mapping[str, Any]) -> str:
    """Return what a pod that has not begun waits for, as far as it says."""
    placed = _condition(pod, "PodScheduled", "False")
    if placed is not None:
        return f"No node has room for its pod: {shortened(placed.get('message') or placed.get('reason', ''))}"
    for status in _containers(pod):
        waiting = status.get("state", {}).get("waiting", {})
        reason, said = waiting.get("reason", ""), shortened(waiting.get("message") or "")
        if reason in _WAITS_FOR_IMAGE:
            image = pod["spec"]["containers"][0].get("image", "")
            return (
                f"The image {image} cannot be pulled ({reason}): {said} Give one that the nodes can pull "
                "(--launch image=IMAGE), and the registry's Secret if it asks for one (--launch "
                "pull_secrets=NAME)."
            )
        if reason and reason not in _USUAL:
            return f"Its container cannot be started ({reason}): {said}"
    return ""
