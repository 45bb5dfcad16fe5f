"""The tests that every launcher has to pass are worth something: one that is wrong does not pass them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WRONG = '''\
import pytest

from tempopt.launch import local
from tempopt.launch.launcher import Job
from tempopt.launch.supervise import Supervisor
from tempopt.testing import LauncherTests


class DropsOne(local.LocalLauncher):
    """Starts only the first agent, and says that the others have done their work."""

    def start(self, tasks):
        return [*super().start(tasks[:1]), *(f"dropped-{n}" for n in range(1, len(tasks)))]

    def jobs(self, ids):
        return [Job(id=j.id, state="done") if "dropped" in j.id else j for j in super().jobs(ids)]


class Once(Supervisor):
    def run(self):
        return self._run_once()


class NeverAgain(local.LocalLauncher):
    """Does not start an agent again that died."""

    def start(self, tasks):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "Supervisor", Once)
            return super().start(tasks)


class TestWrong(LauncherTests):
    @pytest.fixture
    def launcher(self):
        launcher = WRONG({})
        yield launcher
        launcher.close()
'''


CORES = "test_each_agent_has_the_folder_the_environment_and_the_cores_of_its_task"
KILLED = "test_an_agent_that_is_killed_is_started_again_and_the_study_ends_as_in_peace"


@pytest.mark.long
@pytest.mark.parametrize(
    ("mistake", "found_by", "message"),
    [("DropsOne", CORES, "to begin"), ("NeverAgain", KILLED, "killed by SIGKILL")],
)
def test_a_launcher_that_is_wrong_fails(mistake: str, found_by: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "test_wrong.py"
    file.write_text(WRONG.replace("WRONG", mistake), encoding="utf-8")
    # in a folder without this repository's settings, as with the wheel alone
    words = ["-q", "-p", "no:cacheprovider", f"{file.name}::TestWrong::{found_by}"]
    command = [sys.executable, "-m", "pytest", *words]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == pytest.ExitCode.TESTS_FAILED, process.stdout + process.stderr
    assert "1 failed" in process.stdout and message in process.stdout
