"""The trials that one ticket may know: a fixed window of an arm's history, as an Optuna storage.

Suggestions and pruning decisions use this view and never the shared database, so that they are a function of
(study seed, arm, number), for any process and any number of agents.
"""

from __future__ import annotations

import copy
from collections.abc import Container, Mapping, Sequence
from datetime import datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tempopt.storage.rows import TrialParam

_STUDY_ID = 0
LEARNED_STATES = (TrialState.COMPLETE, TrialState.PRUNED)
"""States of ended trials that samplers learn from."""

_HALVING = (optuna.pruners.SuccessiveHalvingPruner, optuna.pruners.HyperbandPruner)
_EPOCH = datetime(2000, 1, 1)  # a fixed time: no decision may depend on the clock


def make_frozen_trial(
    number: int,
    *,
    state: TrialState,
    distributions: Mapping[str, BaseDistribution],
    params: Mapping[str, Any],
    value: float | None = None,
    reports: Mapping[int, float] | None = None,
    guards: Mapping[str, float] | None = None,
) -> FrozenTrial:
    """Return a trial as samplers and pruners see it; its number is that of the ticket in its arm.

    Its guarded metrics are user attributes, by name.
    """
    return FrozenTrial(
        number=number,
        trial_id=number,
        state=state,
        value=value,
        datetime_start=_EPOCH,
        datetime_complete=_EPOCH if state.is_finished() else None,
        params={name: value for name, value in params.items() if name in distributions},
        distributions={name: d for name, d in distributions.items() if name in params},
        user_attrs=dict(guards or {}),
        system_attrs={},
        intermediate_values=dict(reports or {}),
    )


def trial_params(
    params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
) -> list[TrialParam]:
    """Return parameters in the form of Optuna's tables."""
    return [
        TrialParam(
            name=name,
            value=float(distributions[name].to_internal_repr(value)),
            distribution=distribution_to_json(distributions[name]),
        )
        for name, value in params.items()
        if name in distributions
    ]


class WindowedStorage(BaseStorage):
    """A read-only study of the trials that one ticket may know, and of the trial that is asked or pruned.

    Args:
        name: Study name; Hyperband's brackets follow from it.
        direction: The study's direction.
        trials: The known trials, in number order.
        running_trial: The ticket's own trial; None while it is being asked.
        number: The number of a new trial.
    """

    def __init__(
        self,
        *,
        name: str,
        direction: StudyDirection,
        trials: Sequence[FrozenTrial],
        running_trial: FrozenTrial | None,
        number: int,
    ) -> None:
        self._name = name
        self._direction = direction
        self._trials = trials
        self._running_trial = running_trial
        self._number = number

    def study(
        self,
        *,
        sampler: optuna.samplers.BaseSampler | None = None,
        pruner: optuna.pruners.BasePruner | None = None,
    ) -> optuna.Study:
        """Return an Optuna study on this view."""
        return optuna.load_study(study_name=self._name, storage=self, sampler=sampler, pruner=pruner)

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        self._running_trial = make_frozen_trial(
            self._number, state=TrialState.RUNNING, distributions={}, params={}
        )
        return self._number

    def set_trial_param(
        self, trial_id: int, param_name: str, param_value_internal: float, distribution: BaseDistribution
    ) -> None:
        assert self._running_trial is not None
        self._running_trial.distributions[param_name] = distribution
        self._running_trial.params[param_name] = distribution.to_external_repr(param_value_internal)

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        # A copy, as in Optuna's storages: a trial that a pruner holds keeps its attributes.
        assert self._running_trial is not None and trial_id == self._running_trial.number
        self._running_trial = copy.copy(self._running_trial)
        self._running_trial.system_attrs = {**self._running_trial.system_attrs, key: value}

    def get_trial(self, trial_id: int) -> FrozenTrial:
        if self._running_trial is not None and trial_id == self._running_trial.number:
            return self._running_trial
        return next(trial for trial in self._trials if trial.number == trial_id)

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        running_trials = [self._running_trial] if self._running_trial is not None else []
        trials = [
            trial for trial in (*self._trials, *running_trials) if states is None or trial.state in states
        ]
        return copy.deepcopy(trials) if deepcopy else trials

    def get_study_id_from_name(self, study_name: str) -> int:
        return _STUDY_ID

    def get_study_name_from_id(self, study_id: int) -> str:
        return self._name

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        return [self._direction]

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return {}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        return {}

    def _read_only(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("the view of a study's history is read-only")

    create_new_study = delete_study = get_all_studies = _read_only
    set_study_user_attr = set_study_system_attr = set_trial_user_attr = _read_only
    set_trial_state_values = set_trial_intermediate_value = _read_only


class History:
    """The trials of one arm in number order.

    Args:
        name: Name from which the seeds of this arm and Hyperband's brackets are derived.
        direction: ``maximize`` or ``minimize``.
        distributions: Optuna distributions of this arm's space.
        parallel: Largest number of runs in progress that do not know each other's results, >= 1.
    """

    def __init__(
        self, *, name: str, direction: str, distributions: Mapping[str, BaseDistribution], parallel: int
    ) -> None:
        self._name = name
        self._direction = StudyDirection.MAXIMIZE if direction == "maximize" else StudyDirection.MINIMIZE
        self._distributions = dict(distributions)
        self._parallel = parallel
        self._params_by_number: dict[int, dict[str, Any]] = {}
        self._finished: list[FrozenTrial | None] = []
        self._ready = 0
        self._num_judged = 0

    def ready(self, number: int) -> bool:
        """Return whether all results that ticket ``number`` may know are known."""
        return self._ready > number - self._parallel

    def ask(self, number: int, sampler: optuna.samplers.BaseSampler) -> dict[str, Any]:
        """Return the sampler's suggestion for ticket ``number``; then call :meth:`register_asked`."""
        trials = [*self.visible_trials(number), *self.pending(number)]
        view = WindowedStorage(
            name=self._name, direction=self._direction, trials=trials, running_trial=None, number=number
        )
        trial = view.study(sampler=sampler).ask(fixed_distributions=self._distributions)
        return dict(trial.params)

    def register_asked(self, number: int, params: Mapping[str, Any]) -> None:
        """Store the parameters of ticket ``number``."""
        self._params_by_number[number] = {
            name: params[name] for name in self._distributions if name in params
        }

    def prune(self, number: int, reports: Mapping[int, float], pruner: optuna.pruners.BasePruner) -> bool:
        """Return whether the pruner ends ticket ``number`` after these reports.

        Args:
            number: The ticket.
            reports: All of its reports, step to value; it was not ended after any earlier one.
            pruner: Optuna's pruner, with the same options each time; a new one for each decision, since some
                fix their options at the first trial that they see.
        """
        if isinstance(pruner, _HALVING):
            for earlier in range(self._num_judged, self._num_visible(number)):
                trial = self._finished[earlier]
                assert trial is not None, "a ticket was started before its history was known"
                _, rungs = self._ask_pruner(earlier, trial.intermediate_values, copy.deepcopy(pruner))
                trial.system_attrs.update(rungs)
                self._num_judged = earlier + 1
        return self._ask_pruner(number, reports, pruner)[0]

    def _ask_pruner(
        self, number: int, reports: Mapping[int, float], pruner: optuna.pruners.BasePruner
    ) -> tuple[bool, dict[str, Any]]:
        """Return whether a pruner ends a trial at its last report, and the attributes it sets."""
        running_trial = self.running(number, {})
        view = WindowedStorage(
            name=self._name,
            direction=self._direction,
            trials=self.visible_trials(number),
            running_trial=running_trial,
            number=number,
        )
        study, is_pruned = view.study(pruner=pruner), False
        steps = sorted(reports)
        for index, step in enumerate(steps, 1):
            trial = view.get_trial(number)
            trial.intermediate_values[step] = reports[step]
            # successive halving records the rungs that a trial reaches, report by report
            if index == len(steps) or isinstance(pruner, _HALVING):
                is_pruned = bool(pruner.prune(study, trial))
        return is_pruned, view.get_trial(number).system_attrs

    def tell(
        self,
        number: int,
        state: TrialState,
        value: float | None,
        reports: Mapping[int, float],
        guards: Mapping[str, float] | None = None,
    ) -> None:
        """Record the end of ticket ``number``; a diverged run counts as pruned, without reports.

        Args:
            guards: Guarded metrics of the trial, by name.
        """
        while len(self._finished) <= number:
            self._finished.append(None)
        self._finished[number] = make_frozen_trial(
            number,
            state=state,
            distributions=self._distributions,
            params=self._params_by_number.get(number, {}),
            value=value if state == TrialState.COMPLETE else None,
            reports=reports,
            guards=guards,
        )
        self._num_judged = min(self._num_judged, number)
        while self._ready < len(self._finished) and self._finished[self._ready] is not None:
            self._ready += 1

    def _num_visible(self, number: int) -> int:
        """Return the number of tickets, from the first one, that ticket ``number`` may know."""
        return max(0, number - self._parallel + 1)

    def visible_trials(self, number: int) -> list[FrozenTrial]:
        """Return the trials that ticket ``number`` may know, from the first one."""
        end = self._num_visible(number)
        assert self._ready >= end, "a ticket was started before its history was known"
        return self._finished[:end]  # type: ignore[return-value]

    def pending(self, number: int) -> list[FrozenTrial]:
        """Return the trials between the known ones and ticket ``number``."""
        numbers = range(self._num_visible(number), number)
        return [self.running(n, {}) for n in numbers if n in self._params_by_number]

    def running(self, number: int, reports: Mapping[int, float]) -> FrozenTrial:
        """Return a trial in progress, with its reports (step to value)."""
        return make_frozen_trial(
            number,
            state=TrialState.RUNNING,
            distributions=self._distributions,
            params=self._params_by_number.get(number, {}),
            reports=reports,
        )

    def finished_trials(self) -> list[FrozenTrial]:
        """Return all ended trials, by number."""
        return [trial for trial in self._finished if trial is not None]
