"""Where study specs are: a person's own files, and those that come with tempopt; reads none of them."""

from __future__ import annotations

from pathlib import Path

from tempopt.errors import SpecError, unknown

_SUFFIXES = (".yaml", ".yml")


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
    given = Path(name_or_path).expanduser()
    known = bundled()
    if _is_file(given):
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
    here = [path.name for path in sorted(Path.cwd().iterdir()) if path.suffix in _SUFFIXES]
    raise SpecError(unknown("study spec", name_or_path, [*known, *here], "Or give a YAML file."))


def _is_file(given: Path) -> bool:
    try:
        return given.is_file()
    except OSError as error:
        raise SpecError(f"{given} cannot be read: {error.strerror}. Give a YAML file that can.") from error


def _specs_in(folder: Path) -> str:
    names = [path.name for path in sorted(folder.iterdir()) if path.suffix in _SUFFIXES]
    if not names:
        return "Give a YAML file."
    return f"Give a file: {', '.join(str(folder / name) for name in names)}."
