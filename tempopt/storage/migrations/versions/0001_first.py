"""The tables of the first release: studies, tickets, measurements, logs, jobs and access."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

# Written out, not taken from the models: a migration says what was done then, the models what is now.
_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
_ZERO = sa.text("0")
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
_MOMENT = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


def upgrade() -> None:
    """Create the tables."""
    _create_study()
    _create_ticket()
    _create_measurement()
    _create_log()
    _create_attention_map()
    _create_job()
    _create_token()
    _create_audit()
    _create_session()


def _create_study() -> None:
    op.create_table(
        "tempopt_study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("spec", _TEXT, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Column("version", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("checkpoints", _TEXT),
        sa.Column("warm_start", _TEXT),
        sa.Column("owner", sa.String(255), nullable=False, server_default=""),
        sa.Column("priority", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("parallel", sa.Integer, nullable=False, server_default=sa.text("1")),
        sa.UniqueConstraint("name", name="tempopt_study_name"),
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def _create_ticket() -> None:
    op.create_table(
        "tempopt_ticket",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Integer, nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("stage", sa.Integer, nullable=False, comment="place of the kind in the order of work"),
        sa.Column("arm", sa.String(255), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("candidate", sa.Integer),
        sa.Column("pair", sa.Integer),
        sa.Column("seed", sa.BigInteger, nullable=False),
        sa.Column("parameters", _TEXT),
        sa.Column("trial_number", sa.Integer),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("outcome", sa.String(16)),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("failures", sa.Integer, nullable=False),
        sa.Column("value", sa.Double),
        sa.Column("diverged_at", sa.BigInteger),
        sa.Column("error", _TEXT),
        sa.Column("agent", sa.String(255)),
        sa.Column("seconds", sa.Double, nullable=False),
        sa.Column("steps", sa.BigInteger),
        sa.Column("total_steps", sa.BigInteger),
        sa.Column("code", _TEXT),
        sa.Column("started", _MOMENT),
        sa.Column("finished", _MOMENT),
        sa.Column("trial_id", sa.Integer, comment="key of the trial in Optuna's table"),
        sa.Column("round", sa.Integer, nullable=False, server_default=_ZERO),
        sa.Column("sampled", _TEXT),
        sa.Column("lease", sa.Double, comment="end, in epoch seconds of the database's clock"),
        sa.Column("checkpoints", _TEXT),
        sa.Column("checkpoint_seconds", sa.Double, nullable=False, server_default=_ZERO),
        sa.Column("alone", sa.Boolean, nullable=False, server_default=sa.false()),
        sa.Column("gpu_seconds", sa.Double, nullable=False, server_default=_ZERO),
        sa.Column("peak_memory", sa.BigInteger),
        sa.Column("machine", sa.String(255)),
        sa.Column("device", sa.String(255)),
        sa.ForeignKeyConstraint(["study_id"], ["tempopt_study.id"], name="tempopt_ticket_study"),
        sa.UniqueConstraint("study_id", "kind", "number", name="tempopt_ticket_number"),
        sa.Index("tempopt_ticket_next", "study_id", "state", "stage", "number"),
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def _create_measurement() -> None:
    op.create_table(
        "tempopt_measurement",
        sa.Column("ticket_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(255), primary_key=True),
        sa.Column("step", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("value", sa.Double, comment="null: measured, and not a finite number"),
        sa.ForeignKeyConstraint(["ticket_id"], ["tempopt_ticket.id"], name="tempopt_measurement_ticket"),
        **_OPTIONS,
    )


def _create_log() -> None:
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


def _create_attention_map() -> None:
    op.create_table(
        "tempopt_attention_map",
        sa.Column("ticket_id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("maps", _TEXT, nullable=False),
        sa.ForeignKeyConstraint(["ticket_id"], ["tempopt_ticket.id"], name="tempopt_map_ticket"),
        **_OPTIONS,
    )


def _create_job() -> None:
    op.create_table(
        "tempopt_job",
        sa.Column("number", sa.Integer, primary_key=True, comment="in the order in which they were started"),
        sa.Column("study", sa.String(255), nullable=False),
        sa.Column("launcher", sa.String(255), nullable=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("options", _TEXT, nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Index("tempopt_job_study", "study"),
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def _create_token() -> None:
    op.create_table(
        "tempopt_token",
        sa.Column("id", sa.String(255), primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("digest", sa.String(255), nullable=False, comment="SHA-256 of the token"),
        sa.Column("scopes", _TEXT, nullable=False),
        sa.Column("studies", sa.String(255), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Column("expires", _MOMENT),
        sa.Column("used", _MOMENT),
        sa.Column("revoked", _MOMENT),
        sa.Column("created_by", sa.String(255), nullable=False),
        sa.Column("user", sa.String(255), nullable=False, server_default=""),
        **_OPTIONS,
    )


def _create_audit() -> None:
    op.create_table(
        "tempopt_audit",
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("moment", _MOMENT, nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("token", sa.String(255), nullable=False),
        sa.Column("address", sa.String(255), nullable=False),
        sa.Column("action", sa.String(255), nullable=False),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("study", sa.String(255), nullable=False),
        sa.Column("detail", sa.String(255), nullable=False),
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def _create_session() -> None:
    op.create_table(
        "tempopt_session",
        sa.Column("digest", sa.String(64), primary_key=True, comment="SHA-256 of what the browser holds"),
        sa.Column("token", sa.String(255), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sa.Column("expires", _MOMENT, nullable=False),
        sa.Index("tempopt_session_token", "token"),
        **_OPTIONS,
    )


def downgrade() -> None:
    """Drop the tables."""
    op.drop_table("tempopt_session")
    for table in ("tempopt_audit", "tempopt_token"):
        op.drop_table(table)
    hanging = ("tempopt_job", "tempopt_attention_map", "tempopt_log", "tempopt_measurement")
    for table in (*hanging, "tempopt_ticket", "tempopt_study"):
        op.drop_table(table)
