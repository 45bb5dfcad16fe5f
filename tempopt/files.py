"""Read and write the user's files: only regular files, written atomically."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

from tempopt.errors import UsageError


def absolute(text: str, what: str) -> Path:
    """Return an absolute path, with ``~`` expanded; ``what`` names it in messages.

    Raises:
        UsageError: There is no such user, or the path is invalid.
    """
    try:
        path = Path(text).expanduser().absolute()
        _exists(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"{what} {text} cannot be used: {_format_reason(error)}. Give another path."
        ) from error
    return path


def read_text(path: Path, holds: str) -> tuple[str, int]:
    """Return the text of a file, and its mode.

    Args:
        path: The file, in UTF-8.
        holds: Its expected content, for messages.

    Raises:
        UsageError: It cannot be read, is not text, or is not a regular file: reading a pipe could block.
    """
    try:
        mode = path.stat().st_mode
        kind = _find_special_kind(mode)
        text = "" if kind else path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8. Give a file that holds {holds}.") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path} cannot be read: {_format_reason(error)}. Give a file that holds {holds}."
        ) from error
    if kind:
        raise UsageError(f"{path} is {kind}. Give a file that holds {holds}.")
    return text, mode


def replace(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file atomically, through a temporary file.

    Args:
        path: The file. A folder, a pipe or a device is not replaced.
        content: What to write; text in UTF-8.
        overwrite: Whether an existing file may be replaced.

    Raises:
        UsageError: It cannot be written, or exists and may not be replaced.
    """
    try:
        is_there = _exists(path)
        kind = _find_special_kind(path.stat().st_mode) if is_there else None
        temporary = path.with_name(path.name + ".writing") if kind is None else path
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be written: {_format_reason(error)}. Give another path.") from error
    if kind:
        raise UsageError(f"{path} is {kind}. Give the path of a file.")
    if is_there and not overwrite:
        raise UsageError(f"{path} already exists and was not changed. Remove it, or give another name.")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {_format_reason(error)}. Give another path.") from error
    finally:
        # the temporary file remains after an error or Ctrl-C
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _exists(path: Path) -> bool:
    # pathlib reports that such a path does not exist, and then fails to make it
    if "\0" in str(path):
        raise ValueError("it holds the character NUL")
    return path.exists()


def _find_special_kind(mode: int) -> str | None:
    """Return the kind of a path that is not a regular file."""
    if stat.S_ISREG(mode):
        return None
    return "a folder" if stat.S_ISDIR(mode) else "not a regular file, but a pipe, a socket or a device"


def _format_reason(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".")


@contextlib.contextmanager
def remove_new_empty_folders(folder: Path) -> Iterator[None]:
    """Remove a folder and its parents at the end of the context if they are new and empty."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        # a folder that is not empty is not removed, nor its parents
        with contextlib.suppress(OSError):
            for new_folder in new_folders:
                new_folder.rmdir()
