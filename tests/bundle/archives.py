"""Archives that somebody made to do harm, and one that nobody did."""

from __future__ import annotations

import gzip
import io
import tarfile
from collections.abc import Iterable

from tempopt.bundle.archive import packed

CODE = {"model.py": b"VALUE = 1\n", "package/__init__.py": b"", "package/data.py": b"import model\n"}
HONEST = packed(CODE)
BLOCK = 512


def member(name: str, data: bytes = b"", **fields: object) -> bytes:
    """Return a member of a tar, as its fields say, unlike what tempopt writes."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for field, value in fields.items():
        setattr(info, field, value)
    return info.tobuf(tarfile.USTAR_FORMAT, errors="surrogateescape") + data + bytes(-len(data) % BLOCK)


def tar(*members: bytes) -> bytes:
    return b"".join([*members, bytes(2 * BLOCK)])


def _by_tarfile(members: Iterable[tuple[str, bytes]], format: int) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return file.getvalue()


def _sized(size: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo("big.py")
    info.size = size
    return info


def _spoiled(at: int) -> bytes:
    return HONEST[:at] + bytes([HONEST[at] ^ 1]) + HONEST[at + 1 :]


MANY = tar(*(member(f"m{number:05}.py") for number in range(10_000)))

# what is wrong: the archive, and what the refusal says
ATTACKS: dict[str, tuple[bytes, str]] = {
    "a way out": (tar(member("../outside.py", b"x")), "leads out"),
    "a way out within": (tar(member("package/../../outside.py", b"x")), "leads out"),
    "an absolute path": (tar(member("/tmp/outside.py", b"x")), "absolute"),
    "a symbolic link": (
        tar(member("model.py", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
        "a symbolic link",
    ),
    "a link to a folder, and a file through it": (
        tar(member("package", type=tarfile.SYMTYPE, linkname="/tmp"), member("package/model.py", b"x")),
        "a symbolic link",
    ),
    "a hard link": (tar(member("model.py", type=tarfile.LNKTYPE, linkname="other.py")), "a hard link"),
    "a character device": (tar(member("zero", type=tarfile.CHRTYPE, devmajor=1, devminor=5)), "a device"),
    "a block device": (tar(member("disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0)), "a device"),
    "a pipe": (tar(member("pipe", type=tarfile.FIFOTYPE)), "a pipe"),
    "a folder": (tar(member("package", type=tarfile.DIRTYPE)), "a folder"),
    "a sparse file": (tar(member("big", type=tarfile.GNUTYPE_SPARSE)), "something other than a file"),
    "a compressed bomb": (gzip.compress(bytes(500_000_000), 9), "no tar"),
    "a size that is not there": (member("big.py")[:124] + b"77777777777\0" + bytes(376), "no tar"),
    "a size with the right sum that is not there": (
        _sized(8_000_000_000).tobuf(tarfile.USTAR_FORMAT),
        "ends within",
    ),
    "ten thousand files": (MANY, "at most 2000"),
    "more bytes than are allowed": (bytes(16_000_001), "at most 16000000"),
    "two files of one name": (tar(member("a.py", b"1"), member("a.py", b"2")), "twice"),
    "two names equal but for case": (
        tar(member("Model.py", b"1"), member("model.py", b"2")),
        "one and the same on some machines",
    ),
    "two folders equal but for case": (
        tar(member("A/x.py", b"1"), member("a/y.py", b"2")),
        "one and the same on some machines",
    ),
    "two names equal but for how an accent is written": (
        tar(member("caf\u00e9.py", b"1"), member("cafe\u0301.py", b"2")),
        "one and the same on some machines",
    ),
    "a file that is a folder too": (tar(member("a", b"1"), member("a/b.py", b"2")), "both a file and"),
    "a name that is not in UTF-8": (tar(member("a\udcff.py", b"1")), "no path in UTF-8"),
    "a name with a new line": (tar(member("a\n.py", b"1")), "control character"),
    "a name with a backslash": (tar(member("..\\outside.py", b"1")), "backslash"),
    "a name that belongs to git": (tar(member(".git/hooks/post-checkout", b"1")), "belongs to git"),
    "an empty name": (tar(member("", b"1")), "empty or a dot"),
    "a dot": (tar(member("./a.py", b"1")), "empty or a dot"),
    "another owner": (tar(member("a.py", b"1", uid=0, uname="root")), "more than its files"),
    "a program": (tar(member("a.py", b"1", mode=0o4755)), "more than its files"),
    "another time": (tar(member("a.py", b"1", mtime=1)), "more than its files"),
    "files out of order": (tar(member("b.py", b"1"), member("a.py", b"2")), "more than its files"),
    "something behind its end": (HONEST + b"more", "more than its files"),
    "extended headers": (
        _by_tarfile([("x" * 300 + ".py", b"1")], tarfile.PAX_FORMAT),
        "something other than a file",
    ),
    "GNU's long names": (
        _by_tarfile([("x" * 300 + ".py", b"1")], tarfile.GNU_FORMAT),
        "something other than a file",
    ),
    "a pickle": (tar(member("weights.pkl", b"1")), "pickle"),
    "a pickle of another name": (tar(member("weights.bin", b"\x80\x04N.")), "pickle"),
    "a truncated one": (HONEST[:-700], "ends"),
    "one without its end": (HONEST[:-1024], "no tar, or ends too early"),
    "a spoiled header": (_spoiled(10), "no tar"),
    "nothing": (b"", "no tar"),
}
