"""A search space that was changed after its study had begun: what it was before, and which runs still count.

Pure. Which tickets an amendment brings, and what it takes to make one, is ``tempopt.study.amend``'s.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tempopt.errors import SpecError
from tempopt.records.rows import Parameters, TicketRow
from tempopt.spec.conditions import counted
from tempopt.spec.domains import Choices, Domain, Range, as_written, same_value
from tempopt.spec.search_space import Arm
from tempopt.temperature.alike import same_training
from tempopt.temperature.named import join_name, split_name
from tempopt.temperature.parameters import TEMPERATURE_PARAMETERS, is_real

if TYPE_CHECKING:
    from tempopt.spec.study_spec import StudySpec

_NOTHING = object()
# of a step: values of a grid are computed, and may be off by rounding
_ON_GRID = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """One change of a study's search space.

    Args:
        spec: The spec that was in force before.
        round: First round whose search tickets are from the space after it.
        missing: Value that the runs before trained with, of each name that was added.
        fixed: Value that the runs after it train with, of each name that was taken out.
    """

    spec: StudySpec
    round: int
    missing: dict[str, Any]
    fixed: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "spec": self.spec.to_json(),
            "round": self.round,
            "missing": self.missing,
            "fixed": self.fixed,
        }


def changes(before: Mapping[str, Domain], after: Mapping[str, Domain]) -> list[str]:
    """Return in words how one search space differs from another, a text for each name that does.

    As in ``temperature_init: high 4.0 -> 16.0``; empty if they are the same.
    """
    lines = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in after:
            lines.append(f"{name}: taken out")
        elif name not in before:
            lines.append(f"{name}: added, {_shown(after[name])}")
        elif before[name] != after[name]:
            lines.append(f"{name}: {_changed(before[name], after[name])}")
    return lines


def _changed(before: Domain, after: Domain) -> str:
    if type(before) is not type(after):
        return f"{_shown(before)} -> {_shown(after)}"
    one, other = as_written(before), as_written(after)
    told = [
        f"{key} {json.dumps(one.get(key))} -> {json.dumps(other.get(key))}"
        for key in dict.fromkeys([*one, *other])
        if key != "choices" and one.get(key) != other.get(key)
    ]
    if isinstance(before, Choices) and isinstance(after, Choices) and before.choices != after.choices:
        told.insert(0, f"{_shown(before)} -> {_shown(after)}")
    return ", ".join(told)


def _shown(domain: Domain) -> str:
    if isinstance(domain, Choices):
        return f"[{', '.join(map(json.dumps, domain.choices))}]"
    return f"{domain.low} to {domain.high}"


def as_now(ticket: TicketRow, spec: StudySpec) -> TicketRow | None:
    """Return a run that was sampled, with its parameters as they are in the search space of now.

    Names that were added since have the value that it trained with, those that were taken out are what
    the spec fixes now.

    Args:
        ticket: A ticket of a kind that is sampled, with its parameters.
        spec: The study's spec.

    Returns:
        None for a run that lies outside of the space.
    """
    if ticket.space >= len(spec.amendments) or ticket.parameters is None:
        return ticket
    arm: Arm = "baseline" if ticket.kind == "rematch" else ticket.kind  # type: ignore[assignment]
    missing, fixed = _told(ticket, spec)
    known = {**missing, **ticket.parameters, **(ticket.sampled or {})}
    domains = _domains(spec, arm)
    values = {name: _ends(name, known) for name in domains}
    held = {name: _held(domain, values[name]) for name, domain in domains.items()}
    if (
        not (missing or fixed or _NOTHING in held.values())
        and domains.keys() >= (ticket.sampled or {}).keys()
        and counted(spec.search, held).keys() == held.keys()
    ):
        return dataclasses.replace(ticket, sampled=held)
    # what a plan does not read may lie anywhere
    found = {n: _nearest(domains[n], values[n]) if each is _NOTHING else each for n, each in held.items()}
    now = spec.parameters(arm, found)
    try:
        own = {name: value for name, value in missing.items() if name not in TEMPERATURE_PARAMETERS}
        then = counted(spec.search, {**own, **ticket.parameters})
        if not _same(then, now, missing, fixed):
            return None
    except SpecError:
        # a schedule of a person's own that is searched no more
        return None
    return dataclasses.replace(ticket, parameters=now, sampled=counted(spec.search, found))


def whole(ticket: TicketRow, spec: StudySpec) -> TicketRow:
    """Return a run with all that it trained with, those names included that were added since."""
    if ticket.space >= len(spec.amendments) or ticket.parameters is None:
        return ticket
    missing, _ = _told(ticket, spec)
    own = {name: value for name, value in missing.items() if name not in TEMPERATURE_PARAMETERS}
    return dataclasses.replace(ticket, parameters={**own, **ticket.parameters})


def fits(ticket: TicketRow, spec: StudySpec) -> bool:
    """Return whether a run that was sampled lies in the search space of now."""
    return as_now(ticket, spec) is not None


def _told(ticket: TicketRow, spec: StudySpec) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return by name what a run lacks and trained with, and what is fixed now."""
    missing: dict[str, Any] = {}
    fixed: dict[str, Any] = {}
    for each in spec.amendments[ticket.space :]:
        missing = {**each.missing, **missing}
        fixed = {name: value for name, value in (fixed | each.fixed).items() if name not in each.missing}
    return missing, fixed


def _domains(spec: StudySpec, arm: Arm) -> dict[str, Domain]:
    """Return the domains of what an arm samples."""
    if arm == "search":
        return dict(spec.search)
    others: dict[str, Domain] = {name: spec.search[name] for name in spec.other_names}
    if arm == "baseline":
        return others
    spans: dict[str, Any] = {
        name: each for name, each in spec.space("constant").items() if name not in others
    }
    levels = {name: Range(low=each.low, high=each.high, log=True) for name, each in spans.items()}
    return {**levels, **others}


def _ends(name: str, known: Mapping[str, Any]) -> Any:
    """Return a value; of a schedule's end that is not given, that of its beginning, which it means."""
    value = known.get(name, _NOTHING)
    temperature, bare = split_name(name)
    if bare == "hold_fraction" and value is None:
        # what it means depends on the schedule
        return 0.0 if known.get(join_name(temperature, "schedule")) == "piecewise" else 0.5
    beginning = {"temperature_final": "temperature_init", "entropy_lambda_final": "entropy_lambda"}.get(bare)
    beginning = beginning and join_name(temperature, beginning)
    return known.get(beginning, _NOTHING) if beginning and value in (None, _NOTHING) else value


def _held(domain: Domain, value: Any) -> Any:
    """Return a value as its domain holds it, ``_NOTHING`` if it does not."""
    if isinstance(domain, Choices):
        same = (each for each in domain.choices if same_value(each, value))
        return next(same, _NOTHING)
    whole = isinstance(domain.low, int) and isinstance(domain.high, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        return _NOTHING
    if not domain.low <= value <= domain.high:
        return _NOTHING
    if domain.step is not None:
        steps = (value - domain.low) / domain.step
        if abs(steps - round(steps)) > _ON_GRID:
            return _NOTHING
    return value if whole else float(value)


def _nearest(domain: Domain, value: Any) -> Any:
    """Return a value of a domain in place of one that it does not hold: of a range, its nearest."""
    if isinstance(domain, Choices):
        return domain.choices[0]
    if isinstance(value, bool) or not isinstance(value, int | float) or domain.step is not None:
        return domain.low
    nearest = min(max(value, domain.low), domain.high)
    return round(nearest) if isinstance(domain.low, int) and isinstance(domain.high, int) else float(nearest)


def _same(then: Parameters, now: Parameters, missing: Mapping[str, Any], fixed: Mapping[str, Any]) -> bool:
    """Return whether a run then and one now train the same."""
    others = [name for name in {**then, **now} if name not in TEMPERATURE_PARAMETERS]
    if not all(same_value(then.get(n, missing.get(n)), now.get(n, fixed.get(n))) for n in others):
        return False
    lacking = {n: v for n, v in missing.items() if n in TEMPERATURE_PARAMETERS and n not in then}
    return same_training(*(_temperatures(each) for each in ({**lacking, **then}, now)))


def _temperatures(parameters: Parameters) -> Parameters:
    # 1 and 1.0 are the same temperature, though not the same text
    return {
        name: float(value) if type(value) is int and is_real(name) else value
        for name, value in parameters.items()
        if name in TEMPERATURE_PARAMETERS
    }


def fitting(tickets: Iterable[TicketRow], spec: StudySpec) -> list[TicketRow]:
    """Return the runs that lie in the search space of now, with their parameters as they are in it."""
    return [found for each in tickets if (found := as_now(each, spec)) is not None]


def wanted_now(sampled: Mapping[str, Any], spec: StudySpec) -> Parameters | None:
    """Return what is left of the values that somebody wants tried, where the space was amended since."""
    held = {name: _held(spec.search[name], each) for name, each in sampled.items() if name in spec.search}
    return {name: each for name, each in held.items() if each is not _NOTHING} or None
