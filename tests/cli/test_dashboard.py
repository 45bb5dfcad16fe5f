"""``tempopt dashboard`` as it is typed, and beside a search: where it listens, whom it asks, how it ends."""

from __future__ import annotations

import errno
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tempopt import cli
from tempopt.agent.observer import Unobserved
from tempopt.cli.dashboard import beside, bring_up_to_date
from tempopt.report.dashboard.child import Beside
from tempopt.report.dashboard.study_page import PREFIXES
from tempopt.store.store import Store
from tests.report.dashboard_rows import write_whole
from tests.report.made_study import World

SECRET = "zqx-that-is-long-enough"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('dashboard') / 'tempopt.db'}"
    write_whole(url, World(trials=3, layers=0))
    return url


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def taken_port() -> Iterator[int]:
    """A port at which somebody else listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield int(taken.getsockname()[1])


def _file(text: str) -> str:
    path = Path("secret")
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "open to everybody who reaches 0.0.0.0. Give --user with --password-file"),
        (["--user", "me"], "The dashboard was given no password"),
        (["--user", "me", "--password", "short"], "password has 5 characters"),
        (["--password", SECRET], "was given no user"),
        (["--password", ""], "was given no user"),
        (["--user", "me", "--password", ""], "password has 0 characters"),
        (["--user", "me", "--password", SECRET, "--password-file", "x"], "both given"),
        (["--token-file", "none"], "none cannot be read: No such file or directory"),
        (["--port", "70000"], '"70000" is not a whole number from 0 to 65535'),
        (["--port", "many"], '"many" is not a whole number from 0 to 65535'),
        (["nobody"], 'Unknown study "nobody". Known: pairs'),
    ],
)
def test_what_cannot_be_served_is_told_in_one_line(
    words: list[str], message: str, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dashboard", "--storage", url, *words]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tempopt: error: ") and err.count("\n") == 1
    assert message in err and SECRET not in err


@pytest.mark.parametrize("token", [{}, {"TEMPOPT_DASHBOARD_TOKEN": SECRET}], ids=["alone", "beside a token"])
def test_a_password_of_the_environment_without_a_user_is_refused(
    token: dict[str, str], url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"TEMPOPT_DASHBOARD_PASSWORD": SECRET, **token}.items():
        monkeypatch.setenv(name, value)
    assert cli.main(["dashboard", "--storage", url]) == 2
    err = capsys.readouterr().err
    assert "TEMPOPT_DASHBOARD_PASSWORD is set and no user is given. Give --user" in err
    assert SECRET not in err


def test_a_token_file_of_more_than_a_line_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--storage", url, "--token-file", _file("a\nb\n")]) == 2
    assert "secret holds 2 lines. Give a file that holds one, the secret." in capsys.readouterr().err


def test_a_port_that_is_taken_is_told_with_what_to_do(
    url: str, taken_port: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["dashboard", "--storage", url, "--port", str(taken_port)]) == 2
    assert f"Port {taken_port} of 127.0.0.1 is taken" in capsys.readouterr().err


def test_where_nothing_is_stored_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard"]) == 2
    assert capsys.readouterr().err.startswith("tempopt: error: ")


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_it_says_where_it_is_asks_for_the_token_and_ends_when_it_is_told(
    how: signal.Signals, url: str
) -> None:
    command = [sys.executable, "-m", "tempopt", "dashboard", "--storage", url, "--port", "0"]
    given = {**os.environ, "TEMPOPT_DASHBOARD_TOKEN": SECRET}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=given
    ) as served:
        assert served.stdout is not None and served.stderr is not None
        first, second, last = (served.stdout.readline() for _ in range(3))
        assert first.startswith("Dashboard: http://127.0.0.1:") and "Ctrl-C ends it" in last
        assert re.fullmatch(r"Study:     http://127.0.0.1:\d+/dashboard/studies/1\n", second)
        address = second.split()[1]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address)
        asked = urllib.request.Request(address, headers={"Authorization": f"Bearer {SECRET}"})
        with urllib.request.urlopen(asked) as answer:
            assert answer.status == 200
        served.send_signal(how)
        assert served.wait(60) == 0
        assert served.stdout.read() == served.stderr.read() == ""
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


class Looking(Unobserved):
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def _address(notes: list[str]) -> str:
    """Return the address that was noted, once it is."""
    for _ in range(600):
        if notes:
            found = re.search(r"Dashboard: (http\S+)", notes[0])
            assert found is not None, notes
            return found[1]
        signal.sigtimedwait([], 0.1)
    raise AssertionError("no address was told")


@pytest.mark.long
def test_a_dashboard_beside_a_search_begins_with_the_study_and_ends_with_the_search(
    url: str, make_snapshot: Any
) -> None:
    looking = Looking()
    with beside(looking, url) as observer:
        observer.note("not yet")
        assert looking.notes == ["not yet"]
        looking.notes.clear()
        observer.update(make_snapshot())
        observer.update(make_snapshot())
        address = _address(looking.notes)
        with urllib.request.urlopen(address) as answer:
            assert answer.status == 200
    assert len(looking.notes) == 1
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(address)


@pytest.mark.long
def test_a_dashboard_that_cannot_be_is_told_and_harms_nobody(tmp_path: Path) -> None:
    notes: list[str] = []
    other = Beside(f"sqlite:///{tmp_path / 'none.db'}", "pairs", notes.append)
    other._reader.join()
    other.close()
    assert len(notes) == 1 and notes[0].startswith("There is no dashboard: ")


def test_a_dashboard_for_which_there_is_no_process_is_told_once_and_ends_no_search(
    url: str, make_snapshot: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def fail(words: list[str], **given: Any) -> None:
        asked.append(words)
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", fail)
    looking = Looking()
    with beside(looking, url) as observer:
        observer.update(make_snapshot())
        observer.update(make_snapshot())
    assert len(asked) == 1
    assert looking.notes == [
        "The dashboard could not be started: Resource temporarily unavailable. "
        "The search continues without it."
    ]


def test_a_dashboard_beside_a_command_that_returns_at_once_is_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["search", "max_retrieval", "--launcher", "slurm", "--detach", "--dashboard"]
    assert cli.main(words) == 2
    assert "--detach ends it at once" in capsys.readouterr().err


def test_a_page_that_cannot_be_brought_up_to_date_is_told_and_is_no_error(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bring_up_to_date(url, "nobody")
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("tempopt: warning: the study's page") and 'study "nobody"' in err


def test_a_page_is_up_to_date_when_a_search_has_ended(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    bring_up_to_date(url, "pairs")
    assert capsys.readouterr() == ("", "")
    with Store.open(url) as store:
        page = store.page("pairs", PREFIXES)
    assert page is not None and any(key.startswith("dashboard:plot_data:tempopt-") for key in page)
