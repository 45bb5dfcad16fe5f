"""Create Optuna's study of a name with Optuna's public calls, which create its tables.

It is a copy for Optuna's tools; the search does not read it. Optuna is imported at the first call.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from sqlalchemy import NullPool
from sqlalchemy.exc import SQLAlchemyError

from tempopt.errors import StorageError, UsageError
from tempopt.storage.damage import shorten
from tempopt.storage.database_errors import raise_storage_error
from tempopt.storage.urls import parse_database_url

if TYPE_CHECKING:
    from optuna.storages import RDBStorage
    from optuna.study import StudyDirection

_LOGGER = logging.getLogger("tempopt")
TEMPOPT_ATTRIBUTE = "tempopt"
"""User attribute of a study that was created by tempopt."""
_MAX_ATTEMPTS = 10
_JITTER = random.SystemRandom()


def make_study(url: str, *, name: str, direction: str, metric: str) -> None:
    """Create Optuna's study of a name; if it exists, check that tempopt created it.

    If Optuna refuses the database, because its tables have a version that the installed Optuna does not know,
    a warning is logged and the search continues without an Optuna study. All connections are closed.

    Args:
        url: Database URL, driver included.
        name: Name of the study, the same as in tempopt.
        direction: ``maximize`` or ``minimize``.
        metric: Name of the metric.

    Raises:
        UsageError: Another program has a study of that name in this database, or the database cannot
            distinguish the name from another one.
        StorageError: The database fails; StoreUnreachable, if it may be reachable later.
    """
    from optuna.study import StudyDirection

    for attempt in range(_MAX_ATTEMPTS):
        try:
            storage = _open_storage(url)
            try:
                return _make_study(storage, name, [StudyDirection[direction.upper()]], metric)
            finally:
                storage.remove_session()
                storage.engine.dispose()
        except UsageError:
            raise
        except Exception as error:
            # raised for tables of another version, which waiting does not change
            if type(error) is RuntimeError:
                _LOGGER.warning("This database gets no Optuna study: %s", shorten(error))
                return None
            fault = error if isinstance(error, SQLAlchemyError) else error.__cause__
            if attempt == _MAX_ATTEMPTS - 1 and isinstance(fault, SQLAlchemyError):
                address = parse_database_url(url)
                raise_storage_error(address, address.url.get_backend_name(), fault)
            if attempt == _MAX_ATTEMPTS - 1 and isinstance(error, KeyError):
                raise StorageError(
                    f'Optuna\'s study "{name}" cannot be created: the tables have rows of a study that was '
                    "deleted. Restore the database from a backup, or use another --storage."
                ) from error
            if attempt == _MAX_ATTEMPTS - 1:
                raise
            # of processes that create the tables at the same time, all but one fail at first
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
                f'This database has a study "{existing_name}", and its server treats the names '
                f'"{existing_name}" and "{name}" as the same in Optuna\'s tables (their collation '
                "ignores case or accents). Give your study another name (study.name, --name), or use "
                "another --storage."
            ) from error
        is_foreign = TEMPOPT_ATTRIBUTE not in storage.get_study_user_attrs(study_id)
        # an agent that died before it set the attribute left a study without trials
        if is_foreign and storage.get_n_trials(study_id):
            raise UsageError(
                f'This database has an Optuna study "{name}" that tempopt did not create. '
                "Give your study another name (study.name), or use another --storage."
            ) from error
    storage.set_study_user_attr(study_id, TEMPOPT_ATTRIBUTE, {"metric": metric})


def _open_storage(url: str) -> RDBStorage:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # no pool: if the storage refuses the tables, its connections could not be closed
    return optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
