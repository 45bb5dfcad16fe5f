"""Where runs are and were trained: the machine and the device of their latest attempt."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_ADDED = ("machine", "device")


def upgrade() -> None:
    """Add what is missing; what is there is left alone, since a MySQL that was killed keeps the first."""
    for name in _ADDED:
        _add("tempopt_ticket", sa.Column(name, sa.String(255)))


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def downgrade() -> None:
    """Drop what was added."""
    for name in _ADDED:
        op.drop_column("tempopt_ticket", name)
