"""What is said when a study is paused, stopped, deleted or tidied up from outside."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.service import lifecycle
from tempopt.service.lifecycle import DeleteResult, GarbageCollectionResult, StopResult
from tempopt.storage.changes import ClaimRequest
from tempopt.storage.opening import open_store
from tempopt.storage.rows import NewTicket
from tests.cli.conftest import LAUNCHER_OPTION

URL = "sqlite:///a b.db"
STORAGE = ["--storage", URL]


@pytest.fixture(autouse=True)
def study(folder: Path) -> None:
    """A study of two search tickets in the current folder's ``a b.db``; one is at work far away."""
    with open_store(URL) as store:
        study = store.create_study("pairs", {"study": {"name": "pairs"}}, "0")
        store.add_tickets(
            study.id, [NewTicket(kind="search", arm="search", number=i, seed=i) for i in range(2)]
        )
        store.take_ticket(
            study.id,
            "far:7:0:1",
            ClaimRequest(max_number_by_kind={"search": None}, lease=60.0, max_attempts=3),
        )


@pytest.fixture
def run_command(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Return what carries out a command on the store and gives what it said, all being well."""

    def run(*words: str) -> str:
        assert cli.main([*words, *STORAGE]) == 0
        return capsys.readouterr().out

    return run


def _names() -> list[str]:
    with open_store(URL) as store:
        return [summary.study.name for summary in store.list_studies()]


GONE = DeleteResult(agents=["far:7"], freed=2_500_000, not_removed={"s3://bucket/pairs": "no credentials"})
FREED = GarbageCollectionResult(
    study="pairs", files={"/a/step-1-1.ckpt": 1500}, not_removed={"s3://b": "away"}
)
RESUME = "tempopt resume pairs --storage 'sqlite:///a b.db'\n"


@pytest.mark.parametrize(
    ("words", "result", "fragments"),
    [
        ("pause", StopResult(before="running", agents=["a:1", "b:2"]), ["is paused", "a:1, b:2", RESUME]),
        ("pause", StopResult(before="paused", agents=[]), ["was paused already", "No agent works on it"]),
        ("stop", StopResult(before="done", agents=[]), ["there is nothing to stop"]),
        ("stop", StopResult(before="running", agents=[], compares=True), ["is a comparison"]),
        ("stop", StopResult(before="running", agents=[], withdrawn=3), ["3 tickets", RESUME]),
        (
            "delete --yes",
            GONE,
            ["2.5 MB", "At work: far:7.", "Not removed: s3://bucket/pairs (no credentials)"],
        ),
        ("gc", FREED, ["pairs: not removed: s3://b (away)\nFreed 1.5 kB: 1 checkpoint.\n"]),
        ("gc --dry-run", FREED, ["pairs: /a/step-1-1.ckpt (1.5 kB)\n", "Would free 1.5 kB: 1 checkpoint.\n"]),
    ],
)
def test_what_was_done_is_said(
    words: str,
    result: object,
    fragments: list[str],
    run_command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command, *options = words.split()
    if command == "gc":
        monkeypatch.setattr(lifecycle, "collect_garbage", lambda *_, **__: [result])
    else:
        monkeypatch.setattr(lifecycle, command, lambda *_, **__: result)
    output = run_command(command, "pairs", *options)
    assert all(fragment in output for fragment in fragments)


@pytest.mark.parametrize(
    ("answer", "names_left"),
    [("y", []), ("Yes ", []), ("n", ["pairs"]), ("", ["pairs"]), (None, ["pairs"])],
)
def test_delete_asks_at_a_terminal(
    answer: str | None,
    names_left: list[str],
    run_command: Callable[..., str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    questions = []

    def reply(question: str) -> str:
        questions.append(question)
        if answer is None:
            raise EOFError
        return answer

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr("builtins.input", reply)
    out = run_command("delete", "pairs", "--force")
    assert questions == [
        'Delete study "pairs" in sqlite:///a b.db, its trials, checkpoints and logs, permanently? [y/N] '
    ]
    assert _names() == names_left
    assert ("Nothing was deleted." in out) == bool(names_left)


def _submit(name: str, launcher: str) -> None:
    with open_store(URL) as store:
        store.add_jobs(name, launcher, {}, ["1", "2"])


@pytest.mark.parametrize("words", [["pause", "later"], ["delete", "later", "--yes"]])
def test_the_jobs_of_a_study_that_none_has_begun_can_be_taken_back(
    words: list[str], launcher: str, run_command: Callable[..., str]
) -> None:
    _submit("later", launcher)
    assert cli.main([*words, *STORAGE]) == 2
    assert not Path("cancelled").exists()
    output = run_command(*words, *LAUNCHER_OPTION)
    assert output == 'Study "later" had not begun; its 2 jobs were cancelled.\n'
    assert Path("cancelled").read_text() == "1 2"
    assert cli.main([*words, *STORAGE]) == 2


def test_jobs_that_wait_do_not_bring_a_deleted_study_back(
    launcher: str, run_command: Callable[..., str]
) -> None:
    _submit("pairs", launcher)
    # who is refused has cancelled nothing
    assert cli.main(["delete", "pairs", "--yes", *STORAGE]) == 2
    assert not Path("cancelled").exists()
    assert 'Study "pairs" is deleted' in run_command("delete", "pairs", "--yes", "--force", *LAUNCHER_OPTION)
    assert Path("cancelled").read_text() == "2"


def test_a_study_whose_jobs_cannot_be_reached_is_not_deleted_unless_forced(
    run_command: Callable[..., str], capsys: pytest.CaptureFixture[str]
) -> None:
    _submit("pairs", "no_such_launcher:Mine")
    assert cli.main(["delete", "pairs", "--yes", *STORAGE]) == 2
    assert "no_such_launcher:Mine 1, no_such_launcher:Mine 2" in capsys.readouterr().err
    assert _names() == ["pairs"]
    assert 'Study "pairs" is deleted' in run_command("delete", "pairs", "--yes", "--force")


def test_storage_upgrade_says_what_the_database_is_now(run_command: Callable[..., str]) -> None:
    assert run_command("storage", "upgrade").startswith(
        "The database sqlite:///a b.db has this version (tables 0"
    )
