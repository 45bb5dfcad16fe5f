"""What runs took of cards, whether they need one to themselves, and the jobs that launchers have started."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_OPTIONS: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_default_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
}
_TEXT = sa.Text().with_variant(mysql.LONGTEXT(), "mysql")
_MOMENT = sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql")


def upgrade() -> None:
    """Add what is missing; what is there is left alone, since a MySQL that was killed keeps the first few."""
    _add("tempopt_ticket", sa.Column("alone", sa.Boolean, nullable=False, server_default=sa.false()))
    _add("tempopt_ticket", sa.Column("gpu_seconds", sa.Double, nullable=False, server_default=sa.text("0")))
    _add("tempopt_ticket", sa.Column("peak_memory", sa.BigInteger))
    if not sa.inspect(op.get_bind()).has_table("tempopt_job"):
        _create_job()
    if not sa.inspect(op.get_bind()).get_indexes("tempopt_job"):
        op.create_index("tempopt_job_study", "tempopt_job", ["study"])


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def _create_job() -> None:
    op.create_table(
        "tempopt_job",
        sa.Column("number", sa.Integer, primary_key=True, comment="in the order in which they were started"),
        sa.Column("study", sa.String(255), nullable=False),
        sa.Column("launcher", sa.String(255), nullable=False),
        sa.Column("id", sa.String(255), nullable=False),
        sa.Column("options", _TEXT, nullable=False),
        sa.Column("created", _MOMENT, nullable=False),
        sqlite_autoincrement=True,
        **_OPTIONS,
    )


def downgrade() -> None:
    """Drop what was added."""
    op.drop_table("tempopt_job")
    for name in ("alone", "gpu_seconds", "peak_memory"):
        op.drop_column("tempopt_ticket", name)
