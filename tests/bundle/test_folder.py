"""Where bundles are unpacked: what is harmful writes nothing, and a folder is used again only as it was."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from tempopt.bundle.archive import digest_of, packed
from tempopt.bundle.folder import unpack
from tempopt.errors import BundleRefused, UsageError
from tests.bundle.archives import ATTACKS, CODE, HONEST

DIGEST = digest_of(HONEST)


def lying(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder."""
    return {
        each.relative_to(folder).as_posix(): each.read_bytes()
        for each in folder.rglob("*")
        if each.is_file() and not each.is_symlink()
    }


def folders(place: Path) -> set[str]:
    """Return what lies in a place, the lock apart."""
    return {each.name for each in place.iterdir()} - {".lock"}


def test_it_is_unpacked_into_a_folder_of_its_hash(tmp_path: Path) -> None:
    found = unpack(HONEST, DIGEST, tmp_path / "code")
    assert found == tmp_path / "code" / DIGEST and lying(found) == CODE
    assert folders(tmp_path / "code") == {DIGEST}
    assert not [each for each in found.rglob("*.py") if each.stat().st_mode & 0o111]


@pytest.mark.parametrize("attack", ATTACKS)
def test_an_attack_writes_nothing(attack: str, tmp_path: Path) -> None:
    given, told = ATTACKS[attack]
    with pytest.raises(BundleRefused, match=told):
        unpack(given, digest_of(given), tmp_path / "code")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("given", [HONEST[:-1], HONEST + b"\0", packed({"model.py": b"VALUE = 2\n"})])
def test_what_was_changed_after_hashing_writes_nothing(given: bytes, tmp_path: Path) -> None:
    with pytest.raises(BundleRefused, match=f"{DIGEST} was recorded"):
        unpack(given, DIGEST, tmp_path / "code")
    assert not list(tmp_path.iterdir())


def test_the_hash_is_compared_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempopt.bundle.folder.unpacked", lambda archive: pytest.fail("it was read"))
    with pytest.raises(BundleRefused, match="SHA-256"):
        unpack(HONEST[:-1], DIGEST, tmp_path)


def test_a_folder_that_is_as_it_was_is_used_again(tmp_path: Path) -> None:
    found = unpack(HONEST, DIGEST, tmp_path)
    (found / "results.txt").write_text("what a training wrote")
    before = (found / "model.py").stat().st_ino
    assert unpack(HONEST, DIGEST, tmp_path) == found
    assert (found / "model.py").stat().st_ino == before and (found / "results.txt").exists()


def spoil_contents(found: Path) -> None:
    (found / "model.py").write_text("VALUE = 2\n")


def spoil_missing(found: Path) -> None:
    (found / "package" / "data.py").unlink()


def spoil_module(found: Path) -> None:
    (found / "torch.py").write_text("print('not torch')")


def spoil_compiled(found: Path) -> None:
    (found / "torch.pyc").write_bytes(b"not torch")


def spoil_link(found: Path) -> None:
    (found / "model.py").unlink()
    (found / "model.py").symlink_to(found / "package" / "data.py")


def spoil_folder_link(found: Path) -> None:
    (found / "torch").symlink_to("/tmp")


def spoil_pipe(found: Path) -> None:
    (found / "model.py").unlink()
    os.mkfifo(found / "model.py")


def spoil_all(found: Path) -> None:
    other = found.with_name("other")
    found.rename(other)
    found.symlink_to(other)


def spoil_kind(found: Path) -> None:
    found.rename(found.with_name("other"))
    found.write_text("a file")


SPOILED = [each for name, each in sorted(globals().items()) if name.startswith("spoil_")]


@pytest.mark.parametrize("spoil", SPOILED)
def test_a_folder_that_was_changed_is_replaced(spoil: object, tmp_path: Path) -> None:
    found = unpack(HONEST, DIGEST, tmp_path)
    spoil(found)  # type: ignore[operator]
    assert unpack(HONEST, DIGEST, tmp_path) == found
    assert lying(found) == CODE and stat.S_ISDIR(found.lstat().st_mode)
    assert folders(tmp_path) <= {DIGEST, "other"}


def test_what_was_compiled_there_is_forgotten(tmp_path: Path) -> None:
    found = unpack(HONEST, DIGEST, tmp_path)
    (found / "__pycache__").mkdir()
    (found / "__pycache__" / "model.cpython-311.pyc").write_bytes(b"other code")
    assert lying(unpack(HONEST, DIGEST, tmp_path)) == CODE


def test_agents_that_unpack_at_one_moment_find_it_whole(tmp_path: Path) -> None:
    found: list[dict[str, bytes]] = []
    gate = threading.Barrier(8)

    def work() -> None:
        gate.wait()
        found.append(lying(unpack(HONEST, DIGEST, tmp_path)))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert found == [CODE] * 8 and folders(tmp_path) == {DIGEST}


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="--accept-code DIR"):
        unpack(HONEST, DIGEST, tmp_path / "file")
