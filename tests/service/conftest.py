"""What the display of a study is shown in tests, and studies that several tests look at."""

from __future__ import annotations

from typing import Any

import pytest

from tests.progress_fixtures import make_snapshot as make_snapshot
from tests.progress_fixtures import make_ticket as make_ticket
from tests.toy_study import TOYS, work_in


@pytest.fixture
def ended_result(ended_study: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Work where the study is that a module's own ``ended_study`` made, and return its result."""
    folder, result = ended_study
    work_in(folder, monkeypatch)
    monkeypatch.syspath_prepend(str(TOYS))
    return result
