"""Where bundles are unpacked: each in a folder named by its hash, used again while it is as it was."""

from __future__ import annotations

import contextlib
import fcntl
import importlib.machinery
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from tempopt.bundle.archive import unpacked, verify
from tempopt.errors import UsageError

DEFAULT_FOLDER = "tempopt-code"
"""Where agents unpack code unless something else is said: a folder in the current one."""
_LOCK = ".lock"
_IMPORTED = tuple(importlib.machinery.all_suffixes())


def unpack(archive: bytes, digest: str, folder: Path) -> Path:
    """Return the folder that holds the files of an archive, and nothing else that could be imported.

    The hash is compared before anything else, all files are checked before the first is written, and the
    folder is there whole or not at all. One that was changed since is replaced. Files have no other rights
    than to be read, and to be written by this user.

    Args:
        archive: The archive.
        digest: What its SHA-256 has to be.
        folder: Below which it is unpacked; made if it is not there.

    Raises:
        BundleRefused: The archive is another one, or made to do harm.
        UsageError: It cannot be written.
    """
    verify(archive, digest)
    files = unpacked(archive)
    # what workers are in has one name, whatever links lead to it
    target = folder.absolute() / digest
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with _alone(folder):
            _forget_compiled(target)
            if not _holds(target, files):
                _put(files, target)
    except OSError as error:
        raise UsageError(
            f"Code cannot be unpacked into {folder}: {error.strerror or error}. Give another folder with "
            "--accept-code DIR."
        ) from error
    return target.resolve()


def _forget_compiled(target: Path) -> None:
    """Remove what Python has compiled in a folder: it is not in the archive, and so could be anything."""
    for folder, folders, _ in os.walk(target):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
            shutil.rmtree(Path(folder, "__pycache__"), ignore_errors=True)


def _put(files: Mapping[str, bytes], target: Path) -> None:
    """Write files into a folder that is then put in place of what is there."""
    temporary = Path(tempfile.mkdtemp(prefix=".unpacking-", dir=target.parent))
    try:
        for name, data in files.items():
            path = temporary / name
            path.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
                file.write(data)
        _swap(temporary, target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, target: Path) -> None:
    aside = target.with_name(f".changed-{secrets.token_hex(8)}")
    with contextlib.suppress(FileNotFoundError):
        target.rename(aside)
    try:
        temporary.rename(target)
    finally:
        if aside.is_symlink() or aside.is_file():
            aside.unlink()
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep the other agents of this machine from unpacking meanwhile."""
    descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _holds(target: Path, files: Mapping[str, bytes]) -> bool:
    """Return whether a folder holds these files, and no link and nothing to import beside them.

    What trainings wrote there as data is left alone.
    """
    if target.is_symlink() or not target.is_dir():
        return False
    missing = set(files)
    for folder, folders, names in os.walk(target):
        for each in (*folders, *names):
            path = Path(folder, each)
            mode = path.lstat().st_mode
            if stat.S_ISDIR(mode):
                continue
            name = path.relative_to(target).as_posix()
            if not stat.S_ISREG(mode):
                return False
            if name in files:
                if path.read_bytes() != files[name]:
                    return False
                missing.discard(name)
            elif name.endswith(_IMPORTED):
                return False
    return not missing
