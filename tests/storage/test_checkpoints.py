"""Where checkpoints live: a folder or an S3-compatible store, both behind the same few functions."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tempopt.errors import UsageError
from tempopt.storage import checkpoints

pytest_plugins = ["tests.training.object_store"]


@pytest.fixture(params=["folder", "bucket"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place that can be written to, of each kind."""
    return str(request.getfixturevalue("bucket")) if request.param == "bucket" else str(tmp_path / "runs")


def put(url: str, content: bytes) -> None:
    import fsspec

    fs, path = fsspec.core.url_to_fs(url)
    fs.makedirs(path.rpartition("/")[0], exist_ok=True)
    fs.pipe_file(path, content)


def test_what_lies_under_a_place_is_counted_and_deleted_and_nothing_else(base: str) -> None:
    base = checkpoints.normalize_checkpoint_url(base)
    assert checkpoints.disk_usage(base) == {}
    first_folder, second_folder = (
        checkpoints.join(base, "study", "search-0001"),
        checkpoints.join(base, "study", "search-0002"),
    )
    sizes = {
        checkpoints.join(first_folder, "step-4-1.ckpt"): 10,
        checkpoints.join(first_folder, "step-8-1.ckpt"): 20,
        checkpoints.join(second_folder, "step-4-1.ckpt"): 30,
        checkpoints.join(base, "study-2", "search-0001", "step-4-1.ckpt"): 40,
    }
    for url, size in sizes.items():
        put(url, bytes(size))
    assert checkpoints.disk_usage(base) == sizes
    assert sum(checkpoints.disk_usage(checkpoints.join(base, "study")).values()) == 60
    urls = [checkpoints.join(first_folder, "step-4-1.ckpt"), checkpoints.join(first_folder, "step-0-1.ckpt")]
    assert checkpoints.remove(urls) == checkpoints.RemovalResult(freed=10, not_removed={})
    assert checkpoints.remove(urls) == checkpoints.RemovalResult(freed=0, not_removed={})
    assert sorted(checkpoints.disk_usage(base).values()) == [20, 30, 40]


def test_what_cannot_be_deleted_is_named_and_keeps_nothing_else(
    bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    def refuse(path: str) -> None:
        raise RuntimeError("no credentials")

    first_path, second_path = str(tmp_path / "step-4-1.ckpt"), str(tmp_path / "step-8-1.ckpt")
    kept_url = f"{bucket}/study/search-0001/step-4-1.ckpt"
    for url in (first_path, kept_url, second_path):
        put(url, bytes(10))
    folder = tmp_path / "step-9-1.ckpt"
    folder.mkdir()
    monkeypatch.setattr(fsspec.core.url_to_fs(kept_url)[0], "rm_file", refuse)
    removal = checkpoints.remove(
        [first_path, "gopher://host/step-4-1.ckpt", kept_url, str(folder), second_path]
    )
    assert removal.freed == 20
    assert list(removal.not_removed) == ["gopher://host/step-4-1.ckpt", kept_url, str(folder)]
    assert "gopher" in removal.not_removed["gopher://host/step-4-1.ckpt"]
    assert removal.not_removed[kept_url] == "no credentials"
    assert folder.is_dir()


@pytest.mark.parametrize("location", ["/data/runs", "/", "file:///data/runs", "s3://bucket/runs"])
@pytest.mark.parametrize("file", ["step-8-1.ckpt", "step-120-3.ckpt.writing", "resume-2.ckpt.writing"])
def test_a_checkpoint_in_its_place_is_ours(location: str, file: str) -> None:
    run = checkpoints.run_name("search", 3)
    assert checkpoints.belongs_to_run(checkpoints.join(location, "pairs", run, file), study="pairs", run=run)


@pytest.mark.parametrize(
    "url",
    [
        "/data/pairs/search-0003/log.txt",
        "/data/pairs/search-0003/step-8-1.ckpt.old",
        "/data/pairs/search-0003/my-step-8-1.ckpt",
        "/data/pairs/search-0003/",
        "/data/pairs/search-0004/step-8-1.ckpt",
        "/data/others/search-0003/step-8-1.ckpt",
        "/data/pairs/search-0003/old/step-8-1.ckpt",
        "/data/pairs/step-8-1.ckpt",
        "/data/../pairs/search-0003/step-8-1.ckpt",
        "step-8-1.ckpt",
        "",
    ],
)
def test_what_lies_elsewhere_or_is_called_otherwise_is_not_ours(url: str) -> None:
    assert not checkpoints.belongs_to_run(url, study="pairs", run="search-0003")


def test_a_folder_that_is_no_runs_holds_nothing_of_ours() -> None:
    assert not checkpoints.belongs_to_run(
        "/data/pairs/weights-0003/step-8-1.ckpt", study="pairs", run="weights-0003"
    )


def test_a_path_becomes_absolute_and_nothing_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert checkpoints.normalize_checkpoint_url("runs/mine") == str(tmp_path / "runs" / "mine")
    assert checkpoints.normalize_checkpoint_url(f"file://{tmp_path}/other/") == str(tmp_path / "other")
    assert checkpoints.normalize_checkpoint_url(Path("runs")) == str(tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "runs").mkdir()
    assert checkpoints.normalize_checkpoint_url("runs/mine") == str(tmp_path / "runs" / "mine")
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


def test_a_place_that_cannot_be_written_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be written to .*file/runs.*--checkpoints"):
        checkpoints.normalize_checkpoint_url(tmp_path / "file" / "runs")
    with pytest.raises(UsageError, match="is empty"):
        checkpoints.normalize_checkpoint_url("")
    with pytest.raises(UsageError, match="gopher.*Give a path, or a URL such as s3://bucket/folder"):
        checkpoints.normalize_checkpoint_url("gopher://host/runs")


def test_a_place_without_space_is_refused_and_nothing_is_left_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fs: object, path: str, value: bytes) -> None:
        Path(path).touch()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.pipe_file", full)
    with pytest.raises(UsageError, match=r"runs \(.*No space left on device\)\. Free some space there"):
        checkpoints.normalize_checkpoint_url(tmp_path / "runs")
    assert list((tmp_path / "runs").iterdir()) == []


def test_a_bucket_that_is_not_there_is_refused(bucket: str) -> None:
    with pytest.raises(UsageError, match="cannot be written to s3://elsewhere/runs"):
        checkpoints.normalize_checkpoint_url("s3://elsewhere/runs")


def test_a_protocol_whose_package_is_missing_is_refused_with_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import fsspec  # noqa: F401

    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(UsageError, match="need a package that is missing. Run: pip install 's3fs"):
        checkpoints.normalize_checkpoint_url("s3://bucket/runs")


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/runs",
        "sftp://127.0.0.1:{port}/runs",
        "reference://x::file://{folder}/runs",
        "simplecache::s3://bucket/runs",
        "s3://bucket/runs::file://{folder}",
        "zip://runs::http://127.0.0.1:{port}/runs.zip",
        "dask://127.0.0.1:{port}/runs",
        "memory://runs",
    ],
)
def test_a_place_that_only_the_database_names_is_not_reached(url: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        location = url.format(port=server.getsockname()[1], folder=tmp_path)
        with pytest.raises(UsageError, match="is not supported for checkpoints.*begin with one of file://"):
            checkpoints.disk_usage(location)
        assert list(checkpoints.remove([f"{location}/step-1-1.ckpt"]).not_removed) == [
            f"{location}/step-1-1.ckpt"
        ]
        with pytest.raises(UsageError, match="is not supported for checkpoints"):
            checkpoints.absolute(location)
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_folder_of_this_machine_may_be_called_as_a_chain_of_stores_is(tmp_path: Path) -> None:
    folder = tmp_path / "x::reference:" / "y"
    folder.mkdir(parents=True)
    location = checkpoints.normalize_checkpoint_url(folder)
    (folder / "step-1-1.ckpt").write_bytes(bytes(3))
    assert checkpoints.disk_usage(location) == {f"{folder}/step-1-1.ckpt": 3}
    assert checkpoints.remove(checkpoints.disk_usage(location)).freed == 3


@pytest.mark.parametrize(
    "url",
    [
        "sftp://me:p@ss:w/rd@host/runs",
        "ftp://:p@ss:w/rd@host/runs",
        "https://host/runs?user=me&sig=p@ss:w/rd",
        "s3://bucket/runs?aws_secret=p@ss:w/rd",
    ],
)
def test_a_password_in_the_url_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(UsageError, match="environment variables") as error:
        checkpoints.normalize_checkpoint_url(url)
    assert "***" in str(error.value)
    for part in ("p@ss", "w/rd"):
        assert part not in str(error.value)


def test_asking_for_the_module_does_not_load_fsspec() -> None:
    code = "import sys, tempopt.storage.checkpoints; assert 'fsspec' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
