"""Leases, rounds, checkpoints, logs, and the key of each ticket's trial."""

from __future__ import annotations

import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
_MOMENT = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")
_ZERO = sa.text("0")

_TICKETS = """
    SELECT k.id, k.state, k.trial_number, s.name AS study
    FROM tempopt_ticket k JOIN tempopt_study s ON s.id = k.study_id WHERE k.kind = 'search'
"""
_OURS = "JOIN studies o ON o.study_id = t.study_id JOIN tempopt_study s ON s.name = o.study_name"
_TRIALS = f"SELECT t.trial_id, t.number, t.state, s.name AS study FROM trials t {_OURS}"
_OWNERS = f"""
    SELECT a.trial_id, a.value_json FROM trial_user_attributes a
    JOIN trials t ON t.trial_id = a.trial_id {_OURS} WHERE a.{{key}} = 'tempopt:ticket'
"""
_PARAMS = f"""
    SELECT p.trial_id, p.param_name, p.param_value, p.distribution_json FROM trial_params p
    JOIN trials t ON t.trial_id = p.trial_id {_OURS} ORDER BY p.param_id
"""


def upgrade() -> None:
    """Add what is missing and fill it from Optuna's tables, which are read and not imported."""
    _add_columns()
    _create_log()
    op.execute("UPDATE tempopt_ticket SET lease = 0 WHERE state = 'running'")
    connection = op.get_bind()
    if sa.inspect(connection).has_table("trial_params"):
        _adopt_trials(connection)


def _add_columns() -> None:
    """Add columns; those that are there are left alone, since a MySQL that was killed keeps the first few."""
    _add("tempopt_study", sa.Column("version", sa.Integer, nullable=False, server_default=_ZERO))
    _add("tempopt_study", sa.Column("checkpoints", _TEXT))
    ticket = "tempopt_ticket"
    _add(ticket, sa.Column("trial_id", sa.Integer, comment="key of the trial in Optuna's table"))
    _add(ticket, sa.Column("round", sa.Integer, nullable=False, server_default=_ZERO))
    _add(ticket, sa.Column("sampled", _TEXT))
    _add(ticket, sa.Column("lease", sa.Double, comment="end, in epoch seconds of the database's clock"))
    _add(ticket, sa.Column("checkpoints", _TEXT))
    _add(ticket, sa.Column("checkpoint_seconds", sa.Double, nullable=False, server_default=_ZERO))


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _create_log() -> None:
    if sa.inspect(op.get_bind()).has_table("tempopt_log"):
        return
    op.create_table(
        "tempopt_log",
        sa.Column("ticket_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("attempt", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("agent", sa.String(255), nullable=False),
        sa.Column("text", _TEXT, nullable=False),
        sa.Column("written", _MOMENT, nullable=False),
        sa.ForeignKeyConstraint(["ticket_id"], ["tempopt_ticket.id"], name="tempopt_log_ticket"),
        **_OPTIONS,
    )


def _adopt_trials(connection: sa.Connection) -> None:
    """Write into each search ticket which trial it owns, and what was suggested for it."""
    key = "`key`" if connection.dialect.name == "mysql" else '"key"'
    owners: dict[int, str] = {
        trial_id: owner for trial_id, owner in connection.execute(sa.text(_OWNERS.format(key=key)))
    }
    sampled: dict[int, dict[str, Any]] = {}
    for trial_id, name, value, distribution in connection.execute(sa.text(_PARAMS)):
        sampled.setdefault(trial_id, {})[name] = _external(value, json.loads(distribution))
    by_number, by_owner = {}, {}
    for each in connection.execute(sa.text(_TRIALS)):
        by_number[each.study, each.number] = each
        by_owner[owners.get(each.trial_id)] = each
    rows, left_closed = [], []
    for ticket in connection.execute(sa.text(_TICKETS)):
        # An agent that died between the trial and the ticket left a trial that only its mark tells.
        trial = by_number.get((ticket.study, ticket.trial_number)) or by_owner.get(str(ticket.id))
        if trial is None:
            continue
        values = json.dumps(sampled.get(trial.trial_id, {}))
        rows.append({"id": ticket.id, "trial": trial.trial_id, "number": trial.number, "sampled": values})
        if ticket.state in ("waiting", "running") and trial.state != "RUNNING":
            left_closed.append({"trial": trial.trial_id})
    _execute(
        connection,
        "UPDATE tempopt_ticket SET trial_id = :trial, trial_number = :number, sampled = :sampled"
        " WHERE id = :id",
        rows,
    )
    # Their agents died after they had closed the trial and before they closed the ticket: it runs on.
    ends = f"{key} IN ('diverged_at', 'error')"
    _execute(connection, "DELETE FROM trial_values WHERE trial_id = :trial", left_closed)
    _execute(connection, f"DELETE FROM trial_user_attributes WHERE trial_id = :trial AND {ends}", left_closed)
    _execute(
        connection,
        "UPDATE trials SET state = 'RUNNING', datetime_complete = NULL WHERE trial_id = :trial",
        left_closed,
    )


def _execute(connection: sa.Connection, statement: str, rows: list[dict[str, Any]]) -> None:
    if rows:
        connection.execute(sa.text(statement), rows)


def _external(value: float, distribution: dict[str, Any]) -> Any:
    """Return a value as it was suggested, from what Optuna stores of it."""
    if distribution["name"] == "CategoricalDistribution":
        return distribution["attributes"]["choices"][int(value)]
    return int(value) if distribution["name"].startswith("Int") else float(value)


def downgrade() -> None:
    """Drop what was added."""
    op.drop_table("tempopt_log")
    for name in ("version", "checkpoints"):
        op.drop_column("tempopt_study", name)
    for name in ("trial_id", "round", "sampled", "lease", "checkpoints", "checkpoint_seconds"):
        op.drop_column("tempopt_ticket", name)
