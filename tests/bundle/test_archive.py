"""The archive of a bundle: one for the same files, and nothing in it but files."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tempopt.bundle import archive
from tempopt.bundle.archive import digest_of, packed, unpacked, verify
from tempopt.errors import BundleRefused
from tests.bundle.archives import ATTACKS, CODE, HONEST

NAMES = st.lists(st.text("abcxyzéß_ ", min_size=1, max_size=8), min_size=1, max_size=3).map("/".join)
FILES = st.dictionaries(NAMES, st.binary(max_size=1500), min_size=1, max_size=8)


def _packed(files: dict[str, bytes]) -> bytes | None:
    """Return the archive of files; None: two of their names are one on some machines."""
    try:
        return packed(files)
    except BundleRefused:
        return None


@given(FILES, st.randoms())
def test_the_same_files_are_the_same_bytes_in_whatever_order_they_come(
    files: dict[str, bytes], random: Any
) -> None:
    names = list(files)
    random.shuffle(names)
    assert _packed({name: files[name] for name in names}) == _packed(files)


@given(FILES)
def test_what_is_packed_is_unpacked(files: dict[str, bytes]) -> None:
    made = _packed(files)
    assert made is None or unpacked(made) == files


@given(FILES, FILES)
def test_other_files_have_another_hash(one: dict[str, bytes], other: dict[str, bytes]) -> None:
    first, second = _packed(one), _packed(other)
    if first is not None and second is not None:
        assert (digest_of(first) == digest_of(second)) == (one == other)


@given(st.integers(0, len(HONEST) - 1), st.integers(1, 255))
def test_no_byte_can_be_changed(at: int, change: int) -> None:
    changed = HONEST[:at] + bytes([HONEST[at] ^ change]) + HONEST[at + 1 :]
    with pytest.raises(BundleRefused, match="changed or is damaged"):
        verify(changed, digest_of(HONEST))


@given(st.binary(max_size=3000) | st.builds(lambda at, b: HONEST[:at] + b, st.integers(0, 4000), st.binary()))
def test_whatever_is_read_is_refused_or_is_what_would_be_written(given: bytes) -> None:
    try:
        files = unpacked(given)
    except BundleRefused:
        return
    assert packed(files) == given


def test_the_hash_is_the_same_on_every_machine() -> None:
    assert digest_of(HONEST) == "646953de13ca232649c08eebf40f111cd46d65584bf684f743313321efa1e710"


def test_a_program_of_everybody_reads_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(HONEST)) as found:
        members = found.getmembers()
        assert [each.name for each in members] == sorted(CODE)
        assert {(each.mode, each.uid, each.gid, each.mtime, each.uname) for each in members} == {
            (0o644, 0, 0, 0, "")
        }


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_is_refused(attack: str) -> None:
    given, told = ATTACKS[attack]
    with pytest.raises(BundleRefused, match=told):
        unpacked(given)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(BundleRefused, match="240 are allowed"):
        packed({"/".join(["folder"] * 40): b""})
    with pytest.raises(BundleRefused, match="its last part at most 100 bytes"):
        packed({"x" * 120: b""})
    assert unpacked(packed({"/".join(["folder"] * 30): b"1"}))


def test_as_much_as_is_allowed_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {f"{number}.py": b"" for number in range(archive.MOST_FILES)}
    assert unpacked(packed(files)) == files
    with pytest.raises(BundleRefused, match="2001 files"):
        packed({**files, "more.py": b""})
    size = len(packed({"data.txt": b"x" * 5000}))
    monkeypatch.setattr(archive, "MOST_BYTES", size)
    assert len(packed({"data.txt": b"x" * 5000})) == size
    with pytest.raises(BundleRefused, match=rf"at most {size} are allowed.*tempoptignore"):
        packed({"data.txt": b"x" * 5500})


def test_what_torch_saves_is_no_source() -> None:
    import torch

    file = io.BytesIO()
    torch.save({"weight": torch.zeros(2)}, file)
    with pytest.raises(BundleRefused, match="pickle"):
        packed({"weights.dat": file.getvalue()})
