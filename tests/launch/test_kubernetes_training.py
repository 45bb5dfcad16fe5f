"""Studies by pods of a fake Kubernetes: real trainings, which end as in peace whatever becomes of pods."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="This needs tempopt[kubernetes].")
pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")

from tempopt.launch.kubernetes import KubernetesLauncher
from tempopt.launch.launcher import Job
from tempopt.testing import LauncherTests
from tempopt.testing import launchers as contract
from tests.launch.fake_kubernetes import FakeKubernetes

pytestmark = [pytest.mark.long, pytest.mark.nightly]


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeKubernetes]:
    (tmp_path / "cluster").mkdir()
    made = FakeKubernetes(tmp_path / "cluster")
    yield made
    made.stop()


@pytest.fixture
def launcher(fake: FakeKubernetes, tmp_path: Path) -> Iterator[KubernetesLauncher]:
    # what pods have as a claim is here a folder with the same path
    made = KubernetesLauncher(
        {"kubeconfig": str(fake.kubeconfig), "image": "agents:1", "volumes": f"claim/shared:{tmp_path}"}
    )
    yield made
    made.close()


@pytest.fixture
def storage(tmp_path: Path) -> str:
    # the pods of this cluster are all on this machine
    return f"sqlite:///{tmp_path}/launched.db"


class TestKubernetes(LauncherTests):
    @pytest.fixture
    def launcher(self, launcher: KubernetesLauncher) -> KubernetesLauncher:
        return launcher

    @pytest.fixture
    def storage(self, storage: str) -> str:
        return storage

    def test_a_pod_that_has_to_make_room_is_replaced_and_the_study_ends_as_in_peace(
        self, launcher: KubernetesLauncher, storage: str, folder: Path, fake: FakeKubernetes
    ) -> None:
        ids = launcher.start([self._task(storage, folder, pace=0.1)] * 2)
        for told in (fake.disrupt, fake.delete_pod):
            self._agent_in_the_middle(launcher, ids, storage)
            pod = fake.pods()[0]
            told(pod)
            self._until(lambda pod=pod: pod["status"].get("counted"), launcher, ids)
            # one that was deleted by hand is counted as no death either, since it left in good order
            assert pod["status"]["counted"] == "Ignore", fake.kubelet.log(pod)
        self._to_the_end(launcher, ids, storage)
        assert len(fake.of_kind("pods")) == 4
        assert contract._facts(storage) == contract._alone()

    def test_a_pod_that_is_killed_is_replaced_and_counted(
        self, launcher: KubernetesLauncher, storage: str, folder: Path, fake: FakeKubernetes
    ) -> None:
        ids = launcher.start([self._task(storage, folder, pace=0.1)])
        self._agent_in_the_middle(launcher, ids, storage)
        (pod,) = fake.pods()
        fake.kill_pod(pod)
        self._to_the_end(launcher, ids, storage)
        assert pod["status"]["counted"] == "Count"
        assert contract._facts(storage) == contract._alone()

    def test_a_job_that_kueue_takes_the_room_from_goes_on_later(
        self, fake: FakeKubernetes, storage: str, folder: Path, launcher: KubernetesLauncher
    ) -> None:
        queued = KubernetesLauncher({**launcher.options, "queue": "team"})
        ids = queued.start([self._task(storage, folder, pace=0.1)])
        (job,) = fake.of_kind("jobs")
        self._until(lambda: "Kueue" in queued.jobs(ids)[0].message, queued, ids)
        assert not fake.of_kind("pods")
        fake.admit(job)
        self._agent_in_the_middle(queued, ids, storage)
        fake.preempt(job)
        over = ("Succeeded", "Failed")
        self._until(lambda: fake.of_kind("pods")[-1]["status"]["phase"] in over, queued, ids)
        assert not [row for row in contract._tickets(storage) if row.state == "running"]
        fake.admit(job)
        self._to_the_end(queued, ids, storage)
        assert contract._facts(storage) == contract._alone()

    def test_no_command_line_and_no_manifest_has_the_password(
        self, launcher: KubernetesLauncher, storage: str, folder: Path, fake: FakeKubernetes
    ) -> None:
        ids = launcher.start([self._task(storage, folder, pace=0.2)])
        self._agent_in_the_middle(launcher, ids, storage)
        (pod,) = fake.pods()
        seen = [*fake.kubelet.command_lines(pod), str(fake.of_kind("jobs")), str(pod)]
        assert len(seen) > 3 and not [each for each in seen if storage in each]
        launcher.cancel(ids)
        assert fake.of_kind("secrets") == [] and fake.of_kind("pods") == []

    def _until(self, so: Callable[[], object], launcher: KubernetesLauncher, ids: list[str]) -> list[Job]:
        give_up = time.monotonic() + self.PATIENCE
        while not so():
            assert time.monotonic() < give_up, launcher.jobs(ids)
            time.sleep(0.05)
        return launcher.jobs(ids)
