"""Names, flags, exit codes and the messages for what cannot be done as asked."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tempopt import __version__, cli
from tempopt.errors import SpecError, StudyFailed

OPTIONS = """
    --address --all-pairs --any --attempt --baseline --certificate --checkpoints --command --detach
    --direction --dry-run --earlier --enqueue --expires --force --format --from --from-storage --full
    --gpu-hours --heads --host --json --key --launch --launcher --max-runs --metric --name --no-report
    --output --pairs --plotlyjs --port --retry-failed --run-hours --runs --scenario --scope --server --set
    --storage --storage-file --studies --submit --token-file --top --trials --trust-proxy --until-idle
    --user --vary --verbose --watch --weights --winner --without --workers --yes -o
"""


def test_the_options_are_frozen_and_new_science_goes_into_the_spec() -> None:
    arguments = [argument for command in cli.COMMANDS.values() for argument in command.arguments]
    options = {name for argument in arguments for name in argument.names if name.startswith("-")}
    assert options == set(OPTIONS.split())


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_help_of_a_command_names_its_arguments(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_:
        cli.main([command, "--help"])
    assert exit_.value.code == 0
    out = capsys.readouterr().out
    for argument in cli.COMMANDS[command].arguments:
        names = argument.names if argument.names[0].startswith("-") else (argument.settings["metavar"],)
        assert all(name in out for name in names)


def test_version_is_the_version_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"tempopt {__version__}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "search" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["serch", "x.yaml"], 'Unknown command "serch". Did you mean "search"?'),
        (["search", "--trails", "3", "x.yaml"], 'Did you mean "--trials"?'),
        (["show", "--jsn", "x"], 'Unknown option of tempopt show "--jsn". Did you mean "--json"?'),
        (["--verison"], 'Unknown option "--verison". Did you mean "--version"?'),
        (["list", "-x"], 'Unknown option of tempopt list "-x"'),
        (["show", "x", "--stor", "sqlite:///a.db"], '"--storage"'),
        (["search"], "required: SPEC. See `tempopt search --help`."),
        (["search", "x.yaml", "--trials", "0"], '"0" is not a whole number from 1 to 100000'),
        (["search", "x.yaml", "--workers", "all"], '"all" is not a whole number from 1 to 100000, or auto'),
        (["export", "x", "--format", "toml"], "choose from 'yaml', 'python'"),
        (["list", "x"], "unrecognized arguments: x"),
        (["resume", "x", "--pairs", "8"], '"8" is not +N: a verdict can only get more pairs'),
        (["resume", "x", "--trials", "5"], '"5" is not +N: a study that goes on can only get more trials'),
        (["search", "x.yaml", "--trials", "+"], '"" is not a whole number from 1 to 100000'),
        (["search", "x.yaml", "--launch", "gpu"], '"gpu" is not KEY=VALUE, as in partition=gpu'),
        (["storage"], "the following arguments are required: upgrade"),
        (["storage", "downgrade"], "invalid choice: 'downgrade' (choose from 'upgrade')"),
        (
            ["list", "--storage", "a.db", "--storage-file", "b"],
            "--storage and --storage-file were both given",
        ),
    ],
)
def test_what_cannot_be_typed_is_told_in_one_line(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured_output = capsys.readouterr()
    assert captured_output.out == ""
    assert captured_output.err.startswith("tempopt: error: ")
    assert message in captured_output.err
    assert captured_output.err.count("\n") == 1


@pytest.mark.parametrize(("error", "code"), [(SpecError("so it is"), 2), (StudyFailed("so it is"), 1)])
def test_errors_for_people_are_one_message_and_an_exit_code(
    error: Exception, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> int:
        raise error

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["list"]) == code
    assert capsys.readouterr().err == "tempopt: error: so it is\n"
    monkeypatch.setenv("TEMPOPT_TRACEBACK", "1")
    assert cli.main(["list"]) == code
    message = capsys.readouterr().err
    assert message.startswith("Traceback")
    assert message.endswith("\ntempopt: error: so it is\n")


def test_a_closed_output_pipe_is_no_error(tmp_path: Path) -> None:
    process = subprocess.run(
        f"'{sys.executable}' -m tempopt search --help | true; exit ${{PIPESTATUS[0]}}",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert process.stderr == ""
    assert process.returncode == 0


def test_ctrl_c_once_a_command_is_done_changes_nothing() -> None:
    program = """
import atexit, os, signal, sys
from tempopt.cli import program
atexit.register(lambda: os.kill(os.getpid(), signal.SIGINT))
sys.argv = ["tempopt", "--version"]
sys.exit(program())
"""
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.startswith("tempopt ")


# ---- completion in a shell


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_completion_script_is_valid_and_names_commands_and_options(
    shell: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--print-completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in cli.COMMANDS)
    assert "trials" in script
    if shutil.which(shell) is None:
        pytest.skip(f"NOT TESTED: {shell} is not installed.")
    (tmp_path / "script").write_text(script, encoding="utf-8")
    subprocess.run([shell, check, str(tmp_path / "script")], check=True)


def test_unknown_shell_is_refused_with_the_shells_that_there_are(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--print-completion", "csh"]) == 2
    message = capsys.readouterr().err
    assert "csh" in message and all(shell in message for shell in cli.SHELLS)
