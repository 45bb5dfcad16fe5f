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
    inside, beside = package / "_studies", package.parent / "studies"
    folder = inside if inside.is_dir() else beside
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_spec(name_or_path: str | Path) -> Path:
    """Return the file that is meant: an existing file, else the bundled spec of that name.

    Raises:
        SpecError: There is neither; the message lists the bundled names and the specs in the folder.
    """
    known = bundled()
    try:
        path = absolute(str(name_or_path), "The study spec")
    except UsageError as error:
        raise SpecError(str(error)) from error
    given = Path(name_or_path).expanduser()
    # a pipe too: reading it says what it is
    if path.exists() and not path.is_dir():
        return given
    if str(name_or_path) in known:
        return known[str(name_or_path)]
    if given.is_dir():
        raise SpecError(f"{given} is a folder. {_specs_in(given)}")
    if given.suffix in _SUFFIXES:
        where = "" if given.is_absolute() else f" in {Path.cwd()}"
        remedy = f"Give a file that exists, or a spec that comes with tempopt: {', '.join(known)}."
        if given.stem in known:
            remedy = f'A spec "{given.stem}" comes with tempopt: give just that name.'
        raise SpecError(f"There is no file {given}{where}. {remedy}")
    here = [path.name for path in specs_in(Path.cwd())]
    remedy = "Or give a YAML file; to write one, run: tempopt init package.module.Class"
    raise SpecError(unknown("study spec", name_or_path, [*known, *here], remedy))


def _specs_in(folder: Path) -> str:
    found = specs_in(folder)
    return f"Give a file: {', '.join(map(str, found))}." if found else "Give a YAML file."


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
