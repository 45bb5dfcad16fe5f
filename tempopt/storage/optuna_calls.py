"""What is written with Optuna's public calls: studies, and trials in tables that optuna_tables does not know.

Optuna's study is a copy for people to look at; the studies of record are ours. A call that fails is logged
once and changes nothing in ours. Optuna is imported on the first call.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, NullPool
from sqlalchemy.exc import SQLAlchemyError

from tempopt.errors import UsageError
from tempopt.storage.database_errors import to_storage_error
from tempopt.storage.rows import TrialParam
from tempopt.storage.urls import parse_database_url

if TYPE_CHECKING:
    from optuna.storages import BaseStorage, RDBStorage
    from optuna.study import StudyDirection

    from tempopt.storage.trial_changes import TrialChange

T = TypeVar("T")

_LOGGER = logging.getLogger("tempopt")
_OURS = "tempopt"
RECOMMENDATION = "tempopt:recommendation"
"""Attribute of Optuna's study that holds what the verdict recommends."""
_ATTEMPTS = 10
_JITTER = random.SystemRandom()
_OF_ENGINES: WeakKeyDictionary[Engine, OptunaTrialWriter] = WeakKeyDictionary()


def make_study(url: str, *, name: str, direction: str, metric: str) -> None:
    """Make Optuna's study of a name, or see that it is ours if it is there.

    If Optuna refuses the database, since its tables are of a version that the Optuna installed here does not
    know, that is logged and the search continues without an Optuna study. No connection stays open.

    Args:
        url: Database URL, driver included.
        name: Study name, the same as ours.
        direction: ``maximize`` or ``minimize``.
        metric: Name of the metric.

    Raises:
        UsageError: Another program keeps a study of that name in this database, or the database takes
            that name for another's.
        StorageError: The database fails; StoreUnreachable, if it may be there again later.
    """
    from optuna.study import StudyDirection

    for attempt in range(_ATTEMPTS):
        try:
            storage = _storage(url)
            try:
                return _make_study(storage, name, [StudyDirection[direction.upper()]], metric)
            finally:
                storage.remove_session()
                storage.engine.dispose()
        except UsageError:
            raise
        except Exception as error:
            # Optuna says so of tables that are of another version, which waiting does not change
            if type(error) is RuntimeError:
                _LOGGER.warning("This database gets no Optuna study: %s", " ".join(str(error).split()))
                return None
            fault = error if isinstance(error, SQLAlchemyError) else error.__cause__
            if attempt == _ATTEMPTS - 1 and isinstance(fault, SQLAlchemyError):
                address = parse_database_url(url)
                to_storage_error(address, address.url.get_backend_name(), fault)
            if attempt == _ATTEMPTS - 1:
                raise
            # of those that make the tables at one moment, all but one fail at first
            time.sleep(_JITTER.uniform(0.1, 0.5))
    return None


def _make_study(storage: RDBStorage, name: str, directions: Sequence[StudyDirection], metric: str) -> None:
    from optuna.exceptions import DuplicatedStudyError

    try:
        study_id = storage.create_new_study(directions, name)
    except DuplicatedStudyError as error:
        study_id = storage.get_study_id_from_name(name)
        if (existing_name := storage.get_study_name_from_id(study_id)) != name:
            raise UsageError(
                f'This database has a study "{existing_name}", and its server takes the names '
                f'"{existing_name}" and "{name}" for one and the same in Optuna\'s tables (their collation '
                "ignores case or accents). Give yours another name (study.name, --name), or another "
                "--storage."
            ) from error
        is_foreign = _OURS not in storage.get_study_user_attrs(study_id)
        # an agent that died between the study and its mark left it without either
        if is_foreign and storage.get_n_trials(study_id):
            raise UsageError(
                f'This database has an Optuna study "{name}" that tempopt did not make. '
                "Give yours another name (study.name), or another --storage."
            ) from error
    storage.set_study_user_attr(study_id, _OURS, {"metric": metric})


def _storage(url: str) -> RDBStorage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # no pool: of a storage that refuses the tables, the connections could not be closed
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def optuna_writer_for(engine: Engine) -> OptunaTrialWriter:
    """Return what writes Optuna's studies in the database of an engine."""
    if engine not in _OF_ENGINES:
        _OF_ENGINES[engine] = OptunaTrialWriter(engine.url.render_as_string(hide_password=False))
    return _OF_ENGINES[engine]


def close(engine: Engine) -> None:
    """Close Optuna's connections to the database of an engine, if there are any."""
    if calls := _OF_ENGINES.pop(engine, None):
        calls.close()


class OptunaTrialWriter:
    """Optuna's studies in one database.

    Args:
        url: Database URL, driver included.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._storage: RDBStorage | None = None
        self._warned = False

    def begin_trial(
        self, study_name: str, mark: tuple[str, int], params: Sequence[TrialParam]
    ) -> tuple[int, int] | None:
        """Write a running trial, or find it; return its key and its number, None if Optuna refuses.

        Args:
            study_name: Name of Optuna's study.
            mark: User attribute by which the trial is found again, and its value.
            params: Its parameters as Optuna's tables hold them.
        """
        return self._call_or_warn(lambda storage: _find_or_create_trial(storage, study_name, mark, params))

    def write_trials(self, changes: Mapping[int, TrialChange]) -> None:
        """Write what is new about trials, by key; those that were deleted or have ended are left alone."""
        for trial_id, change in changes.items():
            self._call_or_warn(lambda storage, id=trial_id, what=change: _write(storage, id, what))  # type: ignore[misc]

    def delete_study(self, name: str, trial_ids: Collection[int], ours: str) -> None:
        """Delete Optuna's study of a name, unless it holds other trials and lacks our user attribute."""
        self._call_or_warn(lambda storage: _delete(storage, name, trial_ids, ours))

    def set_recommendation(self, name: str, recommendation: Mapping[str, Any]) -> None:
        """Write what a study recommends into the attributes of Optuna's study of that name."""
        self._call_or_warn(
            lambda storage: storage.set_study_user_attr(
                _id_of(storage, name), RECOMMENDATION, dict(recommendation)
            )
        )

    def close(self) -> None:
        """Close the connections; the next call makes new ones."""
        if self._storage is not None:
            self._storage.remove_session()
            self._storage.engine.dispose()
            self._storage = None

    def _call_or_warn(self, work: Callable[[BaseStorage], T]) -> T | None:
        try:
            if self._storage is None:
                self._storage = _storage(self._url)
            return work(self._storage)
        except Exception as error:
            if not self._warned:
                self._warned = True
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                _LOGGER.warning(
                    "Optuna's view of this database is not kept up to date: %s. The study itself continues "
                    "and is complete; tempopt show and tempopt report show it.",
                    reason[:500],
                )
            return None


def _id_of(storage: BaseStorage, name: str) -> int:
    """Return the key of Optuna's study of that very name, letter by letter; KeyError if there is none."""
    study_id = storage.get_study_id_from_name(name)
    if storage.get_study_name_from_id(study_id) != name:
        raise KeyError(name)
    return study_id


def _find_or_create_trial(
    storage: BaseStorage, study_name: str, mark: tuple[str, int], params: Sequence[TrialParam]
) -> tuple[int, int]:
    from optuna.distributions import json_to_distribution
    from optuna.trial import TrialState, create_trial

    study_id = _id_of(storage, study_name)
    key, ticket_id = mark
    for trial in storage.get_all_trials(study_id, deepcopy=False):
        if trial.user_attrs.get(key) == ticket_id:
            return trial._trial_id, trial.number
    distributions = {param.name: json_to_distribution(param.distribution) for param in params}
    values = {param.name: distributions[param.name].to_external_repr(param.value) for param in params}
    template = create_trial(
        state=TrialState.RUNNING, params=values, distributions=distributions, user_attrs={key: ticket_id}
    )
    trial_id = storage.create_new_trial(study_id, template_trial=template)
    return trial_id, storage.get_trial_number_from_id(trial_id)


def _write(storage: BaseStorage, trial_id: int, change: TrialChange) -> None:
    from optuna.trial import TrialState

    try:
        is_finished = storage.get_trial(trial_id).state.is_finished()
    except KeyError:
        return
    if is_finished:
        return
    for step, value in change.values.items():
        storage.set_trial_intermediate_value(trial_id, step, value)
    end = change.end
    if end is None:
        return
    for name, attribute in end.attributes().items():
        storage.set_trial_user_attr(trial_id, name, attribute)
    for name, constraint in end.constraint_attributes().items():
        storage.set_trial_system_attr(trial_id, name, constraint)
    state = TrialState[end.state]
    # Optuna takes no values of a trial that failed
    values = None if end.value is None or state == TrialState.FAIL else [end.value]
    storage.set_trial_state_values(trial_id, state, values)


def _delete(storage: BaseStorage, name: str, trial_ids: Collection[int], ours: str) -> None:
    try:
        study_id = _id_of(storage, name)
    except KeyError:
        return
    other_ids = {trial._trial_id for trial in storage.get_all_trials(study_id, deepcopy=False)} - set(
        trial_ids
    )
    attributes: dict[str, Any] = storage.get_study_user_attrs(study_id)
    if not other_ids or ours in attributes:
        storage.delete_study(study_id)
