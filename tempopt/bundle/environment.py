"""The environment that a lock file in a bundle describes: made by uv, once for each lock, and used again."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path

from tempopt.errors import UsageError
from tempopt.version import __version__

_PROJECT = ("pyproject.toml", "uv.lock")
_REQUIREMENTS = "requirements.lock"
_DONE = "made-by-tempopt"
_SECONDS = 3600.0
_CHECK = "import lightning, torch, tempopt; print(tempopt.__version__)"


def environment_of(code: Path, below: Path) -> Path | None:
    """Return the Python of the environment that a bundle's lock file describes; None: it has no lock file.

    That is ``uv.lock`` beside ``pyproject.toml``, else ``requirements.lock`` with hashes. What is locked is
    installed into an environment of the same Python as this one, and nothing beside it.

    Args:
        code: The unpacked bundle.
        below: Folder below which environments lie.

    Raises:
        UsageError: uv is missing or fails, or tempopt of this version is not among what is locked.
    """
    if all((code / each).is_file() for each in _PROJECT):
        locked = {each: (code / each).read_bytes() for each in _PROJECT}
    elif (code / _REQUIREMENTS).is_file():
        locked = {_REQUIREMENTS: (code / _REQUIREMENTS).read_bytes()}
    else:
        return None
    if (uv := shutil.which("uv")) is None:
        raise UsageError(
            f"The study's code has a lock file ({', '.join(locked)}), and --environments uv makes an "
            "environment of it by uv, which is not installed here. Install uv, or take --environments out: "
            "the code then runs with the packages of this agent."
        )
    target = below.absolute() / "environments" / _key(locked)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        python = target / "bin" / "python"
        if not (target / _DONE).is_file():
            shutil.rmtree(target, ignore_errors=True)
            _make(uv, code, target, project=_PROJECT[1] in locked)
            _check(python)
            (target / _DONE).write_text(__version__, encoding="utf-8")
    return python


def _key(locked: Mapping[str, bytes]) -> str:
    digest = hashlib.sha256(f"{__version__} {sys.version} {sysconfig.get_platform()}".encode())
    for name, data in locked.items():
        digest.update(f" {name} {len(data)} ".encode() + data)
    return digest.hexdigest()


def _make(uv: str, code: Path, target: Path, *, project: bool) -> None:
    _run([uv, "venv", "--no-project", "--python", sys.executable, str(target)], code, target)
    if project:
        # the code itself is imported from its folder
        _run([uv, "sync", "--frozen", "--no-dev", "--no-install-project"], code, target)
        return
    python = str(target / "bin" / "python")
    _run([uv, "pip", "sync", "--require-hashes", "--python", python, _REQUIREMENTS], code, target)


def _run(command: list[str], code: Path, target: Path) -> str:
    # no other Python than this agent's is fetched, and the environment lies where it is looked for
    environment = {**os.environ, "UV_PROJECT_ENVIRONMENT": str(target), "UV_PYTHON_DOWNLOADS": "never"}
    environment.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            command,
            cwd=code,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"The environment of the study's code cannot be made: {error}.") from error
    if done.returncode != 0:
        told = " ".join(done.stderr.split())[-600:]
        raise UsageError(
            "The environment of the study's code cannot be made: "
            f"{Path(command[0]).name} {command[1]} failed: {told}"
        )
    return done.stdout.strip()


def _check(python: Path) -> None:
    """Refuse an environment in which no worker of this agent can run."""
    try:
        found = _run([str(python), "-P", "-c", _CHECK], python.parent, python.parents[1])
    except UsageError as error:
        raise UsageError(
            "The lock file of the study's code has not all that a worker needs: add tempopt "
            f"{__version__} to it, with what that depends on. {error}"
        ) from error
    if found != __version__:
        raise UsageError(
            f"The lock file of the study's code has tempopt {found}, and this agent is {__version__}. Lock "
            "that version, or start an agent of the other one."
        )
