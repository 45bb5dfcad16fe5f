"""The archive of a bundle: files to a tar and back; strict, so that there is one tar for them.

Nothing is compressed, so that nothing grows. Reading accepts only what writing would have written, byte for
byte: links, devices, other modes, a second file of one name or a hidden one cannot be in it. Touches no disk.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
import unicodedata
import zipfile
from collections.abc import Iterable, Mapping

from tempopt.errors import BundleRefused

MOST_BYTES = 16_000_000
"""Bytes of an archive at most, which is not compressed."""
MOST_FILES = 2_000
LONGEST_NAME = 240
"""Bytes of a file's path at most, in UTF-8."""
_BLOCK = 512
_END = bytes(2 * _BLOCK)
_KINDS = {
    tarfile.LNKTYPE: "a hard link",
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.DIRTYPE: "a folder",
    tarfile.FIFOTYPE: "a pipe",
}
_PICKLES = (".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".pyc")


def digest_of(archive: bytes) -> str:
    """Return the SHA-256 of an archive, in 64 hexadecimal digits."""
    return hashlib.sha256(archive).hexdigest()


def verify(archive: bytes, digest: str) -> None:
    """Refuse an archive that is not the one of a digest.

    Raises:
        BundleRefused: It has other bytes.
    """
    found = digest_of(archive)
    if found != digest:
        raise BundleRefused(
            f"The bundle of code was changed or is damaged: its SHA-256 is {found}, and {digest} was "
            "recorded. Nothing of it was unpacked. Send the code again: tempopt search SPEC --with-code DIR"
        )


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return the archive of files: the same bytes for the same files, on every machine.

    Args:
        files: Bytes by path: relative, parts separated by ``/``.

    Raises:
        BundleRefused: A path or a file may not be in a bundle, or they are too many or too large.
    """
    if len(files) > MOST_FILES:
        raise too_many(len(files))
    # known before a copy of it is made
    refuse_size(archive_size(len(each) for each in files.values()))
    _check_names(files)
    parts = []
    for name in sorted(files):
        data = files[name]
        _refuse_pickle(name, data)
        parts += [_header(name, len(data)), data, bytes(-len(data) % _BLOCK)]
    return b"".join([*parts, _END])


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Return the files in an archive, by path.

    Raises:
        BundleRefused: It is not what :func:`packed` makes of any files.
    """
    refuse_size(len(archive))
    files: dict[str, bytes] = {}
    at = 0
    while archive[at : at + _BLOCK] != _END[:_BLOCK]:
        name, size = _read_header(archive[at : at + _BLOCK])
        if name in files:
            raise BundleRefused(f'The bundle of code has the file "{name}" twice. {_REFUSED}')
        if len(files) == MOST_FILES:
            raise too_many(MOST_FILES + 1)
        data = archive[at + _BLOCK : at + _BLOCK + size]
        if len(data) < size:
            raise BundleRefused(f'The bundle of code ends within the file "{name}". {_REFUSED}')
        files[name] = data
        at += _BLOCK + size + -size % _BLOCK
    if packed(files) != archive:
        raise BundleRefused(
            f"The bundle of code holds more than its files, or not in their order. {_REFUSED}"
        )
    return files


def archive_size(sizes: Iterable[int]) -> int:
    """Return the bytes of the archive of files, given theirs."""
    return sum(_BLOCK + size + -size % _BLOCK for size in sizes) + len(_END)


def refuse_size(size: int) -> None:
    """Refuse an archive that is too large.

    Raises:
        BundleRefused: It has more than :data:`MOST_BYTES`.
    """
    if size > MOST_BYTES:
        raise BundleRefused(
            f"The bundle of code has {size} bytes, and at most {MOST_BYTES} are allowed. Leave data and "
            "results out of it: a line for each in .tempoptignore, written as in .gitignore."
        )


def too_many(files: int) -> BundleRefused:
    """Return the error that there are too many files."""
    return BundleRefused(
        f"The bundle of code has {files} files or more, and at most {MOST_FILES} are allowed. Leave out what "
        "is not code: a line for each in .tempoptignore, written as in .gitignore."
    )


_REFUSED = "It was not made by tempopt, or is damaged: nothing of it was unpacked."


def _header(name: str, size: int) -> bytes:
    # owner, time and mode are those of a TarInfo that is told nothing
    member = tarfile.TarInfo(name)
    member.size = size
    try:
        return member.tobuf(tarfile.USTAR_FORMAT, "utf-8", "strict")
    except ValueError:
        # a path of more than 100 bytes has to have a separator in the right place
        raise BundleRefused(
            f'The path "{name}" is too long for a bundle of code: give its last part at most 100 bytes.'
        ) from None


def _read_header(block: bytes) -> tuple[str, int]:
    """Return the path and the size of a file, of which the rest is not read yet."""
    try:
        member = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
    except tarfile.HeaderError:
        raise BundleRefused(f"The bundle of code is no tar, or ends too early. {_REFUSED}") from None
    name = member.name.encode("utf-8", "backslashreplace").decode()
    if member.type != tarfile.REGTYPE:
        kind = _KINDS.get(member.type, "something other than a file")
        raise BundleRefused(f'"{name}" in the bundle of code is {kind}. {_REFUSED}')
    if name != member.name or member.size < 0:
        raise BundleRefused(f'"{name}" in the bundle of code is no path in UTF-8. {_REFUSED}')
    return name, member.size


def _check_names(names: Iterable[str]) -> None:
    """Refuse paths that lead out of a folder, or that some file system takes for one another."""
    files = set(names)
    spelled: dict[str, str] = {}
    for name in files:
        if why := _fault(name):
            raise BundleRefused(f"The path {name!a} may not be in a bundle of code: {why}.")
        parts = name.split("/")
        for end in range(1, len(parts) + 1):
            path = "/".join(parts[:end])
            if end < len(parts) and path in files:
                raise BundleRefused(f'"{path}" is both a file and a folder in the bundle of code. {_REFUSED}')
            other = spelled.setdefault(unicodedata.normalize("NFC", path).casefold(), path)
            if other != path:
                raise BundleRefused(
                    f'"{min(path, other)}" and "{max(path, other)}" are one and the same on some machines. '
                    "Rename one of them."
                )


def _fault(name: str) -> str:
    """Return why a path may not be in a bundle, empty if it may."""
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        return "it is not in UTF-8"
    parts = name.split("/")
    if name.startswith("/"):
        return "it is absolute"
    if ".." in parts:
        return "it leads out of its folder"
    if "" in parts or "." in parts:
        return "a part of it is empty or a dot"
    if size > LONGEST_NAME:
        return f"it has {size} bytes, and at most {LONGEST_NAME} are allowed"
    if any(each in "\\:" or unicodedata.category(each)[0] == "C" for each in name):
        return "it has a backslash, a colon or a control character"
    if ".git" in (each.casefold().rstrip(" .") for each in parts):
        return "it belongs to git"
    return ""


def _refuse_pickle(name: str, data: bytes) -> None:
    """Refuse what runs code, or is loaded by what runs it, without being source that people can read."""
    if name.lower().endswith(_PICKLES) or _is_pickle(data):
        raise BundleRefused(
            f'"{name}" is a pickle, a checkpoint or compiled, and a bundle of code holds none. Leave it out '
            "with a line in .tempoptignore, and have trainings read it from a place of its own."
        )


def _is_pickle(data: bytes) -> bool:
    if data[:1] == b"\x80" and data[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and data[-1:] == b".":
        return True
    if data[:4] != b"PK\x03\x04":
        return False
    try:
        # as torch.save writes it
        names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError):
        return False
    return any(each.endswith(".pkl") for each in names)
