"""The three arms that search: what each ticket of theirs is asked to train, and when it is pruned.

Joins the space, the history and Optuna's record; speaks to no trainer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from optuna.trial import TrialState

from tempopt.store.rows import Kind, Measurement, TicketRow
from tempopt.study.confirm import oriented, usable
from tempopt.study.history import History
from tempopt.study.optimizers import make_pruner, make_sampler
from tempopt.study.space import Arm
from tempopt.study.spec import StudySpec
from tempopt.study.trials import Trials
from tempopt.training.seeds import derive

# These note on a trial the rungs it has reached, and look for the notes on others.
REMEMBERING = ("successive_halving", "hyperband")
SEARCHING: tuple[Arm, ...] = ("unit", "constant", "search")


class Arms:
    """The arms of one study, with what is known of their tickets.

    Args:
        spec: The study's spec.
        tickets: The study's tickets as they are in the store.
        trials: Optuna's record of the search tickets.
        reports: Validation reports as they are in the store.
    """

    def __init__(
        self,
        spec: StudySpec,
        tickets: Iterable[TicketRow],
        trials: Trials,
        reports: Sequence[Measurement],
    ) -> None:
        self._spec = spec
        self._trials = trials
        self._spaces = {arm: spec.space(arm) for arm in SEARCHING}
        self._constants = spec.constants()
        self._best: TicketRow | None = None
        self._histories = {
            arm: History(
                name=f"{spec.study.name}/{arm}",
                direction=spec.study.direction,
                distributions=self._spaces[arm],
                parallel=spec.study.parallel,
            )
            for arm in SEARCHING
        }
        self._reports: dict[int, dict[int, float]] = {}
        for report in sorted(reports, key=lambda report: report.step):
            self._reports.setdefault(report.ticket_id, {})[report.step] = report.value
        for ticket in tickets:
            self._take_in(ticket)

    def _take_in(self, ticket: TicketRow) -> None:
        if ticket.kind not in SEARCHING or ticket.parameters is None:
            return
        trial = self._trials.of_ticket(ticket.id)
        self._histories[ticket.kind].asked(ticket.number, trial.params if trial else ticket.parameters)
        if ticket.state in ("done", "failed"):
            reports = self._reports.get(ticket.id, {})
            if self._spec.study.pruner.name in REMEMBERING:
                for steps in range(1, len(reports) + 1):
                    self.prune(ticket, dict(list(reports.items())[:steps]))
            self.told(ticket, reports)

    def ready(self, kind: Kind, number: int) -> bool:
        """Return whether a ticket may begin: whether all is known that it may know."""
        return kind not in SEARCHING or self._histories[kind].ready(number)

    def reports(self, ticket: int) -> dict[int, float]:
        """Return what earlier attempts at a ticket have reported, step to value."""
        return dict(self._reports.get(ticket, {}))

    def ask(self, ticket: TicketRow) -> tuple[dict[str, Any], int | None]:
        """Return the parameters of a ticket, and the number of its Optuna trial if it is a search ticket."""
        arm: Arm = ticket.kind  # type: ignore[assignment]
        history = self._histories[arm]
        trial = self._trials.of_ticket(ticket.id)
        if trial is not None:
            # an agent that died between making the trial and noting it down left it behind
            sampled = dict(trial.params)
        else:
            sampled = self._sampled(arm, ticket.number)
        history.asked(ticket.number, sampled)
        if arm == "search":
            trial = self._trials.begin(ticket.id, sampled, self._spaces[arm])
        return self._spec.parameters(arm, sampled), trial.number if trial else None

    def _sampled(self, arm: Arm, number: int) -> dict[str, Any]:
        fixed = {"temperature_init": self._constants[number]} if arm == "constant" else {}
        if not self._spaces[arm].keys() - fixed.keys():
            return fixed
        seed = derive(self._spec.study.seed, arm, "sampler", number)
        sampler = make_sampler(self._spec.study.sampler, seed=seed)
        return self._histories[arm].ask(number, sampler) | fixed

    def prune(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner would end this ticket after these reports."""
        if ticket.kind not in SEARCHING or not reports or not self._spaces[ticket.kind]:
            # runs that differ in nothing but the seed are all wanted, the unlucky ones too
            return False
        # a pruner of its own for each decision: some settle their options by what they see first
        pruner = make_pruner(self._spec.study.pruner)
        return self._histories[ticket.kind].prune(ticket.number, reports, pruner)

    def told(self, ticket: TicketRow, reports: Mapping[int, float]) -> None:
        """Take in how a ticket ended."""
        if ticket.kind not in SEARCHING:
            return
        state = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(
            ticket.outcome or "failed", TrialState.PRUNED
        )
        shown = {} if ticket.outcome == "diverged" else reports
        self._histories[ticket.kind].told(ticket.number, state, ticket.value, shown)
        if ticket.kind == "search" and usable(ticket) and self._better(ticket):
            self._best = ticket

    def _better(self, ticket: TicketRow) -> bool:
        if self._best is None:
            return True
        assert ticket.value is not None and self._best.value is not None
        direction = self._spec.study.direction
        mine, best = oriented(ticket.value, direction), oriented(self._best.value, direction)
        return (mine, -ticket.number) > (best, -self._best.number)

    def best(self) -> TicketRow | None:
        """Return the search ticket with the best value so far, None before the first."""
        return self._best
