"""A database's password is repeated nowhere, however it was given and whatever goes wrong."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.storage.opening import open_store
from tests.cli.conftest import SECRET, WRITTEN, holds_no_password
from tests.servers import empty_database
from tests.storage.scenes import HOUR, make_end, take_next
from tests.toy_study import begin

NAMED = ("show", "resume", "agent", "logs", "export", "pause", "stop", "gc", "delete --yes")
COMMANDS = ["list", "gc", "storage upgrade", *(f"{command} pairs" for command in NAMED)]


@pytest.fixture(scope="module")
def closed_port() -> Iterator[int]:
    """A port at which nothing listens, and no other process can."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        yield int(listener.getsockname()[1])


def _file(url: str) -> str:
    path = Path("studies.url")
    path.write_text(f"{url}\n", encoding="utf-8")
    return path.name


@pytest.mark.parametrize(
    "words",
    [
        ["list", f"postgresql://me:{SECRET}@host/studies"],
        ["list", f"--storge=postgresql://me:{SECRET}@host/studies"],
        ["search", f"postgresql://me:{SECRET}@host/studies"],
        ["list", "--storage", f"postgresql://me:{SECRET}@host/studies"],
        ["list", "--storage", f"postgresql://me:{WRITTEN}@host:port/studies"],
        ["list", "--storage", f"oracle://me:{SECRET}@host/studies"],
        ["list", "--storage", f"postgresql:/me:{SECRET}@host/studies"],
        ["list", "--storage", f"me:{SECRET}@host/studies"],
        ["list", f"postgresql://host/studies?password={SECRET}"],
        ["list", f"postgresql://me:zqx kvw {SECRET}@host/studies"],
        ["list", "--storage-file", f"postgresql://me:{SECRET}@host/studies"],
        ["agent", "pairs", "--checkpoints", f"sftp://me:{SECRET}@host/runs"],
    ],
)
def test_a_password_is_not_repeated_wherever_it_was_written(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert err.startswith("tempopt: error: ")
    holds_no_password(out + err)


@pytest.mark.service
@pytest.mark.parametrize("url_source", ["option", "file", "environment"])
@pytest.mark.parametrize("command", COMMANDS)
def test_a_database_that_is_away_is_told_without_the_password_and_so_is_the_traceback(
    command: str,
    url_source: str,
    closed_port: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("psycopg", reason="NOT TESTED: psycopg is missing. pip install tempopt[postgresql]")
    monkeypatch.setenv("TEMPOPT_TRACEBACK", "1")
    for password, fragment in (
        (WRITTEN, f"postgresql://me:***@127.0.0.1:{closed_port}/studies failed: "),
        (SECRET, f"postgresql://me:***@127.0.0.1:{closed_port}/studies has more than one @"),
        (f"zqx {WRITTEN}", f"postgresql://me:***@127.0.0.1:{closed_port}/studies failed: "),
    ):
        url = f"postgresql://me:{password}@127.0.0.1:{closed_port}/studies"
        words = command.split()
        if url_source == "option" and " " not in url:
            words += ["--storage", url]
        elif url_source == "environment":
            monkeypatch.setenv("TEMPOPT_STORAGE", url)
        else:
            words += ["--storage-file", _file(url)]
        assert cli.main(words) == 2
        out, err = capsys.readouterr()
        assert "Traceback" in err
        assert fragment in err
        holds_no_password(out + err)


def test_an_unexpected_error_is_shown_without_passwords(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(words: list[str]) -> int:
        raise RuntimeError(f"lost postgresql://me:{SECRET}@host/studies")

    monkeypatch.setattr(cli, "_run", fail)
    assert cli.main(["list"]) == 1
    message = capsys.readouterr().err
    assert "Traceback" in message
    assert "tempopt: error: RuntimeError: lost postgresql://me:***@host/studies" in message
    holds_no_password(message)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    """The URL, password and all, of a PostgreSQL database with a study whose run printed that URL."""
    with empty_database("postgresql", tmp_path, "passwords") as plain_url:
        secret_url = plain_url.replace("postgres@", f"postgres:{WRITTEN}@")
        with open_store(secret_url) as store:
            study = begin(store, "pairs")
            ticket = take_next(store, study, max_number_by_kind={"search": None})
            store.begin(ticket.id, 1, {"temperature_init": 1.0}, {"temperature_init": 1.0}, None)
            text = f"connecting to {secret_url}\nas {SECRET}"
            store.write(study.id, [make_end(ticket, log=text)], agent="agent", lease=HOUR)
        yield secret_url


@pytest.mark.service
def test_what_is_shown_of_a_study_holds_no_password(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    commands = ["list", "list --json", "show pairs", "show pairs --json", "export pairs", "logs pairs"]
    commands += ["logs pairs search-0", "gc", "storage upgrade", "stop pairs", "pause pairs"]
    commands += ["delete pairs --yes", "list"]
    file = _file(url)
    for storage_args in (["--storage-file", file], ["--storage", url]):
        for command in commands[:-2] if storage_args[1] == file else commands:
            assert cli.main([*command.split(), *storage_args]) == 0
            out, err = capsys.readouterr()
            holds_no_password(out)
            holds_no_password(err)
            if command == "logs pairs search-0":
                assert "connecting to postgresql" in out and out.endswith("as ***\n")
