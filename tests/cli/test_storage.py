"""Which store a command speaks to, and that no password is repeated on the way."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from tempopt.cli.storage import storage_option, storage_url
from tempopt.errors import UsageError

RAW = "postgresql://me:zqx@kvw:2/jq@host/studies"
WRITTEN = "postgresql://me:zqx%40kvw%3A2%2Fjq@host/studies"


def _storage_arguments(storage: str | None = None, file: str | None = None) -> argparse.Namespace:
    return argparse.Namespace(storage=storage, storage_file=file)


def _file(text: str, mode: int = 0o600) -> str:
    path = Path("studies.url")
    path.write_text(text, encoding="utf-8")
    path.chmod(mode)
    return path.name


def test_storage_is_what_was_given_then_the_environment_then_the_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert storage_url(_storage_arguments()) == "sqlite:///tempopt.db"
    monkeypatch.setenv("TEMPOPT_STORAGE", "sqlite:///other.db")
    assert storage_url(_storage_arguments()) == "sqlite:///other.db"
    assert storage_url(_storage_arguments("sqlite:///given.db")) == "sqlite:///given.db"
    assert storage_url(_storage_arguments(file=_file("sqlite:///named.db\n"))) == "sqlite:///named.db"


@pytest.mark.parametrize("text", [WRITTEN, f"{WRITTEN}\n", f"\ufeff  {WRITTEN} \r\n\n"])
def test_a_file_names_the_store(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert storage_url(_storage_arguments(file=_file(text))) == WRITTEN
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("text", "fragment"),
    [
        ("", "studies.url holds nothing. Give a file that holds one line, the URL."),
        (" \n\n", "studies.url holds nothing."),
        (f"{RAW}\n{RAW}\n", "studies.url holds 2 lines. Give a file that holds one line, the URL."),
    ],
)
def test_a_file_that_holds_no_url_is_refused_and_not_repeated(text: str, fragment: str) -> None:
    with pytest.raises(UsageError) as error:
        storage_url(_storage_arguments(file=_file(text)))
    assert fragment in str(error.value)
    assert "zqx" not in str(error.value)


@pytest.mark.parametrize(
    ("url", "mode", "is_warned"),
    [
        (WRITTEN, 0o600, False),
        (WRITTEN, 0o640, True),
        (WRITTEN, 0o604, True),
        ("sqlite:///a.db", 0o644, False),
        ("postgresql://me@host/studies", 0o644, False),
    ],
)
def test_a_password_that_others_can_read_is_warned_of(
    url: str, mode: int, is_warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert storage_url(_storage_arguments(file=_file(url, mode))) == url
    out, err = capsys.readouterr()
    assert out == ""
    assert err == is_warned * (
        "tempopt: warning: studies.url holds a password that other users of this machine can read. "
        "Run: chmod 600 studies.url\n"
    )


def test_hints_lead_to_the_same_store_without_its_password() -> None:
    assert storage_option(_storage_arguments()) == ""
    assert storage_option(_storage_arguments("sqlite:///tempopt.db")) == ""
    assert storage_option(_storage_arguments("sqlite:///a b.db")) == " --storage 'sqlite:///a b.db'"
    assert storage_option(_storage_arguments(WRITTEN)) == " --storage 'postgresql://me:***@host/studies'"
    assert storage_option(_storage_arguments(file="my url")) == " --storage-file 'my url'"
