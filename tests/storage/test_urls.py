"""What may be given as a storage URL, and that its password is never seen."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.errors import StorageError
from tempopt.storage.opening import open_store
from tempopt.storage.urls import parse_database_url

PASSWORDS = ["s3cr3t", "p@ss:w/rd?#%&+ x", "%40", "ünï\\'\"", "a:b@c/d"]


@pytest.mark.parametrize(
    ("url", "driver", "masked_url"),
    [
        ("postgresql://u@h/d", "postgresql+psycopg", "postgresql://u@h/d"),
        ("postgres://u@h:1/d", "postgresql+psycopg", "postgresql://u@h:1/d"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg", "postgresql://h/d"),
        ("mysql://u@h/d", "mysql+pymysql", "mysql://u@h/d"),
        ("mariadb+pymysql://u@h/d", "mysql+pymysql", "mysql://u@h/d"),
        (" MySQL://u@h/d ", "mysql+pymysql", "mysql://u@h/d"),
    ],
)
def test_a_url_is_given_its_driver(url: str, driver: str, masked_url: str) -> None:
    address = parse_database_url(url)
    assert (address.url.drivername, address.masked) == (driver, masked_url)


@pytest.mark.parametrize("url", ["sqlite:///runs/x.db", "runs/x.db"])
def test_a_path_to_sqlite_is_absolute_and_shown_as_it_was_given(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    address = parse_database_url(url)
    assert address.url.database == str(tmp_path / "runs" / "x.db")
    assert address.masked == "sqlite:///runs/x.db"


def test_a_path_may_be_absolute_or_begin_in_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (
        parse_database_url("sqlite:////data/x.db").url.database
        == parse_database_url("/data/x.db").url.database
        == "/data/x.db"
    )
    assert parse_database_url("~/x.db").url.database == "/home/me/x.db"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgrsql://h/d", r'Unknown database "postgrsql"\. Did you mean "postgresql"\? Known: sqlite,'),
        ("postgresql+psycopg2://h/d", r'Unknown database "postgresql\+psycopg2"'),
        ("sqlite://", "does not name a file"),
        ("sqlite:///:memory:", "does not name a file.*sqlite:///tempopt.db"),
        ("sqlite://x.db", "does not name a file"),
        ("", "does not name a file"),
        ("postgresql://u@host", "names no database"),
        ("postgresql://u@host:port/d", "cannot be read"),
    ],
)
def test_what_is_no_url_of_ours_is_refused(url: str, message: str) -> None:
    with pytest.raises(StorageError, match=message):
        parse_database_url(url)


@pytest.mark.parametrize("password", PASSWORDS)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql"])
def test_a_password_reaches_only_the_driver(scheme: str, password: str) -> None:
    url = f"{scheme}://me:{quote(password, safe='')}@host:1/d"
    address = parse_database_url(url)
    assert address.url.password == password
    for text in (address.masked, repr(address), str(address), str(address.url), repr(address.url)):
        assert password not in text
        assert quote(password, safe="") not in text
    assert address.masked == f"{scheme}://me:***@host:1/d"


@pytest.mark.parametrize("key", ["password", "passwd", "sslpassword"])
def test_a_password_in_the_query_is_masked_too(key: str) -> None:
    address = parse_database_url(f"postgresql://me@host/d?{key}=hunter%402&connect_timeout=3")
    assert address.masked == f"postgresql://me@host/d?{key}=***&connect_timeout=3"
    assert address.mask("no hunter@2 here, nor hunter%402") == "no *** here, nor ***"


@given(password=st.text(min_size=4), prefix=st.text(), suffix=st.text())
def test_whatever_a_driver_repeats_of_the_password_is_masked(password: str, prefix: str, suffix: str) -> None:
    password = password.encode("utf-8", "ignore").decode() + "!end"
    address = parse_database_url(f"mysql://me:{quote(password, safe='')}@host/d")
    for spelling in (password, quote(password, safe=""), repr(password)[1:-1]):
        assert spelling not in address.mask(f"{prefix}{spelling}{suffix}").replace("***", "")


@pytest.mark.parametrize(
    "url", ["postgresql://me:p@ss:w@host/d", "mysql://me:a@b/c@host:1/d", "mysql://u:p@:x@"]
)
def test_a_password_that_was_not_encoded_is_refused_and_hidden_whole(url: str) -> None:
    with pytest.raises(StorageError, match=r"more than one @.*write @ as %40") as error:
        parse_database_url(url)
    raw_password = url.partition("://")[2].partition(":")[2].rpartition("@")[0]
    assert raw_password not in str(error.value)
    assert ":***@" in str(error.value)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://u@h/d?bogus=1", "has options that are not supported in a URL: bogus. Remove them."),
        (
            "mysql://u@h/d?ssl_ca=/x&cursorclass=1&host=a",
            "options that are not supported in a URL: cursorclass, host.",
        ),
        ("postgresql://u@h/d?row_factory=1", "options that are not supported in a URL: row_factory."),
        ("x" * 5000, "cannot be used: File name too long. Give another path."),
        ("sqlite:///~no-such-user/x.db", "cannot be used: Could not determine home directory."),
        ("sqlite:///a\0b", "The storage URL holds the character NUL."),
        ("postgresql://\udcff@h/d", "The storage URL holds bytes that are not UTF-8."),
    ],
)
def test_what_no_driver_could_use_is_refused_in_words(url: str, message: str) -> None:
    with pytest.raises(StorageError) as error:
        parse_database_url(url)
    assert message in str(error.value)
    assert len(str(error.value)) < 2000


def test_a_pipe_is_no_database(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StorageError, match=r"is a pipe, a socket or a device\. Give the path of a file\."):
        parse_database_url(str(tmp_path / "pipe"))


@pytest.mark.service
@pytest.mark.parametrize(
    "url",
    [
        *("mysql://u:p4ss@127.0.0.1:1/d?ssl_ca=/nope", "mysql://127.0.0.1:1/d?charset=bogus"),
        *("mysql://127.0.0.1:1/d?connect_timeout=x", "mysql://127.0.0.1:1/d?read_timeout=0"),
        *(f"mysql://{'x' * 300}/d", f"postgresql://{'x' * 300}/d", "mysql://..a/d"),
    ],
)
def test_what_a_driver_fails_at_is_told_in_words(url: str) -> None:
    driver = {"mysql": "pymysql", "postgresql": "psycopg"}[url.partition(":")[0]]
    pytest.importorskip(driver, reason=f"NOT TESTED: {driver} is missing.")
    with pytest.raises(
        StorageError, match=r"cannot be connected to: .*Check its host, and the options"
    ) as error:
        open_store(url, create=False)
    assert "p4ss" not in str(error.value)
