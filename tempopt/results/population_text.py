"""A population in words, as rows of a table and as data: who went on from whom, and how far it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tempopt.records.rows import TicketRow
from tempopt.results.population import Member, ancestry, ends_with_interval, latest, lineage
from tempopt.results.wording import set_text

if TYPE_CHECKING:
    from tempopt.results.study_result import StudyResult
    from tempopt.spec.population import Population
    from tempopt.spec.study_spec import StudySpec

COLUMNS = ("interval", "member", "run", "τ", "value", "goes on from")
"""What a table of members says of each."""
MOST_MEMBERS = 16
"""A table names so many members of an interval, the best."""


def run_text(run: TicketRow) -> str:
    """Return what a run is called in a sentence, ``search 5``."""
    return f"{run.kind} {run.number}"


def ended_text(run: TicketRow, spec: StudySpec) -> str | None:
    """Return how a run ended that ended with its interval; None: it is no such run."""
    place = ends_with_interval(run, spec)
    if place is None:
        return None
    return f"ended at step {run.steps} (interval {place.interval + 1})"


def origin_text(member: Member) -> str:
    """Return whom a member goes on from: ``continues search 3``, ``took over search 5 (member 2)``."""
    if member.parent is None or member.parent_place is None:
        return "begins" if member.place.interval == 0 else "begins anew"
    if member.took_over:
        return f"took over {run_text(member.parent)} (member {member.parent_place.member + 1})"
    return f"continues {run_text(member.parent)}"


def taus_text(member: Member) -> str:
    """Return the temperature at the ends of an interval."""
    first, last = (f"{tau:.4g}" for tau in member.taus)
    return first if first == last else f"{first}→{last}"


def outcome_text(member: Member) -> str:
    """Return what a member came to at the end of an interval, or why it has no value there."""
    run = member.run
    if member.value is not None:
        return f"{member.value:.4g}"
    if run.outcome == "diverged":
        return "diverged"
    return "failed" if run.state == "failed" else run.outcome or run.state


def shown_population(result: StudyResult) -> tuple[int, list[Member]]:
    """Return the population that is shown, from 0, and its members: the winner's, else that begun last."""
    members = lineage(result.runs, result.spec)
    line = [] if result.winner is None else ancestry(members, result.winner, result.spec)
    last = max((each.place.population for each in members), default=0)
    which = line[0].place.population if line else last
    return which, [each for each in members if each.place.population == which]


def heading(result: StudyResult) -> str:
    """Return which population a table is of, and how it is made up."""
    population = result.spec.study.population
    assert population is not None
    which, _ = shown_population(result)
    count = len([run for run in result.runs if run.kind == "search"]) // population.trials
    of = f"population {which + 1} of {count}" if count > 1 else "population"
    text = f"{of}: {population.members} members, {population.intervals} intervals, which end at "
    return text + f"{ends_text(population)} of training"


def ends_text(population: Population) -> str:
    """Return where the intervals end: ``21 %, 53 % and 100 %``."""
    *others, last = (f"{100 * end:.3g} %" for end in population.ends)
    return f"{', '.join(others)} and {last}"


def table_rows(result: StudyResult) -> list[tuple[str, ...]]:
    """Return a row of :data:`COLUMNS` for each member and interval, and one for those that are left out."""
    population = result.spec.study.population
    assert population is not None
    _, members = shown_population(result)
    rows: list[tuple[str, ...]] = []
    sign = 1.0 if result.direction == "maximize" else -1.0
    for interval in range(population.intervals):
        every = [each for each in members if each.place.interval == interval]
        best = sorted(every, key=lambda each: (each.value is None, -sign * (each.value or 0.0)))
        kept = {each.run.number for each in best[:MOST_MEMBERS]}
        rows += [
            (
                str(interval + 1),
                str(each.place.member + 1),
                run_text(each.run),
                taus_text(each),
                outcome_text(each),
                origin_text(each),
            )
            for each in every
            if each.run.number in kept
        ]
        if len(every) > MOST_MEMBERS:
            rows.append(("", "", f"and {len(every) - MOST_MEMBERS} more", "", "", ""))
    return rows


def ancestry_line(result: StudyResult) -> str | None:
    """Return whom the winner came from, in one line; None: no population trained it."""
    if result.spec.study.population is None or result.winner is None:
        return None
    line = ancestry(lineage(result.runs, result.spec), result.winner, result.spec)
    if not line:
        return None
    population = result.spec.study.population
    parts = []
    for each in line:
        until = f"τ {taus_text(each)}, to {100 * population.ends[each.place.interval]:.3g} %"
        how = "taken over by " if each.took_over else ""
        parts.append(f"{how}{run_text(each.run)} (member {each.place.member + 1}; {until})")
    which = f" (population {line[0].place.population + 1})" if line[0].place.population else ""
    return f"lineage of the winner{which}: {', then '.join(parts)}."


def standing_lines(result: StudyResult) -> list[str]:
    """Return how far a population is of which no trial has trained to its end; empty: there is none."""
    population, now = result.spec.study.population, latest(result.runs, result.spec)
    if population is None or now is None:
        return []
    text = now.now
    lines = [f"{text[0].upper()}{text[1:]}: no member has trained to its end yet."]
    if now.compared is not None and now.best is None:
        lines.append(f"  no member got to the end of interval {now.compared + 1}.")
    if now.best is not None and now.compared is not None:
        params = set_text(now.best.parameters or {})
        lines.append(
            f"  best after interval {now.compared + 1} (step {now.best.steps}): {result.metric} "
            f"{now.best.value:.4g}, {run_text(now.best)} with {params}; that is no whole run's value."
        )
    return lines


def population_json(result: StudyResult) -> dict[str, Any] | None:
    """Return the populations of a study as plain data; None: its sampler is another one.

    Populations, intervals and members are counted from 1.
    """
    population = result.spec.study.population
    if population is None:
        return None
    members = lineage(result.runs, result.spec)
    line = [] if result.winner is None else ancestry(members, result.winner, result.spec)
    now = latest(result.runs, result.spec)
    return {
        "members": population.members,
        "ends": list(population.ends),
        "population": now and now.population + 1,
        "interval": now and now.interval + 1,
        "winner": [each.run.name for each in line],
        "runs": [
            {
                "run": each.run.name,
                "population": each.place.population + 1,
                "interval": each.place.interval + 1,
                "member": each.place.member + 1,
                "parent": each.parent and each.parent.name,
                "parent_member": None if each.parent_place is None else each.parent_place.member + 1,
                "temperatures": list(each.taus),
                "step": each.run.steps,
                "value": each.value,
            }
            for each in members
        ],
    }
