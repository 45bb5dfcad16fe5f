"""What ``--launch`` says of the pods of a Kubernetes cluster: each option read, and refused if it cannot be.

Makes no manifest, which is kubernetes_manifest.py's, and asks no cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from tempopt.errors import UsageError
from tempopt.version import __version__

WORK, SCRATCH, SHARED_MEMORY, GIVEN = "/data", "/tmp", "/dev/shm", "/etc/tempopt/launch"
"""Folders of an agent's container: where it works, for scratch, for shared memory, for what it is told."""
OURS = "tempopt/"
"""How the labels begin that the launcher sets itself."""

# All of them have to fit into one message: docs/distributed.md says more.
OPTIONS: Mapping[str, str] = {
    "context": "context of the kubeconfig; default: its current one",
    "kubeconfig": "file; default: KUBECONFIG, ~/.kube/config, in a pod its cluster",
    "namespace": "default: that of the context",
    "image": f"image of the agents; default: tempopt-agent:{__version__}",
    "pull_secrets": "Secrets for the registry, with commas",
    "service_account": "of the pods; default: the namespace's",
    "user": "uid of the agents, not 0; default: 10001",
    "node_selector": "labels of nodes, as in pool=gpu,disk=fast",
    "tolerations": "taints, as in dedicated=ml:NoSchedule,spot",
    "gpu_resource": "default: nvidia.com/gpu",
    "gpus": "yes or no: whether agents get GPUs by default; default: whether a node has one",
    "autoscaling": "yes: nodes are added for what waits; default: no",
    "requests": "more requests of a pod, as in ephemeral-storage=20Gi",
    "limits": "other limits of a pod, as in cpu=8",
    "env_secrets": "Secrets whose keys become variables of agents",
    "volumes": "as in claim/runs:/runs,configmap/sets:/sets,secret/keys:/keys",
    "shm": "size of /dev/shm; default: the pod's memory",
    "storage_secret": "Secret with the database's URL as url; default: made from --storage",
    "token_secret": "Secret with the server's token as token; default: made from --token-file",
    "queue": "local queue of Kueue",
    "labels": "more labels of Jobs and pods, as in team=vision",
    "retries": "how often an agent's pod that died is replaced; default: 6",
    "keep": "seconds that a Job stays after its end; default: 3600",
}
"""Each option's name to what it means, with its default."""

_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@-]*")
_KEY = re.compile(r"([a-z0-9]([a-z0-9.-]*[a-z0-9])?/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?")
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?(m|k|[KMGTPE]i|[MGTPE])?")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_KINDS = ("claim", "secret", "configmap")
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A volume of an agent's pod.

    Args:
        kind: ``claim`` (a PersistentVolumeClaim), ``secret`` or ``configmap``.
        name: Name of that object.
        path: Where the container has it.
        read_only: Whether it may not be written.
    """

    kind: str
    name: str
    path: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What the pods and Jobs of a launcher have in common; each field is an option in ``OPTIONS``."""

    image: str
    pull_secrets: tuple[str, ...]
    service_account: str | None
    user: int
    node_selector: Mapping[str, str]
    tolerations: tuple[Mapping[str, str], ...]
    gpu_resource: str
    requests: Mapping[str, str]
    limits: Mapping[str, str]
    env_secrets: tuple[str, ...]
    volumes: tuple[Volume, ...]
    shm: str | None
    storage_secret: str | None
    token_secret: str | None
    queue: str | None
    labels: Mapping[str, str]
    retries: int
    keep: int

    def holds(self, path: str) -> bool:
        """Return whether a folder is on a claim, and so is kept when a pod is not."""
        mounts = [PurePosixPath(each.path) for each in self.volumes if each.kind == "claim"]
        place = PurePosixPath(path)
        return any(mount in (place, *place.parents) for mount in mounts)


def read(options: Mapping[str, str]) -> PodOptions:
    """Return what options say of pods.

    Args:
        options: By name, each name one of ``OPTIONS``.

    Raises:
        UsageError: A value cannot be.
    """
    gpu = options.get("gpu_resource", "nvidia.com/gpu")
    if not _KEY.fullmatch(gpu) or "/" not in gpu:
        raise _wrong("gpu_resource", gpu, "the name of an extended resource, as in nvidia.com/gpu")
    return PodOptions(
        image=_matching(options, "image", _IMAGE, "an image") or f"tempopt-agent:{__version__}",
        pull_secrets=_names(options, "pull_secrets"),
        service_account=_name(options, "service_account"),
        user=_number(options, "user", 10001, least=1),
        node_selector=_labels(options, "node_selector"),
        tolerations=tuple(_each(options, "tolerations", _toleration)),
        gpu_resource=gpu,
        requests=_quantities(options, "requests", refused=("cpu", "memory", gpu)),
        limits=_quantities(options, "limits", refused=("memory", gpu)),
        env_secrets=_names(options, "env_secrets"),
        volumes=_volumes(options),
        shm=_matching(options, "shm", _QUANTITY, "a size, as in 2Gi"),
        storage_secret=_name(options, "storage_secret"),
        token_secret=_name(options, "token_secret"),
        queue=_name(options, "queue"),
        labels=_labels(options, "labels", ours=True),
        retries=_number(options, "retries", 6, least=0),
        keep=_number(options, "keep", 3600, least=60),
    )


def namespace(options: Mapping[str, str]) -> str | None:
    """Return the namespace that was given, None if none was.

    Raises:
        UsageError: No namespace has such a name.
    """
    return _name(options, "namespace")


def choice(options: Mapping[str, str], name: str) -> bool | None:
    """Return what an option says that is ``yes`` or ``no``, None if it was not given.

    Raises:
        UsageError: It is another word.
    """
    given = options.get(name)
    if given not in (None, "yes", "no"):
        raise _wrong(name, given, '"yes" or "no"')
    return None if given is None else given == "yes"


def _wrong(name: str, given: object, allowed: str) -> UsageError:
    return UsageError(f"--launch {name}={given}: give {allowed}.")


def _matching(options: Mapping[str, str], name: str, pattern: re.Pattern[str], allowed: str) -> str | None:
    given = options.get(name)
    if given is not None and not pattern.fullmatch(given):
        raise _wrong(name, given, allowed)
    return given


def _name(options: Mapping[str, str], name: str) -> str | None:
    allowed = "the name of an object in Kubernetes: small letters, digits, - and ."
    return _matching(options, name, _NAME, allowed)


def _number(options: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    given = options.get(name, str(default))
    if not (given.isascii() and given.isdecimal()) or not least <= int(given) < 2**31:
        raise _wrong(name, given, f"a whole number of at least {least}")
    return int(given)


def _each(options: Mapping[str, str], name: str, read_one: Callable[[str, str], _T]) -> Iterator[_T]:
    given = options.get(name, "")
    for part in filter(None, (part.strip() for part in given.split(","))):
        yield read_one(part, given)


def _names(options: Mapping[str, str], name: str) -> tuple[str, ...]:
    def one(part: str, given: str) -> str:
        if not _NAME.fullmatch(part):
            raise _wrong(name, given, "names of objects in Kubernetes, with commas between them")
        return part

    return tuple(_each(options, name, one))


def _labels(options: Mapping[str, str], name: str, *, ours: bool = False) -> dict[str, str]:
    def one(part: str, given: str) -> tuple[str, str]:
        key, equals, value = part.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _VALUE.fullmatch(value):
            raise _wrong(name, given, "labels as KEY=VALUE, with commas between them")
        if ours and key.startswith((OURS, "app.kubernetes.io/", "batch.kubernetes.io/")):
            raise _wrong(name, given, f"labels of your own: {key} is set by the launcher")
        return key, value

    return dict(_each(options, name, one))


def _quantities(options: Mapping[str, str], name: str, *, refused: tuple[str, ...]) -> dict[str, str]:
    def one(part: str, given: str) -> tuple[str, str]:
        key, equals, value = part.partition("=")
        if not equals or not _KEY.fullmatch(key) or not _QUANTITY.fullmatch(value):
            raise _wrong(name, given, "resources as NAME=QUANTITY, as in ephemeral-storage=20Gi")
        if key in refused:
            raise _wrong(name, given, f"what resources: in the spec does not say: {key} follows from there")
        return key, value

    return dict(_each(options, name, one))


def _toleration(part: str, given: str) -> dict[str, str]:
    taint, _, effect = part.partition(":")
    key, equals, value = taint.partition("=")
    effects = ", ".join(_EFFECTS)
    if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or (effect and effect not in _EFFECTS):
        raise _wrong(
            "tolerations", given, f"taints as KEY[=VALUE][:EFFECT], where EFFECT is one of {effects}"
        )
    how = {"operator": "Equal", "value": value} if equals else {"operator": "Exists"}
    return {"key": key, **how, **({"effect": effect} if effect else {})}


def _volumes(options: Mapping[str, str]) -> tuple[Volume, ...]:
    found = tuple(_each(options, "volumes", _volume))
    if len({each.path for each in found}) < len(found):
        raise _wrong("volumes", options["volumes"], "each volume a path of its own")
    return found


def _volume(part: str, given: str) -> Volume:
    source, _, rest = part.partition(":")
    kind, _, name = source.partition("/")
    path, _, how = rest.partition(":")
    place = PurePosixPath(path)
    fits = kind in _KINDS and _NAME.fullmatch(name) and how in ("", "ro") and ".." not in place.parts
    if not fits or not place.is_absolute() or str(place) == "/":
        raise _wrong(
            "volumes",
            given,
            f"volumes as KIND/NAME:/PATH or KIND/NAME:/PATH:ro, where KIND is one of {', '.join(_KINDS)}",
        )
    own = [each for each in (WORK, SCRATCH, SHARED_MEMORY, GIVEN) if _overlap(place, PurePosixPath(each))]
    if own:
        raise _wrong("volumes", given, f"other paths than {path}: the agent has its own folder at {own[0]}")
    return Volume(kind=kind, name=name, path=str(place), read_only=how == "ro" or kind != "claim")


def _overlap(one: PurePosixPath, other: PurePosixPath) -> bool:
    # below /tmp is allowed: that is how a folder of this machine can be had there by the same path
    return one == other or one in other.parents


def tolerates(tolerations: tuple[Mapping[str, str], ...], taint: Mapping[str, Any]) -> bool:
    """Return whether tolerations let a pod on a node with a taint; a preference keeps no pod away."""
    if taint.get("effect") == "PreferNoSchedule":
        return True
    return any(
        each["key"] == taint.get("key")
        and each.get("effect") in (None, taint.get("effect"))
        and (each["operator"] == "Exists" or each["value"] == taint.get("value", ""))
        for each in tolerations
    )
