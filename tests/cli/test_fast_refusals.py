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
HEAVY = {"torch", "lightning", "optuna", "pandas", "plotly", "scipy"}
_PROGRAM = """
import sys
from tempopt.cli import main
try:
    code = main(sys.argv[1:])
except SystemExit as end:
    code = end.code
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


NO_DATA = "no data"
CHECK = "run: tempopt check wrong.yaml"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("check", NO_DATA),
        ("search", NO_DATA),
    ],
)
def test_a_wrong_text_is_refused_without_heavy_modules(folder: Path, command: str, name: str) -> None:
    text, *fragments = REFUSED[name]
    (folder / "wrong.yaml").write_text(text, encoding="utf-8")
    code, output, modules = run(folder, [command, "wrong.yaml"])
    assert code == 2 and not modules & HEAVY
    assert all(fragment in output for fragment in (*fragments, CHECK))


@pytest.mark.parametrize(
    ("words", "expected_code", "fragments"),
    [
        ("search no_such", 2, ['Unknown study spec "no_such"', "Known: associative_recall", "tempopt init"]),
        ("show no_such", 2, ['Unknown study "no_such"', "Known: none yet", "tempopt list --storage URL"]),
    ],
)
def test_names_need_no_heavy_modules(
    folder: Path, words: str, expected_code: int, fragments: list[str]
) -> None:
    code, output, modules = run(folder, words.split())
    assert code == expected_code and not modules & HEAVY
    assert all(fragment in output for fragment in fragments)


def test_help_and_the_import_of_tempopt_load_nothing(folder: Path) -> None:
    code, output, modules = run(folder, ["--help"])
    assert code == 0 and "search" in output
    assert not modules & {*HEAVY, "sqlalchemy", "pydantic", "jsonargparse", "numpy", "rich"}
