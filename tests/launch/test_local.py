"""The launcher of this machine: what every launcher owes, and what is its own."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.launch.launcher import Task
from tempopt.launch.local import LocalLauncher
from tempopt.testing import LauncherTests
from tests.cli.conftest import WRITTEN, holds_no_password
from tests.servers import descendants


@pytest.mark.long
class TestLocal(LauncherTests):
    """What every launcher owes."""

    @pytest.fixture
    def launcher(self) -> Iterator[LocalLauncher]:
        launcher = LocalLauncher({})
        yield launcher
        launcher.close()


@pytest.fixture
def missing_task(tmp_path: Path) -> Task:
    """A task whose study there is not."""
    return Task(study="nowhere", storage=f"sqlite:///{tmp_path}/empty.db", folder=str(tmp_path))


def test_what_agents_print_is_kept_where_one_says_so(tmp_path: Path, missing_task: Task) -> None:
    launcher = LocalLauncher({"logs": str(tmp_path / "logs")})
    (id,) = launcher.start([missing_task])
    while launcher.jobs([id])[0].state == "running":
        time.sleep(0.05)
    (job,) = launcher.jobs([id])
    assert (job.state, job.code) == ("failed", 2)
    assert "There is no file" in job.message
    assert (tmp_path / "logs" / f"agent-{id}.log").read_text().strip() == job.message


def test_a_folder_for_logs_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="logs=.*the folder cannot be made"):
        LocalLauncher({"logs": str(tmp_path / "file" / "logs")})


def test_an_agent_that_is_told_to_leave_before_it_listens_has_left_in_good_order(missing_task: Task) -> None:
    launcher = LocalLauncher({})
    ids = launcher.start([missing_task])
    launcher.cancel(ids)
    # it had come as far as its own error, or not
    assert launcher.jobs(ids)[0].code in (2, 130)


@pytest.mark.service  # the driver of PostgreSQL, though no server
def test_a_password_is_in_no_list_of_processes_no_log_and_no_message(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        url = f"postgresql://me:{WRITTEN}@127.0.0.1:{listener.getsockname()[1]}/studies"
        launcher = LocalLauncher({"logs": str(tmp_path)})
        (id,) = launcher.start([Task(study="pairs", storage=url, folder=str(tmp_path))])
        log, words = tmp_path / f"agent-{id}.log", b""
        # it waits for the database, and says so
        while not (log.is_file() and "Trying again" in log.read_text()):
            for pid in descendants(os.getpid()):
                with contextlib.suppress(OSError):
                    words += (Path("/proc") / str(pid) / "cmdline").read_bytes()
                    words += (Path("/proc") / str(pid) / "environ").read_bytes()
            time.sleep(0.05)
        launcher.cancel([id])
    (job,) = launcher.jobs([id])
    assert b"tempopt.cli.agent_entrypoint" in words and "Check that the server is running" in log.read_text()
    holds_no_password(words.decode(errors="replace"))
    holds_no_password(job.message)
    holds_no_password(log.read_text())
