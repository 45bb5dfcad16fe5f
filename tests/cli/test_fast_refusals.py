"""What follows from the text of a spec, or from a name, is answered without what trains and what judges."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tempopt.storage.opening import open_store
from tests.refused_specs import REFUSED

REPOSITORY = Path(__file__).parents[2]
TRAINING = {"torch", "lightning", "optuna", "pandas", "plotly"}
HEAVY = {*TRAINING, "scipy"}
_PROGRAM = """
import sys
from tempopt.cli import main
code = main(sys.argv[1:])
print("imported:", *(name for name in sys.modules if "." not in name), file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an empty database."""
    open_store(f"sqlite:///{tmp_path / 'tempopt.db'}").close()
    return tmp_path


def run(folder: Path, words: Sequence[str]) -> tuple[int, str, set[str]]:
    """Return exit code, output and top-level modules of a command that runs in a process of its own."""
    process = subprocess.run(
        [sys.executable, "-c", _PROGRAM, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "XDG_CONFIG_HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    stderr, _, modules = process.stderr.rpartition("imported:")
    return process.returncode, process.stdout + stderr, set(modules.split())


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_text_is_refused_without_heavy_modules(folder: Path, name: str) -> None:
    text, wrong_value, allowed = REFUSED[name]
    (folder / "wrong.yaml").write_text(text, encoding="utf-8")
    code, output, modules = run(folder, ["check", "wrong.yaml"])
    assert code == 2
    assert wrong_value in output and allowed in output
    assert "To check it again, run: tempopt check wrong.yaml" in output
    assert not modules & HEAVY


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("search", "entropy term by query rows"),
        ("plan", "entropy term by query rows"),
        ("compare", "compared length scaling by query rows"),
    ],
)
def test_the_other_commands_refuse_it_as_lightly(folder: Path, command: str, name: str) -> None:
    text, wrong_value, allowed = REFUSED[name]
    (folder / "wrong.yaml").write_text(text, encoding="utf-8")
    code, output, modules = run(folder, [command, "wrong.yaml"])
    assert code == 2
    assert wrong_value in output and allowed in output
    assert "run: tempopt check wrong.yaml" in output
    assert not modules & HEAVY


@pytest.mark.parametrize(
    ("words", "wrong_name", "allowed", "command"),
    [
        (["search", "no_such"], 'Unknown study spec "no_such"', "Known: associative_recall", "tempopt init"),
        (["show", "no_such"], 'Unknown study "no_such"', "Known: none yet", "tempopt list --storage URL"),
        (["export", "no_such"], 'Unknown study "no_such"', "Known: none yet", "tempopt list --storage URL"),
    ],
)
def test_an_unknown_name_is_refused_without_heavy_modules(
    folder: Path, words: list[str], wrong_name: str, allowed: str, command: str
) -> None:
    code, output, modules = run(folder, words)
    assert code == 2
    assert wrong_name in output and allowed in output and command in output
    assert not modules & HEAVY


def test_list_imports_no_heavy_modules(folder: Path) -> None:
    code, output, modules = run(folder, ["list"])
    assert (code, output) == (0, "No study in sqlite:///tempopt.db yet.\n")
    assert not modules & HEAVY
