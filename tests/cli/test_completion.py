"""What a shell is offered while a command is typed, and ``tempopt help``."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.cli.completion import candidates
from tests.report.made_study import World, make, write


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a database of one study, a spec, and a YAML file that is none."""
    monkeypatch.chdir(tmp_path)
    write("sqlite:///tempopt.db", make(World(trials=1, layers=0, confirmed=False)))
    (tmp_path / "mine.yaml").write_text("study: {}\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: of something else\n", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["sh"], ["show"]),
        (["show", ""], ["pairs"]),
        (["show", "pa"], ["pairs"]),
        (["show", "x"], []),
        (["show", "pairs", ""], []),
        (["show", "--storage", "sqlite:///tempopt.db", ""], ["pairs"]),
        (["show", "--storage", "elsewhere.db", ""], []),
        (["show", "--storage", ""], []),
        (["show", "pairs", "--wa"], ["--watch"]),
        (["search", "mi"], ["mine.yaml"]),
        (["search", "mk"], []),
        (["search", "max_r"], ["max_retrieval"]),
        (["search", "--name", ""], []),
        (["plan", "mine.yaml", "--earlier", ""], ["pairs"]),
        (["export", "pairs", "--format", ""], ["yaml", "python"]),
        (["export", "pairs", "--winner", "--fo"], ["--format"]),
        (["help", "com"], ["compare", "completion"]),
        (["storage", ""], ["upgrade"]),
        (["no-such-command", ""], []),
    ],
)
def test_a_word_is_completed_by_what_can_be_there(words: list[str], found: list[str]) -> None:
    assert candidates(words) == found


def test_an_empty_word_at_the_beginning_is_completed_by_every_command() -> None:
    assert set(cli.COMMANDS) <= set(candidates([""]))


def test_a_server_is_not_asked_and_a_file_that_is_no_database_does_no_harm(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert candidates(["show", "--storage", "postgresql://127.0.0.1:1/x", ""]) == []
    assert candidates(["show", "--storage", "mine.yaml", ""]) == []
    monkeypatch.setenv("TEMPOPT_STORAGE", "mine.yaml")
    assert candidates(["show", ""]) == []


def test_completing_loads_nothing_that_takes_time() -> None:
    code = "import sys; from tempopt import cli\n"
    code += "cli.main(['completion', 'bash', '--', 'show', 'x']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "lightning", "optuna", "sqlalchemy", "numpy", "pydantic"} & set(done.stdout.split())


@pytest.mark.parametrize(("shell", "check"), [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")])
def test_a_script_is_one_that_its_shell_reads(
    shell: str, check: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "tempopt completion" in script
    if shutil.which(shell) is None:
        pytest.skip(f"NOT TESTED: {shell} is not installed.")
    (tmp_path / "script").write_text(script, encoding="utf-8")
    subprocess.run([shell, check, str(tmp_path / "script")], check=True)


def test_bash_completes_the_name_of_a_study(folder: Path) -> None:
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("NOT TESTED: bash is not installed.")
    script = f"""
tempopt() {{ "{sys.executable}" -m tempopt "$@"; }}
eval "$(tempopt completion bash)"
COMP_WORDS=(tempopt show pa) COMP_CWORD=2 COMP_LINE='tempopt show pa' COMP_POINT=15
_tempopt
echo "${{COMPREPLY[@]}}"
"""
    done = subprocess.run([bash, "-c", script], cwd=folder, capture_output=True, text=True, check=True)
    assert done.stdout == "pairs\n"


def test_help_is_what_the_option_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["show", "--help"])
    wanted = capsys.readouterr().out
    assert cli.main(["help", "show"]) == 0
    assert capsys.readouterr().out == wanted
    assert cli.main(["help"]) == 0
    everything = capsys.readouterr().out
    assert all(name in everything for name in cli.COMMANDS)
    assert cli.main(["help", "shwo"]) == 2
    assert 'Did you mean "show"?' in capsys.readouterr().err
