"""The search tickets as Optuna sees them: one trial each, for life, in Optuna's own tables.

The only module that writes to Optuna's storage. Nothing is decided here and nothing is read back but
which trial belongs to which ticket, so that Optuna's own tools see everything and disturb nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from tempopt.errors import UsageError

TICKET = "tempopt:ticket"
_OURS = "tempopt"


class Trials:
    """Optuna's record of one study.

    Args:
        url: Database URL, driver included.
        name: Study name, the same as ours.
        direction: ``maximize`` or ``minimize``.
        metric: Name of the metric.

    Raises:
        UsageError: Another program keeps a study of that name in this database.
    """

    def __init__(self, *, url: str, name: str, direction: str, metric: str) -> None:
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._storage = optuna.storages.get_storage(url)
        way = StudyDirection.MAXIMIZE if direction == "maximize" else StudyDirection.MINIMIZE
        try:
            self._study_id = self._storage.create_new_study([way], name)
        except optuna.exceptions.DuplicatedStudyError as error:
            self._study_id = self._storage.get_study_id_from_name(name)
            foreign = _OURS not in self._storage.get_study_user_attrs(self._study_id)
            # an agent that died between the study and its mark left it without either
            if foreign and self._storage.get_n_trials(self._study_id):
                raise UsageError(
                    f'This database has an Optuna study "{name}" that tempopt did not make. '
                    "Give yours another name (study.name), or another --storage."
                ) from error
        self._storage.set_study_user_attr(self._study_id, _OURS, {"metric": metric})
        self._of_ticket: dict[int, FrozenTrial] = {}
        for trial in self._storage.get_all_trials(self._study_id, deepcopy=False):
            if TICKET in trial.user_attrs:
                self._of_ticket[trial.user_attrs[TICKET]] = trial

    def of_ticket(self, ticket: int) -> FrozenTrial | None:
        """Return the trial that belongs to a ticket, or None if none was begun."""
        return self._of_ticket.get(ticket)

    def begin(
        self, ticket: int, params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
    ) -> FrozenTrial:
        """Make the ticket's trial, in one transaction, or return the one it has."""
        if ticket in self._of_ticket:
            return self._of_ticket[ticket]
        template = FrozenTrial(
            number=-1,
            trial_id=-1,
            state=TrialState.RUNNING,
            value=None,
            datetime_start=datetime.now(UTC).replace(tzinfo=None),
            datetime_complete=None,
            params=dict(params),
            distributions=dict(distributions),
            user_attrs={TICKET: ticket},
            system_attrs={},
            intermediate_values={},
        )
        trial_id = self._storage.create_new_trial(self._study_id, template_trial=template)
        trial = self._storage.get_trial(trial_id)
        self._of_ticket[ticket] = trial
        return trial

    def report(self, ticket: int, step: int, value: float) -> None:
        """Record one intermediate value, unless an agent that died has closed the trial already."""
        if self._of_ticket[ticket].state.is_finished():
            return
        self._storage.set_trial_intermediate_value(self._of_ticket[ticket]._trial_id, step, value)

    def end(self, ticket: int, state: TrialState, value: float | None, attrs: Mapping[str, Any]) -> None:
        """Close the ticket's trial, once; user attributes go first, since a closed trial takes none."""
        trial = self._of_ticket[ticket]
        if trial.state.is_finished():
            # closed by an agent that died before it closed the ticket
            return
        trial_id = trial._trial_id
        for name, attr in attrs.items():
            self._storage.set_trial_user_attr(trial_id, name, attr)
        self._storage.set_trial_state_values(trial_id, state, None if value is None else [value])
