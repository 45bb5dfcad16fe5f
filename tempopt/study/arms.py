"""The three arms that search: what each ticket of theirs is asked to train, and when it is pruned.

Joins the space and the history; speaks to no trainer and no database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from optuna.trial import TrialState

from tempopt.store.rows import OVER, SEARCHING, Measurement, TicketRow, TrialParam
from tempopt.study.choose import Parameters
from tempopt.study.features import Features
from tempopt.study.first_trials import first_trial
from tempopt.study.forks import can_share
from tempopt.study.history import History
from tempopt.study.optimizers import make_pruner, make_sampler
from tempopt.study.settings import KNOWLEDGE_GRADIENT
from tempopt.study.space import Arm
from tempopt.study.spec import StudySpec
from tempopt.study.tickets import oriented, usable
from tempopt.study.trials import trial_params
from tempopt.study.warm_start import Remembered
from tempopt.training.seeds import derive

if TYPE_CHECKING:
    from tempopt.study.knowledge import Knower


def by_step(reports: Iterable[Measurement]) -> dict[int, dict[int, float]]:
    """Return reports as ticket id to value by optimizer step, in the order of the steps."""
    found: dict[int, dict[int, float]] = {}
    for report in sorted(reports, key=lambda report: report.step):
        found.setdefault(report.ticket_id, {})[report.step] = report.value
    return found


class Arms:
    """The arms of one study, with what is known of their tickets.

    Args:
        spec: The study's spec.
        tickets: The study's tickets as they are in the store, by number.
        reports: Validation reports as they are in the store.
        earlier: What the study has kept of earlier ones.
    """

    def __init__(
        self,
        spec: StudySpec,
        tickets: Iterable[TicketRow],
        reports: Sequence[Measurement],
        *,
        earlier: Remembered = (),
    ) -> None:
        self._spec = spec
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
        self._remembered = earlier
        self._knowers: dict[Arm, Knower] = {}
        self._wanted = {(t.kind, t.number): t.sampled for t in tickets if t.sampled and t.parameters is None}
        self._known: dict[Arm, set[int]] = {arm: set() for arm in SEARCHING}
        reported = by_step(reports)
        for ticket in tickets:
            if ticket.parameters is not None:
                self.asked(ticket)
            if ticket.state in OVER:
                self.told(ticket, reported.get(ticket.id, {}))

    def _foresees(self, arm: Arm) -> bool:
        return self._spec.study.sampler.name == KNOWLEDGE_GRADIENT and bool(self._spaces[arm])

    def _knower(self, arm: Arm) -> Knower:
        # it loads scipy, for which who only looks at a study should not wait
        from tempopt.study.earlier import Earlier
        from tempopt.study.knowledge import Knower

        if arm not in self._knowers:
            study, features = self._spec.study, Features(self._spec, arm)
            self._knowers[arm] = Knower(
                self._spaces[arm],
                lambda sampled: features(self._spec.parameters(arm, sampled)),
                maximize=study.direction == "maximize",
                streams=study.seeds.search if arm == "search" else None,
                # whether checkpoints are kept is a matter of care, which changes no decision
                thaws=arm == "search" and can_share(self._spec),
                seed=derive(study.seed, arm, "pool"),
                earlier=[Earlier(each["runs"], features) for each in self._remembered],
            )
        return self._knowers[arm]

    def asked(self, ticket: TicketRow) -> None:
        """Take in the parameters of a ticket that has been begun, by whomever."""
        if ticket.kind not in SEARCHING:
            return
        arm: Arm = ticket.kind
        values = ticket.sampled if ticket.sampled is not None else ticket.parameters
        assert values is not None
        self._histories[arm].asked(ticket.number, values)
        self._known[arm].add(ticket.number)

    def unknown_before(self, ticket: TicketRow) -> list[int]:
        """Return the tickets before this one that its asking depends on and whose values are not known."""
        arm: Arm = ticket.kind  # type: ignore[assignment]
        first = max(0, ticket.number - self._spec.study.parallel + 1)
        return [number for number in range(first, ticket.number) if number not in self._known[arm]]

    def ask(self, ticket: TicketRow) -> dict[str, Any]:
        """Return the values of the arm's own space for a ticket that has none yet.

        What is asked depends on the tickets before it that are still in work. Those that another agent has
        taken and not yet written down are asked for here too: they can only come to the same.
        """
        arm: Arm = ticket.kind  # type: ignore[assignment]
        for number in self.unknown_before(ticket):
            self._histories[arm].asked(number, self._sampled(arm, number))
        return self._sampled(arm, ticket.number)

    def _sampled(self, arm: Arm, number: int) -> dict[str, Any]:
        fixed = {"temperature_init": self._constants[number]} if arm == "constant" else {}
        fixed |= self._wanted.get((arm, number)) or {}
        if not self._spaces[arm].keys() - fixed.keys():
            return fixed
        seed, history = derive(self._spec.study.seed, arm, "sampler", number), self._histories[arm]
        if sampler := make_sampler(self._spec.study.sampler, seed=seed):
            return history.ask(number, sampler) | fixed
        known, pending = history.known(number), history.pending(number)
        knower = self._knower(arm)
        found = knower.ask(known, pending, number=number, seed=seed, fixed=fixed) or knower.first(number)
        return (found or first_trial(self._spec, arm, number, seed=self._spec.study.seed)) | fixed

    def prospect(self, ticket: TicketRow) -> tuple[float, float] | None:
        """Return how much better a run like this ticket's is expected to make what is named, and its noise.

        By what was known before the first of the tickets that are in work with it, so that all agents end a
        search at the same ticket. None: too little is known, or the sampler is one that does not say.
        """
        arm: Arm = ticket.kind  # type: ignore[assignment]
        if not self._foresees(arm):
            return None
        return self._knower(arm).prospect(self._histories[arm].known(ticket.number))

    def trial(self, sampled: Mapping[str, Any]) -> list[TrialParam]:
        """Return the parameters of a search ticket as Optuna's tables hold them."""
        return trial_params(sampled, self._spaces["search"])

    def prune(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner would end this ticket after these reports."""
        if ticket.kind not in SEARCHING or not reports or not self._spaces[ticket.kind]:
            # runs that differ in nothing but the seed are all wanted, the unlucky ones too
            return False
        history = self._histories[ticket.kind]
        # a pruner of its own for each decision: some settle their options by what they see first
        if pruner := make_pruner(self._spec.study.pruner):
            return history.prune(ticket.number, reports, pruner)
        own = history.running(ticket.number, reports)
        return self._knower(ticket.kind).prune(history.known(ticket.number), own)

    def bound(self, ticket: TicketRow, reports: Mapping[int, float]) -> float | None:
        """Return what the pruner would not have this ticket be worse than; None: it has no such number."""
        if ticket.kind not in SEARCHING or not reports or not self._spaces[ticket.kind]:
            return None
        pruner = make_pruner(self._spec.study.pruner)
        if pruner is None:
            return None
        return self._histories[ticket.kind].bound(ticket.number, reports, pruner)

    def named(self, arm: Arm, count: int) -> list[Parameters]:
        """Return the whole parameter sets of an arm of which one is expected to be best, at most so many.

        The best single one first; none where the study's sampler has no picture of what it has seen, or
        where too few runs are complete.
        """
        if not self._foresees(arm):
            return []
        seed = derive(self._spec.study.seed, arm, "named")
        found = self._knower(arm).named(self._histories[arm].over(), count=count, seed=seed)
        return [self._spec.parameters(arm, sampled) for sampled in found]

    def told(self, ticket: TicketRow, reports: Mapping[int, float]) -> None:
        """Take in how a ticket ended."""
        if ticket.kind not in SEARCHING:
            return
        self._known[ticket.kind].add(ticket.number)
        state = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(
            ticket.outcome or "failed", TrialState.PRUNED
        )
        # which reports of a lost run are known differs with who saw which of its attempts
        shown = reports if ticket.outcome in ("complete", "pruned") else {}
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
