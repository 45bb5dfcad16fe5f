"""What the display of a study is shown in tests, and studies that several tests look at."""

from __future__ import annotations

import contextlib
import io
import runpy
from pathlib import Path
from typing import Any

import pytest

from tempopt.report.export import to_python
from tempopt.report.study_result import StudyResult
from tests.progress_fixtures import make_snapshot as make_snapshot
from tests.toy_study import TOYS, work_in


@pytest.fixture
def ended_result(ended_study: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Work where the study is that a module's own ``ended_study`` made, and return its result."""
    folder, result = ended_study
    work_in(folder, monkeypatch)
    monkeypatch.syspath_prepend(str(TOYS))
    return result


def run_exported(result: StudyResult, *, winner: bool = False) -> dict[str, Any]:
    """Carry out the script that a result is exported as; return what it defines."""
    Path("exported.py").write_text(to_python(result, winner=winner))
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return runpy.run_path("exported.py")
