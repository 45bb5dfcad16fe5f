"""A file that a command writes is whole, or it is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tempopt.cli import main
from tempopt.cli.output import print_decision, write
from tempopt.errors import UsageError, escape_control_chars


def test_a_file_is_written_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a b.yaml"
    write("τ: 1\n", str(path), overwrite=False)
    assert path.read_text(encoding="utf-8") == "τ: 1\n"
    assert list(tmp_path.iterdir()) == [path]
    assert str(path) in capsys.readouterr().out


def test_a_file_that_is_there_is_replaced_only_where_that_was_allowed(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"already exists and was not changed\. Remove it, or give"):
        write("theirs\n", str(path), overwrite=False)
    assert path.read_text(encoding="utf-8") == "mine\n"
    write("theirs\n", str(path), overwrite=True)
    assert path.read_text(encoding="utf-8") == "theirs\n"


@pytest.mark.parametrize("end", [KeyboardInterrupt, OSError])
def test_what_is_half_written_goes(
    end: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("mine\n", encoding="utf-8")

    def fail(*_: object) -> None:
        raise end

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(UsageError if end is OSError else end):
        write("theirs\n", str(path), overwrite=True)
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text(encoding="utf-8") == "mine\n"


def test_what_would_steer_a_terminal_is_shown_as_an_escape() -> None:
    assert escape_control_chars("a\x1b]0;b\x07\r\u202ec\udc80") == r"a\x1b]0;b\x07\r\u202ec\udc80"
    assert escape_control_chars("τ = 1\u00a0−\n\tüé") == "τ = 1\u00a0−\n\tüé"


def test_an_error_message_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["judge", "no\x1b[2J.csv"]) == 2
    assert r"no\x1b[2J.csv" in capsys.readouterr().err


def test_on_a_terminal_a_decision_is_broken_at_spaces_below_its_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ["  use     τ from 1.428, layer_ratio=2.589", "1 run; details: tempopt show a-study --full"]
    monkeypatch.setenv("COLUMNS", "30")
    print_decision(lines)
    assert capsys.readouterr().out.splitlines() == lines, "in a pipe a line stays one"
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    print_decision(lines)
    use = ["  use     τ from 1.428,", "          layer_ratio=2.589"]
    assert capsys.readouterr().out.splitlines() == [*use, lines[1]]
