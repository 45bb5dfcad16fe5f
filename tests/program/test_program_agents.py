"""Agents of programs that are killed, interrupted, stalled, or several: nothing is lost or left behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import tempopt
from tempopt.errors import StorageError
from tempopt.report.study_result import StudyResult
from tests.program.conftest import GAIN, program_spec
from tests.servers import descendants, empty_database

URL = "sqlite:///tempopt.db"
# Each attempt continues where the last one has written its step. It has a child in a session of its own, as
# torchrun has.
RESUMING = """
import os, subprocess, sys, time
import tempopt

run = tempopt.current_run()
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)  # a rank"], start_new_session=True)
checkpoint = run.folder / "step.txt"
start = int(checkpoint.read_text()) if checkpoint.exists() else 0
while os.path.exists("wait"):
    time.sleep(0.05)
with open("steps.txt", "a") as file:
    for step in range(start + 1, 21):
        time.sleep(0.05)
        file.write(f"{run.folder.parent.name} {step}\\n")
        file.flush()
        run.report((run.params["gain"] - 2) ** 2 + run.seed % 7 / 100 + 1 / step, step=step)
        checkpoint.write_text(str(step))
        if run.should_stop:
            break
"""

pytestmark = pytest.mark.usefixtures("folder")


def resuming_spec(**study: Any) -> dict[str, Any]:
    Path("resuming.py").write_text(RESUMING)
    spec = program_spec(
        {"command": "python resuming.py {seed} {gain}"},
        pruner="none",
        **{"trials": 3, "seeds": {"choose": 1, "confirm": 2}, **study},
    )
    Path("study.yaml").write_text(yaml.safe_dump(spec))
    return spec


def begin(*words: str, url: str = URL) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tempopt", *words, "--storage", url]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def num_steps() -> int:
    return len(Path("steps.txt").read_text().splitlines()) if Path("steps.txt").exists() else 0


def wait_for(condition: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.05)


def is_there(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def facts(result: StudyResult) -> list[tuple[Any, ...]]:
    return sorted(
        (run.kind, run.number, run.seed, json.dumps(run.parameters), run.outcome, run.value)
        for run in result.runs
    )


def undisturbed(tmp_path: Path, spec: dict[str, Any]) -> StudyResult:
    return tempopt.search(spec, storage=f"sqlite:///{tmp_path}/undisturbed.db", workers=2, progress=False)


@pytest.mark.long
def test_a_killed_agent_leaves_no_process_and_its_runs_continue_from_their_own_files(tmp_path: Path) -> None:
    spec = resuming_spec()
    agent = begin("search", "study.yaml", "--workers", "2")
    wait_for(lambda: num_steps() > 15)
    pids = [agent.pid, *descendants(agent.pid)]
    # the agent, two workers, their scripts and the scripts' children
    assert len(pids) >= 7
    agent.kill()
    agent.wait()
    wait_for(lambda: not any(map(is_there, pids)), seconds=20)
    before = num_steps()
    result = tempopt.resume("plain", storage=URL, workers=2, progress=False)
    assert result.state == "done" and result.verdict is not None
    steps = Path("steps.txt").read_text().splitlines()
    runs = {line.split()[0] for line in steps}
    # at most the step that was under way is trained once more
    assert len(steps) <= 20 * len(runs) + 4 and len(steps) > before
    Path("steps.txt").unlink()
    assert facts(result) == facts(undisturbed(tmp_path, spec))


@pytest.mark.long
def test_ctrl_c_gives_runs_time_to_end_and_loses_nothing(tmp_path: Path) -> None:
    spec = resuming_spec()
    agent = begin("search", "study.yaml", "--workers", "2")
    wait_for(lambda: num_steps() > 15)
    pids = descendants(agent.pid)
    began = time.monotonic()
    agent.send_signal(signal.SIGINT)
    assert agent.wait(timeout=60) == 130
    # the scripts have seen that they should stop, long before they are ended
    assert time.monotonic() - began < 15
    assert not any(map(is_there, pids))
    rows = tempopt.load_study(URL, "plain").runs
    assert not any(row.failures for row in rows) and not any(row.state == "running" for row in rows)
    result = tempopt.resume("plain", storage=URL, workers=2, progress=False)
    Path("steps.txt").unlink()
    assert facts(result) == facts(undisturbed(tmp_path, spec))


@pytest.mark.long
def test_a_run_that_neither_prints_nor_reports_is_ended_after_its_lease() -> None:
    Path("hanging.py").write_text(
        "import os, sys, time\n"
        "print('begins', flush=True)\n"
        "if os.path.exists('hung'):\n"
        "    for _ in range(8):\n"
        "        time.sleep(0.5)\n"
        "        print('a sign of life', flush=True)\n"
        "else:\n"
        "    open('hung', 'w')\n"
        "    time.sleep(600)\n"
        "print('val_loss', (float(sys.argv[2]) - 2) ** 2)\n"
    )
    data = program_spec({"command": "python hanging.py {seed} {gain}", "metric": "val_loss"}, lease=2)
    spec = {key: value for key, value in data.items() if key != "search"}
    sets = {"A": {"gain": 1.0}, "B": {"gain": 2.0}}
    result = tempopt.compare(spec, sets, pairs=2, storage=URL, progress=False, workers=2)
    assert [run.outcome for run in result.runs] == ["complete"] * 4
    # those that print live longer than the lease
    assert sum(run.failures for run in result.runs) == 1


@pytest.mark.service
def test_two_agents_share_a_study_on_postgresql(tmp_path: Path) -> None:
    spec = resuming_spec()
    # no run ends before both agents have one
    Path("wait").touch()
    with empty_database("postgresql", tmp_path, "programs") as url:

        def agents_of_runs() -> set[str | None]:
            try:
                runs = tempopt.load_study(url, "plain").runs
            except (StorageError, tempopt.StudyNotFound):
                return set()
            return {run.agent for run in runs if run.state == "running"}

        first = begin("search", "study.yaml", "--workers", "1", url=url)
        wait_for(lambda: len(agents_of_runs()) == 1)
        second = begin("agent", "plain", "--workers", "1", url=url)
        wait_for(lambda: len(agents_of_runs()) == 2)
        Path("wait").unlink()
        assert (first.wait(timeout=240), second.wait(timeout=240)) == (0, 0)
        result = tempopt.load_study(url, "plain")
    agents = {run.agent for run in result.runs}
    assert len(agents) == 2
    # each run is trained once
    assert len(Path("steps.txt").read_text().splitlines()) == 20 * len(result.runs)
    Path("steps.txt").unlink()
    assert facts(result) == facts(undisturbed(tmp_path, spec))


def test_the_command_of_a_study_in_the_database_is_shown_before_it_runs(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from tempopt import cli

    spec = program_spec({"command": "python train.py --seed {seed} --gain {gain}", "metric": "val_loss"})
    tempopt.search(spec, storage=URL, workers=1, progress=False)
    Path("train.py").rename("renamed.py")
    capsys.readouterr()
    # it fails, and was shown
    assert cli.main(["resume", "plain", "--trials", "+1", "--storage", URL, "--no-report"]) != 0
    assert "runs the command: python train.py --seed {seed} --gain {gain}" in capsys.readouterr().out


def test_deleting_a_study_removes_what_its_runs_have_written() -> None:
    from tempopt import cli

    Path("writing.py").write_text(
        "import tempopt\n"
        "run = tempopt.current_run()\n"
        "(run.folder / 'deep').mkdir()\n"
        "(run.folder / 'deep' / 'weights.pt').write_text('x')\n"
        "run.report(run.params['gain'])\n"
    )
    spec = program_spec({"command": "python writing.py {seed}"}, {"gain": GAIN}, trials=2)
    tempopt.search(spec, storage=URL, workers=1, progress=False)
    assert list(Path("tempopt-runs").glob("plain/*/files/deep/weights.pt"))
    assert cli.main(["delete", "plain", "--yes", "--storage", URL]) == 0
    assert not list(Path("tempopt-runs").rglob("*weights*")) and not Path("tempopt-runs/plain").exists()
