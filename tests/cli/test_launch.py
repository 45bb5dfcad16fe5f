"""A search whose agents a launcher starts: real ones on this machine, and what is refused before any is."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tempopt import cli
from tempopt.errors import StorageError
from tempopt.storage.opening import open_store
from tempopt.testing.toys import PACE
from tests.toy_study import SMALL, URL, tickets, toy_spec

REPOSITORY = Path(__file__).parents[2]
PATIENCE = 300.0


@pytest.fixture(autouse=True)
def python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))


def _spec(**study: Any) -> str:
    """Write the spec of a small study and return its path."""
    space = {"temperature_init": {"low": 0.25, "high": 4.0}}
    spec = toy_spec(space=space, trainer={"max_steps": 8}, **{**SMALL, "candidates": 1, **study})
    spec |= {"model": {"class_path": "tempopt.testing.toys.Toy"}}
    spec |= {"data": {"class_path": "tempopt.testing.toys.ToyData"}}
    Path("toy.yaml").write_text(json.dumps(spec))
    return "toy.yaml"


def _tempopt(*words: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tempopt", *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_ctrl_c_has_the_agents_leave_in_good_order_and_says_how_to_go_on() -> None:
    words = ["search", _spec(), "--launcher", "local", "--workers", "1", "--trials", "50"]
    command = _tempopt(*words, **{PACE: "1"})
    deadline = time.monotonic() + PATIENCE
    while not (Path("tempopt.db").exists() and _has_agents()):
        assert command.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=PATIENCE)
    assert command.returncode == cli.EXIT_INTERRUPTED, (out, err)
    assert out.endswith("To continue:\n  tempopt resume toy --workers 1 --launcher local\n")
    assert {row.state for row in tickets()} <= {"waiting", "done"}


def _has_agents() -> bool:
    with contextlib.suppress(StorageError), open_store(URL, create=False) as store:
        return any(study.agents for study in store.list_studies())
    return False


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--detach"], "--detach is for a launcher. Give one, as in --launcher slurm."),
        (["--address", "auto"], "--address is for a launcher."),
        (["--launch", "a=b"], "--launch is for a launcher."),
        (["--launcher", "locla"], 'Unknown launcher "locla". Did you mean "local"?'),
        (["--launcher", "local", "--detach"], "agents of the launcher local end with this command"),
        (["--launcher", "local", "--launch", "a=b"], 'Unknown option of the launcher local "a"'),
        (["--launcher", "local", "--address", "auto"], 'Unknown option of the launcher local "address"'),
        (
            ["--launcher", "ray", "--address", "auto", "--launch", "address=b"],
            "--address and --launch address=... were both given",
        ),
        (
            ["--launcher", "local", "--launch", "logs=a", "--launch", "logs=b"],
            "--launch was given the same key more than once",
        ),
        (["--launcher", "local", "--workers", "9"], "study.parallel allows 1 to 4"),
        (["--launcher", "local", "--checkpoints", "s3://me:pw@bucket"], "holds a password or a key"),
    ],
)
def test_what_cannot_be_launched_is_told_before_anything_is(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["search", _spec(), *words]) == cli.USAGE_EXIT_CODE
    assert message in capsys.readouterr().err
    if Path("tempopt.db").exists():
        with open_store(URL) as store:
            assert store.list_studies() == []


def test_launching_does_not_import_torch() -> None:
    code = "import sys, tempopt.cli.launch, tempopt.launch.local; print('torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "False\n"
