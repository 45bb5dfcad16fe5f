"""What a row of the jobs table can do to a process that asks how the jobs stand: nothing."""

from __future__ import annotations

import contextlib
import importlib.util
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tempopt.launch.job_status import LauncherSelection, cancel_jobs, query_job_status
from tempopt.storage.rows import JobRow

NO_SELECTION = LauncherSelection()


def _row(launcher: str, id: str = "1", **options: Any) -> JobRow:
    return JobRow(id=id, launcher=launcher, options=options, created=datetime.now(UTC))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return tmp_path


@pytest.fixture
def callers() -> Iterator[tuple[str, list[Any]]]:
    """Yield a Ray's address on this machine and who has connected to it."""
    called: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def listen() -> None:
            with contextlib.suppress(OSError):
                while True:
                    called.append(server.accept()[0].close())

        threading.Thread(target=listen, daemon=True).start()
        yield f"ray://127.0.0.1:{server.getsockname()[1]}", called


@pytest.mark.parametrize("ask", [query_job_status, cancel_jobs])
def test_a_module_that_a_row_names_is_not_imported(ask: Any, folder: Path) -> None:
    (folder / "innocent.py").write_text("open('imported', 'w').close()\n")
    (job,) = ask([_row("innocent:X")], NO_SELECTION)
    assert (job.state, "only if you name it" in job.message) == ("unknown", True)
    assert not (folder / "imported").exists()
    # neither is one whose name a person has given for another launcher
    ask([_row("innocent:X")], LauncherSelection(launcher="innocent:Y"))
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("ask", [query_job_status, cancel_jobs])
def test_an_address_that_a_row_names_is_not_connected_to(
    ask: Any, callers: tuple[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    address, called = callers
    (job,) = ask([_row("ray", "evil:0", address=address)], NO_SELECTION)
    assert (job.state, "Add --address URL, or set RAY_ADDRESS" in job.message) == ("unknown", True)
    # nor does it start a Ray of its own for that
    monkeypatch.setenv("RAY_ADDRESS", "local")
    assert ask([_row("ray", "evil:0", address=address)], NO_SELECTION)[0].message == job.message
    selection = LauncherSelection(launcher="ray", options={"address": "127.0.0.1:1"})
    (unreachable_job,) = ask([_row("ray", "evil:0", address=address)], selection)
    reason = "--launch address=127.0.0.1:1" if importlib.util.find_spec("ray") else "ray[client]"
    assert unreachable_job.state == "unknown" and reason in unreachable_job.message
    assert called == []


def test_a_file_of_the_current_folder_takes_no_modules_place(folder: Path) -> None:
    for name in ("json", "submitit", "ray"):
        (folder / f"{name}.py").write_text("open('imported', 'w').close()\n")
    query_job_status([_row("slurm")], NO_SELECTION)
    query_job_status([_row("local")], NO_SELECTION)
    assert not (folder / "imported").exists()


@pytest.mark.parametrize("options", [{"partition": "p", "evil": "x"}, {"folder": "/etc"}, {"address": 3}, []])
def test_the_options_of_a_row_are_not_used(options: Any) -> None:
    row = JobRow(id="7", launcher="local", options=options, created=datetime.now(UTC))
    assert [job.state for job in query_job_status([row], NO_SELECTION)] == ["gone"]


@pytest.fixture
def slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs in the place of Slurm's, which write down how they were called; 7 and 8 are in the queue."""
    pytest.importorskip("submitit", reason="NOT TESTED: submitit is missing. pip install tempopt[slurm]")
    programs = folder / "bin"
    programs.mkdir()
    queue = "7|RUNNING|their_training|None\\n8|PENDING|tempopt-pairs|Resources"
    for name in ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo"):
        # the queue is empty once something was cancelled
        script_line = f'test -e {folder}/scancel || printf "{queue}\\n"' if name == "squeue" else ":"
        (programs / name).write_text(f'#!/bin/sh\n{script_line}\necho "$@" >> {folder}/{name}\n')
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return folder


def test_of_slurms_jobs_only_tempopts_are_cancelled_and_an_id_names_no_file_elsewhere(slurm: Path) -> None:
    from tempopt.launch.slurm import SlurmLauncher

    (slurm / "tempopt-slurm" / "own").mkdir(parents=True)
    (slurm / "other").mkdir()
    victim = slurm / "other" / "x_submitted.pkl"
    victim.write_text("")
    ids = ["7", "8", "--me", "../../7", "../../other/x"]
    assert [job.state for job in SlurmLauncher({}).jobs(ids)] == ["gone", "waiting", "gone", "gone", "gone"]
    SlurmLauncher({}).cancel(ids)
    assert (slurm / "scancel").read_text() == "--quiet --state=PENDING 8\n"
    assert not (slurm / "scontrol").exists()
    assert set((slurm / "squeue").read_text().split()) >= {"--jobs", "7,8"}
    assert [path.name for path in (slurm / "other").iterdir()] == [victim.name]
