"""How one study stands, as its page shows it: in plain data, before it is markup."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tempopt.records.liveness import at_work, is_dead, shown, study_standing
from tempopt.records.rows import KINDS, Kind, StudyRow, StudyStanding, TicketRow, TicketState
from tempopt.report import headline
from tempopt.report.page import sections
from tempopt.results.study_result import StudyResult
from tempopt.results.verdict_text import GAIN
from tempopt.server.pages.rendering import value
from tempopt.study.progress import LABELS, outcome

PER_PAGE = 50
RunState = Literal["running", "waiting", "complete", "pruned", "diverged", "failed", "withdrawn"]
RUN_STATES: tuple[RunState, ...] = (
    "running",
    "waiting",
    "complete",
    "pruned",
    "diverged",
    "failed",
    "withdrawn",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """How far one stage is.

    Args:
        kind: Its kind of runs.
        label: What people call it.
        asked: Runs that are planned so far; those that were withdrawn are not among them.
        over: Of them that ended, well or not.
    """

    kind: Kind
    label: str
    asked: int
    over: int
    running: int
    failed: int
    withdrawn: int


def stages(tickets: Sequence[TicketRow]) -> list[Stage]:
    """Return the stages that have runs, in the order of work."""
    counts = Counter((each.kind, each.state) for each in tickets)
    found = []
    for kind in KINDS:
        states: dict[TicketState, int] = {state: n for (of, state), n in counts.items() if of == kind}
        if states:
            asked = sum(n for state, n in states.items() if state != "withdrawn")
            over = states.get("done", 0) + states.get("failed", 0)
            running, failed, withdrawn = (states.get(each, 0) for each in ("running", "failed", "withdrawn"))
            stage = Stage(
                kind=kind,
                label=LABELS[kind],
                asked=asked,
                over=over,
                running=running,
                failed=failed,
                withdrawn=withdrawn,
            )
            found.append(stage)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a study has found, in words.

    Args:
        answer: In a few words.
        gain: Whether that is a gain.
        line: In a sentence.
        todo: What to do; empty before there is a verdict.
        terms: What the words mean.
        statements: What is to be said besides, each with what is below it.
        tiles: Numbers that people look for first: what, value, and what belongs to it.
    """

    answer: str
    gain: bool
    line: str
    todo: str
    terms: list[str]
    statements: list[tuple[str, list[str]]]
    tiles: tuple[tuple[str, str, str], ...]


def verdict(result: StudyResult) -> Verdict:
    """Return what a study has found, in the words of ``tempopt show``."""
    answer, (line, statements) = headline.answer(result), headline.verdict(result)
    return Verdict(
        answer=answer,
        gain=answer.startswith(GAIN),
        line=line,
        todo=headline.what_to_do(result),
        terms=headline.terms(result),
        statements=statements,
        tiles=sections.tiles(result),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of the table.

    Args:
        state: As a person thinks of it.
        arm: Whose candidate it trains, where that is another than its kind; empty otherwise.
        value: What counts for its kind, in words.
        told: How it ended, in words; empty while it has not.
        where: Machine and device; empty before it began.
        agent: Who holds it or held it last.
        silent: Whether its agent has shown no progress for too long.
    """

    ticket: TicketRow
    state: RunState
    arm: str
    value: str
    told: str
    where: str
    agent: str
    silent: bool


def run_state(ticket: TicketRow) -> RunState:
    """Return the state of a run as a person thinks of it."""
    if ticket.state == "done":
        return ticket.outcome or "complete"
    if ticket.state == "failed":
        return ticket.outcome or "failed"
    return ticket.state


def run(ticket: TicketRow) -> Run:
    """Return a ticket of a study as a run of the table."""
    over, state = ticket.state in ("done", "failed"), run_state(ticket)
    silent = ticket.state == "running" and ((ticket.lease or 0.0) <= 0 or is_dead(ticket.agent or ""))
    return Run(
        ticket=ticket,
        state=state,
        arm="" if ticket.arm == ticket.kind else ticket.arm,
        value="" if ticket.value is None else value(ticket.value),
        told=outcome(ticket) if over and state != "complete" else "",
        where=", ".join(each for each in (ticket.machine, ticket.device) if each),
        agent="" if ticket.agent is None else shown(ticket.agent),
        silent=silent,
    )


_ORDER: dict[TicketState, int] = {"running": 0, "done": 1, "failed": 1, "waiting": 2, "withdrawn": 3}


def latest_first(tickets: Sequence[TicketRow]) -> list[TicketRow]:
    """Return tickets as people look for them: at work, then over, the last first, then waiting."""

    def place(ticket: TicketRow) -> tuple[int, float]:
        ended = ticket.finished or ticket.started
        return _ORDER[ticket.state], -ended.timestamp() if ended is not None else 0.0

    return sorted(tickets, key=place)


def standing(study: StudyRow, tickets: Sequence[TicketRow]) -> tuple[StudyStanding, int]:
    """Return the state of a study as people think of it, and the number of agents at work."""
    agents = len(at_work(tickets))
    return study_standing(study.state, agents), agents
