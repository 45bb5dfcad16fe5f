"""A fake Kubernetes for tests, launchers on it, and agents that train nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="This needs tempopt[kubernetes].")
pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")

from tempopt.launch.kubernetes import KubernetesLauncher
from tempopt.launch.launcher import Job, Task
from tests.launch.fake_kubernetes import FakeKubernetes

SECRET = "s3cret"
URL = f"postgresql://ada:{SECRET}@db/studies"
_ENDED = ("done", "failed", "gone")


def task(code: str = "0", *, study: str | None = "Study_of.Ada", **more: Any) -> Task:
    """Return an agent that ends at once with an exit code, or does what Python code says."""
    words = f"raise SystemExit({code})" if code.isdecimal() else code
    return Task(program=("-c", words), study=study, storage=URL, grace=12.5, **more)


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeKubernetes]:
    made = FakeKubernetes(tmp_path)
    yield made
    made.stop()


@pytest.fixture
def launcher(fake: FakeKubernetes) -> Iterator[KubernetesLauncher]:
    made = make_launcher(fake)
    yield made
    made.close()


def make_launcher(fake: FakeKubernetes, **options: str) -> KubernetesLauncher:
    return KubernetesLauncher({"kubeconfig": str(fake.kubeconfig), "image": "agents:1", **options})


def wait(launcher: KubernetesLauncher, ids: list[str], so: Callable[[list[Job]], object]) -> list[Job]:
    """Wait until jobs stand in some way, and return them."""
    give_up = time.monotonic() + 120
    while not so(jobs := launcher.jobs(ids)):
        assert time.monotonic() < give_up, jobs
        time.sleep(0.05)
    return jobs


def ended(jobs: list[Job]) -> bool:
    return all(job.state in _ENDED for job in jobs)
