"""What runs began from: the other run whose checkpoint it was, and the step that it was of."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_ADDED: dict[str, Any] = {"forked_from": sa.Integer, "forked_at": sa.BigInteger}


def upgrade() -> None:
    """Add what is missing; what is there is left alone, since a MySQL that was killed keeps the first."""
    for name, kind in _ADDED.items():
        _add("tempopt_ticket", sa.Column(name, kind()))


def _add(table: str, column: sa.Column[Any]) -> None:
    if column.name not in {there["name"] for there in sa.inspect(op.get_bind()).get_columns(table)}:
        op.add_column(table, column)


def downgrade() -> None:
    """Drop what was added."""
    for name in _ADDED:
        op.drop_column("tempopt_ticket", name)
