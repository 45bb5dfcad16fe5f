"""What a person is told before a search, about a module of their own in the current folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tempopt import cli
from tempopt.service import studies

MODULE = """
import lightning as L

print("being imported")


class Mine(L.LightningModule):
    def __init__(self, width: int, lr: float = 0.01) -> None:
        super().__init__()

    def validation_step(self, batch, batch_idx):
        self.log("val_accuracy", 0.5)
"""


@pytest.fixture(autouse=True)
def module(folder: Path) -> None:
    (folder / "mine.py").write_text(MODULE, encoding="utf-8")


@pytest.mark.long
def test_init_writes_a_spec_for_a_module_in_the_folder(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["init", "mine.Mine"]) == 0
    captured_output = capfd.readouterr()
    assert "class_path: mine.Mine" in captured_output.out
    assert "being imported" not in captured_output.out
    assert "being imported" in captured_output.err
    assert "mine.Mine is not a TemperedModule, so the spec has a section attach:" in captured_output.err
    assert cli.main(["init", "mine.Mine", "-o", "mine.yaml"]) == 0
    assert (folder / "mine.yaml").read_text(encoding="utf-8") == captured_output.out
    capfd.readouterr()
    assert cli.main(["init", "mine.Mine", "-o", "mine.yaml"]) == 2
    assert "already exists" in capfd.readouterr().err


def test_a_module_that_ends_its_process_ends_nothing_else(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "deadly.py").write_text("import os\nos._exit(3)\n", encoding="utf-8")
    assert cli.main(["init", "deadly.Module"]) == 2
    assert 'Importing "deadly.Module" ended the process' in capfd.readouterr().err


def test_check_prints_what_it_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {}

    def fake_check(spec: Any, *, dry_run: bool, on_line: Callable[[str], None]) -> list[str]:
        on_line("a part of it")
        arguments.update(trials=spec.study.trials, dry_run=dry_run)
        return ["one thing", "another"]

    monkeypatch.setattr(studies, "check", fake_check)
    (folder / "pairs.yaml").write_text(
        "study: {name: pairs, metric: val_accuracy, direction: maximize}\n"
        "search: {temperature_init: {low: 0.25, high: 4.0}}\n"
        "model: {class_path: mine.Mine, init_args: {width: 3}}\n"
        "trainer: {max_steps: 10}\n",
        encoding="utf-8",
    )
    assert cli.main(["check", "pairs.yaml", "--dry-run", "--set", "study.trials=7"]) == 0
    assert arguments == {"trials": 7, "dry_run": True}
    assert capsys.readouterr().out == "a part of it\none thing\nanother\n"
