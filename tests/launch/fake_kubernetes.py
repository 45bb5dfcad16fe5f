"""A Kubernetes that is none: its API over real HTTP, and its pods as processes of this machine.

It does what the launcher counts on, as Kubernetes' documentation has it: Indexed Jobs with their policies of
failure, quotas, suspended Jobs, room on nodes, images that cannot be pulled, disruptions, deletion with pods
first. Manifests are checked against the schemas of Kubernetes. What is not here (networks, users in pods,
read-only roots, memory limits, real preemption) is not shown by it either.
"""

from __future__ import annotations

import base64
import copy
import http.server
import json
import re
import threading
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.launch.fake_kubelet import Kubelet

TOKEN = "of-ada"
VERSION = "1.37"
_INDEX = "batch.kubernetes.io/job-completion-index"
_JOB = "batch.kubernetes.io/job-name"
_PATH = re.compile(
    r"/(?:api|apis/batch)/v1(?:/namespaces/(?P<space>[^/]+))?/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?$"
)
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the API answers in place of what was asked for."""

    status: int
    reason: str
    message: str


class FakeKubernetes:
    """One cluster.

    Args:
        folder: For what its pods write, and for the kubeconfig.
    """

    def __init__(self, folder: Path) -> None:
        self.lock = threading.RLock()
        self.objects: dict[tuple[str, str, str], Plain] = {}
        """Everything there is, by kind (as in URLs), namespace and name."""
        self.spaces = {"default", "ml"}
        self.refusals: dict[str, Refusal] = {}
        """What is refused, by ``VERB RESOURCE``, as in ``create jobs``."""
        self.granted: set[str] | None = None
        """What may be asked, in the same words; None: everything."""
        self.failed_create = ""
        """Why the controller of Jobs cannot create pods."""
        self.images = {"agents:1"}
        """What can be pulled."""
        self.away = False
        self.asked: list[tuple[str, str]] = []
        """Each request, as verb and path."""
        self.kubelet = Kubelet(folder)
        self.add_node("node-1", cpu="4", memory="8Gi")
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._ends = threading.Event()
        self._threads = [
            threading.Thread(target=self._server.serve_forever),
            threading.Thread(target=self._control),
        ]
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(self._kubeconfig()))
        for thread in self._threads:
            thread.start()

    def _kubeconfig(self) -> Plain:
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [
                {"name": "fake", "cluster": {"server": f"http://127.0.0.1:{self._server.server_port}"}}
            ],
            "users": [{"name": "ada", "user": {"token": TOKEN}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "ada", "namespace": "ml"}}],
        }

    def stop(self) -> None:
        """End the cluster, its pods first."""
        self._ends.set()
        self._threads[1].join()
        self.kubelet.kill_all()
        self._server.shutdown()
        self._threads[0].join()
        self._server.server_close()

    # ---- what an administrator, or the world, does

    def add_node(self, name: str, *, labels: Mapping[str, str] | None = None, **allocatable: str) -> Plain:
        """Add a node, and return it to be changed."""
        node = {
            "metadata": {"name": name, "labels": dict(labels or {})},
            "spec": {},
            "status": {
                "allocatable": {
                    key.replace("gpu", "nvidia.com/gpu"): value for key, value in allocatable.items()
                },
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }
        self.objects["nodes", "", name] = node
        return node

    def of_kind(self, kind: str, **labels: str) -> list[Plain]:
        """Return what there is of a kind, in the order in which it came."""
        with self.lock:
            return [each for (its, _, _), each in self.objects.items() if its == kind]

    def pods(self, phase: str = "Running") -> list[Plain]:
        """Return the pods in a phase that nobody has told to end."""
        pods = self.of_kind("pods")
        return [p for p in pods if p["status"]["phase"] == phase and "deletionTimestamp" not in p["metadata"]]

    def disrupt(self, pod: Plain) -> None:
        """Evict a pod, as where its node is drained."""
        with self.lock:
            told = {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            pod["status"].setdefault("conditions", []).append(told)
            self._terminate(pod)

    def delete_pod(self, pod: Plain) -> None:
        """Delete a pod, as ``kubectl delete pod`` does."""
        with self.lock:
            self._terminate(pod)

    def kill_pod(self, pod: Plain) -> None:
        """Kill all processes of a pod at once, as where its memory is over."""
        self.kubelet.kill(pod)

    def admit(self, job: Plain) -> None:
        """Have a suspended Job begin, as Kueue does."""
        with self.lock:
            job["spec"]["suspend"] = False

    def preempt(self, job: Plain) -> None:
        """Suspend a Job, as Kueue does for one with a higher priority."""
        with self.lock:
            job["spec"]["suspend"] = True

    # ---- what is asked over HTTP

    def answer(
        self, method: str, path: str, query: Mapping[str, str], body: Plain | None
    ) -> tuple[int, Plain]:
        """Return status and answer for a request."""
        found = _PATH.match(path)
        assert found is not None, path
        space, kind, name = found["space"] or "", found["kind"], found["name"]
        verbs = {
            "POST": "create",
            "DELETE": "delete",
            "PATCH": "patch",
            "GET": "list" if name is None else "get",
        }
        verb = verbs[method]
        with self.lock:
            self.asked.append((verb, path))
            if refused := self.refusals.get(f"{verb} {kind}"):
                return _status(refused)
            if self.granted is not None and f"{verb} {kind}" not in self.granted:
                said = f'{kind} is forbidden: User "ada" cannot {verb} resource "{kind}"'
                return _status(Refusal(403, "Forbidden", said))
            if method != "GET" and space not in self.spaces:
                return _status(Refusal(404, "NotFound", f'namespaces "{space}" not found'))
            if body is not None and method == "POST":
                return self._create(kind, space, body)
            if name is None:
                return 200, {"kind": "List", "items": list(self._selected(kind, space, query))}
            if (kind, space, name) not in self.objects:
                return _status(Refusal(404, "NotFound", f'{kind}.batch "{name}" not found'))
            there = self.objects[kind, space, name]
            if method == "PATCH":
                # what is suspended may go on, and nothing else of a Job may be changed
                assert body is not None and body.keys() == {"spec"} and body["spec"].keys() == {"suspend"}
                there["spec"] |= body["spec"]
                return 200, there
            return 200, self._delete(there, body or {}, query)

    def _create(self, kind: str, space: str, body: Plain) -> tuple[int, Plain]:
        try:
            kubernetes_validate.validate(body, VERSION, strict=True)
            if kind == "jobs":
                _valid_job(body)
        except (kubernetes_validate.ValidationError, ValueError) as error:
            return _status(Refusal(422, "Invalid", f'"{body["metadata"]["name"]}" is invalid: {error}'))
        made = copy.deepcopy(body)
        made["metadata"] |= {"namespace": space, "uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        made |= {"status": {}} if kind == "jobs" else {}
        self.objects[kind, space, made["metadata"]["name"]] = made
        return 201, made

    def _selected(self, kind: str, space: str, query: Mapping[str, str]) -> Iterator[Plain]:
        labels = dict(part.split("=") for part in query.get("labelSelector", "").split(",") if part)
        fields = dict(part.split("=") for part in query.get("fieldSelector", "").split(",") if part)
        for (its, where, _), each in self.objects.items():
            if (its, where) != (kind, space) or not labels.items() <= each["metadata"].get(
                "labels", {}
            ).items():
                continue
            about = {
                "involvedObject.name": each.get("involvedObject", {}).get("name"),
                "type": each.get("type"),
            }
            if fields.items() <= about.items():
                yield each

    def _delete(self, found: Plain, body: Plain, query: Mapping[str, str]) -> Plain:
        policy = query.get("propagationPolicy") or body.get("propagationPolicy")
        assert policy == "Foreground", "what is deleted otherwise leaves its pods behind for a while"
        found["metadata"].setdefault("deletionTimestamp", _now())
        return found

    # ---- the controller of Jobs

    def _control(self) -> None:
        while not self._ends.wait(0.05):
            with self.lock:
                for job in self.of_kind("jobs"):
                    self._reconcile(job)
                for pod in self.of_kind("pods"):
                    self._run(pod)

    def _reconcile(self, job: Plain) -> None:
        pods = [
            pod for pod in self.of_kind("pods") if pod["metadata"]["labels"][_JOB] == job["metadata"]["name"]
        ]
        alive = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        if "deletionTimestamp" in job["metadata"]:
            for pod in alive:
                self._terminate(pod)
            if not alive:
                self._remove(job, pods)
            return
        for pod in pods:
            self._account(job, pod)
        if job["status"].get("conditions"):
            return
        if job["spec"].get("suspend"):
            for pod in alive:
                self._terminate(pod)
            return
        busy = {int(pod["metadata"]["annotations"][_INDEX]) for pod in alive}
        over = _indexes(job, "completedIndexes") | _indexes(job, "failedIndexes")
        for index in sorted(set(range(job["spec"]["completions"])) - busy - over):
            self._create_pod(job, index)
        if len(over) == job["spec"]["completions"]:
            failed = bool(_indexes(job, "failedIndexes"))
            job["status"]["conditions"] = [{"type": "Failed" if failed else "Complete", "status": "True"}]

    def _account(self, job: Plain, pod: Plain) -> None:
        """Take note of a pod that is over, once, as the policy of its Job has it."""
        if pod["status"]["phase"] in ("Pending", "Running") or "counted" in pod["status"]:
            return
        index = int(pod["metadata"]["annotations"][_INDEX])
        if pod["status"]["phase"] == "Succeeded":
            pod["status"]["counted"] = "completed"
            _add(job, "completedIndexes", index)
            return
        pod["status"]["counted"] = action = _action(job, pod)
        counts = job["status"].setdefault("deaths", {})
        counts[index] = counts.get(index, 0) + (action == "Count")
        if action == "FailIndex" or counts[index] > job["spec"]["backoffLimitPerIndex"]:
            _add(job, "failedIndexes", index)

    def _create_pod(self, job: Plain, index: int) -> None:
        name = f"{job['metadata']['name']}-{index}-{uuid.uuid4().hex[:5]}"
        space = job["metadata"]["namespace"]
        if self.failed_create:
            self._warn(space, job, f"Error creating: {self.failed_create}")
            return
        template = copy.deepcopy(job["spec"]["template"])
        template["metadata"] |= {"name": name, "namespace": space, "creationTimestamp": _now()}
        template["metadata"].setdefault("annotations", {})[_INDEX] = str(index)
        template["metadata"]["labels"] |= {_JOB: job["metadata"]["name"]}
        self.objects["pods", space, name] = {"kind": "Pod", **template, "status": {"phase": "Pending"}}

    def _warn(self, space: str, about: Plain, message: str) -> None:
        self.objects["events", space, f"{about['metadata']['name']}.{message}"] = {
            "metadata": {},
            "type": "Warning",
            "message": message,
            "lastTimestamp": _now(),
            "involvedObject": {"name": about["metadata"]["name"]},
        }

    def _remove(self, job: Plain, pods: list[Plain]) -> None:
        uid = job["metadata"]["uid"]
        for key, each in list(self.objects.items()):
            owners = [owner["uid"] for owner in each["metadata"].get("ownerReferences", [])]
            if each is job or uid in owners or any(each is pod for pod in pods):
                del self.objects[key]

    def _terminate(self, pod: Plain) -> None:
        if pod["metadata"].setdefault("deletionTimestamp", _now()):
            self.kubelet.end(pod)

    # ---- nodes

    def _run(self, pod: Plain) -> None:
        """Bring a pod on its way, as a scheduler and a node do."""
        if pod["status"]["phase"] == "Running":
            self.kubelet.look(pod)
        if pod["status"]["phase"] != "Pending" or "deletionTimestamp" in pod["metadata"]:
            return
        spec, space = pod["spec"], pod["metadata"]["namespace"]
        if not self._has_room(pod):
            pod["status"]["conditions"] = [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "0/1 nodes are available: 1 Insufficient cpu.",
                }
            ]
            return
        pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "True"}]
        image = spec["containers"][0]["image"]
        if image not in self.images:
            waiting = {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}"'}
            pod["status"]["containerStatuses"] = [{"name": "agent", "state": {"waiting": waiting}}]
            return
        secrets = {
            name: _plain(each)
            for (kind, where, name), each in self.objects.items()
            if (kind, where) == ("secrets", space)
        }
        missing = self.kubelet.start(pod, secrets)
        if missing:
            pod["status"]["containerStatuses"] = [
                {"name": "agent", "state": {"waiting": {"reason": "ContainerCreating"}}}
            ]
            self._warn(
                space, pod, f'MountVolume.SetUp failed for volume "given": secret "{missing}" not found'
            )

    def _has_room(self, pod: Plain) -> bool:
        def cpus(of: Plain) -> int:
            return int(of["spec"]["containers"][0]["resources"]["requests"]["cpu"])

        running = sum(cpus(each) for each in self.of_kind("pods") if each["status"]["phase"] == "Running")
        there = sum(int(each["status"]["allocatable"]["cpu"]) for each in self.of_kind("nodes"))
        return running + cpus(pod) <= there


def _valid_job(job: Plain) -> None:
    """Raise ValueError for what schemas do not know, and the API refuses."""
    spec, name = job["spec"], job["metadata"]["name"]
    # the name of a pod's host has the index behind
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,55}[a-z0-9])?", name):
        raise ValueError(f"metadata.name: Invalid value: {name!r}")
    values = [*job["metadata"]["labels"].values(), *spec["template"]["metadata"]["labels"].values()]
    if not all(re.fullmatch(r"([A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)?", value) for value in values):
        raise ValueError(f"metadata.labels: Invalid value: {values}")
    rules = spec.get("podFailurePolicy", {}).get("rules", [])
    if rules and spec["template"]["spec"]["restartPolicy"] != "Never":
        raise ValueError("spec.podFailurePolicy: only for restartPolicy Never")
    if any(rule["action"] == "FailIndex" for rule in rules) and "backoffLimitPerIndex" not in spec:
        raise ValueError("spec.podFailurePolicy: FailIndex needs backoffLimitPerIndex")
    for rule in rules:
        codes = rule.get("onExitCodes", {}).get("values", [])
        if codes != sorted(set(codes)) or 0 in codes:
            raise ValueError(f"spec.podFailurePolicy: values {codes}")


def _action(job: Plain, pod: Plain) -> str:
    """Return what the first rule that fits a failed pod has become of it."""
    conditions = {(each["type"], each["status"]) for each in pod["status"].get("conditions", [])}
    statuses = pod["status"].get("containerStatuses", [])
    code = statuses[0]["state"].get("terminated", {}).get("exitCode") if statuses else None
    for rule in job["spec"].get("podFailurePolicy", {}).get("rules", []):
        met = {(each["type"], each["status"]) for each in rule.get("onPodConditions", [])}
        if met & conditions or code in rule.get("onExitCodes", {}).get("values", []):
            return str(rule["action"])
    return "Count"


def _indexes(job: Plain, which: str) -> set[int]:
    found: set[int] = set()
    for part in filter(None, job["status"].get(which, "").split(",")):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return found


def _add(job: Plain, which: str, index: int) -> None:
    """Write an index among others, as Kubernetes does: ``0,2-4``."""
    runs: list[list[int]] = []
    for each in sorted(_indexes(job, which) | {index}):
        if runs and runs[-1][-1] == each - 1:
            runs[-1].append(each)
        else:
            runs.append([each])
    job["status"][which] = ",".join(
        str(run[0]) if len(run) == 1 else f"{run[0]}{',' if len(run) == 2 else '-'}{run[-1]}" for run in runs
    )


def _plain(secret: Plain) -> dict[str, str]:
    coded = {key: base64.b64decode(value).decode() for key, value in secret.get("data", {}).items()}
    return {**coded, **secret.get("stringData", {})}


def _now() -> str:
    # to the microsecond: the order of pods is told by it
    return f"{time.time():.6f}"


def _status(refusal: Refusal) -> tuple[int, Plain]:
    return refusal.status, {
        "kind": "Status",
        "status": "Failure",
        "code": refusal.status,
        "reason": refusal.reason,
        "message": refusal.message,
    }


def _handler(cluster: FakeKubernetes) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            if cluster.away:
                status, answer = _status(Refusal(503, "ServiceUnavailable", "apiserver is shutting down"))
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, answer = _status(Refusal(401, "Unauthorized", "Unauthorized"))
            else:
                path, _, query = self.path.partition("?")
                words = dict(urllib.parse.parse_qsl(query))
                status, answer = cluster.answer(self.command, path, words, body)
            with cluster.lock:
                told = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(told)

        do_GET: Callable[..., None] = _answer
        do_POST: Callable[..., None] = _answer
        do_DELETE: Callable[..., None] = _answer
        do_PATCH: Callable[..., None] = _answer

    return Handler
