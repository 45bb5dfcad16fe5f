"""A whole study of tempopt in memory, from the first ticket to the verdict, on recorded trainings.

Everything that decides is tempopt's own: which tickets there are, what they train, when they are pruned, who
is a candidate, what is confirmed and what the verdict says. Only the trainings are those of a world.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from benchmarks.recorded.world import Training, World
from tempopt.store.rows import SEARCHING, NewTicket, TicketRow
from tempopt.study.answers import Verdict, conclude
from tempopt.study.arms import Arms
from tempopt.study.forks import can_share
from tempopt.study.limits import beyond_notice
from tempopt.study.spec import StudySpec
from tempopt.study.stages import first_tickets, next_tickets
from tempopt.study.warm_start import Remembered
from tempopt.temperature import end_alike, steps_alike


def row(new: NewTicket, id: int, **fields: Any) -> TicketRow:
    """Return a ticket as the store would have it."""
    values: dict[str, Any] = dict.fromkeys(
        each.name for each in dataclasses.fields(TicketRow) if each.default is dataclasses.MISSING
    )
    known = {each.name: getattr(new, each.name) for each in dataclasses.fields(new)}
    return TicketRow(**{**values, "id": id, "study_id": 1, "state": "waiting", "attempt": 1, "seconds": 0.0,
                        **known, **fields})  # fmt: skip


class Whole:
    """One study.

    Args:
        world: What trainings come to.
        spec: The study's spec, of the world's task.
        earlier: What it has kept of earlier studies.
    """

    def __init__(self, world: World, spec: StudySpec, *, earlier: Remembered = ()) -> None:
        self._world = world
        self._spec = spec
        self._arms = Arms(spec, [], [], earlier=earlier)
        self.rows: list[TicketRow] = []
        self.steps = 0
        """Training steps so far, without those that others had trained."""
        self.spared = 0
        """Those that others had trained."""

    def run(self) -> Verdict | None:
        """Run the study to its end and return its verdict; None: there is nothing to compare."""
        new = first_tickets(self._spec)
        while new:
            for each in new:
                ticket = row(each, len(self.rows))
                self._skip(ticket) if self._ended(ticket) else self._do(ticket)
            new = next_tickets(self.rows, self._spec, self._arms.named)
        return conclude(self.rows, [], self._spec)

    def searched(self) -> Iterator[TicketRow]:
        """Train the search tickets alone, and yield each when it is over."""
        for each in first_tickets(self._spec):
            if each.kind == "search":
                self._do(row(each, len(self.rows)))
                yield self.rows[-1]

    def named(self, count: int) -> list[dict[str, Any]]:
        """Return the parameter sets that the search would name, the best single one first."""
        return self._arms.named("search", count)

    def _ended(self, ticket: TicketRow) -> bool:
        """Whether the search ends before this ticket; the tickets that it begins with are its first ones."""
        if ticket.kind != "search" or ticket.parameters is not None:
            return False
        before = any(row.kind == "search" and row.state == "withdrawn" for row in self.rows)
        left = self._spec.study.trials - ticket.number
        return before or beyond_notice(self._spec, ticket, self._arms, left=left) is not None

    def _skip(self, ticket: TicketRow) -> None:
        self.rows.append(dataclasses.replace(ticket, state="withdrawn"))
        self._arms.told(self.rows[-1], {})

    def _do(self, ticket: TicketRow) -> None:
        kind: Any = ticket.kind
        if ticket.parameters is None:
            sampled = self._arms.ask(ticket)
            ticket = dataclasses.replace(
                ticket, sampled=sampled, parameters=self._spec.parameters(kind, sampled)
            )
            self._arms.asked(ticket)
        assert ticket.parameters is not None
        training = self._world.train(ticket.parameters, ticket.seed)
        outcome, reports = self._watched(ticket, training)
        last = max(reports)
        self.steps += self._fresh(ticket, last)
        value = reports[last] if ticket.kind in (*SEARCHING, "choose") else training.test
        self.rows.append(
            dataclasses.replace(
                ticket, state="done", outcome=outcome, value=value, steps=last,
                total_steps=self._world.total_steps,
            )
        )  # fmt: skip
        self._arms.told(self.rows[-1], reports)

    def _watched(self, ticket: TicketRow, training: Training) -> tuple[Any, dict[int, float]]:
        reports: dict[int, float] = {}
        for step, value in zip(self._world.rungs, training.final, strict=True):
            reports[step] = float(value)
            if step < self._world.rungs[-1] and self._arms.prune(ticket, reports):
                return "pruned", reports
        return "complete", reports

    def _fresh(self, ticket: TicketRow, last: int) -> int:
        """Return the steps that had not been trained before, to the bit, by another search trial."""
        if ticket.kind != "search" or not can_share(self._spec):
            return last
        parameters = ticket.parameters or {}
        before = max((self._alike(parameters, other) for other in self._parents(ticket)), default=0)
        self.spared += min(before, last)
        return max(0, last - before)

    def _parents(self, ticket: TicketRow) -> list[TicketRow]:
        return [other for other in self.rows if (other.kind, other.seed) == (ticket.kind, ticket.seed)]

    def _alike(self, parameters: dict[str, Any], other: TicketRow) -> int:
        """Return up to which step another trial was trained, and validated, as these parameters are."""
        theirs, last = other.parameters or {}, other.steps or 0
        if self._spec.study.validate_at == "final" and not end_alike(theirs, parameters):
            return 0
        return steps_alike(theirs, parameters, at_most=last, total_steps=self._world.total_steps)


def with_study(spec: StudySpec, **study: Any) -> StudySpec:
    """Return a spec with other values in its ``study:`` section, and without the callbacks that recorded."""
    data = spec.to_json()
    trainer = {name: each for name, each in data["trainer"].items() if name != "callbacks"}
    return StudySpec.from_json({**data, "trainer": trainer, "study": {**data["study"], **study}})
