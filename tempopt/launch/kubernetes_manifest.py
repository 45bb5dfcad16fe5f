"""The manifests of agents on Kubernetes: an Indexed Job, and the Secret that says what its agents are to do.

Asks no cluster. What a pod runs is kubernetes_pod.py's.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import secrets
from typing import Any

from tempopt.launch.kubernetes_options import (
    GIVEN,
    OURS,
    SCRATCH,
    SHARED_MEMORY,
    WORK,
    PodOptions,
    Volume,
)
from tempopt.launch.launcher import Task

MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "tempopt-launcher"
"""Label, and its value, of everything that the launcher has created."""
POOL = f"{OURS}pool"
"""Label with the key of the pool's agents."""
FOR = f"{OURS}for"
"""Annotation with what an agent's task is called."""
QUEUE = "kueue.x-k8s.io/queue-name"
"""Label by which Kueue queues a Job."""
CONTAINER = "agent"
"""Name of the container that an agent runs in."""
TERMINATION = "/dev/termination-log"
"""File in the container that the cluster keeps the last words of."""
TASK, STORAGE, TOKEN = "task", "storage", "token"
"""Names of the files in which an agent finds its task, the database's URL and the server's token."""
HOPELESS = (1, 2)
"""Exit codes of an agent that ended by itself with an error, so that another pod would not get further."""
TOLD = 143
"""Exit code of a pod that was told to end, and ended in good order: another takes its place."""

# Workers write their checkpoints in resources.grace, then the agent tells the database.
_LEAVING = 40
_PREFIX = "tempopt-"
# A pod is called after its Job, with -INDEX and -XXXXX behind.
_LONGEST_NAME = 50


def name(task: Task) -> str:
    """Return a new name for a Job: what its task is called, as far as names allow, and what no other has."""
    end = secrets.token_hex(4)
    words = re.sub(r"[^a-z0-9]+", "-", task.label.lower()).strip("-")
    words = words[: _LONGEST_NAME - len(_PREFIX) - len(end) - 1].strip("-")
    return f"{_PREFIX}{words}-{end}" if words else f"{_PREFIX}{end}"


def job(name: str, task: Task, agents: int, options: PodOptions) -> dict[str, Any]:
    """Return the Indexed Job of agents with the same task, an index each.

    Args:
        name: Its name.
        task: What each of them is to do.
        agents: How many, >= 1.
        options: What its pods are like.
    """
    labels = {**options.labels, MANAGED_BY: MANAGER, "app.kubernetes.io/name": "tempopt"}
    if task.pool is not None:
        labels[POOL] = task.pool.key
    queue = {} if options.queue is None else {QUEUE: options.queue}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": {**labels, **queue}, "annotations": {FOR: task.label}},
        "spec": {
            "completionMode": "Indexed",
            "completions": agents,
            "parallelism": agents,
            "backoffLimitPerIndex": options.retries,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": _rules()},
            "ttlSecondsAfterFinished": options.keep,
            # until its Secret is there, and with a queue until Kueue has room for it
            "suspend": True,
            "template": {
                "metadata": {"labels": labels, "annotations": {FOR: task.label}},
                "spec": _pod(name, task, options),
            },
        },
    }


def secret(name: str, owner: str, contents: dict[str, str]) -> dict[str, Any]:
    """Return the Secret of a Job, which goes when the Job goes.

    Args:
        name: Name of both.
        owner: The Job's uid.
        contents: What its agents are to find, by the name of the file.
    """
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "immutable": True,
        "metadata": {
            "name": name,
            "labels": {MANAGED_BY: MANAGER},
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": owner}],
        },
        "stringData": contents,
    }


def contents(task: Task, options: PodOptions, token: str | None) -> dict[str, str]:
    """Return what the Secret of a Job holds.

    Args:
        task: What its agents are to do.
        options: What its pods are like.
        token: The token for the server; None: none is needed, or a Secret has it.
    """
    without = dataclasses.replace(task, storage="")
    found = {TASK: json.dumps(dataclasses.asdict(without))}
    if options.storage_secret is None:
        found[STORAGE] = task.storage
    if token is not None and options.token_secret is None:
        found[TOKEN] = token
    return found


def resources(task: Task, options: PodOptions) -> dict[str, dict[str, str]]:
    """Return what a pod requests of its node, and what it is limited to."""
    # by the limit an agent of the pool knows which of its node's cores are its own
    requests, limits = {"cpu": str(task.cpus), **options.requests}, {"cpu": str(task.cpus), **options.limits}
    if task.memory is not None:
        requests["memory"] = limits["memory"] = str(task.memory)
    if task.gpus:
        requests[options.gpu_resource] = limits[options.gpu_resource] = str(task.gpus)
    return {"requests": requests, "limits": limits}


def tolerations(gpus: int, options: PodOptions) -> tuple[dict[str, str], ...]:
    """Return the taints that a pod tolerates: those of nodes with GPUs, too, if it takes some."""
    # nodes with GPUs are often tainted by the name of the resource, to keep other pods off
    cards = ({"key": options.gpu_resource, "operator": "Exists"},) if gpus else ()
    return (*map(dict, options.tolerations), *cards)


def _rules() -> list[dict[str, Any]]:
    """Return what becomes of an agent whose pod has failed; what no rule fits is counted, and replaced."""
    return [
        # a node is drained, a pod with a higher priority takes the place, a spot machine goes
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "Ignore", "onExitCodes": _codes(TOLD)},
        {"action": "FailIndex", "onExitCodes": _codes(*HOPELESS)},
    ]


def _codes(*codes: int) -> dict[str, Any]:
    return {"containerName": CONTAINER, "operator": "In", "values": list(codes)}


def _pod(name: str, task: Task, options: PodOptions) -> dict[str, Any]:
    tolerated = tolerations(task.gpus, options)
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(task.grace) + _LEAVING,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": options.user,
            "runAsGroup": options.user,
            "fsGroup": options.user,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **(
            {"imagePullSecrets": [{"name": each} for each in options.pull_secrets]}
            if options.pull_secrets
            else {}
        ),
        **({"nodeSelector": dict(options.node_selector)} if options.node_selector else {}),
        **({"tolerations": list(tolerated)} if tolerated else {}),
        "containers": [_container(task, options)],
        "volumes": [
            {"name": "given", "projected": {"defaultMode": 0o440, "sources": _sources(name, options)}},
            {"name": "work", "emptyDir": {}},
            {"name": "scratch", "emptyDir": {}},
            # data loaders hand batches over by shared memory
            {
                "name": "shm",
                "emptyDir": {"medium": "Memory", **({"sizeLimit": options.shm} if options.shm else {})},
            },
            *(_volume(number, each) for number, each in enumerate(options.volumes)),
        ],
    }


def _container(task: Task, options: PodOptions) -> dict[str, Any]:
    secrets = [{"secretRef": {"name": each}} for each in options.env_secrets]
    mounts = {"work": WORK, "scratch": SCRATCH, "shm": SHARED_MEMORY}
    return {
        "name": CONTAINER,
        "image": options.image,
        # -P: a module in the folder takes no package's place
        "command": ["python", "-P", "-m", "tempopt.launch.kubernetes_pod", GIVEN, TERMINATION],
        "workingDir": WORK,
        "env": [{"name": "HOME", "value": SCRATCH}, {"name": "PYTHONUNBUFFERED", "value": "1"}],
        **({"envFrom": secrets} if secrets else {}),
        "resources": resources(task, options),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "terminationMessagePath": TERMINATION,
        # of one that could not say anything, what it printed last
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "given", "mountPath": GIVEN, "readOnly": True},
            *({"name": each, "mountPath": path} for each, path in mounts.items()),
            *(
                {"name": f"volume-{number}", "mountPath": each.path, "readOnly": each.read_only}
                for number, each in enumerate(options.volumes)
            ),
        ],
    }


def _sources(name: str, options: PodOptions) -> list[dict[str, Any]]:
    """Return the Secrets in which an agent finds what it is to do."""
    named = [(options.storage_secret, "url", STORAGE), (options.token_secret, "token", TOKEN)]
    theirs = [
        {"secret": {"name": each, "items": [{"key": key, "path": file}]}} for each, key, file in named if each
    ]
    return [{"secret": {"name": name}}, *theirs]


def _volume(number: int, volume: Volume) -> dict[str, Any]:
    sources: dict[str, dict[str, Any]] = {
        "claim": {"persistentVolumeClaim": {"claimName": volume.name}},
        "secret": {"secret": {"secretName": volume.name, "defaultMode": 0o440}},
        "configmap": {"configMap": {"name": volume.name}},
    }
    return {"name": f"volume-{number}", **sources[volume.kind]}
