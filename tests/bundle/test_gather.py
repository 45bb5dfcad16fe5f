"""Which files of a folder are sent: those that git lists, less those that rules leave out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tempopt.bundle import gather
from tempopt.bundle.archive import unpacked
from tempopt.bundle.gather import gathered
from tempopt.errors import BundleRefused, UsageError
from tests.bundle.conftest import Clone, git

FILES = {"model.py": "VALUE = 1\n", "package/data.py": "", "README.md": "read me\n"}


def sent(folder: Path, **given: object) -> dict[str, bytes]:
    return unpacked(gathered(folder, **given).archive)  # type: ignore[arg-type]


def test_what_git_tracks_is_sent_as_it_is_on_the_disk(clone: Clone) -> None:
    folder = clone(FILES)
    (folder / "model.py").write_text("VALUE = 2\n")
    (folder / "README.md").unlink()
    assert sent(folder) == {"model.py": b"VALUE = 2\n", "package/data.py": b""}


def test_what_git_would_add_is_sent_and_named(clone: Clone) -> None:
    folder = clone({**FILES, ".gitignore": "data/\n"})
    (folder / "new.py").write_text("")
    (folder / "data").mkdir()
    (folder / "data" / "large.txt").write_text("ignored")
    found = gathered(folder)
    assert unpacked(found.archive).keys() == {*FILES, ".gitignore", "new.py"}
    assert found.untracked == ("new.py",) and found.text.endswith("Not tracked by git: new.py.")
    assert f"{found.files} files" in found.text and found.digest[:12] in found.text


def test_rules_leave_out_and_take_back(clone: Clone) -> None:
    folder = clone({**FILES, ".env": "SECRET=1", "keep.env": "", "notes/a.txt": "", "notes/b.txt": ""})
    assert ".env" not in sent(folder)
    (folder / ".tempoptignore").write_text("# not code\n*.md\nnotes/*\n!notes/b.txt\n!.env\n")
    assert sent(folder).keys() == {
        *("model.py", "package/data.py", "keep.env", "notes/b.txt", ".env", ".tempoptignore")
    }


def test_what_tempopt_writes_makes_no_other_bundle(clone: Clone) -> None:
    folder = clone(FILES)
    before = gathered(folder).digest
    for name in ("tempopt-runs/toy/search-0000/log.txt", "tempopt-code/0/model.py", "tempopt.db", "toy.html"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("written by a study")
    assert gathered(folder, leave_out=["/toy.html"]).digest == before


def test_a_folder_below_the_root_is_sent_alone(clone: Clone) -> None:
    folder = clone(FILES)
    assert sent(folder / "package") == {"data.py": b""}


def test_the_same_files_elsewhere_are_the_same_bundle(clone: Clone) -> None:
    one, other = clone(FILES), clone(FILES, "other")
    git(other, "commit", "--quiet", "--message", "begin")
    os.utime(other / "model.py", (1, 1))
    (other / "model.py").chmod(0o755)
    assert gathered(one).digest == gathered(other).digest
    (other / "model.py").write_text("VALUE = 2\n")
    assert gathered(one).digest != gathered(other).digest


def test_outside_git_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(UsageError, match=r"lists no files.*git init"):
        gathered(tmp_path)
    with pytest.raises(UsageError, match="folder of the code is empty"):
        gathered("")
    with pytest.raises(UsageError, match="is no folder"):
        gathered(tmp_path / "missing")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="Install git"):
        gathered(tmp_path)


def test_a_repository_whose_hook_runs_it_does_not_stand_in(
    clone: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, other = clone(FILES), clone({"other.py": ""}, "other")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    assert sent(folder).keys() == FILES.keys()


def test_links_and_repositories_in_it_are_refused(clone: Clone) -> None:
    folder = clone(FILES)
    (folder / "link.py").symlink_to("model.py")
    with pytest.raises(BundleRefused, match=r'"link.py" is a symbolic link.*\.tempoptignore'):
        gathered(folder)
    (folder / ".tempoptignore").write_text("link.py\n")
    assert sent(folder).keys() == {*FILES, ".tempoptignore"}
    (folder / "inner").mkdir()
    git(folder / "inner", "init", "--quiet")
    (folder / "inner" / "code.py").write_text("")
    with pytest.raises(BundleRefused, match="a git repository of its own"):
        gathered(folder)


def test_a_folder_with_nothing_to_send_is_refused(clone: Clone) -> None:
    folder = clone({"tempopt.db": "a database"})
    with pytest.raises(UsageError, match="no file that git lists"):
        gathered(folder)


def test_what_is_too_large_is_not_read(clone: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = clone(FILES)
    with (folder / "large.txt").open("wb") as file:
        file.truncate(10**12)
    monkeypatch.setattr(gather, "_bytes", lambda path, size: pytest.fail(f"{path} was read"))
    with pytest.raises(BundleRefused, match="at most 16000000 are allowed"):
        gathered(folder)
    (folder / "large.txt").unlink()
    for number in range(2001):
        (folder / f"m{number}.py").touch()
    with pytest.raises(BundleRefused, match="at most 2000"):
        gathered(folder)
