"""Write the trials of search tickets into Optuna's own tables.

Each trial is written in the transaction that writes its ticket, so that they always agree. The rows are those
that Optuna's public calls write. One version of Optuna's schema is supported; if the tables have another
version, or are missing, nothing is written, and the search continues without them.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Double,
    Engine,
    Enum,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    and_,
    delete,
    exists,
    func,
    inspect,
    select,
    text,
    update,
)

from tempopt.errors import StorageError
from tempopt.storage.damage import shorten
from tempopt.storage.optuna_calls import TEMPOPT_ATTRIBUTE
from tempopt.storage.rows import TrialParam
from tempopt.storage.trial_changes import TrialChange, TrialEnd
from tempopt.storage.upsert import insert_rows, upsert

# Head of Optuna's own migrations, in Optuna 3.2 to 5.0 (optuna/storages/_rdb/alembic/versions).
SCHEMA = "v3.2.0.a"
TICKET = "tempopt:ticket"
"""User attribute of a trial: the id of the ticket that owns it."""
RECOMMENDATION = "tempopt:recommendation"
"""User attribute of a study: the recommendation of the verdict."""

# Maximal number of ids in one statement, which has to be answered within the timeout.
MAX_IDS = 500

_OPTUNA = MetaData()
_VERSION = Table("alembic_version", _OPTUNA, Column("version_num", String(32)))
STUDIES = Table(
    "studies", _OPTUNA, Column("study_id", Integer, primary_key=True), Column("study_name", String(512))
)
_TRIALS = Table(
    "trials",
    _OPTUNA,
    Column("trial_id", Integer, primary_key=True),
    Column("number", Integer),
    Column("study_id", Integer),
    Column("state", Enum("RUNNING", "COMPLETE", "PRUNED", "FAIL", "WAITING", name="trialstate")),
    Column("datetime_start", DateTime),
    Column("datetime_complete", DateTime),
)
_PARAMS = Table(
    "trial_params",
    _OPTUNA,
    Column("trial_id", Integer),
    Column("param_name", String(512)),
    Column("param_value", Double),
    Column("distribution_json", Text),
)


def _build_attributes_table(name: str, owner: str) -> Table:
    columns = (Column(owner, Integer), Column("key", String(512)), Column("value_json", Text))
    return Table(name, _OPTUNA, *columns)


_ATTRIBUTES = _build_attributes_table("trial_user_attributes", "trial_id")
_SYSTEM_ATTRIBUTES = _build_attributes_table("trial_system_attributes", "trial_id")
_STUDY_ATTRIBUTES = _build_attributes_table("study_user_attributes", "study_id")
_VALUES = Table(
    "trial_values",
    _OPTUNA,
    Column("trial_id", Integer),
    Column("objective", Integer),
    Column("value", Double),
    Column("value_type", Enum("FINITE", "INF_POS", "INF_NEG", name="trialvaluetype")),
)
_INTERMEDIATE = Table(
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
# Tables with rows that are deleted with a trial or a study.
_HEARTBEATS = Table("trial_heartbeats", _OPTUNA, Column("trial_id", Integer))
_TRIAL_TABLES = [_PARAMS, _ATTRIBUTES, _SYSTEM_ATTRIBUTES, _VALUES, _INTERMEDIATE, _HEARTBEATS]
_STUDY_TABLES = [_STUDY_ATTRIBUTES]
_STUDY_TABLES += [
    Table(name, _OPTUNA, Column("study_id", Integer))
    for name in ("study_directions", "study_system_attributes")
]

_COLLATION = text(
    "SELECT character_set_name AS charset, collation_name AS collation FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = 'trial_params' AND column_name = 'param_name'"
)
_LOGGER = logging.getLogger("tempopt")
_IS_SUPPORTED: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()


def is_supported_schema(connection: Connection) -> bool:
    """Return whether Optuna's tables have the supported version; looked up once per engine."""
    engine = connection.engine
    if engine not in _IS_SUPPORTED:
        version = _read_version(connection)
        if version is None:
            return False
        _IS_SUPPORTED[engine] = version == SCHEMA
        if version != SCHEMA:
            _LOGGER.warning(
                "Optuna's view of this database is not kept up to date: its tables are of version %s, and "
                "this tempopt writes %s. The study itself continues and is complete; tempopt show and "
                "tempopt report show it.",
                shorten(version),
                SCHEMA,
            )
    return _IS_SUPPORTED[engine]


def find_study(connection: Connection, name: str, *, lock: bool = False) -> int | None:
    """Return the key of Optuna's study of exactly that name, None if there is none."""
    query = select(STUDIES.c.study_id, STUDIES.c.study_name).where(STUDIES.c.study_name == name)
    rows = connection.execute(query.with_for_update() if lock else query).all()
    # MySQL's default collations treat names that differ in case or accents as equal
    return next((row.study_id for row in rows if row.study_name == name), None)


def find_colliding_param_names(connection: Connection, names: Sequence[str]) -> tuple[str, str] | None:
    """Return two parameter names that are equal in Optuna's tables, None if there are none."""
    if connection.dialect.name != "mysql" or not inspect(connection).has_table(_PARAMS.name):
        return None
    column = connection.execute(_COLLATION).one()
    # names with the same sort key are equal in the table
    key = f"HEX(WEIGHT_STRING(CONVERT(:n{{}} USING {column.charset}) COLLATE {column.collation}))"
    query = text("SELECT " + ", ".join(key.format(number) for number in range(len(names))))
    keys = connection.execute(query, {f"n{number}": name for number, name in enumerate(names)}).one()
    name_by_sort_key: dict[str, str] = {}
    for name, sort_key in zip(names, keys, strict=True):
        if (other_name := name_by_sort_key.setdefault(sort_key, name)) != name:
            return other_name, name
    return None


def begin_trials(
    connection: Connection, study_name: str, params_by_ticket: Mapping[int, Sequence[TrialParam]]
) -> dict[int, tuple[int, int]]:
    """Write running trials into tables of the supported version, and return key and number by ticket.

    Args:
        params_by_ticket: Ticket id to the parameters of its trial, in the order of the trials' numbers.

    Raises:
        StorageError: Optuna has no study of that name.
    """
    # Locked, as in Optuna: the number is counted and then written.
    study_id = find_study(connection, study_name, lock=True)
    if study_id is None:
        raise StorageError(
            f'Optuna\'s study "{study_name}" has been deleted from the database. The results of tempopt are '
            f"still there: tempopt show {study_name}. To continue, run: tempopt resume {study_name}, which "
            "creates Optuna's study again; or begin a study of another name."
        )
    first_number = connection.scalar(select(func.count()).where(_TRIALS.c.study_id == study_id)) or 0
    trial = {"study_id": study_id, "state": "RUNNING", "datetime_start": _now()}
    tickets = dict(enumerate(params_by_ticket, first_number))
    insert_rows(connection, _TRIALS, [{**trial, "number": number} for number in tickets])
    newest = select(_TRIALS.c.trial_id, _TRIALS.c.number).where(_TRIALS.c.study_id == study_id)
    newest = newest.order_by(_TRIALS.c.trial_id.desc()).limit(len(tickets))
    trials = {tickets[row.number]: (row.trial_id, row.number) for row in connection.execute(newest)}
    rows = [
        {
            "trial_id": trials[ticket_id][0],
            "param_name": param.name,
            "param_value": param.value,
            "distribution_json": param.distribution,
        }
        for ticket_id, params in params_by_ticket.items()
        for param in params
    ]
    insert_rows(connection, _PARAMS, rows)
    marks = [
        {"trial_id": trial_id, "key": TICKET, "value_json": json.dumps(ticket_id)}
        for ticket_id, (trial_id, _) in trials.items()
    ]
    insert_rows(connection, _ATTRIBUTES, marks)
    return trials


def write_trials(connection: Connection, changes: Mapping[int, TrialChange]) -> None:
    """Write changes of running trials; deleted or closed trials are skipped.

    Args:
        changes: Change by key of the trial.
    """
    if not changes or not is_supported_schema(connection):
        return
    running = connection.scalars(
        select(_TRIALS.c.trial_id)
        .where(_TRIALS.c.trial_id.in_(sorted(changes)), _TRIALS.c.state == "RUNNING")
        .order_by(_TRIALS.c.trial_id)
        .with_for_update()
    ).all()
    running_changes = {trial_id: changes[trial_id] for trial_id in running}
    for trial_id, change in running_changes.items():
        if change.last_step is not None:
            _delete_reports_after(connection, trial_id, change.last_step)
    upsert(
        connection,
        _INTERMEDIATE,
        [
            {"trial_id": trial_id, "step": step, **_build_value_columns(value)}
            for trial_id, change in running_changes.items()
            for step, value in change.values.items()
        ],
        key=("trial_id", "step"),
        replace=("intermediate_value", "intermediate_value_type"),
    )
    _end_trials(
        connection,
        {trial_id: change.end for trial_id, change in running_changes.items() if change.end is not None},
    )


def reopen_trials(connection: Connection, trial_ids: Collection[int]) -> None:
    """Set failed trials to running again."""
    if not trial_ids or not is_supported_schema(connection):
        return
    failed = and_(_TRIALS.c.trial_id.in_(sorted(trial_ids)), _TRIALS.c.state == "FAIL")
    ids = connection.scalars(select(_TRIALS.c.trial_id).where(failed).with_for_update()).all()
    condition = _TRIALS.c.trial_id.in_(ids)
    connection.execute(update(_TRIALS).where(condition).values(state="RUNNING", datetime_complete=None))
    error = and_(_ATTRIBUTES.c.trial_id.in_(ids), _ATTRIBUTES.c.key == "error")
    connection.execute(delete(_ATTRIBUTES).where(error))


def set_recommendation(connection: Connection, name: str, recommendation: Mapping[str, Any]) -> None:
    """Write the recommendation of a study into the attributes of its Optuna study, if that exists."""
    if is_supported_schema(connection) and (study_id := find_study(connection, name, lock=True)) is not None:
        row = {"study_id": study_id, "key": RECOMMENDATION, "value_json": json.dumps(dict(recommendation))}
        upsert(connection, _STUDY_ATTRIBUTES, [row], key=("study_id", "key"), replace=("value_json",))


def delete_study(connection: Connection, name: str, trial_ids: Iterable[int] | None) -> None:
    """Delete Optuna's study of a name with all its rows, unless another program created it.

    Args:
        trial_ids: Keys of the trials of tickets. A study that has other trials, and no attribute of tempopt,
            is not deleted. None: a study that has trials is not deleted.
    """
    if not is_supported_schema(connection):
        return
    study_id = find_study(connection, name, lock=True)
    if study_id is None:
        return
    trials = connection.scalars(select(_TRIALS.c.trial_id).where(_TRIALS.c.study_id == study_id)).all()
    is_marked = exists().where(
        and_(_STUDY_ATTRIBUTES.c.study_id == study_id, _STUDY_ATTRIBUTES.c.key == TEMPOPT_ATTRIBUTE)
    )
    if trial_ids is None and trials:
        return
    if not set(trials) <= frozenset(trial_ids or ()) and not connection.scalar(select(is_marked)):
        return
    for start in range(0, len(trials), MAX_IDS):
        batch = trials[start : start + MAX_IDS]
        for table in _TRIAL_TABLES:
            connection.execute(delete(table).where(table.c.trial_id.in_(batch)))
        connection.execute(delete(_TRIALS).where(_TRIALS.c.trial_id.in_(batch)))
    for table in (*_STUDY_TABLES, STUDIES):
        connection.execute(delete(table).where(table.c.study_id == study_id))


def _read_version(connection: Connection) -> str | None:
    """Return the version of Optuna's tables, None if the tables do not exist."""
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return ", ".join(connection.scalars(select(_VERSION.c.version_num)))


def _end_trials(connection: Connection, ends: Mapping[int, TrialEnd]) -> None:
    values = [
        {"trial_id": trial_id, "objective": 0, "value": end.value, "value_type": "FINITE"}
        for trial_id, end in ends.items()
        if end.value is not None
    ]
    upsert(connection, _VALUES, values, key=("trial_id", "objective"), replace=("value", "value_type"))
    for table, attributes_by_trial in (
        (_ATTRIBUTES, {trial_id: end.attributes() for trial_id, end in ends.items()}),
        (_SYSTEM_ATTRIBUTES, {trial_id: end.constraint_attributes() for trial_id, end in ends.items()}),
    ):
        rows = [
            {"trial_id": trial_id, "key": key, "value_json": json.dumps(value)}
            for trial_id, attributes in attributes_by_trial.items()
            for key, value in attributes.items()
        ]
        upsert(connection, table, rows, key=("trial_id", "key"), replace=("value_json",))
    # The state last: a reader expects all values of a trial that has ended.
    for state in sorted({end.state for end in ends.values()}):
        trial_ids = [trial_id for trial_id, end in ends.items() if end.state == state]
        connection.execute(
            update(_TRIALS)
            .where(_TRIALS.c.trial_id.in_(trial_ids))
            .values(state=state, datetime_complete=_now())
        )


def _delete_reports_after(connection: Connection, trial_id: int, step: int) -> None:
    connection.execute(
        delete(_INTERMEDIATE).where(_INTERMEDIATE.c.trial_id == trial_id, _INTERMEDIATE.c.step > step)
    )


def _now() -> datetime:
    """Return the current time as Optuna stores it: naive, in UTC."""
    return datetime.now(UTC).replace(tzinfo=None)


def _build_value_columns(value: float) -> dict[str, float | str | None]:
    """Return the two columns of a value; the second has its type, since MySQL stores only finite numbers."""
    if math.isnan(value):
        kind = "NAN"
    elif math.isinf(value):
        kind = "INF_POS" if value > 0 else "INF_NEG"
    else:
        kind = "FINITE"
    return {"intermediate_value": value if kind == "FINITE" else None, "intermediate_value_type": kind}
