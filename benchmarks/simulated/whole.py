"""A whole study of tempopt in memory, from the first ticket to the verdict, in a world of trainings.

Everything that decides is tempopt's own: which tickets there are, what they train, when they are pruned, who
is a candidate, what is confirmed, what is measured at the end and what the verdict says. Only the trainings
are those of a world, recorded or made up.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from benchmarks.recorded.world import Training
from tempopt.agent.stop_conditions import find_convergence_reason
from tempopt.sampling.arms import SearchArms, guard_values_by_ticket
from tempopt.spec.program import guard_name
from tempopt.spec.sections import KNOWLEDGE_GRADIENT
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import SEARCH_KINDS, Measurement, NewTicket, PriorRuns, TicketRow
from tempopt.storage.ticket_queries import arms_of
from tempopt.training.messages import Evaluation
from tempopt.verdict.pairs import find_winner
from tempopt.verdict.run_evaluations import evaluations, metric_name_for_kind
from tempopt.verdict.stages import initial_tickets, more_tickets, next_tickets
from tempopt.verdict.verdict import Verdict, compute_verdict


class World(Protocol):
    """The values of trainings.

    A world may have a method ``measure(parameters, seed, evaluation)`` as well: what a training is
    worth at its end under any temperature (``benchmarks.simulated.worlds``). One that has none says what its
    trainings are worth under their own.
    """

    rungs: tuple[int, ...]
    total_steps: int

    def train(self, parameters: Mapping[str, Any], seed: int) -> Training:
        """Return a training; the same for the same parameters and seed."""


def row(ticket: NewTicket, id: int, **fields: Any) -> TicketRow:
    """Return a ticket as the store would have it."""
    values: dict[str, Any] = dict.fromkeys(
        field.name for field in dataclasses.fields(TicketRow) if field.default is dataclasses.MISSING
    )
    fields_of_ticket = {field.name: getattr(ticket, field.name) for field in dataclasses.fields(ticket)}
    return TicketRow(**{**values, "id": id, "study_id": 1, "state": "waiting", "attempt": 1, "seconds": 0.0,
                        **fields_of_ticket, **fields})  # fmt: skip


class StudySimulation:
    """One study.

    Args:
        world: The values of trainings.
        spec: The study's spec, of the world's task.
        earlier: What it has kept of earlier studies.
        weighs: Whether the search is told what its runs measure of guarded metrics.
    """

    def __init__(
        self,
        world: World,
        spec: StudySpec,
        *,
        earlier: PriorRuns = (),
        weighs: bool = True,
    ) -> None:
        self._world = world
        self._spec = spec
        self._earlier = earlier
        self._weighs = weighs
        self._prunes = spec.study.pruner.name != "none"
        self._arms = SearchArms(spec, [], [], earlier=earlier)
        self.reports: list[Measurement] = []
        """What runs have reported on their way, and measured of guarded metrics where they searched."""
        self.rows: list[TicketRow] = []
        self.measurements: list[Measurement] = []
        """What was measured at the end of the runs that judge."""
        self.steps = 0
        """Training steps so far."""

    def run(self) -> Verdict | None:
        """Run the study to its end and return its verdict; None: there is nothing to compare."""
        return next(self.rounds(1, 0))

    def rounds(self, count: int, num_more: int) -> Iterator[Verdict | None]:
        """Run the study to its end, then ``count - 1`` times with more trials, and yield each verdict.

        Args:
            count: Verdicts.
            num_more: Search trials that are added after each but the last, as ``resume --trials +N`` does.
        """
        new_tickets = initial_tickets(self._spec)
        for num_remaining in reversed(range(count)):
            while new_tickets:
                for ticket in self._enter(new_tickets):
                    self._skip(ticket) if self._is_ended(ticket) else self._do(ticket)
                new_tickets = next_tickets(self.rows, self._spec, self._arms.recommend)
            yield compute_verdict(self.rows, self.measurements, self._spec)
            new_tickets = more_tickets(self.rows, self._spec, num_more) if num_remaining else []

    def train_search(self) -> Iterator[TicketRow]:
        """Train the search tickets alone, and yield each when it is over."""
        for ticket in self._enter(
            [ticket for ticket in initial_tickets(self._spec) if ticket.kind == "search"]
        ):
            self._do(ticket)
            yield self.rows[ticket.id]

    def recommend(self, count: int) -> list[dict[str, Any]]:
        """Return the parameter sets that the search would name, the best single one first."""
        return self._arms.recommend("search", count)

    def _enter(self, tickets: Sequence[NewTicket]) -> list[TicketRow]:
        """Add tickets to the study; agents read it anew then, and so learn what the new ones are to try."""
        first = len(self.rows)
        self.rows += [row(ticket, first + index) for index, ticket in enumerate(tickets)]
        if any(ticket.sampled and ticket.parameters is None for ticket in tickets):
            self._arms = SearchArms(self._spec, self.rows, self.reports, earlier=self._earlier)
        return self.rows[first:]

    def _is_ended(self, ticket: TicketRow) -> bool:
        """Whether the search ends before this ticket; the tickets that it begins with are its first ones."""
        if ticket.kind != "search" or ticket.parameters is not None:
            return False
        if self._spec.study.limits.standard_errors is None:
            return False
        search_rows = [row for row in self.rows if (row.kind, row.round) == ("search", ticket.round)]
        num_left = sum(row.state == "waiting" for row in search_rows)
        has_withdrawn = any(row.state == "withdrawn" for row in search_rows)
        return (
            has_withdrawn
            or find_convergence_reason(self._spec, ticket, self._arms, num_left=num_left) is not None
        )

    def _skip(self, ticket: TicketRow) -> None:
        self.rows[ticket.id] = dataclasses.replace(ticket, state="withdrawn")
        self._arms.tell(self.rows[ticket.id], {})

    def _do(self, ticket: TicketRow) -> None:
        arm: Any = ticket.arm
        if ticket.parameters is None:
            sampled_params = self._arms.ask(ticket)
            ticket = dataclasses.replace(
                ticket, sampled=sampled_params, parameters=self._spec.parameters(arm, sampled_params)
            )
            self._arms.register_asked(ticket)
        assert ticket.parameters is not None
        training = self._world.train(ticket.parameters, ticket.seed)
        outcome, reports = self._watch(ticket, training)
        last = max(reports)
        self.steps += last
        value = reports[last] if ticket.kind in SEARCH_KINDS else self._measure(ticket, training)
        self.rows[ticket.id] = dataclasses.replace(
            ticket,
            state="done",
            outcome=outcome,
            value=value,
            steps=last,
            total_steps=self._world.total_steps,
        )
        self.reports += [
            Measurement(ticket_id=ticket.id, step=step, name="report", value=value)
            for step, value in reports.items()
        ]
        guards = self._searched_guards(ticket) if outcome == "complete" else []
        self.reports += guards
        self._arms.tell(
            self.rows[ticket.id],
            reports,
            guard_values_by_ticket(guards, self._spec).get(ticket.id) if guards else None,
        )

    def _searched_guards(self, ticket: TicketRow) -> list[Measurement]:
        """Measure what is guarded at the end of a run that searches."""
        if not self._weighs or ticket.kind not in SEARCH_KINDS:
            return []
        planned_evaluations = evaluations(
            ticket.kind, arms_of(ticket), self._spec, {}, ticket.parameters or {}
        )
        return self._guards(ticket, planned_evaluations)

    def _guards(self, ticket: TicketRow, planned_evaluations: Sequence[Evaluation]) -> list[Measurement]:
        return [
            Measurement(
                ticket_id=ticket.id,
                step=self._world.total_steps,
                name=guard_name(evaluation.name, metric),
                value=self._world.guarded_value(ticket.parameters, ticket.seed, evaluation, metric),  # type: ignore[attr-defined]
            )
            for evaluation in planned_evaluations
            for metric in evaluation.guards
        ]

    def _measure(self, ticket: TicketRow, training: Training) -> float:
        """Measure what is asked at the end of a run that judges, and return what becomes its value."""
        kind: Any = ticket.kind
        winner = {}
        if kind == "confirm":
            winner = find_winner(self.rows, self._spec, of_round=ticket.round) or {}
        planned_evaluations = evaluations(kind, arms_of(ticket), self._spec, winner, ticket.parameters or {})
        values = {
            evaluation.name: self._evaluate(ticket, training, evaluation)
            for evaluation in planned_evaluations
        }
        self.measurements += [
            Measurement(ticket_id=ticket.id, step=self._world.total_steps, name=name, value=value)
            for name, value in values.items()
            if value is not None
        ]
        self.measurements += self._guards(ticket, planned_evaluations)
        value = values[metric_name_for_kind(kind, self._spec)]
        assert value is not None
        return value

    def _evaluate(self, ticket: TicketRow, training: Training, evaluation: Evaluation) -> float | None:
        measure = getattr(self._world, "measure", None)
        if measure is not None:
            return float(measure(ticket.parameters, ticket.seed, evaluation))
        if evaluation.temperature is not None:
            return None
        return float(training.test if evaluation.on == "test" else training.final[-1])

    def _watch(self, ticket: TicketRow, training: Training) -> tuple[Any, dict[int, float]]:
        reports: dict[int, float] = {}
        for step, value in zip(self._world.rungs, training.final, strict=True):
            reports[step] = float(value)
            if self._prunes and step < self._world.rungs[-1] and self._arms.prune(ticket, reports):
                return "pruned", reports
        return "complete", reports


def sampled_by(name: str) -> dict[str, Any]:
    """Return settings of ``study:`` for a sampler: tempopt's own with its pruner, or Optuna's without any."""
    return {} if name == KNOWLEDGE_GRADIENT else {"sampler": name, "pruner": "none"}


def with_study(spec: StudySpec, **study: Any) -> StudySpec:
    """Return a spec with other values in its ``study:`` section, and without the callbacks that recorded."""
    data = spec.to_json()
    trainer = {name: value for name, value in data["trainer"].items() if name != "callbacks"}
    return StudySpec.from_json({**data, "trainer": trainer, "study": {**data["study"], **study}})
