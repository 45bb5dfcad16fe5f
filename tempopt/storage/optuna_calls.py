"""Optuna's study of a name, made with Optuna's public calls, which create its tables.

It is a copy for people to look at; the studies of record are ours. Optuna is imported on the first call.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import NullPool
from sqlalchemy.exc import SQLAlchemyError

from tempopt.errors import UsageError
from tempopt.storage.database_errors import to_storage_error
from tempopt.storage.urls import parse_database_url

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.study import StudyDirection

_LOGGER = logging.getLogger("tempopt")
OURS = "tempopt"
"""User attribute of a study: it was made by tempopt."""
_ATTEMPTS = 10
_JITTER = random.SystemRandom()


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
        is_foreign = OURS not in storage.get_study_user_attrs(study_id)
        # an agent that died between the study and its mark left it without either
        if is_foreign and storage.get_n_trials(study_id):
            raise UsageError(
                f'This database has an Optuna study "{name}" that tempopt did not make. '
                "Give yours another name (study.name), or another --storage."
            ) from error
    storage.set_study_user_attr(study_id, OURS, {"metric": metric})


def _storage(url: str) -> RDBStorage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # no pool: of a storage that refuses the tables, the connections could not be closed
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
