"""Agents as pods of a fake Kubernetes: what is sent, options, room, what becomes of jobs, and rights."""

from __future__ import annotations

import copy
import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="This needs tempopt[kubernetes].")
pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")

import kubernetes_validate

from tempopt.errors import UsageError
from tempopt.launch import kubernetes_cluster, kubernetes_options
from tempopt.launch import kubernetes_manifest as manifest
from tempopt.launch.kubernetes import KubernetesLauncher
from tempopt.launch.launcher import PoolWork, Task
from tempopt.launch.standing import Given, cancelled, standing
from tempopt.records.rows import JobRow
from tempopt.workers.placement import Need
from tests.launch.fake_kubernetes import TOKEN, FakeKubernetes, Refusal
from tests.launch.kubernetes_scene import SECRET, URL, ended, make_launcher, task, wait
from tests.launch.kubernetes_scene import fake as fake
from tests.launch.kubernetes_scene import launcher as launcher

VERSIONS = ("1.29", "1.32", "1.37")
EVERYTHING = {
    "image": "registry.example.com/vision@sha256:0123",
    "pull_secrets": "registry,other",
    "service_account": "trainer",
    "user": "1234",
    "node_selector": "pool=gpu,disk=fast",
    "tolerations": "dedicated=ml:NoSchedule,spot",
    "gpu_resource": "amd.com/gpu",
    "requests": "ephemeral-storage=20Gi",
    "limits": "cpu=8,ephemeral-storage=40Gi",
    "env_secrets": "bucket",
    "volumes": "claim/runs:/runs,configmap/sets:/sets,secret/keys:/keys:ro",
    "shm": "2Gi",
    "storage_secret": "database",
    "token_secret": "agents",
    "queue": "team",
    "labels": "team=vision",
    "retries": "2",
    "keep": "60",
}


# ---- manifests


def manifests(options: dict[str, str], made: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    read = kubernetes_options.read(options)
    job = manifest.job(manifest.name(made), made, 3, read)
    return job, manifest.secret(job["metadata"]["name"], "uid-1", manifest.contents(made, read, "tok"))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["default", "everything"])
@pytest.mark.parametrize("pool", [None, PoolWork(key="abc", token_file="/t")], ids=["study", "pool"])
def test_kubernetes_knows_every_field_of_a_manifest(
    options: dict[str, str], pool: PoolWork | None, version: str
) -> None:
    study = "demo" if pool is None else None
    for each in manifests(options, task(study=study, pool=pool, gpus=2, cpus=4, memory=2**34)):
        kubernetes_validate.validate(each, version, strict=True)
        wrong = copy.deepcopy(each)
        wrong["metadata"]["label"] = {}
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(wrong, version, strict=True)


@pytest.mark.parametrize("options", [{}, EVERYTHING], ids=["default", "everything"])
def test_a_pod_is_what_the_strictest_profile_of_kubernetes_lets_in(options: dict[str, str]) -> None:
    job, _ = manifests(options, task(gpus=1))
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never" and not pod["automountServiceAccountToken"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not container["securityContext"]["allowPrivilegeEscalation"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    volumes = {each["name"]: each for each in pod["volumes"]}
    written = {m["mountPath"]: volumes[m["name"]] for m in container["volumeMounts"] if not m.get("readOnly")}
    assert {"/tmp", "/data", "/dev/shm"} <= written.keys()
    assert written["/dev/shm"]["emptyDir"]["medium"] == "Memory"
    assert container["workingDir"] == "/data"


def test_secrets_are_in_no_job() -> None:
    made = task(pool=PoolWork(key="abc", token_file="/home/ada/token"), study=None)
    job, secret = manifests({}, made)
    assert SECRET not in json.dumps(job) and "tok" not in json.dumps(
        job["spec"]["template"]["spec"]["containers"][0]["env"]
    )
    assert secret["stringData"]["storage"] == URL and secret["stringData"]["token"] == "tok"
    # those that are given are used where they are
    _, secret = manifests({"storage_secret": "database", "token_secret": "agents"}, made)
    assert SECRET not in json.dumps(secret) and "tok" not in secret["stringData"].values()


def test_pods_have_longer_to_end_than_runs_to_write_checkpoints() -> None:
    job, _ = manifests({}, task())
    assert job["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] >= 12.5 + 30


def test_resources_are_those_of_the_task_and_more_that_was_asked_for() -> None:
    made = task(gpus=2, cpus=6, memory=2**33)
    options = {"requests": "ephemeral-storage=20Gi", "limits": "cpu=8"}
    job, _ = manifests(options, made)
    pod = job["spec"]["template"]["spec"]
    found = pod["containers"][0]["resources"]
    memory, gpus = {"memory": str(2**33)}, {"nvidia.com/gpu": "2"}
    assert found["requests"] == {"cpu": "6", "ephemeral-storage": "20Gi", **memory, **gpus}
    assert found["limits"] == {"cpu": "8", **memory, **gpus}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in pod["tolerations"]


def test_with_a_queue_kueue_begins_the_job_and_else_the_launcher_does(fake: FakeKubernetes) -> None:
    make_launcher(fake, queue="team").start([task()])
    make_launcher(fake).start([task()])
    queued, begun = fake.of_kind("jobs")
    assert (queued["spec"]["suspend"], begun["spec"]["suspend"]) == (True, False)
    assert queued["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    # no pod is to wait for what it is told
    asked = [verb for verb, _ in fake.asked]
    assert asked == ["create", "create", "create", "create", "patch"]


@pytest.mark.parametrize("study", ["a", "Größe/τ 1", "x" * 300, "-.-"])
def test_any_study_has_a_name_that_kubernetes_takes(
    study: str, fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    ids = launcher.start([task(study=study)] * 2)
    assert len(set(ids)) == 2 and all(id.startswith("ml/tempopt-") for id in ids)
    assert fake.of_kind("jobs")[0]["metadata"]["annotations"]["tempopt/for"] == study


# ---- options


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("image", "two words", "an image"),
        ("user", "0", "at least 1"),
        ("user", "root", "at least 1"),
        ("namespace", "ML", "small letters"),
        ("node_selector", "gpu", "KEY=VALUE"),
        ("tolerations", "a=b:Never", "NoSchedule, PreferNoSchedule, NoExecute"),
        ("gpu_resource", "gpu", "nvidia.com/gpu"),
        ("gpus", "2", '"yes" or "no"'),
        ("autoscaling", "true", '"yes" or "no"'),
        ("requests", "memory=1Gi", "memory follows from there"),
        ("requests", "cpu=4", "cpu follows from there"),
        ("limits", "nvidia.com/gpu=1", "nvidia.com/gpu follows from there"),
        ("limits", "cpu=many", "NAME=QUANTITY"),
        ("volumes", "runs:/runs", "KIND/NAME:/PATH"),
        ("volumes", "claim/runs:runs", "KIND/NAME:/PATH"),
        ("volumes", "claim/runs:/a/../etc", "KIND/NAME:/PATH"),
        ("volumes", "claim/runs:/dev", "the agent has its own folder at /dev/shm"),
        ("volumes", "claim/a:/runs,claim/b:/runs", "a path of its own"),
        ("labels", "tempopt/pool=x", "set by the launcher"),
        ("labels", "team=a b", "KEY=VALUE"),
        ("shm", "big", "2Gi"),
        ("retries", "-1", "at least 0"),
        ("queue", "Team A", "small letters"),
        ("context", "other", 'Unknown context of the kubeconfig "other"'),
    ],
)
def test_a_value_that_cannot_be_is_told_with_what_can(
    name: str, value: str, said: str, fake: FakeKubernetes
) -> None:
    with pytest.raises(UsageError) as refused:
        make_launcher(fake, **{name: value})
    assert said in str(refused.value) and value in str(refused.value)


def test_without_a_cluster_it_is_said_how_to_name_one(tmp_path: Path) -> None:
    for file, text in (("nowhere", None), ("empty", ""), ("wrong", "kind: Config\n")):
        if text is not None:
            (tmp_path / file).write_text(text)
        with pytest.raises(UsageError, match="--launch kubeconfig=FILE"):
            KubernetesLauncher({"kubeconfig": str(tmp_path / file)})


# ---- room


def test_room_is_that_of_the_nodes_where_pods_may_go(fake: FakeKubernetes) -> None:
    launcher = make_launcher(fake)
    assert (launcher.room(Need()), launcher.has_gpus()) == (4, False)
    tainted = fake.add_node("gpu-1", labels={"pool": "gpu"}, cpu="15500m", memory="64Gi", gpu="4")
    tainted["spec"]["taints"] = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
    assert launcher.has_gpus() and launcher.room(Need()) == 4
    # a pod with GPUs tolerates the taint that keeps others off
    assert launcher.room(Need(gpus=0.5, cpus=2)) == 7
    assert launcher.split(Need(gpus=0.5, cpus=2), 7) == [2, 2, 2, 1]
    tainted["spec"]["taints"].append({"key": "spot", "value": "", "effect": "NoExecute"})
    assert launcher.room(Need(gpus=1)) == 0
    assert make_launcher(fake, tolerations="spot:NoSchedule").room(Need(gpus=1)) == 0
    tolerant = make_launcher(fake, tolerations="spot:NoExecute", node_selector="pool=gpu")
    assert tolerant.room(Need(gpus=1)) == 4 and tolerant.room(Need(gpus=1, memory=2**35)) == 2
    tainted["spec"]["unschedulable"] = True
    assert tolerant.room(Need(gpus=1)) == 0
    assert make_launcher(fake, autoscaling="yes").room(Need(gpus=64)) > 0


def test_nodes_that_nobody_may_see_are_no_bound_but_gpus_have_to_be_said(fake: FakeKubernetes) -> None:
    message = 'nodes is forbidden: User "ada" cannot list resource "nodes" at the cluster scope'
    fake.refusals["list nodes"] = Refusal(403, "Forbidden", message)
    launcher = make_launcher(fake)
    assert launcher.room(Need(cpus=500)) > 100
    assert launcher.split(Need(), 3) == [1, 1, 1]
    with pytest.raises(UsageError, match="--launch gpus=yes or --launch gpus=no"):
        launcher.has_gpus()
    assert make_launcher(fake, gpus="yes").has_gpus()


# ---- what becomes of jobs


def test_an_agent_that_ends_by_itself_is_not_started_again(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    error = "import sys; sys.stderr.write('tempopt: error: no such metric\\n'); sys.exit(2)"
    # 130 of itself: its study was paused
    ids = launcher.start([task("0"), task("130"), task(error), task("1")])
    jobs = wait(launcher, ids, ended)
    assert [job.state for job in jobs] == ["done", "done", "failed", "failed"]
    assert (jobs[2].code, jobs[2].message) == (2, "tempopt: error: no such metric")
    assert len(fake.of_kind("pods")) == 4


def test_agents_with_the_same_task_are_one_job_with_an_index_each(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    ids = launcher.start([task("0", workers=2), task("0", workers=2), task("0", workers=1)])
    first, second = fake.of_kind("jobs")
    assert [first["spec"]["completions"], second["spec"]["completions"]] == [2, 1]
    assert first["spec"]["parallelism"] == 2 and first["spec"]["completionMode"] == "Indexed"
    assert [id.rpartition(":")[0] for id in ids] == [ids[0].rpartition(":")[0]] * 2 + [
        ids[2].rpartition(":")[0]
    ]
    wait(launcher, ids, ended)


def test_an_agent_whose_pod_dies_again_and_again_fails_with_the_reason(fake: FakeKubernetes) -> None:
    launcher = make_launcher(fake, retries="2")
    # the pod, not the agent in it: that is started again in its pod first
    kill = "import os, signal; os.kill(os.getppid(), signal.SIGKILL)"
    (job,) = wait(launcher, ids := launcher.start([task(kill)]), ended)
    assert job.state == "failed" and "retries=N" in job.message and "137" in job.message
    # what is over stays for a while: its pods have the logs
    launcher.cancel(ids)
    assert len(fake.of_kind("pods")) == 3


@pytest.mark.parametrize("how", ["disrupt", "delete_pod"])
def test_a_pod_that_leaves_in_good_order_is_replaced_however_often(
    how: str, fake: FakeKubernetes, tmp_path: Path
) -> None:
    launcher = make_launcher(fake, retries="0")
    code = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(130))\n"
        f"folder = pathlib.Path({str(tmp_path)!r})\n"
        "(folder / f'life-{time.time()}').touch()\n"
        "time.sleep(600 if len(list(folder.glob('life-*'))) < 3 else 0)"
    )
    ids = launcher.start([task(code)])
    for lives in (1, 2):
        wait(launcher, ids, lambda _, lives=lives: len(list(tmp_path.glob("life-*"))) == lives)  # type: ignore[misc]
        getattr(fake, how)(fake.pods()[0])
    assert [job.state for job in wait(launcher, ids, ended)] == ["done"]
    *left, last = fake.of_kind("pods")
    assert [pod["status"]["counted"] for pod in left] == ["Ignore"] * 2
    assert last["status"]["phase"] == "Succeeded"


def test_jobs_are_found_by_another_program_and_gone_when_they_are(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    sleep = "import sys; sys.stdin.read()"
    ids = launcher.start([task(sleep)])
    another = make_launcher(fake, namespace="default")
    wait(another, ids, lambda jobs: jobs[0].state == "running")
    # whoever can write the database can write ids
    foreign = [
        "ml/tempopt-of-nobody:0",
        "kube-system/coredns:0",
        "../../x:0",
        "ml/tempopt-x",
        ids[0] + "9" * 9,
        ids[0][:-1] + "1",
    ]
    assert [job.state for job in another.jobs([*foreign, *ids])] == ["gone"] * 6 + ["running"]
    another.cancel(foreign[:1])
    another.cancel(ids)
    assert launcher.jobs(ids)[0].state == "gone"


@pytest.mark.long
def test_jobs_are_asked_after_by_whoever_shows_a_study_at_the_persons_own_cluster(
    fake: FakeKubernetes, launcher: KubernetesLauncher, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (id,) = launcher.start([task("import sys; sys.stdin.read()")])
    wait(launcher, [id], lambda jobs: jobs[0].state == "running")
    # what the row says of a cluster is not used
    options = {"kubeconfig": str(tmp_path / "of-somebody-else"), "context": "theirs"}
    row = JobRow(id=id, launcher="kubernetes", options=options, created=datetime.now(UTC))
    monkeypatch.setenv("KUBECONFIG", str(fake.kubeconfig))
    assert [each.state for each in standing([row], Given())] == ["running"]
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "nowhere"))
    (found,) = standing([row], Given())
    assert found.state == "unknown" and "--launch kubeconfig=FILE" in found.message
    given = Given(launcher="kubernetes", options={"kubeconfig": str(fake.kubeconfig)})
    assert [each.state for each in cancelled([row], given)] == ["gone"]


def test_what_tempopt_did_not_create_is_neither_told_of_nor_deleted(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    ids = launcher.start([task("import sys; sys.stdin.read()")])
    (job,) = fake.of_kind("jobs")
    del job["metadata"]["labels"][manifest.MANAGED_BY]
    launcher.cancel(ids)
    assert launcher.jobs(ids)[0].state == "gone" and fake.of_kind("jobs") == [job]
    assert not [each for each in fake.asked if each[0] == "delete"]


def test_each_agent_of_the_pool_is_a_job_that_is_found_by_its_key(
    fake: FakeKubernetes, launcher: KubernetesLauncher, tmp_path: Path
) -> None:
    (tmp_path / "token").touch(mode=0o600)
    (tmp_path / "token").write_text("tempopt_abc\n")
    work = PoolWork(key="f00", token_file=str(tmp_path / "token"))
    # what a pod's agent is told is what it prints
    tell = (
        "import json, sys; task = json.loads(sys.stdin.readline()); path = task['pool']['token_file']\n"
        "print(task['storage'], open(path).read(), flush=True); sys.stdin.read()"
    )
    ids = launcher.start([task(tell, study=None, pool=work)] * 2)
    assert [job["spec"]["completions"] for job in fake.of_kind("jobs")] == [1, 1]
    assert sorted(launcher.of_pool("f00")) == sorted(ids) and launcher.of_pool("f") == []
    wait(launcher, ids, lambda jobs: all(job.state == "running" for job in jobs))
    pods = fake.pods()
    give_up = time.monotonic() + 60
    while not all(f"{URL} tempopt_abc" in fake.kubelet.log(pod) for pod in pods):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    # one of them may be taken back, and the other goes on
    launcher.cancel(ids[:1])
    assert launcher.of_pool("f00") == ids[1:]


# ---- rights


def test_the_role_of_the_chart_is_enough_and_has_nothing_that_is_not_used(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    pytest.importorskip("helm_python", reason="This needs helm-python-sdk, which has Helm's engine.")
    from tests.deploy.test_chart import rendered

    made = rendered({"launcher": {"enabled": True, "listNodes": True}})
    rules = [rule for each in made if each["kind"] in ("Role", "ClusterRole") for rule in each["rules"]]
    fake.granted = {
        f"{verb} {kind}" for rule in rules for verb in rule["verbs"] for kind in rule["resources"]
    }
    fake.failed_create = "no room for it"
    assert launcher.room(Need()) > 0
    ids = launcher.start([task(study=None, pool=PoolWork(key="f00"))])
    wait(launcher, ids, lambda jobs: "no room for it" in jobs[0].message)
    assert launcher.of_pool("f00") == ids
    launcher.cancel(ids)
    named = ("delete", "patch")
    used = {f"{verb} {path.split('/')[-2 if verb in named else -1]}" for verb, path in fake.asked}
    assert used == fake.granted


def test_in_a_pod_the_cluster_is_its_own(
    fake: FakeKubernetes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "namespace").write_text("default")
    server = fake.kubeconfig.read_text().split("server: ")[1].split()[0]

    def load(client_configuration: Any) -> None:
        client_configuration.host = server
        client_configuration.api_key = {"authorization": f"Bearer {TOKEN}"}

    monkeypatch.setattr(kubernetes_cluster, "_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(kubernetes_cluster, "_kubeconfigs", list)
    monkeypatch.setattr(kubernetes_cluster.config, "load_incluster_config", load)
    launcher = KubernetesLauncher({"image": "agents:1"})
    (id,) = launcher.start([task()])
    assert id.startswith("default/tempopt-")
    # what is given comes first
    (id,) = make_launcher(fake).start([task()])
    assert id.startswith("ml/tempopt-")
