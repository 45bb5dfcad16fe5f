"""The search as Optuna sees it: a study of the same name in the same database, one trial a search ticket.

The study is made here, with Optuna's public calls; its trials are written by the store, each in one
transaction with its ticket where the store knows Optuna's tables, else with Optuna's calls.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, distribution_to_json
from optuna.storages import BaseStorage
from optuna.study import StudyDirection

from tempopt.errors import UsageError
from tempopt.records.rows import TrialParam

_LOGGER = logging.getLogger("tempopt")
_OURS = "tempopt"
_ATTEMPTS = 10
_JITTER = random.SystemRandom()


def make_study(url: str, *, name: str, direction: str, metric: str) -> None:
    """Make the Optuna study, or see that it is ours if it is there.

    If Optuna refuses the database, since its tables are of a version that the Optuna installed here does not
    know, that is logged and the search goes on without an Optuna study.

    Args:
        url: Database URL, driver included.
        name: Study name, the same as ours.
        direction: ``maximize`` or ``minimize``.
        metric: Name of the metric.

    Raises:
        UsageError: Another program keeps a study of that name in this database.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        storage = _opened(url)
    except RuntimeError as error:
        _LOGGER.warning("This database gets no Optuna study: %s", " ".join(str(error).split()))
        return
    way = StudyDirection.MAXIMIZE if direction == "maximize" else StudyDirection.MINIMIZE
    try:
        study_id = storage.create_new_study([way], name)
    except optuna.exceptions.DuplicatedStudyError as error:
        study_id = storage.get_study_id_from_name(name)
        foreign = _OURS not in storage.get_study_user_attrs(study_id)
        # an agent that died between the study and its mark left it without either
        if foreign and storage.get_n_trials(study_id):
            raise UsageError(
                f'This database has an Optuna study "{name}" that tempopt did not make. '
                "Give yours another name (study.name), or another --storage."
            ) from error
    storage.set_study_user_attr(study_id, _OURS, {"metric": metric})
    storage.remove_session()


def _opened(url: str) -> BaseStorage:
    """Return Optuna's storage; of those that make its tables at one moment, all but one fail at first."""
    for attempt in range(_ATTEMPTS):
        try:
            return optuna.storages.get_storage(url)
        except Exception as error:
            # Optuna says so of tables that are of another version, which waiting does not change
            if attempt == _ATTEMPTS - 1 or type(error) is RuntimeError:
                raise
            time.sleep(_JITTER.uniform(0.1, 0.5))
    raise AssertionError("the last attempt returns or raises")


def trial_params(
    params: Mapping[str, Any], distributions: Mapping[str, BaseDistribution]
) -> list[TrialParam]:
    """Return parameters as Optuna's tables hold them."""
    return [
        TrialParam(
            name=name,
            value=float(distributions[name].to_internal_repr(value)),
            distribution=distribution_to_json(distributions[name]),
        )
        for name, value in params.items()
        if name in distributions
    ]
