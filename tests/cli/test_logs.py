"""What is shown of what runs printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tempopt import cli
from tempopt.service import lifecycle
from tempopt.service.lifecycle import RunLog


@pytest.fixture
def run_logs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what gives what ``tempopt logs pairs`` shows, asked for one run or none, of what is printed."""

    def run(words: list[str], *printed_logs: RunLog, ticket: str | None = None) -> str:
        def logs(storage: str, name: str, ticket_name: str | None) -> list[RunLog]:
            assert (name, ticket_name) == ("pairs", ticket)
            return list(printed_logs)

        monkeypatch.setattr(lifecycle, "logs", logs)
        assert cli.main(["logs", "pairs", *words]) == 0
        return capsys.readouterr().out

    return run


def _log_entry(text: str | None, *, attempt: int = 1, lines: int = 1, is_running: bool = False) -> RunLog:
    return RunLog(
        ticket="search-12", attempt=attempt, agent="far:7", running=is_running, lines=lines, text=text
    )


def test_without_a_run_there_is_a_line_for_each_attempt(run_logs: Callable[..., str]) -> None:
    long = _log_entry("Error: [red]no\x1b[2Jluck" + " and no end" * 20, lines=20)
    out = run_logs([], long, _log_entry("done", attempt=2, lines=3))
    head, first, second = out.splitlines()
    assert head.split() == ["ticket", "attempt", "agent", "lines", "last", "line"]
    assert first.split()[:6] == ["search-12", "1", "far:7", "20", "Error:", "[red]no"]
    assert first.split()[6] == "[2Jluck"
    assert first.endswith(" and no end" * 20), "in a pipe a line is whole and ends with its text"
    assert all(line == line.rstrip() for line in (head, second))
    assert second.split() == ["search-12", "2", "far:7", "3", "done"]


@pytest.mark.parametrize("ticket_words", ["search-12", "search 12"])
def test_of_one_run_all_is_shown(ticket_words: str, run_logs: Callable[..., str]) -> None:
    printed_logs = [_log_entry("epoch 1\n[bold]epoch 2\n"), _log_entry(None, attempt=2, is_running=True)]
    out = run_logs(ticket_words.split(), *printed_logs, ticket=ticket_words)
    assert out == (
        "==> search-12, attempt 1, over, agent far:7\n"
        "epoch 1\n"
        "[bold]epoch 2\n"
        "==> search-12, attempt 2, running, agent far:7\n"
        "It is running on far; its log stays there until it is over.\n"
    )


def test_one_attempt_can_be_asked_for(run_logs: Callable[..., str]) -> None:
    attempts = [_log_entry("one"), _log_entry("two", attempt=2)]
    out = run_logs(["search-12", "--attempt", "2"], *attempts, ticket="search-12")
    assert "two" in out and "one" not in out
    empty_output = run_logs(["search-12", "--attempt", "3"], *attempts, ticket="search-12")
    assert empty_output.startswith(
        "search-12: nothing is logged of attempt 3. Only the output of runs is logged"
    )
