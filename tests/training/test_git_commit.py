"""The git commit of a source file, and whether files differ from it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tempopt.training.identity import git_commit


def _git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
    return subprocess.run(
        ["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_the_commit_and_its_changes_are_seen(tmp_path: Path) -> None:
    for name in ("module.py", "other.py"):
        (tmp_path / name).write_text("A = 1\n")
    (tmp_path / ".gitignore").write_text("installed.py\n")
    (tmp_path / "installed.py").write_text("A = 1\n")
    assert git_commit(tmp_path / "module.py") == (None, False)
    git_commit.cache_clear()
    _git(tmp_path, "init", "--quiet")
    _git(tmp_path, "add", "module.py", ".gitignore")
    _git(tmp_path, "commit", "--quiet", "--message", "One")
    commit = _git(tmp_path, "rev-parse", "HEAD")
    assert git_commit(tmp_path / "module.py") == (commit, False)
    assert git_commit(tmp_path / "other.py") == (commit, True), "a file that is not committed"
    assert git_commit(tmp_path / "installed.py") == (None, False), "a file that git ignores"
    git_commit.cache_clear()
    (tmp_path / "module.py").write_text("A = 2\n")
    assert git_commit(tmp_path / "module.py") == (commit, True)
    git_commit.cache_clear()
