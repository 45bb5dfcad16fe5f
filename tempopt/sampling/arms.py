"""The arms that search: what each ticket of theirs is asked to train, and when it is pruned.

They are the baseline, constants and the search. Joins the space and the history; speaks to no trainer and no
database.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from optuna.distributions import CategoricalDistribution
from optuna.trial import TrialState

from tempopt.sampling.features import Features
from tempopt.sampling.frozen_history import History, trial_params
from tempopt.sampling.initial_design import initial_params
from tempopt.sampling.optuna_factories import make_pruner, make_sampler
from tempopt.seeds import derive, seed_name
from tempopt.spec.conditions import active_params
from tempopt.spec.search_space import SamplingArm
from tempopt.spec.sections import KNOWLEDGE_GRADIENT, MAX_RUNS
from tempopt.spec.study_spec import StudySpec
from tempopt.storage.rows import (
    SAMPLED_KINDS,
    SEARCH_KINDS,
    TERMINAL_STATES,
    Measurement,
    Parameters,
    PriorRuns,
    TicketRow,
    TrialParam,
)
from tempopt.storage.ticket_queries import is_usable, to_maximize
from tempopt.temperature import GROUPS, is_neutral, split_name

_DESIGN = ("baseline", "constant")
"""The arms beside the search whose runs its model learns from."""

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from tempopt.sampling.candidate_pool import CandidatePool
    from tempopt.sampling.knowledge_gradient import KnowledgeGradient


def reports_by_ticket(reports: Iterable[Measurement]) -> dict[int, dict[int, float]]:
    """Return reports as ticket id to value by optimizer step, in the order of the steps."""
    values_by_ticket: dict[int, dict[int, float]] = {}
    for report in sorted(reports, key=lambda report: report.step):
        values_by_ticket.setdefault(report.ticket_id, {})[report.step] = report.value
    return values_by_ticket


def guard_values_by_ticket(
    measurements: Iterable[Measurement], spec: StudySpec
) -> dict[int, dict[str, float]]:
    """Return what searching runs measured of guarded metrics: ticket id to value by metric."""
    metrics, values_by_ticket = spec.study.measured_guards, dict[int, dict[str, float]]()
    for measurement in measurements:
        if measurement.name in metrics:
            values_by_ticket.setdefault(measurement.ticket_id, {})[metrics[measurement.name]] = (
                measurement.value
            )
    return values_by_ticket


class SearchArms:
    """The arms of one study, with what is known of their tickets.

    Args:
        spec: The study's spec.
        tickets: The study's tickets as they are in the store, by number.
        reports: Validation reports as they are in the store, and what was measured of guarded metrics.
        earlier: What the study has kept of earlier ones.
    """

    def __init__(
        self,
        spec: StudySpec,
        tickets: Iterable[TicketRow],
        reports: Sequence[Measurement],
        *,
        earlier: PriorRuns = (),
    ) -> None:
        self._spec = spec
        self._spaces: dict[str, dict[str, BaseDistribution]] = {arm: spec.space(arm) for arm in SEARCH_KINDS}
        self._constants = spec.constants()
        self._levels = self._spaces["constant"].keys() - set(spec.ordinary_names)
        self._best: TicketRow | None = None
        self._histories = {
            arm: History(
                name=f"{spec.study.name}/{arm}",
                direction=spec.study.direction,
                distributions=space,
                parallel=spec.study.parallel,
            )
            for arm, space in self._spaces.items()
        }
        self._warm_start_runs = earlier
        self._strategies: dict[str, KnowledgeGradient] = {}
        self._enqueued_params: dict[tuple[str, int], Mapping[str, Any]] = {}
        self._known_numbers_by_arm: dict[str, set[int]] = {arm: set() for arm in self._spaces}
        self._baseline_results: dict[int, tuple[float, Mapping[str, float]]] = {}
        search_reports = reports_by_ticket(report for report in reports if report.name == "report")
        guards_by_ticket = guard_values_by_ticket(reports, spec)
        for ticket in tickets:
            if ticket.kind in SAMPLED_KINDS and ticket.sampled and ticket.parameters is None:
                self._enqueued_params[ticket.kind, ticket.number] = ticket.sampled
            if ticket.parameters is not None:
                self.register_asked(ticket)
            if ticket.state in TERMINAL_STATES:
                self.tell(ticket, search_reports.get(ticket.id, {}), guards_by_ticket.get(ticket.id, {}))

    def _foresees(self, arm: str) -> bool:
        return self._spec.study.sampler.name == KNOWLEDGE_GRADIENT and bool(self._spaces[arm])

    def _strategy(self, arm: str) -> KnowledgeGradient:
        # it loads scipy, for which who only looks at a study should not wait
        from tempopt.sampling.candidate_pool import WarmStartStudy
        from tempopt.sampling.guard_constraints import build_guard_constraints
        from tempopt.sampling.knowledge_gradient import KnowledgeGradient

        if arm not in self._strategies:
            study, arm_name = self._spec.study, cast("SamplingArm", arm)
            features = Features(self._spec, arm_name)
            earlier = [WarmStartStudy(prior_run["runs"], features) for prior_run in self._warm_start_runs]
            self._strategies[arm] = KnowledgeGradient(
                self._spaces[arm],
                lambda sampled: features(self._spec.parameters(arm_name, sampled)),
                maximize=study.direction == "maximize",
                num_seeds=study.seeds.search,
                seed=derive(study.seed, seed_name(arm), "pool"),
                earlier=earlier,
                guarding=build_guard_constraints(self._spec, self._runs_at_one())
                if arm == "search" and self._spec.study.weighs_guards
                else None,
                list_design=self._list_design if arm == "search" else lambda num_baseline: (),
            )
        return self._strategies[arm]

    def _list_design(self, num_baseline: int | None = None) -> list[FrozenTrial]:
        """Return the runs at the baseline and at constants as the search's model reads them.

        Args:
            num_baseline: How many of the baseline's, from the first on; None: all that are over.
        """
        return [
            self._as_design(arm, trial)
            for arm in _DESIGN
            for trial in self._histories[arm].finished_trials()
            if arm != "baseline" or num_baseline is None or trial.number < num_baseline
        ]

    def _as_design(self, arm: str, trial: FrozenTrial) -> FrozenTrial:
        """Return a trial of the design as one of the search's model."""
        design = copy.copy(trial)
        design.number = self._design_number(arm, trial.number)
        design.params = self._spec.parameters(cast("SamplingArm", arm), trial.params)
        return design

    def _design_number(self, arm: str, number: int) -> int:
        """Return a number below those of the search, whose trials share their seeds by turns, too."""
        streams = self._spec.study.seeds.search or 1
        return number - (1 + _DESIGN.index(arm)) * streams * MAX_RUNS

    def _retune(self, number: int, seed: int) -> Parameters | None:
        """Return the parameters of a run that tunes the baseline once the search is over; None: not known."""
        history, search = self._histories["baseline"], self._histories["search"]
        return self._strategy("search").ask_within(
            search.finished_trials(),
            [self._as_design("baseline", trial) for trial in history.pending(number)],
            self._sets_within("baseline"),
            number=self._design_number("baseline", number),
            num_baseline=len(history.visible_trials(number)),
            seed=seed,
        )

    def _runs_at_one(self) -> list[tuple[float, Mapping[str, float]]]:
        """Return the baseline's runs of the first design: all are over before a search trial is begun."""
        return [
            self._baseline_results[number]
            for number in sorted(self._baseline_results)
            if number < self._spec.num_baseline
        ]

    def constraints(self, guards: Mapping[str, float]) -> dict[str, float]:
        """Return by how much a run exceeds the limit of each guard; 0 or less keeps it.

        Args:
            guards: What it measured of guarded metrics, by name.
        """
        from tempopt.sampling.guard_constraints import build_guard_constraints

        limits = build_guard_constraints(self._spec, self._runs_at_one())
        return {} if limits is None else limits.constraints(guards)

    def register_asked(self, ticket: TicketRow) -> None:
        """Register the parameters of a ticket that any agent has begun."""
        if ticket.kind not in SAMPLED_KINDS:
            return
        arm, number = ticket.kind, ticket.number
        self._known_numbers_by_arm[arm].add(number)
        values = ticket.sampled if ticket.sampled is not None else ticket.parameters
        assert values is not None
        self._histories[arm].register_asked(number, values)

    def pending_dependencies(self, ticket: TicketRow) -> list[int]:
        """Return the tickets before this one that its asking depends on and whose values are not known."""
        arm, ticket_number = ticket.kind, ticket.number
        start = max(0, ticket_number - self._spec.study.parallel + 1)
        return [
            number for number in range(start, ticket_number) if number not in self._known_numbers_by_arm[arm]
        ]

    def ask(self, ticket: TicketRow) -> dict[str, Any]:
        """Return the values of the arm's own space for a ticket that has none yet.

        They depend on the tickets before it that are still in progress. Those that another agent has taken
        and not yet written are computed here, too; the values are the same.
        """
        arm, ticket_number = ticket.kind, ticket.number
        if ticket.sampled and ticket.parameters is None:
            self._enqueued_params[arm, ticket_number] = ticket.sampled
        for number in self.pending_dependencies(ticket):
            self._histories[arm].register_asked(number, self._draw_active_params(arm, number))
        return self._draw_active_params(arm, ticket_number)

    def _draw_active_params(self, arm: str, number: int) -> dict[str, Any]:
        # what does not count under the other values is no part of what was tried
        return active_params(self._spec.search, self._draw_params(arm, number))

    def _draw_params(self, arm: str, number: int) -> dict[str, Any]:
        fixed = dict(self._enqueued_params.get((arm, number), {}))
        if arm == "constant" and not fixed.keys() & self._levels:
            fixed |= self._constants[number]
        if not self._spaces[arm].keys() - fixed.keys():
            return fixed
        seed, history = derive(self._spec.study.seed, seed_name(arm), "sampler", number), self._histories[arm]
        sampler = make_sampler(self._spec.study.sampler, seed=seed)
        # the baseline has to come close to the best at τ = 1, and the study's sampler may be a poor one
        if arm == "baseline" and number >= self._spec.num_baseline and (values := self._retune(number, seed)):
            return values | fixed
        if sampler:
            return history.ask(number, sampler) | fixed
        known_trials, pending = history.visible_trials(number), history.pending(number)
        strategy = self._strategy(arm)
        values = strategy.ask(
            known_trials, pending, number=number, seed=seed, fixed=fixed
        ) or strategy.warm_start_params(number)
        if not values:
            values = initial_params(self._spec, cast("SamplingArm", arm), number, seed=self._spec.study.seed)
        return values | fixed

    def expected_improvement(self, ticket: TicketRow) -> tuple[float, float] | None:
        """Return the improvement of the recommendation to expect of a run like this ticket's, and its noise.

        From what was known before the first of the tickets in progress with it, so that all agents end a
        search at the same ticket. None: too little is known, or the sampler is one that does not say.
        """
        arm, number = ticket.kind, ticket.number
        if not self._foresees(arm):
            return None
        return self._strategy(arm).prospect(self._histories[arm].visible_trials(number))

    def trial(self, sampled: Mapping[str, Any]) -> list[TrialParam]:
        """Return the parameters of a search ticket as Optuna's tables hold them."""
        return trial_params(sampled, self._spaces["search"])

    def prune(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner would end this ticket after these reports."""
        # runs that differ in nothing but the seed are all wanted, the unlucky ones too
        if ticket.kind not in SAMPLED_KINDS or not self._spaces[ticket.kind] or not reports:
            return False
        arm, number = ticket.kind, ticket.number
        history = self._histories[arm]
        if pruner := make_pruner(self._spec.study.pruner):
            return history.prune(number, reports, pruner)
        running_trial = history.running(number, reports)
        return self._strategy(arm).prune(history.visible_trials(number), running_trial)

    def recommend(self, arm: str, count: int) -> list[Parameters]:
        """Return the whole parameter sets of an arm of which one is expected to be best, at most so many.

        The best single one first: of the search one that is no baseline, and a constant temperature unless
        another set is expected to be clearly better. None where too few runs are complete; of all but the
        baseline none where the study's sampler has no surrogate, either.
        """
        if not self._spaces["search"] or not (arm == "baseline" or self._foresees("search")):
            return []
        if arm != "search":
            best = self._recommend_within(arm)
            return [] if best is None else [best, *self._recommend_alone(arm)][:count]
        sampled_sets = self._strategy(arm).recommend(
            self._histories[arm].finished_trials(),
            count=count,
            seed=derive(self._spec.study.seed, seed_name(arm), "named"),
            constant=self._recommend_within("constant"),
            accepts=self._is_nameable,
        )
        return [self._spec.parameters("search", sampled) for sampled in sampled_sets]

    def _is_nameable(self, sampled: Mapping[str, Any]) -> bool:
        """Return whether a set may be the winner: no baseline, and with levels among their choices."""
        for name, distribution in self._spaces["search"].items():
            is_level = split_name(name)[1] in GROUPS["level"]
            if is_level and isinstance(distribution, CategoricalDistribution) and name in sampled:
                # a constant of the first design may lie between them
                if sampled[name] not in distribution.choices:
                    return False
        return not is_neutral(self._spec.parameters("search", sampled))

    def _recommend_alone(self, arm: str) -> list[Parameters]:
        """Return what the runs of an arm name by themselves; none if too few are complete."""
        if not self._spaces[arm]:
            return []
        seed = derive(self._spec.study.seed, seed_name(arm), "named")
        sets = self._strategy(arm).recommend(self._histories[arm].finished_trials(), count=1, seed=seed)
        return [self._spec.parameters(cast("SamplingArm", arm), sampled) for sampled in sets]

    def _recommend_within(self, arm: str) -> Parameters | None:
        """Return what the search's model expects to be the best baseline or constant; None: not known."""
        arm_name = cast("SamplingArm", arm)
        if not self._spaces[arm]:
            return self._spec.parameters(arm_name, {})
        seed = derive(self._spec.study.seed, seed_name(arm), "named")
        known_trials = self._histories["search"].finished_trials()
        best = self._strategy("search").recommend_within(known_trials, self._sets_within(arm), seed=seed)
        return None if best is None else self._spec.parameters(arm_name, best)

    def _sets_within(self, arm: str) -> CandidatePool:
        """Return the parameter sets of an arm as the search's model describes them."""
        from tempopt.sampling.candidate_pool import CandidatePool

        strategy = self._strategy("search")
        return CandidatePool(
            self._spaces[arm],
            lambda sampled: strategy.describe(self._spec.parameters(cast("SamplingArm", arm), sampled)),
            seed=derive(self._spec.study.seed, seed_name(arm), "within") & 0xFFFFFFFF,
        )

    def rank_tried(self, arm: str) -> list[Parameters]:
        """Return the whole parameter sets that an arm has tried, the best posterior mean first.

        None where the study's sampler has no surrogate, or where too few runs are complete.
        """
        if not self._foresees(arm):
            return []
        sampled_sets = self._strategy(arm).rank_tried(self._histories[arm].finished_trials())
        return [self._spec.parameters(cast("SamplingArm", arm), sampled) for sampled in sampled_sets]

    def tell(
        self,
        ticket: TicketRow,
        reports: Mapping[int, float],
        guards: Mapping[str, float] | None = None,
    ) -> None:
        """Record the end of a ticket.

        Args:
            ticket: The ticket.
            reports: Its reports, step to value.
            guards: What it measured of guarded metrics, by name.
        """
        if ticket.kind not in SAMPLED_KINDS:
            return
        if ticket.kind == "baseline" and is_usable(ticket) and ticket.value is not None:
            self._baseline_results[ticket.number] = ticket.value, guards or {}
        arm, number = ticket.kind, ticket.number
        self._known_numbers_by_arm[arm].add(number)
        state = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(
            ticket.outcome or "failed", TrialState.PRUNED
        )
        # which reports of a lost run are known differs with who saw which of its attempts
        known_reports = reports if ticket.outcome in ("complete", "pruned") else {}
        self._histories[arm].tell(number, state, ticket.value, known_reports, guards)
        if is_usable(ticket) and self._better(ticket):
            self._best = ticket

    def _better(self, ticket: TicketRow) -> bool:
        if self._best is None:
            return True
        assert ticket.value is not None and self._best.value is not None
        direction = self._spec.study.direction
        mine, best = to_maximize(ticket.value, direction), to_maximize(self._best.value, direction)
        # of equal values the earlier one, in whatever order they are read
        return (mine, -ticket.id) > (best, -self._best.id)

    def best(self) -> TicketRow | None:
        """Return the ticket of the search or its design with the best value so far, None before the first."""
        return self._best
