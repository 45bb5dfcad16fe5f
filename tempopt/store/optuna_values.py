"""Intermediate values written into Optuna's own table, many in one statement.

The one exception to "Optuna's tables stay Optuna's": its public call is one transaction per value.
Pinned to one version of Optuna's schema; of any other version nothing is touched.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from sqlalchemy import (
    Column,
    Connection,
    Double,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    inspect,
    select,
)

from tempopt.errors import StaleAttempt, StorageError
from tempopt.store.upsert import upsert

# Head of Optuna's own migrations, in Optuna 3.2 to 5.0 (optuna/storages/_rdb/alembic/versions).
SCHEMA = "v3.2.0.a"

_OPTUNA = MetaData()
_VERSION = Table("alembic_version", _OPTUNA, Column("version_num", String(32)))
_STUDIES = Table("studies", _OPTUNA, Column("study_id", Integer), Column("study_name", String(512)))
_TRIALS = Table(
    "trials",
    _OPTUNA,
    Column("trial_id", Integer),
    Column("study_id", Integer),
    Column("number", Integer),
    Column("state", Enum("RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING", name="trialstate")),
)
_VALUES = Table(
    "trial_intermediate_values",
    _OPTUNA,
    Column("trial_id", Integer),
    Column("step", Integer),
    Column("intermediate_value", Double),
    Column(
        "intermediate_value_type",
        Enum("FINITE", "INF_POS", "INF_NEG", "NAN", name="trialintermediatevaluetype"),
    ),
)


def is_known(connection: Connection) -> bool:
    """Return whether Optuna's tables are there, in the version that this module was written for."""
    if not inspect(connection).has_table(_VERSION.name):
        return False
    return connection.scalars(select(_VERSION.c.version_num)).all() == [SCHEMA]


def insert(connection: Connection, study_name: str, trial_number: int, values: Mapping[int, float]) -> None:
    """Write a running trial's values by step, replacing those that are there, as Optuna's storage does.

    Raises:
        StorageError: There is no such trial.
        StaleAttempt: The trial is not running any more.
    """
    trial = connection.execute(
        select(_TRIALS.c.trial_id, _TRIALS.c.state)
        .join(_STUDIES, _STUDIES.c.study_id == _TRIALS.c.study_id)
        .where(_STUDIES.c.study_name == study_name, _TRIALS.c.number == trial_number)
        .with_for_update(of=_TRIALS)
    ).one_or_none()
    if trial is None:
        raise StorageError(f'Optuna\'s study "{study_name}" has no trial {trial_number} to report values of.')
    if trial.state != "RUNNING":
        raise StaleAttempt(
            f"Trial {trial_number} of {study_name} is {trial.state} already; nothing was written."
        )
    rows = [{"trial_id": trial.trial_id, "step": step, **_stored(value)} for step, value in values.items()]
    upsert(
        connection,
        _VALUES,
        rows,
        key=("trial_id", "step"),
        replace=("intermediate_value", "intermediate_value_type"),
    )


def _stored(value: float) -> dict[str, float | str | None]:
    """Return the two columns of a value: what is not finite is a word, since MySQL holds no such number."""
    if math.isnan(value):
        kind = "NAN"
    elif math.isinf(value):
        kind = "INF_POS" if value > 0 else "INF_NEG"
    else:
        kind = "FINITE"
    return {"intermediate_value": value if kind == "FINITE" else None, "intermediate_value_type": kind}
