"""Files that a person names: what is not a regular file is refused, and nothing is half written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.files import absolute, read_text, replace


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nothing writes into."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


def test_a_pipe_is_not_waited_for_and_not_replaced(pipe: Path) -> None:
    with pytest.raises(UsageError, match=r"is not a regular file.*Give a file that holds one URL"):
        read_text(pipe, "one URL")
    with pytest.raises(UsageError, match=r"is not a regular file"):
        replace(pipe, "text")
    assert pipe.is_fifo()


@pytest.mark.parametrize("name", ["", ".", "x" * 300, "a\0b", "/dev/null", "missing/x"])
def test_what_cannot_be_written_to_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=r"Give (another path|the path of a file)\."):
        replace(Path(name), "text")
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", [".", "x" * 300, "a\0b", "missing"])
def test_what_cannot_be_read_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"Give a file that holds text\."):
        read_text(Path(name), "text")


@pytest.mark.parametrize("path", ["~no-such-user/x", "x" * 5000, "a\0b"])
def test_a_path_at_which_nothing_can_be_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match=r"^The folder .* cannot be used: .*\. Give another path\.$"):
        absolute(path, "The folder")
