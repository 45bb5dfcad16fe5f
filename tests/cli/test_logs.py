"""What is shown of what runs printed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tempopt import cli
from tempopt.study import admin
from tempopt.study.admin import Printed


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what gives what ``tempopt logs pairs`` shows, asked for one run or none, of what is printed."""

    def run(words: list[str], *printed: Printed, ticket: str | None = None) -> str:
        def logs(storage: str, name: str, asked: str | None) -> list[Printed]:
            assert (name, asked) == ("pairs", ticket)
            return list(printed)

        monkeypatch.setattr(admin, "logs", logs)
        assert cli.main(["logs", "pairs", *words]) == 0
        return capsys.readouterr().out

    return run


def _printed(text: str | None, *, attempt: int = 1, lines: int = 1, running: bool = False) -> Printed:
    return Printed(
        ticket="search-12", attempt=attempt, agent="far:7", running=running, lines=lines, text=text
    )


def test_without_a_run_there_is_a_line_for_each_attempt(said: Callable[..., str]) -> None:
    long = _printed("Error: [red]no\x1b[2Jluck" + " and no end" * 20, lines=20)
    out = said([], long, _printed("done", attempt=2, lines=3))
    head, first, second = out.splitlines()
    assert head.split() == ["ticket", "attempt", "agent", "lines", "last", "line"]
    assert first.split()[:6] == ["search-12", "1", "far:7", "20", "Error:", "[red]no"]
    assert first.split()[6] == "[2Jluck"
    assert first.endswith(" and no end" * 20), "in a pipe a line is whole and ends with its text"
    assert all(line == line.rstrip() for line in (head, second))
    assert second.split() == ["search-12", "2", "far:7", "3", "done"]


@pytest.mark.parametrize("given", ["search-12", "search 12"])
def test_of_one_run_all_is_shown(given: str, said: Callable[..., str]) -> None:
    printed = [_printed("epoch 1\n[bold]epoch 2\n"), _printed(None, attempt=2, running=True)]
    out = said(given.split(), *printed, ticket=given)
    assert out == (
        "==> search-12, attempt 1, over, agent far:7\n"
        "epoch 1\n"
        "[bold]epoch 2\n"
        "==> search-12, attempt 2, running, agent far:7\n"
        "It is running on far; its log is there until it is over.\n"
    )


def test_one_attempt_can_be_asked_for(said: Callable[..., str]) -> None:
    attempts = [_printed("one"), _printed("two", attempt=2)]
    out = said(["search-12", "--attempt", "2"], *attempts, ticket="search-12")
    assert "two" in out and "one" not in out
    none = said(["search-12", "--attempt", "3"], *attempts, ticket="search-12")
    assert none.startswith("search-12: nothing is logged of attempt 3. Only what a run prints is kept")


def test_where_nothing_is_kept_it_is_said_why_and_where_results_are(said: Callable[..., str]) -> None:
    assert said([]).startswith("Study pairs: nothing is logged. Only what")
    assert said(["search-12"], ticket="search-12").startswith("search-12: nothing is logged. Only what")
