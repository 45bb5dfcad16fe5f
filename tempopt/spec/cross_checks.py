"""What does not fit together in a spec whose sections are right each by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tempopt.spec.attach_checks import attach_problems
from tempopt.spec.compared_sets import comparison_problems, in_every_set
from tempopt.spec.lightning_config import length_problems
from tempopt.spec.search_checks import temperature_problems
from tempopt.spec.strategy_options import strategy_problems
from tempopt.spec.temperature_checks import named_temperature_problems
from tempopt.spec.yaml_source import CollectedSpecError
from tempopt.temperature.named import split_name

if TYPE_CHECKING:
    from tempopt.spec.spec_fields import SpecFields


def find_inconsistencies(spec: SpecFields) -> list[tuple[str, str]]:
    """Return what does not fit together: paths and messages."""
    names = {*spec.search, *in_every_set(spec.compare)}
    fixed = spec.fixed_temperatures
    lines = length_problems(spec.trainer, names)
    compiled = spec.study.compile is not None
    lines += temperature_problems(
        spec.search, fixed, needs_temperature=spec.about_temperature, compiled=compiled
    )
    try:
        spec.enqueued_at(spec.study.enqueue, path="study.enqueue")
    except CollectedSpecError as error:
        lines += error.lines
    lines += strategy_problems(spec.study)
    lines += attach_problems(spec)
    lines += _data_problems(spec)
    lines += spec.resources.problems(spec.study, ranks=spec.ranks, on_cards=spec.uses_gpu)
    lines += comparison_problems(spec.study, spec.compare)
    return lines + named_temperature_problems(spec)


def _data_problems(spec: SpecFields) -> list[tuple[str, str]]:
    """Return which searched and compared arguments are of data that the spec does not have."""
    if spec.data is not None:
        return []
    names = {f"search.{name}": name for name in spec.search}
    for compared_set in spec.compare or ():
        names |= {f"compare.{compared_set.name}.{name}": name for name in compared_set.parameters}
    return [
        (path, f"{name} is given, but the spec has no data: section. Add one, or take {name} out.")
        for path, name in names.items()
        if name.startswith("data.") and not split_name(name)[0]
    ]
