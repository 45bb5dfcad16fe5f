"""Whole studies in memory: tempopt decides which tickets there are, a function what each run is worth."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence
from typing import Any

from tempopt.sampling.arms import SearchArms
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, NewTicket, TicketRow
from tempopt.verdict.stages import initial_tickets, more_tickets, next_tickets
from tests.rows import ticket_row

# what is searched has several parts, and every schedule of it is worth taking apart
SPACE = {
    "temperature_init": {"low": 2.0, "high": 4.0},
    "temperature_final": {"low": 1.2, "high": 1.5},
    "schedule": ["linear"],
    "length_scaling": ["log_n"],
    "lr": {"low": 0.1, "high": 1.0},
}

Worth = Callable[[TicketRow], float | None]
"""Returns what a run is worth at its end; None: it diverges."""


def row(ticket: NewTicket, id: int, **fields: Any) -> TicketRow:
    """Return a ticket as the store has it while it waits."""
    fields_of_ticket = {
        f.name: getattr(ticket, f.name) for f in dataclasses.fields(ticket) if f.name in TicketRow.__slots__
    }
    waiting = {"id": id, "state": "waiting", "attempt": 0, "seconds": 0.0}
    return ticket_row(**{**waiting, **fields_of_ticket, **fields})


class SimulatedStudy:
    """One study; its sampler draws at random, without regard to what it has seen."""

    def __init__(self, spec: StudySpec, worth: Worth) -> None:
        self.spec, self.worth = spec, worth
        self.rows: list[TicketRow] = []
        self.batches: list[list[TicketRow]] = []

    def search(self) -> list[TicketRow]:
        """Train what a study begins with."""
        return self.do(initial_tickets(self.spec))

    def step(self) -> list[TicketRow]:
        """Train the tickets that follow, and return them; none when the study is over."""
        return self.do(next_tickets(self.rows, self.spec))

    def run_until(self, kind: str) -> list[TicketRow]:
        """Train until there are runs of a kind, and return those of its batch."""
        while batch := self.step():
            if batch[0].kind == kind:
                return batch
        return []

    def run(self) -> SimulatedStudy:
        """Train until the study is over."""
        if not self.rows:
            self.search()
        while self.step():
            pass
        return self

    def add_trials(self, trials: int) -> SimulatedStudy:
        """Add search trials and go on until the study is over again."""
        self.do(more_tickets(self.rows, self.spec, trials))
        return self.run()

    def do(self, tickets: Sequence[NewTicket]) -> list[TicketRow]:
        """Train new tickets."""
        batch = [
            self._train_ticket(row(ticket, len(self.rows) + index)) for index, ticket in enumerate(tickets)
        ]
        self.rows += batch
        if batch:
            self.batches.append(batch)
        return batch

    def tickets_of(self, kind: str, arm: str | None = None, of_round: int | None = None) -> list[TicketRow]:
        """Return the tickets of a kind."""
        return [
            t
            for t in self.rows
            if t.kind == kind and (arm is None or arm in t.arm.split("+")) and of_round in (None, t.round)
        ]

    def kinds(self) -> list[str]:
        """Return which kinds were trained one after the other."""
        kinds: list[str] = []
        for batch in self.batches:
            kinds += [kind for kind in dict.fromkeys(t.kind for t in batch) if kinds[-1:] != [kind]]
        return kinds

    def _train_ticket(self, ticket: TicketRow) -> TicketRow:
        if ticket.parameters is None:
            assert ticket.kind in SEARCH_KINDS
            sampled_params = dict(self._draw_params(ticket))
            parameters = self.spec.parameters(ticket.arm, sampled_params)  # type: ignore[arg-type]
            ticket = dataclasses.replace(ticket, sampled=sampled_params, parameters=parameters)
        value = self.worth(ticket)
        outcome = "diverged" if value is None else "complete"
        return dataclasses.replace(
            ticket,
            state="done",
            attempt=1,
            outcome=outcome,
            value=value,
            seconds=2.0,
            steps=10,
            total_steps=10,
        )

    def _draw_params(self, ticket: TicketRow) -> dict[str, Any]:
        draw = random.Random(f"{ticket.kind} {ticket.number} {self.spec.study.seed}")
        space = self.spec.space(ticket.arm)  # type: ignore[arg-type]
        params: dict[str, Any] = {}
        for name, domain in space.items():
            if hasattr(domain, "choices"):
                params[name] = draw.choice(domain.choices)
            elif domain.log:
                params[name] = domain.low * (domain.high / domain.low) ** draw.random()
            else:
                params[name] = domain.low + (domain.high - domain.low) * draw.random()
        if ticket.kind == "constant":
            params |= self.spec.constants()[ticket.number]
        return params | (ticket.sampled or {})


class ModelledStudy(SimulatedStudy):
    """One study with tempopt's sampler, which names what is confirmed."""

    def __init__(self, spec: StudySpec, worth: Worth) -> None:
        super().__init__(spec, worth)
        self.arms = SearchArms(spec, [], [])

    def step(self) -> list[TicketRow]:
        return self.do(next_tickets(self.rows, self.spec, self.arms.recommend))

    def _draw_params(self, ticket: TicketRow) -> dict[str, Any]:
        return self.arms.ask(ticket)

    def _train_ticket(self, ticket: TicketRow) -> TicketRow:
        ended_row = super()._train_ticket(ticket)
        self.arms.register_asked(ended_row)
        self.arms.tell(ended_row, {10: ended_row.value} if ended_row.value is not None else {})
        return ended_row
