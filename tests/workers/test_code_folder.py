"""Where modules are found while a study's own code is in force, and after that."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tempopt.workers.class_paths import import_module
from tempopt.workers.code_folder import code_folder, imported_from


def test_modules_are_found_in_the_folder_and_forgotten_after(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "brought_module.py").write_text(f"NAME = {name!r}\n")
    before = list(sys.path)
    for name in ("one", "other", "one"):
        with imported_from(tmp_path / name):
            assert code_folder() == tmp_path / name
            assert import_module("brought_module", where="here").NAME == name  # type: ignore[attr-defined]
        assert "brought_module" not in sys.modules and sys.path == before
    assert code_folder() == Path.cwd()


def test_another_thread_has_a_folder_of_its_own(tmp_path: Path) -> None:
    seen: list[Path] = []
    with imported_from(tmp_path):
        thread = threading.Thread(target=lambda: seen.append(code_folder()))
        thread.start()
        thread.join()
    assert seen == [Path.cwd()]
