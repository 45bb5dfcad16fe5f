"""The spec of a comparison: any study spec, with the parameter sets to compare in place of a search."""

from __future__ import annotations

import datetime
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from tempopt.errors import UsageError
from tempopt.spec import yaml_source
from tempopt.spec.command import SCRIPT_SUFFIXES, CommandTemplate
from tempopt.spec.compared_sets import GivenSet, add_sets, combine_values, digest, normalize_sets
from tempopt.spec.load import find_spec, load_spec
from tempopt.spec.study_spec import StudySpec

_LONGEST_NAME = 100
_DIGEST_CHARS = 6
_LONGEST_STEM = 60
_SEED_BITS = 31


def comparison_spec(
    spec: StudySpec | Mapping[str, Any] | str | Path,
    sets: Sequence[GivenSet] | Mapping[str, GivenSet] = (),
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    all_pairs: bool = False,
    name: str | None = None,
    pairs: int | Mapping[str, int] | None = None,
    overrides: Sequence[str] = (),
) -> StudySpec:
    """Return the spec of a comparison of parameter sets.

    Args:
        spec: The spec that the sets belong to: loaded, as plain data, the path of a YAML file or the name of
            a bundled one. Its ``search:`` is not read.
        sets: The reference first; empty: those of the spec's section ``compare:``.
        vary: Values by key, each combination of which is a set; None or empty: ``sets`` are used.
        all_pairs: Whether every two sets are compared, instead of each with the first.
        name: Name of the study; None: that of the spec and a short hash of the sets, or just that of the spec
            if the sets are in it.
        pairs: Number of pairs in place of ``study.seeds.confirm``, written as there.
        overrides: Settings ``a.b=c`` that override the spec.

    Raises:
        UsageError: There are no sets, or two lists of them.
        SpecError: The spec or a set is wrong.
    """
    if sets and vary:
        raise UsageError(
            "Parameter sets and values to vary were given. Give one of the two; what all sets share is given "
            "by --set, as in --set model.init_args.lr=0.001"
        )
    compared_sets = (combine_values(vary) if vary else normalize_sets(sets)) or None
    if compared_sets is None and not has_section(spec, "compare"):
        raise UsageError(
            "No parameter sets were given, so there is nothing to compare. Give the reference and at least "
            "one variant, as in: tempopt compare SPEC '{}' '{temperature_init: 2}', or the values of a "
            "parameter, as in: tempopt compare SPEC --vary model.num_heads=1,2,4"
        )
    all_overrides = list(overrides)
    if pairs is not None:
        all_overrides.append(f"study.seeds.confirm={json.dumps(pairs)}")
    if all_pairs:
        all_overrides.append("study.all_pairs=true")
    if isinstance(spec, str | Path):
        comparison = load_spec(spec, all_overrides, compare=compared_sets)
    elif isinstance(spec, StudySpec):
        comparison = spec.with_compared_sets(compared_sets).with_overrides(all_overrides)
    else:
        data = add_sets(spec, compared_sets)
        comparison = StudySpec.parse(data, source="the study spec").with_overrides(all_overrides)
    assert comparison.compare is not None
    if name is None and compared_sets is not None:
        kind = "pairs" if comparison.study.all_pairs else "compare"
        suffix = f"-{kind}-{digest(comparison.compare)[:_DIGEST_CHARS]}"
        name = f"{comparison.study.name[: _LONGEST_NAME - len(suffix)]}{suffix}"
    return comparison if name is None else comparison.with_overrides([f"study.name={json.dumps(name)}"])


def command_study(command: str, *, metric: str, direction: str) -> dict[str, Any]:
    """Return the sections ``study:`` and ``program:`` of a command, with a new name and a new seed.

    So a program that was edited meets neither its earlier results nor the seeds that it was edited on.

    Raises:
        SpecError: The command cannot be split.
    """
    words = CommandTemplate.parse(command).words
    script = next((word for word in words if Path(word).suffix.lower() in SCRIPT_SUFFIXES), words[0])
    stem = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(script).stem).strip("._-")[:_LONGEST_STEM] or "command"
    now = datetime.datetime.now(datetime.UTC)
    token = secrets.token_hex(2)
    return {
        "study": {
            "name": f"{stem}-{now:%Y%m%d-%H%M%S}-{token}",
            "metric": metric,
            "direction": direction,
            "seed": secrets.randbits(_SEED_BITS),
        },
        "program": {"command": command, "metric": metric},
    }


def refuse_comparison(spec: StudySpec) -> None:
    """Refuse to search with the spec of a comparison.

    Raises:
        UsageError: The spec has a section ``compare:``.
    """
    if spec.compare is not None:
        raise UsageError(
            "The study spec has a section compare:, so it is a comparison and there is nothing to search. "
            "Carry it out with tempopt compare SPEC, or take the section out."
        )


def has_section(
    spec: StudySpec | Mapping[str, Any] | str | Path, name: Literal["compare", "program"]
) -> bool:
    """Return whether a spec, in a form that :func:`comparison_spec` takes, has a section.

    Raises:
        SpecError: It cannot be found or read.
    """
    if isinstance(spec, StudySpec):
        return getattr(spec, name) is not None
    data = spec if isinstance(spec, Mapping) else yaml_source.read(find_spec(spec)).data
    return data.get(name) is not None
