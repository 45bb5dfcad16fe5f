"""A folder for commands, a launcher of a user, and a password that no command may show."""

from __future__ import annotations

from pathlib import Path

import pytest

# A password as it is, as it is written in a URL, and the parts that a careless mask would leave.
SECRET = "zqx@kvw:2/jq"
WRITTEN = "zqx%40kvw%3A2%2Fjq"
_TRACES = ("zqx", "kvw", "2/jq", "2%2Fjq")


def holds_no_password(text: str) -> None:
    """See that nothing of the password is in a text."""
    assert not [trace for trace in _TRACES if trace in text]


# A launcher of users, whose jobs run, but for the last, and whose cancelled jobs are in a file.
LAUNCHER_MODULE = """\
from pathlib import Path
from tempopt.launch.launcher import Job, Launcher

class Mine(Launcher):
    name, OPTIONS, is_multi_host, survives_command = "mine", {"where": "where to"}, True, True
    def machines(self): return []
    def start(self, tasks): return []
    def cancel(self, ids): Path("cancelled").write_text(" ".join(ids))
    def jobs(self, ids):
        print("a greeting")
        waiting = {"state": "waiting", "message": "Resources"}
        return [Job(id=id, **(waiting if id.endswith("2") else {"state": "running"})) for id in ids]
"""
LAUNCHER_OPTION = ["--launcher", "launchers_of_mine:Mine"]


@pytest.fixture
def launcher(folder: Path) -> str:
    """Write a module with a launcher into the current folder, and return the launcher's path."""
    (folder / "launchers_of_mine.py").write_text(LAUNCHER_MODULE)
    return LAUNCHER_OPTION[1]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
