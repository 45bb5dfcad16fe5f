"""What a pod makes of the files that it is given, and which exit code it has; no cluster is needed."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tempopt.launch import kubernetes_manifest as manifest
from tempopt.launch.kubernetes_options import read
from tempopt.launch.kubernetes_pod import exit_code, given
from tempopt.launch.launcher import PoolWork, Task
from tempopt.launch.supervise import Ended

TASK = Task(
    program=("-m", "x"), study="demo", storage="postgresql://db/studies", options=("--checkpoints", "s3://b")
)


def placed(folder: Path, task: Task, token: str | None = None) -> Task:
    """Return the task that a pod reads, given what the Secret of its Job has."""
    for name, text in manifest.contents(task, read({}), token).items():
        (folder / name).write_text(text)
    return given(folder)


def test_an_agent_gets_the_task_that_was_launched(tmp_path: Path) -> None:
    found = placed(tmp_path, TASK)
    assert found.environment == {"CUDA_VISIBLE_DEVICES": ""}
    assert json.dumps({**asdict(found), "environment": {}}) == json.dumps(asdict(TASK))


def test_an_agent_with_gpus_sees_those_that_its_pod_has(tmp_path: Path) -> None:
    task = Task(program=("-m", "x"), study="demo", storage="postgresql://db/studies", gpus=1)
    assert "CUDA_VISIBLE_DEVICES" not in placed(tmp_path, task).environment


@pytest.mark.parametrize("token", [None, "tok"])
def test_an_agent_of_the_pool_reads_the_token_where_the_pod_has_it(token: str | None, tmp_path: Path) -> None:
    work = PoolWork(key="abc", queues=("a", "b"), labels=("h100",), token_file="/home/ada/token")
    task = Task(program=("-m", "x"), pool=work, storage="https://tempopt.example.com")
    found = placed(tmp_path, task, token).pool
    assert found is not None and (found.queues, found.labels) == (("a", "b"), ("h100",))
    assert found.token_file == (None if token is None else str(tmp_path / "token"))
    assert token is None or Path(str(found.token_file)).read_text() == token


def test_modules_are_found_in_the_image_and_in_folders_that_the_pod_has_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "shared").mkdir()
    monkeypatch.setenv("PYTHONPATH", "/app")
    task = Task(
        program=("-m", "x"),
        study="demo",
        storage="postgresql://db/studies",
        environment={"PYTHONPATH": f"{tmp_path}/of-a-laptop:{tmp_path}/shared"},
    )
    assert placed(tmp_path, task).environment["PYTHONPATH"] == f"{tmp_path}/shared:/app"


@pytest.mark.parametrize(
    ("code", "told", "expected"),
    [
        (0, False, 0),
        (0, True, 0),
        # of itself: the study was paused
        (130, False, 0),
        (130, True, manifest.TOLD),
        (-9, True, manifest.TOLD),
        (-9, False, 137),
        (1, False, 1),
        (2, True, 2),
    ],
)
def test_the_exit_code_says_what_is_to_become_of_the_agent(code: int, told: bool, expected: int) -> None:
    assert exit_code(Ended(code=code), told=told) == expected
