"""The scripts that complete commands and options in a shell."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tempopt import cli


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
