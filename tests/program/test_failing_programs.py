"""Programs that fail, print too much, never end or never read their run: what becomes of their studies."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import tempopt
from tempopt import cli
from tempopt.program.command_run import CommandRun
from tempopt.program.output import KEPT_BYTES
from tempopt.spec.program import CommandProgram
from tempopt.training.messages import LocalChannel, ProgramRequest
from tests.program.conftest import GAIN, Write, program_spec

URL = "sqlite:///tempopt.db"


def search(program: dict[str, Any], **study: Any) -> Any:
    options = {"storage": URL, "progress": False, "workers": 1}
    return tempopt.search(program_spec(program, max_attempts=1, **study), **options)


FAILING = {
    "exit 1": ("import sys; print('the last words'); sys.exit(3)", "exit code 3.*the last words"),
    "traceback": ("raise ValueError('a bad batch')", "exit code 1.*ValueError: a bad batch"),
    "no value": ("print('loss: 1')", "without a value behind 'val_loss'.*loss: 1"),
    "silent": ("", "printed nothing"),
    "killed": ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_command_that_fails_says_so_with_its_last_lines(script: Write, name: str) -> None:
    text, message = FAILING[name]
    with pytest.raises((tempopt.StudyFailed, tempopt.SpecError)) as caught:
        search({"command": script(text), "metric": "val_loss"})
    for part in message.split(".*"):
        assert part in str(caught.value)


def test_a_command_that_reports_no_value_is_told_how(script: Write) -> None:
    with pytest.raises(tempopt.SpecError, match=r"current_run\(\).report.*program.metric"):
        search({"command": script("import tempopt; tempopt.current_run()")})


def test_a_parameter_that_never_reaches_the_script_is_refused(script: Write) -> None:
    command = script("print('val_loss 1')").replace(" {gain}", "")
    with pytest.raises(tempopt.SpecError, match=r"gain never reached.*--gain \{gain\}"):
        search({"command": command, "metric": "val_loss"})
    assert tempopt.load_study(URL, "plain").best is None


def test_a_program_that_is_not_there_is_refused_before_a_study_begins(folder: Path) -> None:
    with pytest.raises(tempopt.SpecError, match='no program "no_such_program"'):
        search({"command": "no_such_program {seed} {gain}"})
    with pytest.raises(tempopt.SpecError, match=r'function in plain "trian".*train'):
        search({"function": "plain.trian"})
    (folder / "taking.py").write_text("def nothing(): ...")
    with pytest.raises(tempopt.SpecError, match=r"cannot be called with a run.*def train"):
        search({"function": "taking.nothing"})
    with pytest.raises(tempopt.StudyNotFound):
        tempopt.load_study(URL, "plain")


def test_a_function_that_returns_no_number_is_refused(folder: Path) -> None:
    (folder / "texts.py").write_text("def train(run): return 'low'")
    with pytest.raises(tempopt.SpecError, match="returned 'low'.*number"):
        search({"function": "texts.train"})


def test_a_command_needs_a_seed_unless_its_script_asks_for_its_run(script: Write, folder: Path) -> None:
    command = script("import tempopt; run = tempopt.current_run(); print('val_loss', run.seed % 7)")
    result = search({"command": command.replace(" {seed} {gain}", ""), "metric": "val_loss"}, trials=1)
    assert all(run.value == run.seed % 2**31 % 7 for run in result.runs)
    with pytest.raises(tempopt.SpecError, match=r"\{seed\} is missing.*current_run\(\).seed"):
        search({"command": "python train.py --gain {gain}"}, name="fixed")


def test_the_log_says_which_line_has_the_value_and_that_it_goes_over_the_last_report(
    script: Write, folder: Path
) -> None:
    command = script("import tempopt; tempopt.current_run().report(3); print('step 9: val_loss 2')")
    result = search({"command": command, "metric": "val_loss"}, trials=1)
    assert {run.value for run in result.runs} == {2.0}
    for path in folder.glob("tempopt-runs/*/*/log.txt"):
        last_line = path.read_text().splitlines()[-1]
        assert "of the line: step 9: val_loss 2" in last_line and "not the last report, 3.0" in last_line


def test_the_code_of_a_command_is_in_the_files_that_it_names(folder: Path) -> None:
    for name in ("settings.yaml", "output.json"):
        (folder / name).touch()
    for text in (
        "CONFIG=settings.yaml python train.py {seed}",
        "python -m train {seed} --config=settings.yaml --write output.json",
        "sh -c 'cat settings.yaml && python train.py {seed}'",
    ):
        program = CommandProgram(command=text, metric="loss", pattern=None, identity="")
        request = ProgramRequest(ticket=1, attempt=1, program=program, parameters={}, seed=0)
        files = CommandRun(request, program, LocalChannel()).source_files()
        assert {str(path) for path in files} == {"train.py", "settings.yaml"}


NOT_FINITE = """
import sys
import tempopt
gain = float(sys.argv[2])
tempopt.current_run().report(1.0, step=1)
{line}
print("val_loss:", {value} if gain > 2 else (gain - 2) ** 2 + int(sys.argv[1]) % 7 / 100)
"""


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("", "float('nan')"),
        ("", "float('-inf')"),
        ("if gain > 2: tempopt.current_run().report(float('nan'), step=2)", "0.0"),
    ],
)
def test_a_value_that_is_not_finite_is_a_run_that_diverged(script: Write, line: str, value: str) -> None:
    command = script(NOT_FINITE.format(line=line, value=value))
    result = search({"command": command, "metric": "val_loss"})
    for run in result.runs:
        assert run.parameters is not None
        assert run.outcome == ("diverged" if run.parameters["gain"] > 2 else "complete")
    assert result.verdict is not None and result.verdict.params["gain"] <= 2


HUGE = """
import sys
print("the beginning")
for _ in range(60):
    sys.stdout.write("x" * 1_000_000 + "\\n")
print("val_loss: 0.5")
for _ in range(20):
    sys.stdout.write("train_val_loss: 3 " * 20_000 + "\\n")
print("the end")
"""


def test_a_flood_of_output_fills_neither_disk_nor_database(script: Write, folder: Path) -> None:
    data = program_spec({"command": script(HUGE), "metric": "val_loss"})
    spec = {key: value for key, value in data.items() if key != "search"}
    sets = {"A": {"gain": 1.0}, "B": {"gain": 2.0}}
    result = tempopt.compare(spec, sets, pairs=2, storage=URL, progress=False, workers=1)
    assert {run.value for run in result.runs} == {0.5}
    logs = [path.read_text() for path in folder.glob("tempopt-runs/*/*/log.txt")]
    assert len(logs) == 4
    for text in logs:
        assert text.startswith("the beginning") and "the end\n" in text and "left out" in text
        assert len(text) < 3.1 * KEPT_BYTES
    assert (folder / "tempopt.db").stat().st_size < 2_000_000


LEAVES_PROCESSES = """
import subprocess, sys
for session in (False, True):
    subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=session)
print("val_loss:", float(sys.argv[2]))
"""


def test_what_a_command_leaves_behind_is_ended_and_holds_nothing_up(script: Write) -> None:
    command, began = script(LEAVES_PROCESSES), time.monotonic()
    result = search({"command": command, "metric": "val_loss"}, trials=1)
    assert result.state == "done"
    assert time.monotonic() - began < 300
    assert not [pid for pid in _pids() if b"time.sleep(600)" in _command_line(pid)]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


STUBBORN = """
import time, tempopt
run = tempopt.current_run()
for step in range(1, 10_000):
    # it is pruned, and goes on regardless
    run.report(run.params["gain"], step=step)
    time.sleep(0.01)
    if step == 12 and run.params["gain"] == 1.0:
        break
    if step == 12 and run.seed % 1000 < 0:
        break
"""


def test_a_pruned_run_that_goes_on_regardless_is_ended(folder: Path) -> None:
    (folder / "stubborn.py").write_text(STUBBORN)
    spec = program_spec(
        {"command": "python stubborn.py {seed}"},
        {"gain": {**GAIN, "low": 1.5}},
        pruner={"name": "threshold", "upper": 1.2},
        trials=2,
    )
    spec["resources"] = {"grace": 0.2}
    result = tempopt.search(spec, storage=URL, progress=False, workers=1)
    outcomes = {run.kind: run.outcome for run in result.runs if run.state == "done"}
    assert outcomes == {"baseline": "complete", "search": "pruned"}


FAILS_IN_THE_CONFIRMATION = """
import sys, tempopt
run = tempopt.current_run()
if "confirm-" in str(run.folder) and {condition}:
    sys.exit(1)
print("val_loss:", (run.params["gain"] - 2) ** 2 + run.seed % 7 / 1000)
"""


@pytest.mark.parametrize(
    ("condition", "code", "text"),
    [
        ("run.seed % 3 == 1", 0, "the winner failed or diverged on"),
        ("True", 1, "No verdict: no pair of runs could be compared"),
    ],
)
def test_failures_of_both_arms_stop_no_confirmation_and_are_told(
    script: Write, capsys: pytest.CaptureFixture[str], condition: str, code: int, text: str
) -> None:
    command = script(FAILS_IN_THE_CONFIRMATION.format(condition=condition))
    spec = program_spec({"command": command, "metric": "val_loss"}, max_attempts=2)
    Path("plain.yaml").write_text(yaml.safe_dump(spec))
    assert cli.main(["search", "plain.yaml", "--workers", "1", "--no-report", "--storage", URL]) == code
    assert text in capsys.readouterr().out
