"""What a person types, with agents as pods of a fake Kubernetes: a study to its verdict, a pool at work."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import make_url

pytest.importorskip("kubernetes", reason="This needs tempopt[kubernetes].")
pytest.importorskip("kubernetes_validate", reason="This needs kubernetes-validate.")

from tempopt import cli
from tempopt.agent.beginning import stand
from tempopt.spec.study_spec import StudySpec
from tempopt.store.store import Store
from tests.cluster import studies
from tests.cluster.crew import wait_until
from tests.launch.fake_kubernetes import FakeKubernetes
from tests.servers import find_or_start, strike

pytestmark = [pytest.mark.service, pytest.mark.long]

AGENTS = 3
SECRET = "s3cret"


class Scene:
    """A fake cluster, a database with a password, and commands.

    Args:
        fake: Where agents run.
        folder: For everything; pods have it as a claim.
        url: The database.
    """

    def __init__(self, fake: FakeKubernetes, folder: Path, url: str) -> None:
        self.fake, self.folder, self.url = fake, folder, url
        self.commands: list[subprocess.Popen[bytes]] = []
        (folder / "studies.url").touch(mode=0o600)
        (folder / "studies.url").write_text(url)
        self.set_pace(0.0)

    def set_pace(self, seconds: float) -> None:
        """Let every training step last so much longer."""
        new = self.folder / "pace.new"
        new.write_text(str(seconds))
        new.replace(self.folder / "pace")

    def command(self, *words: str) -> None:
        """Start a command; it writes into ``command-N.log``."""
        options = {
            "kubeconfig": self.fake.kubeconfig,
            "image": "agents:1",
            "volumes": f"claim/all:{self.folder}",
        }
        given = [*words, "--launcher", "kubernetes", "--storage-file", "studies.url", "--checkpoints", "runs"]
        given += [word for key, value in options.items() for word in ("--launch", f"{key}={value}")]
        with (self.folder / f"command-{len(self.commands)}.log").open("wb") as log:
            self.commands.append(
                subprocess.Popen(
                    studies.tempopt(*given),
                    cwd=self.folder,
                    env=studies.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )

    def said(self) -> str:
        """Return what the last command has said."""
        return (self.folder / f"command-{len(self.commands) - 1}.log").read_text()

    def wait(self, so: Callable[[], bool], what: str) -> None:
        """Wait until something is so, while the command is there."""

        def come() -> bool:
            assert self.commands[-1].poll() is None, self.said()
            return so()

        wait_until(come, what)

    def jobs(self) -> int:
        """Return how many Jobs have pods that run."""
        return len(self.fake.pods())


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    server, reason = find_or_start("postgresql")
    if server is None:
        pytest.skip(reason)
    name = f"kubernetes_{os.getpid()}"
    url = make_url(server.create_database(name)).set(password=SECRET)
    (tmp_path / "cluster").mkdir()
    fake = FakeKubernetes(tmp_path / "cluster")
    fake.kubelet.environment = {"PACE": str(tmp_path / "pace")}
    made = Scene(fake, tmp_path, url.render_as_string(hide_password=False))
    yield made
    for each in made.commands:
        if each.poll() is None:
            each.kill()
            each.wait()
    fake.stop()
    server.drop_database(name)


def test_a_search_comes_to_its_verdict_and_leaves_nothing_behind(scene: Scene) -> None:
    spec = studies.written(scene.folder, studies.spec(4, parallel=2))
    scene.set_pace(0.1)
    scene.command("search", spec, "--workers", "2", "--no-report")
    scene.wait(lambda: scene.jobs() == 2, "two pods")
    (job,) = scene.fake.of_kind("jobs")
    assert job["spec"]["completions"] == 2
    wait_until(lambda: any(row.state == "running" for row in studies.seen(scene.url)), "work")
    scene.fake.disrupt(scene.fake.pods()[0])
    scene.set_pace(0.0)
    assert scene.commands[-1].wait(600) in (cli.DONE, cli.NOT_SHOWN, cli.WORSE), scene.said()
    assert "Launched 2 agents on kubernetes" in scene.said() and "has failed" not in scene.said()
    assert SECRET not in scene.said() + str(scene.fake.of_kind("jobs")) + str(scene.fake.of_kind("pods"))


def test_jobs_come_with_studies_of_the_pool_and_leave_when_nothing_is_left_to_do(scene: Scene) -> None:
    with Store.open(scene.url) as store:
        scene.set_pace(0.3)
        parsed = StudySpec.parse(studies.spec(8, name="first", parallel=AGENTS), source="the test")
        stand(store, parsed, None, checkpoints=str(scene.folder / "runs"))
        pool = ("agent", "--pool", "--agents", str(AGENTS), "--gpus-per-agent", "0", "--idle", "5")
        scene.command(*pool)
        scene.wait(lambda: scene.jobs() == AGENTS, "pods")
        jobs = scene.fake.of_kind("jobs")
        assert [job["spec"]["completions"] for job in jobs] == [1] * AGENTS
        # a command that was killed finds its Jobs again, and starts none beside them
        strike(scene.commands[-1].pid, signal.SIGKILL)
        scene.commands[-1].wait()
        scene.command(*pool)
        scene.wait(
            lambda: f"Found {AGENTS} agents of an earlier command" in scene.said(), "the Jobs to be found"
        )
        assert scene.fake.of_kind("jobs") == jobs
        scene.set_pace(0.0)
        scene.wait(lambda: store.load_study("first").state == "done", "the verdict")
        scene.wait(lambda: f"0 of at most {AGENTS} started" in scene.said(), "the last agent to leave")
        assert store.pool.read().agents == ()
    scene.commands[-1].send_signal(signal.SIGTERM)
    assert scene.commands[-1].wait(120) == cli.INTERRUPTED
    assert "failed" not in scene.said() and SECRET not in scene.said()
