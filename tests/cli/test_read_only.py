"""An SQLite file that cannot be written can be looked at, and what would write says why it cannot."""

from __future__ import annotations

import ctypes
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from tempopt import cli
from tempopt.api.calls import search
from tempopt.storage.opening import open_store
from tests.toy_study import SMALL, toy_spec


@pytest.fixture(scope="module")
def finished_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The database of a study that has ended."""
    from tests import fake_worker

    folder = tmp_path_factory.mktemp("done")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        fake_worker.install(patch)
        search(toy_spec(**SMALL), storage="sqlite:///done.db", workers=1)
    return folder / "done.db"


@pytest.fixture
def restricted_folder() -> Iterator[Path]:
    """Yield a folder whose permissions a test may change."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextmanager
def without_root_access() -> Iterator[None]:
    """Drop the capability of root to open every file (Linux: CAP_DAC_OVERRIDE)."""
    if os.geteuid() != 0:
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    capabilities = data[0]
    data[0] = capabilities & ~0b110
    assert libc.capset(header, data) == 0
    try:
        yield
    finally:
        data[0] = capabilities
        assert libc.capset(header, data) == 0


@pytest.fixture(params=["file", "folder", "both"])
def url(request: pytest.FixtureRequest, finished_database: Path, restricted_folder: Path) -> Iterator[str]:
    path = restricted_folder / "a % #b.db"
    shutil.copy(finished_database, path)
    path.chmod(0o666 if request.param == "folder" else 0o444)
    restricted_folder.chmod(0o777 if request.param == "file" else 0o555)
    with without_root_access():
        yield f"sqlite:///{path}"
    restricted_folder.chmod(0o755)


def test_it_can_be_looked_at(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with tempfile.TemporaryDirectory() as out:
        page = Path(out) / "page.html"
        outputs = {}
        for words in (["list"], ["show", "toy"], ["export", "toy"], ["logs", "toy"]):
            assert cli.main([*words, "--storage", url]) == 0, capsys.readouterr().err
            outputs[words[0]] = capsys.readouterr().out
        assert cli.main(["report", "toy", "--storage", url, "--output", str(page)]) == 0
        assert (
            "toy" in outputs["list"] and "fresh seeds" in outputs["show"] and "schedule" in outputs["export"]
        )
        assert page.stat().st_size > 10_000
    # nothing was left beside it
    assert len(list(Path(url.removeprefix("sqlite:///")).parent.iterdir())) == 1


@pytest.mark.parametrize("words", [["delete", "toy", "--yes"], ["resume", "toy", "--trials", "+1"]])
def test_what_would_write_says_why_it_cannot(
    url: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*words, "--storage", url]) == 2
    assert "SQLite needs a folder that exists and in which files can be written" in capsys.readouterr().err


def test_what_is_in_the_write_ahead_log_is_seen(finished_database: Path, restricted_folder: Path) -> None:
    path = restricted_folder / "a.db"
    shutil.copy(finished_database, path)
    with closing(sqlite3.connect(path)) as at_work:
        at_work.execute("UPDATE tempopt_study SET state = 'paused'")
        at_work.commit()
        for file in restricted_folder.iterdir():
            file.chmod(0o444)
        restricted_folder.chmod(0o555)
        try:
            with without_root_access(), open_store(f"sqlite:///{path}", create=False) as store:
                assert store.load_study("toy").state == "paused"
        finally:
            restricted_folder.chmod(0o755)


def test_a_store_sees_what_is_written_once_the_file_can_be_written_again(
    finished_database: Path, restricted_folder: Path
) -> None:
    path = restricted_folder / "a.db"
    shutil.copy(finished_database, path)
    path.chmod(0o444)
    with without_root_access(), open_store(f"sqlite:///{path}", create=False) as store:
        assert store.load_study("toy").state == "done"
        path.chmod(0o644)
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("UPDATE tempopt_study SET state = 'paused'")
            connection.commit()
        assert store.load_study("toy").state == "paused"
