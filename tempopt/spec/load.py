"""load_spec, which reads the file of a study spec, or one that comes with tempopt, and validates it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tempopt.spec import yaml_source as document
from tempopt.spec.bundled_studies import find_spec
from tempopt.spec.compared_sets import with_sets
from tempopt.spec.study_spec import StudySpec


def load_spec(
    path_or_name: str | Path,
    overrides: Sequence[str] = (),
    *,
    compare: Sequence[Mapping[str, Any]] | None = None,
) -> StudySpec:
    """Read and validate a study spec.

    Args:
        path_or_name: A YAML file, or the name of a spec that comes with tempopt.
        overrides: Settings ``a.b=c`` that go over the file's, as in ``study.trials=20``.
        compare: Parameter sets to compare, as the section ``compare:`` has them.

    Raises:
        SpecError: There is no such spec, it is not YAML, or it says something that is not allowed.
    """
    parsed_overrides = [document.parse_override(text) for text in overrides]
    stored_overrides = [override for override in parsed_overrides if not override.local]
    origin = document.read(find_spec(path_or_name)).with_settings(stored_overrides)
    spec = StudySpec.parse(with_sets(origin.data, compare), source=origin)
    return spec.with_overrides(
        [text for text, override in zip(overrides, parsed_overrides, strict=True) if override.local]
    )
