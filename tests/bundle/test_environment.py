"""Environments that lock files in bundles describe, made by a stand-in for uv that installs what is here."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tempopt.bundle.environment import environment_of
from tempopt.errors import UsageError
from tempopt.version import __version__
from tempopt.workers.code_folder import code_python, imported_from
from tempopt.workers.messages import TITLE, Ready
from tempopt.workers.placement import Placement
from tempopt.workers.process import WorkerProcess
from tests.toy_study import REPOSITORY

# As uv: what it is called with goes into a file; "venv" makes one, and the others put packages into it.
UV = f"""#!{sys.executable}
import os, pathlib, subprocess, sys
folder = pathlib.Path(__file__).parent
with (folder / "calls.txt").open("a") as file:
    print(*sys.argv[1:], file=file)
if sys.argv[1] == "venv":
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", sys.argv[-1]], check=True)
    os.environ["UV_PROJECT_ENVIRONMENT"] == sys.argv[-1] or sys.exit("another place")
elif (folder / "packages.txt").exists():
    (site,) = pathlib.Path(os.environ["UV_PROJECT_ENVIRONMENT"]).glob("lib/python*/site-packages")
    (site / "these.pth").write_text((folder / "packages.txt").read_text())
else:
    sys.exit("no such package")
"""


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in for uv, which finds the packages of this process; its folder."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "uv").write_text(UV)
    (folder / "uv").chmod(0o755)
    (folder / "packages.txt").write_text(f"{sysconfig.get_path('purelib')}\n{REPOSITORY}\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    return folder


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    folder.mkdir()
    return folder


def calls(uv: Path) -> list[str]:
    return (uv / "calls.txt").read_text().splitlines()


def test_code_without_a_lock_file_has_no_environment(uv: Path, code: Path, tmp_path: Path) -> None:
    (code / "pyproject.toml").write_text("[project]")
    (code / "requirements.txt").write_text("torch")
    assert environment_of(code, tmp_path) is None and not (uv / "calls.txt").exists()


def test_where_uv_is_missing_it_is_said(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code / "requirements.lock").write_text("")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match=r"requirements\.lock.*Install uv, or take --environments out"):
        environment_of(code, tmp_path)


@pytest.mark.long
def test_an_environment_is_made_once_for_a_lock(uv: Path, code: Path, tmp_path: Path) -> None:
    (code / "pyproject.toml").write_text("[project]")
    (code / "uv.lock").write_text("version = 1")
    python = environment_of(code, tmp_path)
    assert python is not None and python.is_file()
    assert calls(uv)[1] == "sync --frozen --no-dev --no-install-project"
    assert environment_of(code, tmp_path) == python and len(calls(uv)) == 2
    (code / "uv.lock").write_text("version = 2")
    assert environment_of(code, tmp_path) != python and len(calls(uv)) == 4
    (code / "uv.lock").unlink()
    (code / "requirements.lock").write_text("torch==2 --hash=sha256:0")
    assert environment_of(code, tmp_path) is not None
    assert calls(uv)[-1].startswith("pip sync --require-hashes --python ")


def test_an_environment_that_failed_is_made_anew(uv: Path, code: Path, tmp_path: Path) -> None:
    (code / "requirements.lock").write_text("torch==2")
    (uv / "packages.txt").unlink()
    with pytest.raises(UsageError, match="uv pip failed: no such package"):
        environment_of(code, tmp_path)
    (uv / "packages.txt").write_text("")
    with pytest.raises(UsageError, match=f"add tempopt {__version__} to it"):
        environment_of(code, tmp_path)
    assert len(calls(uv)) == 4


@pytest.mark.long
def test_a_worker_runs_in_it(uv: Path, code: Path, tmp_path: Path) -> None:
    (code / "requirements.lock").write_text("torch==2")
    python = environment_of(code, tmp_path)
    assert python is not None
    with imported_from(code, python):
        worker = WorkerProcess(slot=0, place=Placement())
    assert code_python() is None
    try:
        assert isinstance(worker.receive(), Ready)
        if sys.platform == "linux":
            # its title is not its program
            told = Path(f"/proc/{worker.pid}/maps").read_text()
            assert TITLE in Path(f"/proc/{worker.pid}/cmdline").read_text() and "torch" in told
            assert Path(f"/proc/{worker.pid}/cwd").resolve() == code
    finally:
        worker.kill()
