"""Changes the search space of a study that has begun: what may be changed, and which tickets follow from it.

Runs that there are stay. What of them counts in the space of now is decided by ``tempopt.spec.amendments``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tempopt.agent.continuation import amendable, refuse_alike, refused
from tempopt.agent.dry_run import defaults, workers_of
from tempopt.confirmation.stages import PROVING, more_tickets, proving
from tempopt.errors import SpecError, StudyChanged, UsageError
from tempopt.records.rows import NewTicket, StudyRow, TicketRow
from tempopt.records.tickets import current_round, next_number, of_kind, over
from tempopt.seeds import derive, seed_name
from tempopt.spec.amendments import Amendment, wanted_now
from tempopt.spec.constants import Box, holds, more_constants, new_part
from tempopt.spec.identity import differences
from tempopt.spec.own_schedules import import_schedules
from tempopt.spec.study_spec import StudySpec
from tempopt.spec.temperatures import begun_as
from tempopt.spec.yaml_source import Override, apply, parse_override
from tempopt.store.store import Store
from tempopt.study.ledger import check_can_show
from tempopt.temperature import TEMPERATURE_PARAMETERS, neutral_values
from tempopt.workers.placement import Placement
from tempopt.workers.secrets import refuse_secrets


@dataclass(frozen=True, slots=True, kw_only=True)
class Modules:
    """How it is learned what a study's own modules say, where they are at hand; a server has none of them.

    Args:
        schedules: Refuses a spec whose schedules outside tempopt cannot be had; arguments as for
            :func:`tempopt.spec.own_schedules.import_schedules`.
        defaults: Returns what searched arguments are where nobody sets them, by name, given the spec in force
            and that which is to follow.
    """

    schedules: Callable[[StudySpec], None]
    defaults: Callable[[StudySpec, StudySpec], Mapping[str, Any]]


def argument_defaults(stored: StudySpec, given: StudySpec) -> dict[str, Any]:
    """Return what searched arguments are where nobody sets them, having checked the new space in a worker.

    Args:
        stored: The spec in force.
        given: The spec that is to follow.

    Raises:
        SpecError: The new space cannot be searched.
    """
    with workers_of([Placement()]) as workers:
        known = defaults(given, workers[0])
        if any(name not in given.search and name not in TEMPERATURE_PARAMETERS for name in stored.search):
            known |= defaults(stored, workers[0])
    return known


HERE = Modules(schedules=import_schedules, defaults=argument_defaults)
"""Modules are imported: schedules by this process, all else by a worker."""


def with_changes(stored: StudySpec, texts: Sequence[str]) -> StudySpec:
    """Return the spec of a study with another search space.

    Args:
        stored: The study's spec.
        texts: ``search.NAME=DOMAIN`` each; ``null`` takes a name out.

    Raises:
        UsageError: It is no part of the search space.
        SpecError: It takes out what is not there, or the new space is none.
    """
    data = stored.to_json()
    # its tickets have been written
    data["study"]["enqueue"] = []
    data = apply(data, [_override(text) for text in texts], option="--amend")
    return StudySpec.parse(data, source="the study spec with --amend").following(stored.amendments)


def _override(text: str) -> Override:
    try:
        parsed = parse_override(text)
    except SpecError as error:
        told = str(error).replace("--set", "--amend").replace("study.trials=20", "search.lr=null")
        raise UsageError(told) from error
    if parsed.path[0] != "search" or len(parsed.path) < 2:
        raise UsageError(
            f'--amend was given "{text}". Only the search space of a study can be amended: give '
            "search.NAME={low: ..., high: ...}, search.NAME=[...], or search.NAME=null to take a name out."
        )
    return parsed


def amend(
    store: Store,
    study: StudyRow,
    given: StudySpec,
    *,
    more: int = 0,
    enqueue: Sequence[Mapping[str, Any]] = (),
    texts: Sequence[str] = (),
    modules: Modules = HERE,
    version: int | None = None,
) -> StudySpec:
    """Give a study another search space, and return its spec from now on.

    Args:
        store: Where the study is.
        study: Its row.
        given: Its spec with another search space; with the same one nothing is changed.
        more: Search tickets to add; 0: none while the search goes on, else half of ``study.trials``.
        enqueue: Parameter sets of the new space to try, with the first of these tickets.
        texts: What made ``given`` of the study's spec, as for :func:`with_changes`; it is made again if
            somebody else amends the study meanwhile. Empty: ``given`` is asked as a whole.
        modules: How it is learned what the study's modules say.
        version: Do so only while the tickets are of this version; None: of any.

    Raises:
        StudyChanged: The spec asks something else in what is no search space.
        SpecError: The space cannot be searched.
        UsageError: A verdict could show nothing.
    """
    stored = StudySpec.stored(study)
    given = begun_as(given, stored)
    if not (found := differences(stored, given)):
        return given.following(stored.amendments)
    if others := [line for path, line in found.items() if path not in amendable(stored, given, found)]:
        raise refused(stored, others)
    if (given.study.trials, given.study.arms) != (stored.study.trials, stored.study.arms):
        raise StudyChanged(
            f"study.trials and study.arms of {study.name} are those that it was begun with, and the spec "
            "gives others. Put them back; --trials +N adds search tickets together with --amend."
        )
    refuse_secrets(given.trainer.get("logger"))
    refuse_alike(store, given)
    wanted = given.enqueued(enqueue)
    missing, fixed = _values(stored, given, modules)
    while True:
        row = store.load_study(study.name)
        if row.amendments != study.amendments:
            if texts:
                given = with_changes(StudySpec.stored(row), texts)
                modules.schedules(given)
            return amend(
                store, row, given, more=more, enqueue=enqueue, texts=texts, modules=modules, version=version
            )
        refuse_moved(row, version)
        tickets = store.tickets(study.id)
        plan = Plan(tickets, stored, given, more, wanted)
        check_can_show(tickets, plan.round, given)
        made = Amendment(spec=stored, round=plan.round, missing=missing, fixed=fixed)
        spec = given.following((*stored.amendments, made))
        if store.amend(
            study.id,
            spec=spec.to_json(),
            spec_hash=spec.identity(),
            amendments=[each.to_json() for each in spec.amendments],
            tickets=plan.tickets,
            sampled=plan.sampled,
            withdraw=plan.withdrawn,
            version=row.version,
        ):
            return spec


def refuse_moved(study: StudyRow, version: int | None) -> None:
    """Refuse to go on where a study's tickets are of another version than whoever asks has seen.

    Raises:
        StudyChanged: They are.
    """
    if version is not None and study.version != version:
        raise StudyChanged(
            f'Tickets of the study "{study.name}" were added or withdrawn since you looked (their version is '
            f"{study.version}, and {version} was given). Look again, and ask anew if it is still to be done."
        )


class Plan:
    """Which tickets an amendment brings and changes.

    Args:
        rows: All tickets of the study.
        before: The spec in force.
        after: That with the new search space.
        more: As for :func:`amend`.
        wanted: Parameter sets that are to be tried.
    """

    def __init__(
        self,
        rows: Sequence[TicketRow],
        before: StudySpec,
        after: StudySpec,
        more: int,
        wanted: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        unbegun = [each for each in rows if each.parameters is None and not over(each)]
        searching = any(each.kind == "search" for each in unbegun)
        count = more or (0 if searching else math.ceil(after.study.trials / 2))
        self.round = current_round(rows) + proving(rows)
        """The round that the new search space is searched in."""
        self.tickets = more_tickets(rows, after, max(count, len(wanted)), wanted)
        """What is added."""
        self.sampled: dict[int, Mapping[str, Any] | None] = {
            each.id: wanted_now(each.sampled, after)
            for each in unbegun
            if each.kind == "search" and each.sampled is not None
        }
        """By id of tickets that have not been begun, the values that they get."""
        self.withdrawn = _left(rows)
        """Ids of what the present round would have gone on with."""
        self._constants(rows, before, after)

    def _constants(self, rows: Sequence[TicketRow], before: StudySpec, after: StudySpec) -> None:
        """Have constants in the new part of the ranges, as close together as those before."""
        box, earlier = _box(after), [_box(each) for each in (before, *(a.spec for a in before.amendments))]
        if box == earlier[0]:
            return
        there = [each for each in of_kind(rows, "constant") if each.state != "withdrawn"]
        grid = dict(enumerate(before.constants()))
        planned = {
            each.id: each.sampled or grid[each.number]
            for each in there
            if each.parameters is None and not over(each)
        }
        kept = {ticket: levels for ticket, levels in planned.items() if holds(box, levels)}
        tried = [
            {n: each.parameters[n] for n in box if n in each.parameters} for each in there if each.parameters
        ]
        more = min(len(there), math.ceil(len(there) * new_part(box, earlier) - 1e-9))
        moved = [ticket for ticket in planned if ticket not in kept]
        found = more_constants(box, [*tried, *kept.values()], len(moved) + more, earlier=earlier)
        self.sampled |= kept | dict(zip(moved, found, strict=False))
        self.tickets += [
            NewTicket(
                kind="constant",
                arm="constant",
                number=number,
                seed=derive(after.study.seed, seed_name("constant"), number),
                round=self.round,
                sampled=levels,
            )
            for number, levels in enumerate(found[len(moved) :], next_number(rows, "constant"))
        ]


def _left(rows: Sequence[TicketRow]) -> list[int]:
    """Return the waiting tickets of a round that was to be proved, and that nobody has seen anything of.

    Once its confirmation has begun it comes to its verdict: that has been paid for.
    """
    now = [each for each in rows if each.round == current_round(rows)]
    if any(each.kind == "confirm" and each.attempt for each in now):
        return []
    return [each.id for each in now if each.kind in PROVING and each.state == "waiting"]


def _box(spec: StudySpec) -> Box:
    """Return between which temperatures a space has constants."""
    space: Mapping[str, Any] = spec.following(()).space("constant")
    return {name: (each.low, each.high) for name, each in space.items() if name not in spec.other_names}


def _values(stored: StudySpec, given: StudySpec, modules: Modules) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return what the runs before trained with, by added name, and what those after do, by one taken out.

    Raises:
        SpecError: The new space cannot be searched.
        UsageError: What the runs before trained with is not known.
    """
    added = [name for name in given.search if name not in stored.search]
    gone = [n for n in stored.search if n not in given.search and n not in TEMPERATURE_PARAMETERS]
    # what cannot be searched is better seen before anything is written
    known = modules.defaults(stored, given)
    missing: dict[str, Any] = {}
    neutral = neutral_values(stored.fixed_temperatures)
    for name in added:
        if name in TEMPERATURE_PARAMETERS:
            missing[name] = stored.fixed_temperatures.get(name, neutral.get(name))
            continue
        found = [each for each in (_given(stored, name), known.get(name, _UNKNOWN), _given(given, name))]
        missing[name] = next((each for each in found if each is not _UNKNOWN), _UNKNOWN)
        if missing[name] is _UNKNOWN:
            raise UsageError(
                f"search.{name} was added, and it is not known what the runs that there are trained with: "
                f"its default is no plain value. Set that as {_path(name)} in the spec, and amend the study "
                "with it: tempopt search SPEC --amend"
            )
    fixed = {name: _given(given, name) for name in gone}
    fixed = {name: known.get(name) if each is _UNKNOWN else each for name, each in fixed.items()}
    return missing, fixed


_UNKNOWN = object()


def _given(spec: StudySpec, name: str) -> Any:
    """Return what a spec sets an argument to that may be searched, ``_UNKNOWN`` if it does not."""
    found: Any = spec.to_json()
    for segment in _path(name).split("."):
        if not isinstance(found, Mapping) or segment not in found:
            return _UNKNOWN
        found = found[segment]
    return found


def _path(name: str) -> str:
    """Return where a spec sets an argument that may be searched."""
    section, dot, rest = name.partition(".")
    if dot and section == "trainer":
        return name
    return f"data.init_args.{rest}" if dot and section == "data" else f"model.init_args.{name}"
