"""What a worker prints raises nothing, whatever its disk says."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tempopt.training.output import LossyFile, Output, is_disk_refusal


@pytest.fixture
def read_only_descriptor(tmp_path: Path) -> Iterator[int]:
    """A descriptor that refuses what is written to it: it is open for reading."""
    (tmp_path / "refused").write_text("")
    descriptor = os.open(tmp_path / "refused", os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def move(descriptor: int, path: Path) -> None:
    """Have a descriptor take what is written to it: there is room again."""
    open_now = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(open_now, descriptor)
    os.close(open_now)


def test_what_a_disk_refuses_is_dropped_and_told_where_it_is_missing(
    read_only_descriptor: int, tmp_path: Path
) -> None:
    file = LossyFile(read_only_descriptor)
    assert file.why is None
    with io.TextIOWrapper(io.BufferedWriter(file), line_buffering=True) as stream:
        print("lost\nand τ lost", file=stream, flush=True)
        assert file.why == os.strerror(errno.EBADF)
        move(read_only_descriptor, tmp_path / "log")
        print("kept", file=stream, flush=True)
        print("kept too", file=stream, flush=True)
    notice = f"\n[17 bytes of output were lost here: {os.strerror(errno.EBADF)}]\n"
    assert (tmp_path / "log").read_text() == f"{notice}kept\nkept too\n"


def test_what_was_lost_of_one_run_is_not_told_in_the_log_of_the_next(
    read_only_descriptor: int, tmp_path: Path
) -> None:
    file = LossyFile(read_only_descriptor)
    file.write(b"lost")
    file.forget()
    move(read_only_descriptor, tmp_path / "log")
    assert file.why is None
    file.write(b"kept")
    assert (file.why, (tmp_path / "log").read_text()) == ("", "kept")


@pytest.fixture
def output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Output]:
    """The output of a process whose streams are files of the test's own."""
    streams = [(tmp_path / name).open("w") for name in ("stdout", "stderr")]
    with monkeypatch.context() as patch:
        for name, stream in zip(("stdout", "stderr"), streams, strict=True):
            patch.setattr(f"sys.{name}", stream)
        captured_streams = Output()
    yield captured_streams
    for stream in streams:
        stream.close()


def test_each_run_has_a_log_of_its_own(output: Output, tmp_path: Path) -> None:
    output.to(str(tmp_path / "one"))
    assert output.lost is None
    print("of one, with half a letter: \ud800", file=output.streams[0])
    output.to(str(tmp_path / "two"))
    print("of two", file=output.streams[1])
    assert output.lost == ""
    output.to(None)
    print("of none", file=output.streams[0])
    logs = [(tmp_path / run / "log.txt").read_text() for run in ("one", "two")]
    assert logs == ["of one, with half a letter: \\ud800\n", "of two\n"]


def test_a_log_that_cannot_be_made_ends_no_run(output: Output, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    output.to(str(tmp_path / "file" / "run"))
    print("lost", file=output.streams[0])
    assert output.lost is not None and os.strerror(errno.ENOTDIR) in output.lost
    output.to(str(tmp_path / "run"))
    print("kept", file=output.streams[0])
    assert output.lost == ""
    assert (tmp_path / "run" / "log.txt").read_text() == "kept\n"


def caused_by(error: Exception) -> Exception:
    outer_error = RuntimeError("the cache failed")
    outer_error.__cause__ = error
    return outer_error


def wrap_error(error: Exception) -> Exception:
    outer_error = RuntimeError("the compiler failed")
    outer_error.inner_exception = error  # type: ignore[attr-defined]
    return outer_error


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EDQUOT, "Disk quota exceeded"), True),
        (OSError(errno.EROFS, "Read-only file system"), True),
        (PermissionError(errno.EACCES, "Permission denied"), True),
        (caused_by(OSError(errno.ENOSPC, "No space left on device")), True),
        (OSError("Caught OSError in DataLoader worker process 0.\n...\nOSError: [Errno 28] No space"), True),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), False),
        (ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"), False),
        (OSError("[Errno 2] No such file"), False),
        (wrap_error(PermissionError(errno.EACCES, "Permission denied")), True),
        (caused_by(ValueError("a bug")), False),
        (ValueError("[Errno 28] is in the text of something else"), False),
    ],
)
def test_what_a_disk_refuses_is_told_from_other_errors(error: Exception, expected: bool) -> None:
    assert is_disk_refusal(error) is expected
