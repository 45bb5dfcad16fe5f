"""Files that a person names: read if they are ordinary ones, and written whole or not at all."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

from tempopt.errors import UsageError


def absolute(text: str, what: str) -> Path:
    """Return an absolute path, ``~`` replaced; ``what`` names it in messages.

    Raises:
        UsageError: There is no such user, or nothing can be found at a path like that.
    """
    try:
        path = Path(text).expanduser().absolute()
        _exists(path)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"{what} {text} cannot be used: {_why(error)}. Give another path.") from error
    return path


def read_text(path: Path, holds: str) -> tuple[str, int]:
    """Return what a text file holds, and its mode.

    Args:
        path: The file, in UTF-8.
        holds: What it is to hold, for messages.

    Raises:
        UsageError: It cannot be read, is no text, or is no ordinary file: reading a pipe could wait for ever.
    """
    try:
        mode = path.stat().st_mode
        kind = _other_kind(mode)
        text = "" if kind else path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not a text file in UTF-8. Give a file that holds {holds}.") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {_why(error)}. Give a file that holds {holds}.") from error
    if kind:
        raise UsageError(f"{path} is {kind}. Give a file that holds {holds}.")
    return text, mode


def replace(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Write a file by way of a temporary one, in place of one that may be there.

    Args:
        path: The file. A folder, a pipe or a device is not replaced.
        text: What to write, in UTF-8.
        overwrite: Whether a file that is there may be replaced.

    Raises:
        UsageError: It cannot be written, or is there and may not be replaced.
    """
    try:
        is_there = _exists(path)
        kind = _other_kind(path.stat().st_mode) if is_there else None
        temporary = path.with_name(path.name + ".writing") if kind is None else path
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be written: {_why(error)}. Give another path.") from error
    if kind:
        raise UsageError(f"{path} is {kind}. Give the path of a file.")
    if is_there and not overwrite:
        raise UsageError(f"{path} is there already and is left as it is. Remove it, or give another name.")
    try:
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {_why(error)}. Give another path.") from error
    finally:
        # there still if anything went wrong, Ctrl-C too
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _exists(path: Path) -> bool:
    # pathlib says of such a path that nothing is there, and then fails to make it
    if "\0" in str(path):
        raise ValueError("it holds the character NUL")
    return path.exists()


def _other_kind(mode: int) -> str | None:
    """Return what something in the file system is if it is no ordinary file."""
    if stat.S_ISREG(mode):
        return None
    return "a folder" if stat.S_ISDIR(mode) else "no ordinary file, but a pipe, a socket or a device"


def _why(error: Exception) -> str:
    return (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".")


@contextlib.contextmanager
def remove_new_empty_folders(folder: Path) -> Iterator[None]:
    """Remove a folder and its parents at the end if they were created meanwhile and are empty."""
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        yield
    finally:
        # one that is not empty is not removed, nor any above it
        with contextlib.suppress(OSError):
            for new_folder in new_folders:
                new_folder.rmdir()
