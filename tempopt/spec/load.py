"""Find, read and validate spec files: those of a person and those that come with tempopt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tempopt.errors import SpecError, UsageError, unknown
from tempopt.files import absolute
from tempopt.spec import yaml_source
from tempopt.spec.compared_sets import add_sets
from tempopt.spec.study_spec import StudySpec

SUFFIXES = (".yaml", ".yml")


def load_spec(
    path_or_name: str | Path,
    overrides: Sequence[str] = (),
    *,
    compare: Sequence[Mapping[str, Any]] | None = None,
) -> StudySpec:
    """Read and validate a study spec.

    Args:
        path_or_name: A YAML file, or the name of a spec that comes with tempopt.
        overrides: Settings ``a.b=c`` that override the file, such as ``study.trials=20``.
        compare: Parameter sets to compare, in the form of the section ``compare:``.

    Raises:
        SpecError: There is no such spec, it is not YAML, or it is invalid.
    """
    parsed_overrides = [yaml_source.parse_override(text) for text in overrides]
    stored_overrides = [override for override in parsed_overrides if not override.local]
    document = yaml_source.read(find_spec(path_or_name)).with_settings(stored_overrides)
    spec = StudySpec.parse(add_sets(document.data, compare), source=document)
    return spec.with_overrides(
        [text for text, override in zip(overrides, parsed_overrides, strict=True) if override.local]
    )


def bundled_specs(package: Path | None = None) -> dict[str, Path]:
    """Return the specs that come with tempopt, by name.

    They are inside the package in a wheel, and beside it in a checkout or an editable install.

    Args:
        package: The folder of the package ``tempopt``; None for the running one.
    """
    package = package or Path(__file__).resolve().parent.parent
    wheel_folder, checkout_folder = package / "_studies", package.parent / "studies"
    folder = wheel_folder if wheel_folder.is_dir() else checkout_folder
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def find_spec(name_or_path: str | Path) -> Path:
    """Return the file of a spec: an existing file, else the bundled spec of that name.

    Raises:
        SpecError: There is neither; the message lists the bundled names.
    """
    paths_by_name = bundled_specs()
    try:
        path = absolute(str(name_or_path), "The study spec")
    except UsageError as error:
        raise SpecError(str(error)) from error
    user_path = Path(name_or_path).expanduser()
    # includes pipes, whose content decides
    if path.exists() and not path.is_dir():
        return user_path
    if str(name_or_path) in paths_by_name:
        return paths_by_name[str(name_or_path)]
    if user_path.is_dir():
        raise SpecError(f"{user_path} is a folder. Give a YAML file.")
    if user_path.suffix in SUFFIXES:
        location = "" if user_path.is_absolute() else f" in {Path.cwd()}"
        remedy = f"Give a file that exists, or a spec that comes with tempopt: {', '.join(paths_by_name)}."
        if user_path.stem in paths_by_name:
            remedy = f'A spec "{user_path.stem}" comes with tempopt: give just that name.'
        raise SpecError(f"There is no file {user_path}{location}. {remedy}")
    remedy = "Or give a YAML file; to write one, run: tempopt init package.module.Class"
    raise SpecError(unknown("study spec", name_or_path, paths_by_name, remedy))
