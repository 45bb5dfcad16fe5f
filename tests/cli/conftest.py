"""What the command line is shown in tests, and a password that it may not show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.progress_fixtures import make_snapshot as make_snapshot
from tests.progress_fixtures import make_ticket as make_ticket

# A password as it is, as it is written in a URL, and the parts that a careless mask would leave.
SECRET = "zqx@kvw:2/jq"
WRITTEN = "zqx%40kvw%3A2%2Fjq"
_TRACES = ("zqx", "kvw", "2/jq", "2%2Fjq")


def holds_no_password(text: str) -> None:
    """See that nothing of the password is in a text."""
    assert not [trace for trace in _TRACES if trace in text]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path
