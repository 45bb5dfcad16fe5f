"""Which files of a folder make its bundle: those that git lists, less those that rules leave out."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tempopt.bundle.archive import MOST_FILES, archive_size, digest_of, packed, refuse_size, too_many
from tempopt.errors import BundleRefused, UsageError
from tempopt.files import absolute, read_text

IGNORE = ".tempoptignore"
"""File with rules of what is left out, written as in ``.gitignore``."""
# What tempopt itself writes into a folder, which would make another bundle of the same code; what is no
# source; and what most likely holds a secret. A person's rules come after these: "!.env" takes one back.
_LEFT_OUT = (
    *("tempopt-runs/", "tempopt-code/", "*.db", "*.db-*", "*.tempopt", "*.writing"),
    *("__pycache__/", "*.pyc"),
    *(".env", ".env.*", ".netrc", ".pgpass", "*.pem", "*.key"),
)
_GIT_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """The code of a folder as it was when it was gathered.

    Args:
        archive: All of its bytes.
        digest: Their SHA-256, in 64 hexadecimal digits.
        files: Number of files.
        untracked: Those of them that git lists and does not track, by path.
    """

    archive: bytes
    digest: str
    files: int
    untracked: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """What is in it, in a line for people."""
        found = (
            f"Sends the code: {self.files} file{'s' * (self.files != 1)}, {len(self.archive) / 1000:.0f} kB, "
            f"SHA-256 {self.digest[:12]}."
        )
        if not self.untracked:
            return found
        some = ", ".join(self.untracked[:5])
        more = f" and {len(self.untracked) - 5} more" if len(self.untracked) > 5 else ""
        return f"{found} Not tracked by git: {some}{more}."


def gathered(folder: str | Path, *, leave_out: Iterable[str] = ()) -> Bundle:
    """Return the bundle of a folder: what git tracks in it, as it is on the disk, and what it would add.

    That is what ``git ls-files --cached --others --exclude-standard`` lists, less what ``.tempoptignore`` and
    tempopt's own rules leave out.

    Args:
        folder: The folder; it may lie below the root of its repository.
        leave_out: More rules, as in ``.gitignore``, which a person's own come after.

    Raises:
        UsageError: It is no folder, git is missing, or it is in no repository.
        BundleRefused: A file may not be in a bundle, or they are too many or too large.
    """
    import pathspec

    if not str(folder).strip():
        # an empty variable of a shell is not to send what lies here
        raise UsageError("The folder of the code is empty. Give a folder, as in --with-code .")
    root = absolute(str(folder), "The folder of the code")
    if not root.is_dir():
        raise UsageError(f"{root} is no folder. Give the folder of the code, as in --with-code .")
    rules = root / IGNORE
    own = read_text(rules, "rules as in .gitignore")[0].splitlines() if rules.exists() else []
    try:
        spec = pathspec.GitIgnoreSpec.from_lines([*_LEFT_OUT, *leave_out, *own])
    except ValueError as error:
        raise UsageError(f"{rules} cannot be read: {error}. Write it as a .gitignore.") from error
    untracked = _listed(root, "--others")
    names = [name for name in sorted(_listed(root, "--cached") | untracked) if not spec.match_file(name)]
    files = _read(root, names)
    if not files:
        raise UsageError(f"{root} has no file that git lists and no rule leaves out. Give another folder.")
    archive = packed(files)
    return Bundle(
        archive=archive,
        digest=digest_of(archive),
        files=len(files),
        untracked=tuple(name for name in files if name in untracked),
    )


def _listed(root: Path, which: str) -> set[str]:
    """Return the paths that git lists in a folder, relative to it."""
    # whose git runs this program as a hook has set where its own repository is
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "ls-files", "-z", which, "--exclude-standard"]
    try:
        done = subprocess.run(
            command, cwd=root, capture_output=True, check=False, env=environment, timeout=_GIT_SECONDS
        )
    except FileNotFoundError:
        raise UsageError("--with-code asks git which files belong to the code. Install git.") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"git cannot list the files in {root}: {error}.") from error
    if done.returncode != 0:
        why = " ".join(done.stderr.decode(errors="replace").split()).removeprefix("fatal: ")
        raise UsageError(
            f"git lists no files in {root}: {why}. The code has to be in a git repository: run git init "
            "there, or give another folder."
        )
    return {os.fsdecode(each) for each in done.stdout.split(b"\0") if each}


def _read(root: Path, names: list[str]) -> dict[str, bytes]:
    """Return the bytes of ordinary files; those that were deleted are left out."""
    sizes: dict[str, int] = {}
    for name in names:
        try:
            found = (root / name).lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            raise UsageError(f"{root / name} cannot be read: {error.strerror or error}.") from error
        if not stat.S_ISREG(found.st_mode):
            raise BundleRefused(
                f'"{name}" is {_kind(found.st_mode)}, and a bundle of code holds ordinary files alone. Put '
                f"the file itself there, or leave it out with a line in {IGNORE}."
            )
        sizes[name] = found.st_size
    if len(sizes) > MOST_FILES:
        raise too_many(len(sizes))
    refuse_size(archive_size(sizes.values()))
    return {name: _bytes(root / name, size) for name, size in sizes.items()}


def _bytes(path: Path, size: int) -> bytes:
    """Return what a file holds that was an ordinary one of that size a moment ago."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = file.read(size + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(found) != size:
        raise UsageError(f"{path} has changed while it was read. Try again.")
    return found


def _kind(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a git repository of its own" if stat.S_ISDIR(mode) else "a pipe, a socket or a device"
