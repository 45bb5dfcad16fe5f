"""Studies, tickets and measurements."""

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
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
_MOMENT = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


def upgrade() -> None:
    """Create the three tables."""
    _create_study()
    _create_ticket()
    _create_measurement()


def _create_study() -> None:
    op.create_table(
        "tempopt_study",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("spec", _TEXT, nullable=False),
        sa.Column("spec_hash", sa.String(64), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
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
        sa.Column("arm", sa.String(16), nullable=False),
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


def downgrade() -> None:
    """Drop the three tables."""
    for table in ("tempopt_measurement", "tempopt_ticket", "tempopt_study"):
        op.drop_table(table)
