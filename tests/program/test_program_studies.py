"""Studies of a command and of a function, to the verdict: by command line and in Python."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import tempopt
from tempopt import cli
from tempopt.agent.dry_run import start_workers
from tempopt.agent.placement import Placement
from tempopt.report.decision import decide
from tempopt.report.findings import find, render_lines
from tempopt.report.study_lines import screen_lines
from tempopt.report.study_result import StudyResult
from tempopt.server.mcp.budget import Budget
from tempopt.server.mcp.session import Session
from tempopt.server.mcp.tools import TOOLS, call
from tempopt.service import study_file
from tempopt.spec.program import CommandProgram
from tempopt.training.messages import Failed, Finished, ProgramRequest
from tests.program.conftest import COMMAND, GAIN, program_spec

URL = "sqlite:///tempopt.db"

pytestmark = pytest.mark.usefixtures("folder")


def search(spec: dict[str, Any], **options: Any) -> StudyResult:
    return tempopt.search(spec, storage=URL, progress=False, **{"workers": 2, **options})


def run(*words: str) -> int:
    return cli.main([*words, "--storage", URL])


def facts(result: StudyResult) -> list[tuple[Any, ...]]:
    return sorted(
        (run.kind, run.number, run.seed, json.dumps(run.parameters), run.outcome, run.value)
        for run in result.runs
    )


def test_a_script_is_searched_from_the_command_line_to_a_verdict(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = program_spec({"command": COMMAND, "metric": "val_loss"})
    (folder / "plain.yaml").write_text(yaml.safe_dump(spec))
    assert run("search", "plain.yaml", "--workers", "2", "--no-report") == 0
    result = tempopt.load_study(URL, "plain")
    verdict = result.verdict
    assert verdict is not None and verdict.primary.significant
    assert verdict.baseline_params == {"gain": 1.0}
    # in another database, and to a coding agent, it is the same study
    study_file.dump(URL, "plain", Path("plain.tempopt"))
    study_file.load("sqlite:///other.db", Path("plain.tempopt"))
    assert facts(tempopt.load_study("sqlite:///other.db", "plain")) == facts(result)
    with Session("sqlite:///other.db", user=None, budget=Budget(runs=1)) as session:
        assert call(session, TOOLS["verdict"], {"study": "plain"})["answer"] == "gain_shown"
        assert "--gain" in call(session, TOOLS["export"], {"study": "plain"})["text"]
        new_spec = spec | {"study": spec["study"] | {"name": "new"}}
        assert not call(session, TOOLS["plan"], {"spec": new_spec})["fits"]
    # a run is one process, and nothing else is run
    planned = {"baseline": 2, "search": 6, "choose": 2, "confirm": 2 * verdict.primary.paired.n_pairs}
    assert {kind: count.done for kind, count in result.tickets.items() if count.done} == planned
    # the value is what the script printed last, with its own seed
    ticket = next(ticket for ticket in result.runs if ticket.kind == "confirm")
    assert ticket.parameters is not None
    words = ["train.py", "--seed", str(ticket.seed % 2**31), "--gain", repr(ticket.parameters["gain"])]
    output = subprocess.check_output([sys.executable, *words], text=True)
    assert ticket.value == float(output.split()[-1])
    assert run("logs", "plain", ticket.name) == 0
    assert output.splitlines()[-1] in capsys.readouterr().out


# Without a gain of one parameter, another is tuned.
TUNED = """
import math, sys
seed, gain, lr = (float(word) for word in sys.argv[1:])
print("val_loss:", 2 + math.log(lr / 0.01) ** 2 + hash((seed, gain, lr)) % 1000 / 1000)
"""


@pytest.mark.parametrize("has_gain", [True, False])
def test_what_is_said_of_a_program_speaks_of_its_baseline_and_not_of_temperature(
    folder: Path, capsys: pytest.CaptureFixture[str], has_gain: bool
) -> None:
    command, space = COMMAND, {"gain": GAIN}
    if not has_gain:
        (folder / "tuned.py").write_text(TUNED)
        command = "python tuned.py {seed} {gain} {lr}"
        space = {**space, "lr": {"low": 0.001, "high": 0.1, "log": True}}
    result = search(program_spec({"command": command, "metric": "val_loss"}, space))
    assert result.verdict is not None and result.verdict.primary.significant == has_gain
    decision = decide(result)
    assert decision is not None and decision.baseline == "gain = 1"
    page = folder / "page.html"
    tempopt.write_report(result, page, plotlyjs="cdn")
    for command in (
        ["export", "plain"],
        ["export", "plain", "--format", "python"],
        ["show", "plain", "--full"],
    ):
        assert run(*command) == 0
    text = "\n".join([*render_lines(find(result)), page.read_text(), capsys.readouterr().out])
    assert "τ" not in text and "temperature" not in text.lower().replace("temperature_init", "")


READING = """
import sys, tempopt
print("val_loss:", tempopt.current_run().temperature(0, 1) * float(sys.argv[2]) + int(sys.argv[1]) % 7 / 100)
"""


def test_the_export_of_a_command_trains_what_is_recommended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "reading.py").write_text(READING)
    space = {"temperature_init": {"low": 0.5, "high": 4}, "gain": GAIN}
    program = {"command": "python reading.py {seed} {gain}", "metric": "val_loss"}
    lowest = {"temperature_init": 0.5, "gain": 0.5}
    result = search(program_spec(program, space, enqueue=[lowest]))
    assert result.recommendation is not None
    params = result.recommendation.params
    assert params == lowest
    lines = screen_lines(result)
    assert "  now     τ = 1, gain=1" in lines
    assert any("at the end of the range of gain (0.5 to 4)" in line for line in lines)
    capsys.readouterr()
    assert run("export", "plain") == 0
    exported = yaml.safe_load(capsys.readouterr().out)
    assert exported["params"] == params
    assert run("export", "plain", "--format", "python") == 0
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for words in (["sh", "-c", exported["command"]], ["python", "-c", capsys.readouterr().out]):
        output = subprocess.check_output(words, text=True, env=os.environ | {"PATH": path})
        assert float(output.split()[-1]) == params["temperature_init"] * params["gain"]


def test_a_command_and_a_function_that_train_the_same_come_to_the_same(folder: Path) -> None:
    space = {"temperature_init": {"low": 0.5, "high": 4}, "gain": {**GAIN, "baseline": None}}
    space["gain"] = {key: value for key, value in space["gain"].items() if key != "baseline"}
    study = {"pruner": {"name": "median", "n_startup_trials": 2}, "trials": 10}
    command = search(program_spec({"command": "python reporting.py {seed}"}, space, name="command", **study))
    function = search(program_spec({"function": "plain:train"}, space, name="function", **study))
    assert facts(command) == facts(function)
    assert any(run.outcome == "pruned" for run in command.runs)
    assert command.verdict is not None and command.verdict.baseline_params["temperature_init"] == 1.0
    assert {run.kind for run in command.runs} >= {"constant", "baseline", "search", "confirm"}
    # each reports until it is pruned, or to its end
    curves = {run.outcome: len(command.curves[run.id]) for run in command.runs if run.kind == "search"}
    assert curves["complete"] == 20 and curves["pruned"] < 20


SCRIPT = """
import tempopt

CENTRE = 2.0


def loss(gain):
    return (gain - CENTRE) ** 2


def train(run: tempopt.Run) -> float:
    print("a line of the function")
    assert tempopt.current_run().params == run.params
    return loss(run.params["gain"]) + run.seed % 7 / 100


if __name__ == "__main__":
    space = {"gain": {"low": 0.5, "high": 4.0, "baseline": 1.0}}
    options = {"trials": 3, "workers": 1, "storage": "sqlite:///tempopt.db", "progress": False}
    result = tempopt.search(train, space=space, metric="loss", direction="minimize", **options)
    print(result.verdict.primary.significant, result.best.params["gain"])
"""


def test_a_function_of_a_script_is_searched_from_it(folder: Path) -> None:
    (folder / "mine.py").write_text(SCRIPT)
    output = subprocess.check_output([sys.executable, "mine.py"], text=True, stderr=subprocess.STDOUT)
    is_shown, gain = output.split()[-2:]
    assert is_shown == "True" and abs(float(gain) - 2.0) < 1.0
    result = tempopt.load_study(URL, "train")
    assert result.spec.program is not None and result.spec.program.function is not None
    assert result.spec.program.function.startswith("tempopt_modules.train_")


def test_a_function_needs_its_options_and_a_spec_takes_none() -> None:
    with pytest.raises(tempopt.UsageError, match="space, metric and direction"):
        tempopt.search(print, metric="loss", direction="minimize")
    with pytest.raises(tempopt.UsageError, match="metric"):
        tempopt.search(program_spec({"command": COMMAND}), metric="loss")
    with pytest.raises(tempopt.SpecError, match="def"):
        tempopt.search(lambda run: 1.0, space={"gain": GAIN}, metric="loss", direction="minimize")


def test_two_commands_are_compared_and_the_better_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    spec = program_spec({"command": COMMAND, "metric": "val_loss"})
    Path("plain.yaml").write_text(yaml.safe_dump(spec))
    assert run("compare", "plain.yaml", "--vary", "gain=1.0,2.5", "--no-report", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["comparison"]["best"] == "gain=2.5"


def test_check_and_plan_run_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = program_spec({"command": COMMAND, "metric": "val_loss"})
    (folder / "plain.yaml").write_text(yaml.safe_dump(spec))
    (folder / "train.py").write_text("open('was_run', 'w')")
    assert cli.main(["check", "plain.yaml", "--dry-run"]) == 0
    assert run("plan", "plain.yaml") == 0
    assert COMMAND in capsys.readouterr().out and not (folder / "was_run").exists()


def test_a_verdict_is_explained_by_taking_parameters_away(folder: Path) -> None:
    space = {"gain": GAIN, "steps": {"low": 5, "high": 30, "baseline": 10}}
    command = f"{COMMAND} --steps {{steps}}"
    result = search(program_spec({"command": command, "metric": "val_loss"}, space, explain=True))
    assert result.verdict is not None
    assert {part.name for part in result.verdict.parts} <= {"gain", "steps"}
    assert all("ablation" != run.kind or run.outcome == "complete" for run in result.runs)


def test_the_best_sets_of_a_search_are_compared_with_its_baseline() -> None:
    spec = program_spec({"command": COMMAND, "metric": "val_loss"})
    search(spec)
    result = tempopt.compare(spec, from_study="plain", top=1, pairs=2, storage=URL, workers=2, progress=False)
    assert result.comparison is not None
    assert result.comparison.params_by_name["baseline"] == {"gain": 1.0}
    assert len(result.comparison.params_by_name) == 2


def test_a_run_sees_the_cards_of_its_worker_and_no_token(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEMPOPT_TOKEN", "secret")
    monkeypatch.setenv("TEMPOPT_STORAGE", "sqlite:///secret.db")
    (folder / "seen.py").write_text(
        "import os\n"
        "names = ('CUDA_VISIBLE_DEVICES', 'OMP_NUM_THREADS', 'TEMPOPT_TOKEN', 'TEMPOPT_STORAGE', 'MODE')\n"
        "print([os.environ.get(name) for name in names])\n"
        "print('loss 1')\n"
    )
    request = ProgramRequest(
        ticket=1,
        attempt=1,
        program=CommandProgram(
            command="MODE={seed} python seen.py", metric="loss", pattern="loss", identity=""
        ),
        parameters={},
        seed=7,
        names=["validate"],
        folder=str(folder / "run"),
    )
    with start_workers([Placement(gpus=("3", "5"), threads=2, loads_torch=False)]) as (worker,):
        worker.send(request)
        while not isinstance(message := worker.receive(), Finished | Failed | None):
            pass
    assert isinstance(message, Finished) and message.measurements == {"validate": 1.0}
    assert (folder / "run" / "log.txt").read_text().splitlines()[0] == "['3,5', '2', None, None, '7']"
