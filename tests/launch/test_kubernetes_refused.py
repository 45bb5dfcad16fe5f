"""Agents on a fake Kubernetes that stand still or are refused: what a person reads, and what is left."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="This needs tempopt[kubernetes].")
pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")

from tempopt.errors import UsageError
from tempopt.launch.kubernetes import KubernetesLauncher
from tempopt.launch.launcher import Task
from tempopt.workers.placement import Need
from tests.launch.fake_kubernetes import FakeKubernetes, Refusal
from tests.launch.kubernetes_scene import SECRET, make_launcher, task, wait
from tests.launch.kubernetes_scene import fake as fake
from tests.launch.kubernetes_scene import launcher as launcher


def test_what_an_agent_waits_for_is_told(fake: FakeKubernetes, launcher: KubernetesLauncher) -> None:
    def message(launcher: KubernetesLauncher, made: Task, part: str) -> str:
        ids = launcher.start([made])
        (job,) = wait(launcher, ids, lambda jobs: part in jobs[0].message)
        assert job.state == "waiting"
        launcher.cancel(ids)
        return job.message

    assert "No node has room" in message(launcher, task(cpus=64), "Insufficient cpu")
    missing = make_launcher(fake, image="agents:2")
    assert "--launch image=IMAGE" in message(missing, task(), "agents:2 cannot be pulled (ImagePullBackOff)")
    queued = make_launcher(fake, queue="team")
    assert "Kueue has not admitted it yet from the queue team" in message(queued, task(), "Kueue")
    secret = make_launcher(fake, storage_secret="database")
    assert message(secret, task(), "Kubernetes warns").endswith('secret "database" not found')
    fake.failed_create = 'pods "x" is forbidden: exceeded quota: gpus, requested: 1, used: 8, limited: 8'
    assert "quota of its namespace is used up" in message(launcher, task(), "exceeded quota: gpus")


@pytest.mark.parametrize(
    ("request_", "refusal", "said"),
    [
        (
            "create jobs",
            Refusal(403, "Forbidden", 'jobs.batch is forbidden: User "ada" cannot create resource "jobs"'),
            ["You may not create jobs in the namespace ml", "the verb create on jobs", "launcher.enabled"],
        ),
        (
            "patch jobs",
            Refusal(403, "Forbidden", 'jobs.batch is forbidden: User "ada" cannot patch resource "jobs"'),
            ["You may not patch jobs", "the verb patch on jobs"],
        ),
        (
            "create secrets",
            Refusal(403, "Forbidden", 'secrets is forbidden: User "ada" cannot create resource "secrets"'),
            ["You may not create secrets", "the verb create on secrets"],
        ),
        (
            "create jobs",
            Refusal(403, "Forbidden", 'jobs.batch "x" is forbidden: exceeded quota: jobs, limited: 5'),
            ["The quota of the namespace ml is used up", "limited: 5", "--workers"],
        ),
        (
            "create jobs",
            Refusal(401, "Unauthorized", "Unauthorized"),
            ["does not know you", "kubectl auth whoami"],
        ),
        ("create jobs", Refusal(422, "Invalid", "Job is invalid: spec: too much"), ["spec: too much"]),
        (
            "create jobs",
            Refusal(503, "ServiceUnavailable", "etcd leader changed"),
            ["does not answer", "etcd"],
        ),
    ],
)
def test_what_the_cluster_refuses_is_told_and_nothing_is_left_of_it(
    request_: str, refusal: Refusal, said: list[str], fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    fake.refusals[request_] = refusal
    with pytest.raises(UsageError) as refused:
        launcher.start([task("import sys; sys.stdin.read()")] * 2)
    assert all(part in str(refused.value) for part in said), refused.value
    assert SECRET not in str(refused.value)
    assert fake.of_kind("jobs") == [] and fake.of_kind("secrets") == []


def test_a_namespace_that_is_not_there_is_told(fake: FakeKubernetes) -> None:
    with pytest.raises(UsageError, match='namespaces "elsewhere" not found. Give a namespace that there is'):
        make_launcher(fake, namespace="elsewhere").start([task()])


def test_events_that_nobody_may_see_are_not_missed(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    message = 'events is forbidden: User "ada" cannot list resource "events"'
    fake.refusals["list events"] = Refusal(403, "Forbidden", message)
    fake.failed_create = "no"
    assert launcher.jobs(launcher.start([task()]))[0].state == "waiting"


def test_while_the_cluster_is_away_jobs_stand_as_they_last_did(
    fake: FakeKubernetes, launcher: KubernetesLauncher
) -> None:
    ids = launcher.start([task("import sys; sys.stdin.read()")])
    wait(launcher, ids, lambda jobs: jobs[0].state == "running")
    fake.away = True
    assert [job.state for job in launcher.jobs([*ids, "ml/tempopt-other:0"])] == ["running", "waiting"]
    assert "does not answer" in launcher.jobs(["ml/tempopt-other:0"])[0].message
    with pytest.raises(UsageError, match="does not answer"):
        launcher.cancel(ids)
    fake.away = False
    launcher.cancel(ids)
    assert launcher.jobs(ids)[0].state == "gone"


def test_a_cluster_that_nobody_listens_at_is_told(fake: FakeKubernetes, tmp_path: Path) -> None:
    file = tmp_path / "dead"
    text = fake.kubeconfig.read_text()
    start = text.index("http://")
    file.write_text(text.replace(text[start:].split()[0], "http://127.0.0.1:9"))
    launcher = KubernetesLauncher({"kubeconfig": str(file)})
    with pytest.raises(UsageError, match="the cluster of the context fake does not answer.*refused"):
        launcher.room(Need())


def test_checkpoints_in_a_folder_that_goes_with_the_pod_are_refused(fake: FakeKubernetes) -> None:
    def start(place: str, **options: str) -> None:
        launcher = make_launcher(fake, **options)
        launcher.cancel(launcher.start([task("0", options=("--checkpoints", place))]))

    for place, options in (
        ("/home/ada/runs", {}),
        ("/data/runs", {}),
        ("/sets/runs", {"volumes": "configmap/sets:/sets"}),
        ("/runs-elsewhere", {"volumes": "claim/c:/runs"}),
    ):
        with pytest.raises(UsageError, match="--checkpoints s3://bucket/runs"):
            start(place, **options)
    assert fake.of_kind("jobs") == []
    start("s3://bucket/runs")
    start("/runs/mine", volumes="claim/c:/runs")
