"""Parameters and pruning of baseline, constant and search tickets.

Combines search spaces and trial histories; no training and no input or output.
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
    SEARCH_KINDS,
    TERMINAL_STATES,
    Measurement,
    Parameters,
    PriorRuns,
    TicketRow,
    TrialParam,
)
from tempopt.storage.ticket_queries import is_usable, to_maximize
from tempopt.temperature import GROUPS, split_name

_DESIGN = ("baseline", "constant")
"""First-design arms, whose runs the search model is trained on too."""

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial

    from tempopt.sampling.candidate_pool import CandidatePool
    from tempopt.sampling.knowledge_gradient import KnowledgeGradient


def reports_by_ticket(reports: Iterable[Measurement]) -> dict[int, dict[int, float]]:
    """Return reports as ticket id to value by optimizer step, ordered by step."""
    values_by_ticket: dict[int, dict[int, float]] = {}
    for report in sorted(reports, key=lambda report: report.step):
        values_by_ticket.setdefault(report.ticket_id, {})[report.step] = report.value
    return values_by_ticket


def guard_values_by_ticket(
    measurements: Iterable[Measurement], spec: StudySpec
) -> dict[int, dict[str, float]]:
    """Return the guarded metrics that search runs have measured: ticket id to value by metric."""
    metrics, values_by_ticket = spec.study.measured_guards, dict[int, dict[str, float]]()
    for measurement in measurements:
        if measurement.name in metrics:
            values_by_ticket.setdefault(measurement.ticket_id, {})[metrics[measurement.name]] = (
                measurement.value
            )
    return values_by_ticket


class SearchArms:
    """The searching arms of one study, with the results of their tickets.

    Args:
        spec: The study's spec.
        tickets: The study's tickets in the store, by number.
        reports: Validation reports in the store, and measurements of guarded metrics.
        earlier: Warm-start runs of earlier studies.
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
        self._constant_params = spec.constants()
        self._level_names = self._spaces["constant"].keys() - set(spec.ordinary_names)
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
            if ticket.kind in SEARCH_KINDS and ticket.sampled and ticket.parameters is None:
                self._enqueued_params[ticket.kind, ticket.number] = ticket.sampled
            if ticket.parameters is not None:
                self.register_asked(ticket)
            if ticket.state in TERMINAL_STATES:
                self.tell(ticket, search_reports.get(ticket.id, {}), guards_by_ticket.get(ticket.id, {}))

    def _has_surrogate(self, arm: str) -> bool:
        return self._spec.study.sampler.name == KNOWLEDGE_GRADIENT and bool(self._spaces[arm])

    def _strategy(self, arm: str) -> KnowledgeGradient:
        # imported here: commands that only show a study should not load scipy
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
                guarding=build_guard_constraints(self._spec, self._baseline_runs())
                if arm == "search" and self._spec.study.weighs_guards
                else None,
                list_design=self._list_design if arm == "search" else lambda num_baseline: (),
            )
        return self._strategies[arm]

    def _list_design(self, num_baseline: int | None = None) -> list[FrozenTrial]:
        """Return the runs of the baseline and constant arms with parameters and numbers of the search space.

        Args:
            num_baseline: Number of runs of the baseline, from the first one; None: all that are complete.
        """
        return [
            self._to_design_trial(arm, trial)
            for arm in _DESIGN
            for trial in self._histories[arm].finished_trials()
            if arm != "baseline" or num_baseline is None or trial.number < num_baseline
        ]

    def _to_design_trial(self, arm: str, trial: FrozenTrial) -> FrozenTrial:
        """Return a first-design trial as a trial of the search model."""
        design = copy.copy(trial)
        design.number = self._design_number(arm, trial.number)
        design.params = self._spec.parameters(cast("SamplingArm", arm), trial.params)
        return design

    def _design_number(self, arm: str, number: int) -> int:
        """Return a negative number for a first-design trial, with its study seed."""
        num_seeds = self._spec.study.seeds.search or 1
        return number - (1 + _DESIGN.index(arm)) * num_seeds * MAX_RUNS

    def _draw_tuned_baseline(self, number: int, seed: int) -> Parameters | None:
        """Return the parameters of an extra baseline trial by the search model; None without a model."""
        history, search = self._histories["baseline"], self._histories["search"]
        return self._strategy("search").ask_within(
            search.finished_trials(),
            [self._to_design_trial("baseline", trial) for trial in history.pending(number)],
            self._arm_pool("baseline"),
            number=self._design_number("baseline", number),
            num_baseline=len(history.visible_trials(number)),
            seed=seed,
        )

    def _baseline_runs(self) -> list[tuple[float, Mapping[str, float]]]:
        """Return the baseline's runs of the first design, which are complete before the first search trial
        starts.
        """
        return [
            self._baseline_results[number]
            for number in sorted(self._baseline_results)
            if number < self._spec.num_baseline
        ]

    def constraints(self, guards: Mapping[str, float]) -> dict[str, float]:
        """Return how far a run exceeds the limit of each guard; 0 or less keeps the guard.

        Args:
            guards: Guarded metrics of the run, by name.
        """
        from tempopt.sampling.guard_constraints import build_guard_constraints

        limits = build_guard_constraints(self._spec, self._baseline_runs())
        return {} if limits is None else limits.constraints(guards)

    def register_asked(self, ticket: TicketRow) -> None:
        """Register the parameters of a ticket that any agent has started."""
        if ticket.kind not in SEARCH_KINDS:
            return
        arm, number = ticket.kind, ticket.number
        self._known_numbers_by_arm[arm].add(number)
        values = ticket.sampled if ticket.sampled is not None else ticket.parameters
        assert values is not None
        self._histories[arm].register_asked(number, values)

    def pending_dependencies(self, ticket: TicketRow) -> list[int]:
        """Return the earlier tickets whose missing parameters are needed before this one is sampled."""
        arm, ticket_number = ticket.kind, ticket.number
        start = max(0, ticket_number - self._spec.study.parallel + 1)
        return [
            number for number in range(start, ticket_number) if number not in self._known_numbers_by_arm[arm]
        ]

    def ask(self, ticket: TicketRow) -> dict[str, Any]:
        """Return the values of the arm's space for a ticket that has none yet.

        They depend on earlier tickets that are still in progress. The values of tickets that another agent
        has claimed and not yet written are computed here as well, with the same result.
        """
        arm, ticket_number = ticket.kind, ticket.number
        if ticket.sampled and ticket.parameters is None:
            self._enqueued_params[arm, ticket_number] = ticket.sampled
        for number in self.pending_dependencies(ticket):
            self._histories[arm].register_asked(number, self._draw_active_params(arm, number))
        return self._draw_active_params(arm, ticket_number)

    def _draw_active_params(self, arm: str, number: int) -> dict[str, Any]:
        # drop parameters that are inactive under the others
        return active_params(self._spec.search, self._draw_params(arm, number))

    def _draw_params(self, arm: str, number: int) -> dict[str, Any]:
        fixed_params = dict(self._enqueued_params.get((arm, number), {}))
        if arm == "constant" and not fixed_params.keys() & self._level_names:
            fixed_params |= self._constant_params[number]
        if not self._spaces[arm].keys() - fixed_params.keys():
            return fixed_params
        seed, history = derive(self._spec.study.seed, seed_name(arm), "sampler", number), self._histories[arm]
        sampler = make_sampler(self._spec.study.sampler, seed=seed)
        # always tuned with the model: the baseline has to be near the best at τ = 1, and the sampler may be
        # random
        if (
            arm == "baseline"
            and number >= self._spec.num_baseline
            and (values := self._draw_tuned_baseline(number, seed))
        ):
            return values | fixed_params
        if sampler:
            return history.ask(number, sampler) | fixed_params
        known_trials, pending = history.visible_trials(number), history.pending(number)
        strategy = self._strategy(arm)
        values = strategy.ask(
            known_trials, pending, number=number, seed=seed, fixed=fixed_params
        ) or strategy.warm_start_params(number)
        if not values:
            values = initial_params(self._spec, cast("SamplingArm", arm), number, seed=self._spec.study.seed)
        return values | fixed_params

    def expected_improvement(self, ticket: TicketRow) -> tuple[float, float] | None:
        """Return the expected improvement of the recommendation by one more run, and the noise of a run.

        It uses the results before the first of the tickets in progress, so that all agents end a search at
        the same ticket. None: there are too few results, or the sampler has no model.
        """
        arm, number = ticket.kind, ticket.number
        if not self._has_surrogate(arm):
            return None
        return self._strategy(arm).expected_improvement(self._histories[arm].visible_trials(number))

    def trial(self, sampled: Mapping[str, Any]) -> list[TrialParam]:
        """Return the parameters of a search ticket in the form of Optuna's tables."""
        return trial_params(sampled, self._spaces["search"])

    def prune(self, ticket: TicketRow, reports: Mapping[int, float]) -> bool:
        """Return whether the pruner ends this ticket after these reports."""
        # arms without searched parameters repeat one set: pruning these would bias its mean
        if ticket.kind not in SEARCH_KINDS or not self._spaces[ticket.kind] or not reports:
            return False
        arm, number = ticket.kind, ticket.number
        history = self._histories[arm]
        if pruner := make_pruner(self._spec.study.pruner):
            return history.prune(number, reports, pruner)
        running_trial = history.running(number, reports)
        return self._strategy(arm).prune(history.visible_trials(number), running_trial)

    def recommend(self, arm: str, count: int) -> list[Parameters]:
        """Return up to ``count`` candidate parameter sets of an arm, best first.

        For the search, the baseline is never a candidate, and a constant is first unless another set is
        expected to be clearly better. Empty if too few runs are complete, or (except for the baseline) if the
        sampler has no surrogate.
        """
        if not self._spaces["search"] or not (arm == "baseline" or self._has_surrogate("search")):
            return []
        if arm != "search":
            best = self._recommend_by_search_model(arm)
            return [] if best is None else [best, *self._recommend_by_arm_model(arm)][:count]
        sampled_sets = self._strategy(arm).recommend(
            self._histories[arm].finished_trials(),
            count=count,
            seed=derive(self._spec.study.seed, seed_name(arm), "named"),
            constant=self._recommend_by_search_model("constant"),
            accepts=self._may_recommend,
        )
        return [self._spec.parameters("search", sampled) for sampled in sampled_sets]

    def _may_recommend(self, sampled: Mapping[str, Any]) -> bool:
        """Return whether a set may be recommended: not a baseline, and with levels among their choices."""
        for name, distribution in self._spaces["search"].items():
            is_level = split_name(name)[1] in GROUPS["level"]
            if is_level and isinstance(distribution, CategoricalDistribution) and name in sampled:
                # a constant of the first design may lie between these
                if sampled[name] not in distribution.choices:
                    return False
        return not self._spec.is_baseline(self._spec.parameters("search", sampled))

    def _recommend_by_arm_model(self, arm: str) -> list[Parameters]:
        """Return the best set by the arm's own model; empty if too few runs are complete."""
        if not self._spaces[arm]:
            return []
        seed = derive(self._spec.study.seed, seed_name(arm), "named")
        sets = self._strategy(arm).recommend(self._histories[arm].finished_trials(), count=1, seed=seed)
        return [self._spec.parameters(cast("SamplingArm", arm), sampled) for sampled in sets]

    def _recommend_by_search_model(self, arm: str) -> Parameters | None:
        """Return the best baseline or constant by the search model; None without a model."""
        arm_name = cast("SamplingArm", arm)
        if arm == "constant" and not self._spec.num_constant:
            return None
        if not self._spaces[arm]:
            return self._spec.parameters(arm_name, {})
        seed = derive(self._spec.study.seed, seed_name(arm), "named")
        known_trials = self._histories["search"].finished_trials()
        best = self._strategy("search").recommend_within(known_trials, self._arm_pool(arm), seed=seed)
        return None if best is None else self._spec.parameters(arm_name, best)

    def _arm_pool(self, arm: str) -> CandidatePool:
        """Return the parameter sets of an arm with the features of the search model."""
        from tempopt.sampling.candidate_pool import CandidatePool

        strategy = self._strategy("search")
        return CandidatePool(
            self._spaces[arm],
            lambda sampled: strategy.describe(self._spec.parameters(cast("SamplingArm", arm), sampled)),
            seed=derive(self._spec.study.seed, seed_name(arm), "within") & 0xFFFFFFFF,
        )

    def rank_tried(self, arm: str) -> list[Parameters]:
        """Return all parameter sets that an arm has tried, by descending posterior mean.

        Empty if the study's sampler has no surrogate, or if too few runs are complete.
        """
        if not self._has_surrogate(arm):
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
            guards: Guarded metrics of the ticket, by name.
        """
        if ticket.kind not in SEARCH_KINDS:
            return
        if ticket.kind == "baseline" and is_usable(ticket) and ticket.value is not None:
            self._baseline_results[ticket.number] = ticket.value, guards or {}
        arm, number = ticket.kind, ticket.number
        self._known_numbers_by_arm[arm].add(number)
        state = {"complete": TrialState.COMPLETE, "failed": TrialState.FAIL}.get(
            ticket.outcome or "failed", TrialState.PRUNED
        )
        # agents may know different reports of a lost run, so leave them out
        known_reports = reports if ticket.outcome in ("complete", "pruned") else {}
        self._histories[arm].tell(number, state, ticket.value, known_reports, guards)
        if is_usable(ticket) and self._is_better(ticket):
            self._best = ticket

    def _is_better(self, ticket: TicketRow) -> bool:
        if self._best is None:
            return True
        assert ticket.value is not None and self._best.value is not None
        direction = self._spec.study.direction
        mine, best = to_maximize(ticket.value, direction), to_maximize(self._best.value, direction)
        # ties: the lower ticket id, independent of read order
        return (mine, -ticket.id) > (best, -self._best.id)

    def best(self) -> TicketRow | None:
        """Return the ticket of the search or the first design with the best value so far; None before the
        first.
        """
        return self._best
