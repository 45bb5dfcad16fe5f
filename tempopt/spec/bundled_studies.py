"""Where study specs are: a person's own files, and those that come with tempopt; reads none of them."""

from __future__ import annotations

import re
from pathlib import Path

from tempopt.errors import SpecError, UsageError, unknown
from tempopt.files import absolute

_SUFFIXES = (".yaml", ".yml")
_STUDY = re.compile(rb"^[\"']?study[\"']?\s*:", re.MULTILINE)
# A folder may hold thousands of files, and large ones.
_LOOKED_INTO = 200
_HEAD_BYTES = 100_000


def bundled(package: Path | None = None) -> dict[str, Path]:
    """Return the specs that come with tempopt, by name.

    A wheel has them inside the package; a checkout (or an editable install of it) beside it.

    Args:
        package: The folder of the package ``tempopt``; None for the one that is running.
    """
    package = package or Path(__file__).resolve().parent.parent
    wheel_folder, checkout_folder = package / "_studies", package.parent / "studies"
    folder = wheel_folder if wheel_folder.is_dir() else checkout_folder
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_spec(name_or_path: str | Path) -> Path:
    """Return the file that is meant: an existing file, else the bundled spec of that name.

    Raises:
        SpecError: There is neither; the message lists the bundled names and the specs in the folder.
    """
    bundled_specs = bundled()
    try:
        path = absolute(str(name_or_path), "The study spec")
    except UsageError as error:
        raise SpecError(str(error)) from error
    user_path = Path(name_or_path).expanduser()
    # a pipe too: reading it says what it is
    if path.exists() and not path.is_dir():
        return user_path
    if str(name_or_path) in bundled_specs:
        return bundled_specs[str(name_or_path)]
    if user_path.is_dir():
        raise SpecError(f"{user_path} is a folder. {_specs_in(user_path)}")
    if user_path.suffix in _SUFFIXES:
        location = "" if user_path.is_absolute() else f" in {Path.cwd()}"
        remedy = f"Give a file that exists, or a spec that comes with tempopt: {', '.join(bundled_specs)}."
        if user_path.stem in bundled_specs:
            remedy = f'A spec "{user_path.stem}" comes with tempopt: give just that name.'
        raise SpecError(f"There is no file {user_path}{location}. {remedy}")
    local_names = [path.name for path in specs_in(Path.cwd())]
    remedy = "Or give a YAML file; to write one, run: tempopt init package.module.Class"
    raise SpecError(unknown("study spec", name_or_path, [*bundled_specs, *local_names], remedy))


def _specs_in(folder: Path) -> str:
    specs = specs_in(folder)
    return f"Give a file: {', '.join(map(str, specs))}." if specs else "Give a YAML file."


def specs_in(folder: Path) -> list[Path]:
    """Return the files of a folder that look like study specs: those in YAML with a key ``study:``."""
    try:
        files = [path for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    except OSError:
        return []
    return [path for path in files[:_LOOKED_INTO] if _is_spec(path)]


def _is_spec(path: Path) -> bool:
    try:
        return path.is_file() and _STUDY.search(path.read_bytes()[:_HEAD_BYTES]) is not None
    except OSError:
        return False
