"""From a name, or an import path, to a launcher; and what is said where there is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.launch.local import LocalLauncher
from tempopt.launch.registry import make_launcher

LAUNCHER_MODULE = """\
from tempopt.launch.launcher import Launcher

class Mine(Launcher):
    name, OPTIONS, is_multi_host, survives_command = "mine", {"where": "where to"}, True, True
    def machines(self): return []
    def start(self, tasks): return []
    def jobs(self, ids): return []
    def cancel(self, ids): pass

class Half(Launcher):
    name, OPTIONS, is_multi_host, survives_command = "half", {}, True, True

class Other: pass
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("launchers_of_mine", "broken_launchers"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "launchers_of_mine.py").write_text(LAUNCHER_MODULE)
    (tmp_path / "broken_launchers.py").write_text("import json\nraise RuntimeError('so it is')\n")
    return tmp_path


def test_a_name_is_one_of_ours_and_an_import_path_ones_own() -> None:
    assert isinstance(make_launcher("local", {}), LocalLauncher)
    launcher = make_launcher("launchers_of_mine:Mine", {"where": "there"})
    assert (type(launcher).__name__, launcher.options) == ("Mine", {"where": "there"})


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("slrum", 'Unknown launcher "slrum". Did you mean "slurm"? Known: local, ray, slurm.'),
        ("launchers_of_mine.Mine", "For a custom launcher give package.module:Class."),
        ("launchers_of_mine:Other", "is not a Launcher"),
        ("launchers_of_mine:Nowhere", 'Unknown class in "launchers_of_mine" "Nowhere"'),
        ("no_such_module:Mine", 'Unknown module "no_such_module"'),
        ("launchers_of_mine:Half", "cannot be made: Can't instantiate abstract class Half"),
        ("broken_launchers:Mine", "broken_launchers.py:2: RuntimeError: so it is"),
    ],
)
def test_what_is_no_launcher_is_told_with_what_there_is(name: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        make_launcher(name, {})
    assert message in str(error.value)


def test_an_option_that_is_not_known_is_refused_with_what_is() -> None:
    with pytest.raises(UsageError, match=r'option of the launcher mine "were".*where \(where to\)'):
        make_launcher("launchers_of_mine:Mine", {"were": "there"})


@pytest.mark.parametrize(("name", "engine"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_that_is_not_installed_is_named_with_the_extra(
    name: str, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # None in its place makes the import fail as if it were not there
    monkeypatch.setitem(sys.modules, engine, None)
    for module in [loaded for loaded in sys.modules if loaded.startswith(f"tempopt.launch.{name}")]:
        monkeypatch.delitem(sys.modules, module)
    with pytest.raises(UsageError) as error:
        make_launcher(name, {})
    assert f"needs the package {engine}" in str(error.value)
    assert f"pip install '{engine}" in str(error.value)


def test_no_engine_is_loaded_for_another_launcher() -> None:
    code = (
        "import sys; from tempopt.launch.registry import make_launcher; import tempopt.cli.launch\n"
        "make_launcher('local', {})\n"
        "print([n for n in ('ray', 'submitit', 'torch', 'lightning') if n in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == "[]\n"
